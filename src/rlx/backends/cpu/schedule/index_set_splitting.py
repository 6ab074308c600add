"""Index-set splitting: loops are split at the boundaries of pads and concats, so that guards are
decided per piece, and no lane tests them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.backends.cpu.schedule.loop_schedule import Schedule
from rlx.core.dim import DimLike, evaluate, provably_le, symbols_of
from rlx.core.representative import representative
from rlx.kernel.expr import Axis, Inside, Kernel

MAX_PIECES = 64
"""Code is emitted once for each piece of all loops; beyond this many, lanes test instead."""
MAX_ALONE = 4096
"""The limit if only one axis is split: a concat of many parts."""

Cut = tuple[DimLike, DimLike]
"""A boundary of an axis: the first less the second."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an axis, and the guards decided in it."""

    low: Cut
    high: Cut
    decided: dict[Inside, bool] = field(default_factory=dict[Inside, bool])


class Cuts:
    """The pieces of every axis."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self._pieces: dict[Axis, list[Piece]] = {}
        budget = MAX_PIECES
        axes = dict.fromkeys((*reversed(schedule.order), *kernel.reduced))
        for axis in axes:
            guards = [n for n in kernel.nodes if isinstance(n, Inside) and _is_of(n, axis)]
            pieces = _pieces(axis, guards)
            is_alone = all(len(p) <= 1 for p in self._pieces.values())
            if len(pieces) > (MAX_ALONE if is_alone else budget):
                pieces = [Piece((0, 0), (axis.extent, 0))]
            budget //= max(1, len(pieces))
            self._pieces[axis] = pieces

    def pieces(self, axis: Axis) -> Sequence[Piece]:
        return self._pieces[axis]


def _is_of(guard: Inside, axis: Axis) -> bool:
    """Is the position the axis plus a constant?"""
    return guard.at.terms == ((axis, 1),)


def _pieces(axis: Axis, guards: list[Inside]) -> list[Piece]:
    ends: list[Cut] = [(0, 0), (axis.extent, 0)]
    inner = [(d, g.at.offset) for g in guards for d in (g.low, g.high)]
    ranks = _ranked(ends, inner)
    if ranks is None:
        return [Piece(ends[0], ends[1])]
    held = [(g, *(ranks.of((d, g.at.offset)) for d in (g.low, g.high))) for g in guards]
    return [
        Piece(low, high, {g: first <= i and i + 1 <= last for g, first, last in held})
        for i, (low, high) in enumerate(itertools.pairwise(ranks.order))
    ]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Boundaries in order, from the beginning of an axis to its end, and the rank of each value;
    those past an end are clamped to it."""

    order: list[Cut]
    index: dict[DimLike, int]

    def of(self, cut: Cut) -> int:
        return self.index[_value(cut)]


def _ranked(ends: list[Cut], inner: list[Cut]) -> _Ranks | None:
    """None where the order is not provable for all sizes. They are sorted by their values at one
    size, and each is then proved to be no less than the one before: one proof for each, and not one
    for each pair."""
    unique = {_value(c): c for c in inner}
    before = {v for v in unique if provably_le(v, 0)}
    after = {v for v in unique if v not in before and provably_le(_value(ends[1]), v)}
    inside = [v for v in unique if v not in before and v not in after]
    typical = representative(symbols_of([*inside]))
    values = sorted(inside, key=lambda v: evaluate(v, typical))
    order = [_value(ends[0]), *values, _value(ends[1])]
    if not all(provably_le(a, b) for a, b in itertools.pairwise(order)):
        return None
    index = {v: i for i, v in enumerate(order)}
    index |= dict.fromkeys(before, 0) | dict.fromkeys(after, len(order) - 1)
    return _Ranks([ends[0], *(unique[v] for v in values), ends[1]], index)


def _value(cut: Cut) -> DimLike:
    return cut[0] - cut[1]
