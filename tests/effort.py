"""How much the tests try: a sample in `make test`, all of it in `make test-thorough`.

A sample has every kind of case; what is left out are more cases of a kind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
IS_THOROUGH = os.environ.get("RLX_THOROUGH") == "1"


def tries(few: int, many: int) -> int:
    """How many cases of a kind."""
    return many if IS_THOROUGH else few


def sample(given: Sequence[T], step: int, first: int = 0) -> Sequence[T]:
    """Each `step`-th of them."""
    return given if IS_THOROUGH else given[first::step]
