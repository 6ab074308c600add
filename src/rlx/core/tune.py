"""How schedules are searched by timing them, where a target's device can."""

from __future__ import annotations

from typing import Literal

Tune = Literal["off", "bitwise", "full"]
"""Not at all, among those that give the same bits, or among all."""
