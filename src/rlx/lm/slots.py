"""Slots: sequences whose cached keys and values a decoder holds, and what one step does to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlx.ops.op import Array


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that a step appends to a slot, and those of them whose logits are asked for: none, or
    the last ones."""

    slot: int
    tokens: Sequence[int]
    rows: Sequence[int]


class Slots(Protocol):
    """The sequences of a batch, each with its own length and KV cache. The logits of one slot do
    not depend on the others."""

    @property
    def count(self) -> int:
        """How many slots there are."""
        ...

    def length(self, slot: int) -> int:
        """How many tokens a slot holds. A step adds to it once they are computed, so that it holds
        wherever a step, a cut or a copy has failed or was interrupted."""
        ...

    def step(self, parts: Sequence[Part]) -> list[Array]:
        """Logits f32[rows, vocabulary] of each part; all slots are different ones."""
        ...

    def keeps(self, slot: int, length: int) -> int:
        """How many tokens are left if a slot is cut back to `length`: all of them, or none where
        caches of sliding windows have forgotten what is before them."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget what is behind the first `length` tokens, which the slot keeps."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Let a slot hold the first `length` tokens of another, which keeps them."""
        ...
