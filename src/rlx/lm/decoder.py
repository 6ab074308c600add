"""Compiled decoders and the cached keys and values of their slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.frontends.gguf.architecture import Architecture
from rlx.frontends.gguf.caches import SHIFT, WINDOW, WINDOW_MARGIN
from rlx.lm.slots import Part
from rlx.ops.op import Array

LOGITS = "logits"
"""The output that is asked for at the end of some steps."""
MAX_ROWS = 16
"""Tokens of a part whose logits are asked for, up to which each is a row of its own."""


class SessionDecoder:
    """Slots of a session: a step writes keys and values into its caches, and copies none.

    A token has the same bits in any batch, and in a chunk of any length: logits depend neither on
    other slots, nor on what was cached, nor on guesses. Of several parts, tokens whose logits are
    asked for are rows of one token, in one call that reads weights once for all of them, and what
    is before them is a chunk.

    Caches of layers with a sliding window may be shorter than the context: their rows are shifted
    to the beginning before they are full, and what was there is forgotten. A slot can then be cut
    back by some tokens, or to none.
    """

    def __init__(self, executable: Any, slots: int = 1, window: int = 0) -> None:
        """`window` is the greatest of those that layers have."""
        self.executable, self.window = executable, window
        self.session = executable.session(slots=slots)
        self._lengths, self._forgotten = [0] * slots, [0] * slots
        shapes = {n: s.static_dims for n, s in self.session.states.items()}
        self._short = [n for n in shapes if n.startswith(WINDOW)]
        self._long = [n for n in shapes if not n.startswith(WINDOW)]
        self._room = min((shapes[n][1] for n in self._short), default=0)
        self._vocabulary = executable.outputs[LOGITS].dims[-1]

    def fresh(self, slots: int) -> SessionDecoder:
        """Another one of the same program, with slots of its own."""
        return SessionDecoder(self.executable, slots, self.window)

    @property
    def count(self) -> int:
        return len(self._lengths)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def step(self, parts: Sequence[Part]) -> list[Array]:
        if len(parts) == 1:
            return [self._alone(parts[0])]
        tails = [len(p.rows) if len(p.rows) <= MAX_ROWS else 0 for p in parts]
        chunks: dict[int, list[int]] = {}
        for number, (part, tail) in enumerate(zip(parts, tails)):
            chunks.setdefault(len(part.tokens) - tail, []).append(number)
        chunks.pop(0, None)
        whole: dict[int, Array] = {}
        for length, numbers in chunks.items():
            found = self._chunked([parts[n] for n in numbers], length)
            whole |= {n: f for n, f in zip(numbers, found) if len(parts[n].rows) > MAX_ROWS}
        return [whole.get(n, rows) for n, rows in enumerate(self._rows(parts, tails))]

    def _alone(self, part: Part) -> Array:
        return self._called([part.tokens], part.rows, [part.slot])[0]

    def _chunked(self, parts: Sequence[Part], length: int) -> Array:
        """Several tokens of each slot in one call: all logits, where they are asked for."""
        rows = range(length) if any(len(p.rows) > MAX_ROWS for p in parts) else []
        return self._called([p.tokens[:length] for p in parts], rows, [p.slot for p in parts])

    def _rows(self, parts: Sequence[Part], tails: Sequence[int]) -> list[Array]:
        """The last tokens of each part, as rows of one call."""
        tokens = [[t] for p, n in zip(parts, tails) for t in p.tokens[len(p.tokens) - n :]]
        slots = [p.slot for p, n in zip(parts, tails) for _ in range(n)]
        logits = self._called(tokens, [0], slots)[:, 0] if tokens else np.zeros((0, 0), np.float32)
        ends = np.cumsum([0, *tails])
        return [logits[a:b] for a, b in itertools.pairwise(ends)]

    def _called(
        self, tokens: Sequence[Sequence[int]], rows: Sequence[int], slots: Sequence[int]
    ) -> Array:
        """One call, or a step where nobody reads logits: the head, and what else only they need, is
        not computed. Rows of the same slot follow one another. Lengths are those before it until it
        is done: what it has written behind them, if it fails, is written again."""
        given = self.inputs(tokens, rows or [0], slots)
        if rows:
            made = self.session(*given)
        else:
            self.session.step(*given)
            made = np.zeros((len(slots), 0, self._vocabulary), np.float32)
        for slot, row in zip(slots, tokens):
            self._lengths[slot] += len(row)
        return made

    def inputs(
        self, tokens: Sequence[Sequence[int]], rows: Sequence[int], slots: Sequence[int]
    ) -> list[Array]:
        """What a call is given that appends tokens to slots."""
        new = dict.fromkeys(slots, 0)
        positions: list[int] = []
        for slot, row in zip(slots, tokens):
            positions.append(self._lengths[slot] + new[slot])
            new[slot] += len(row)
        for slot, count in new.items():
            self._make_room(slot, count)
        behind = [p - self._forgotten[s] for p, s in zip(positions, slots)]
        given = [np.array(x, np.int32) for x in (slots, positions, *([behind] * bool(self._short)))]
        return [np.array(tokens, np.int64), np.array(rows, np.int64), *given]

    def _make_room(self, slot: int, count: int) -> None:
        """Shift what windows still see to the beginning of their caches, where they are full. Of a
        slot that is half shifted nothing is kept."""
        length = self._lengths[slot]
        if not length:
            self._forgotten[slot] = 0
        held = length - self._forgotten[slot]
        if not self._short or held + count <= self._room:
            return
        first = (held - self.window - WINDOW_MARGIN) // SHIFT * SHIFT
        self._lengths[slot] = 0
        self.session.shift_rows(slot, first, held - first, self._short)
        self._forgotten[slot] += first
        self._lengths[slot] = length

    def keeps(self, slot: int, length: int) -> int:
        forgotten, length = self._forgotten[slot], min(self._lengths[slot], length)
        return length if not forgotten or length - self.window >= forgotten else 0

    def truncate(self, slot: int, length: int) -> None:
        self._lengths[slot] = self.keeps(slot, length)

    def copy(self, source: int, target: int, length: int) -> None:
        count = self.keeps(source, length)
        forgotten = self._forgotten[source] if count else 0
        if source != target:
            self._lengths[target] = 0
            self.session.copy_rows(source, target, count, self._long)
            self.session.copy_rows(source, target, count - forgotten, self._short)
        self._forgotten[target] = forgotten
        self._lengths[target] = count


class ArgumentDecoder:
    """Slots of a program that takes caches and gives longer ones, for targets without sessions.
    Caches are never written to, so that slots may share them."""

    def __init__(self, executable: Any, architecture: Architecture, slots: int = 1) -> None:
        self.executable = executable
        empty = np.zeros((1, 0, architecture.kv_heads * architecture.head_dim), np.float32)
        self._caches: list[list[Array]] = [[empty] * (2 * architecture.layers)] * slots

    @property
    def count(self) -> int:
        return len(self._caches)

    def length(self, slot: int) -> int:
        return self._caches[slot][0].shape[1]

    def step(self, parts: Sequence[Part]) -> list[Array]:
        return [self._step(part) for part in parts]

    def _step(self, part: Part) -> Array:
        rows = np.array(part.rows or [0])  # a program computes at least one row
        caches = self._caches[part.slot]
        logits, *longer = self.executable(np.array([part.tokens]), rows, *caches)
        self._caches[part.slot] = longer
        return logits[0][: len(part.rows)]

    def keeps(self, slot: int, length: int) -> int:
        return min(length, self._caches[slot][0].shape[1])

    def truncate(self, slot: int, length: int) -> None:
        self.copy(slot, slot, length)

    def copy(self, source: int, target: int, length: int) -> None:
        found = self._caches[source]
        if length < found[0].shape[1]:
            found = [np.ascontiguousarray(c[:, :length]) for c in found]
        self._caches[target] = found


Decoder = SessionDecoder | ArgumentDecoder
