"""Rotary embeddings of queries and new keys, in shared memory, where their tiles have arrived.

    (a, b) becomes (a · cos - b · sin, b · cos + a · sin)     elements d and d + pairs of a row

Angles are requested while the tiles are still on their way, where rows are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.lower.attention.frame import Frame, Panel
from rlx.program.values import SharedRef, Var

MAX_HELD = 4
"""Pairs whose angles a thread holds."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """What a thread turns: a pair of a row, where it is one, and its cosine and sine."""

    row: Var
    pair: Var
    is_inside: Var
    angle: Sequence[Var]


class TurnedRows:
    """Rows of a block, as many as `count`, which its threads turn together."""

    def __init__(
        self,
        frame: Frame,
        threads: int,
        count: Var,
        most: int | None,
        position: Callable[[Var], Var],
    ) -> None:
        """`position` is that of a row's angles."""
        assert frame.form.rotary is not None
        self.frame, self.b, self.threads = frame, frame.b, threads
        self.rotary, self.count, self.position = frame.form.rotary, count, position
        steps = MAX_HELD + 1 if most is None else -(-most * self.rotary.pairs // threads)
        numbers = [self.b.thread + s * threads for s in range(steps)]
        self.held = [self._pair(n) for n in numbers] if steps <= MAX_HELD else []

    def _pair(self, number: Var) -> _Pair:
        row, pair = number // self.rotary.pairs, number % self.rotary.pairs
        is_inside = number < self.count * self.rotary.pairs
        return _Pair(row, pair, is_inside, self._angle(self.position(row), pair, is_inside))

    def _angle(self, position: Var, pair: Var, is_inside: Var) -> list[Var]:
        frame, found = self.frame, list[Var]()
        for buffer, layout in zip(frame.angles, (self.rotary.cos, self.rotary.sin)):
            across, along, step = layout.strides
            at = frame.number(layout.offset, frame.index) + frame.times(frame.batch, across)
            at = at + frame.times(position, along) + frame.times(pair, step)
            found.append(frame.b.load(buffer, at, 1, is_inside)[0])
        return found

    def turn(
        self,
        memory: SharedRef,
        base: Var | int,
        panels: tuple[Panel, ...],
        place: Callable[[Var], tuple[Var, Var | None]],
    ) -> None:
        """Each row where its place is, in the tile from `base` on, if it is there. All threads see
        what was copied; what this writes they see behind a barrier."""
        if self.held:
            for each in self.held:
                self._turn(each, memory, base, panels, place)
            return
        end = self.count * self.rotary.pairs
        with self.b.loop(self.b.thread, end, self.threads) as number:
            self._turn(self._pair(number), memory, base, panels, place)

    def _turn(
        self,
        each: _Pair,
        memory: SharedRef,
        base: Var | int,
        panels: tuple[Panel, ...],
        place: Callable[[Var], tuple[Var, Var | None]],
    ) -> None:
        sums = self.frame.form.sums
        row, is_there = place(each.row)
        with self.b.when(each.is_inside if is_there is None else each.is_inside & is_there):
            cos, sin = (v.to(sums) for v in each.angle)
            columns = (each.pair, each.pair + self.rotary.pairs)
            places = [_place(panels, row, c) + base for c in columns]
            a, b = (memory.load(p)[0].to(sums) for p in places)
            for at, value in zip(places, (a * cos - b * sin, b * cos + a * sin)):
                memory.store(at, [value.to(self.frame.form.dtype).to(memory.dtype)])


def _place(panels: tuple[Panel, ...], row: Var, column: Var) -> Var:
    """Of an element, in whichever panel it is."""
    first, *others = (row * p.pitch + column + (p.offset - p.first) for p in panels)
    for panel, here in zip(panels[1:], others):
        first = here.where(column >= panel.first, first)
    return first
