"""Prefix cache: which tokens each slot holds, who uses it, and what a new prompt can take over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlx.lm.slots import Part, Slots
from rlx.ops.op import Array

MIN_SHARED = 8
"""Tokens in common from which on a prefix is copied from another slot."""


class PrefixCache:
    """Slots with the tokens that they hold. Those of a free slot stay until it is needed. How many
    a slot holds is what the slots say: noted tokens behind that are not computed."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._tokens: list[list[int]] = [[] for _ in range(slots.count)]
        self._is_used = [False] * slots.count
        self._last_use = [0] * slots.count
        self._clock = 0

    @property
    def free(self) -> int:
        return self._is_used.count(False)

    def length(self, slot: int) -> int:
        """How many tokens a slot holds."""
        return self._slots.length(slot)

    def acquire(self, tokens: Sequence[int]) -> int:
        """A free slot for a sequence: the one that holds most of its beginning, unless another
        sequence that began alike would be lost with it; then the one used longest ago."""
        free = [s for s in range(self._slots.count) if not self._is_used[s]]
        best = max(free, key=lambda s: (self.shared(s, tokens), -self._last_use[s]))
        shared = self.shared(best, tokens)
        is_kept = 2 * shared >= self.length(best) or shared == len(tokens) - 1
        slot = best if is_kept else min(free, key=lambda s: self._last_use[s])
        self._is_used[slot] = True
        self.truncate(slot, self.shared(slot, tokens))
        return slot

    def release(self, slot: int) -> None:
        self._clock += 1
        self._is_used[slot], self._last_use[slot] = False, self._clock

    def release_others(self, slots: Collection[int]) -> None:
        """Release all slots but these."""
        for slot in (s for s, is_used in enumerate(self._is_used) if is_used and s not in slots):
            self.release(slot)

    def share(self, slot: int, tokens: Sequence[int]) -> int:
        """Take over what another slot holds more of a sequence's beginning: how many tokens."""
        others = (s for s in range(self._slots.count) if s != slot)
        best = max(others, key=lambda s: self.shared(s, tokens), default=slot)
        shared = self.shared(best, tokens)
        gained = shared - self.length(slot)
        if gained < MIN_SHARED:
            return 0
        self._slots.truncate(slot, 0)
        self._tokens[slot] = self._tokens[best][:shared]
        self._slots.copy(best, slot, shared)
        return gained

    def shared(self, slot: int, tokens: Sequence[int]) -> int:
        """What a slot holds of a sequence. The last token is always computed, for its logits."""
        held = min(self.length(slot), len(tokens) - 1)
        found = min(common_prefix(self._tokens[slot], tokens), held)
        return self._slots.keeps(slot, whole_chunk(len(tokens), found))

    def step(self, parts: Sequence[Part]) -> list[Array]:
        for part in parts:
            self._tokens[part.slot][self.length(part.slot) :] = part.tokens
        return self._slots.step(parts)

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first tokens; none where the slot has forgotten what is before them."""
        if length < self.length(slot):
            self._slots.truncate(slot, length)


def whole_chunk(size: int, end: int) -> int:
    """The end of a chunk of a prompt of `size` tokens, or one token before it: what is left is the
    last token, or it and more than one. A chunk of one has other bits than a part of a longer."""
    return end - 1 if size - end == 2 and end > 0 else end


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if list(first[low:middle]) == list(second[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
