"""The architectures that PTX is printed for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the text is for."""

    name: str = "sm_90a"
    version: str = "8.3"
    """Of the PTX language."""

    @property
    def capability(self) -> int:
        """90 for sm_90a."""
        return int("".join(c for c in self.name if c.isdigit()))
