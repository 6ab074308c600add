"""Where loops are cut: at the boundaries of pads and concats, so that in each piece it is known
which side a choice takes, and no lane tests it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.dim import DimLike, provably_le
from rlx.kernel.expr import Axis, Inside, Kernel
from rlx.kernel.schedule import Schedule

MAX_PIECES = 64
"""Code is written once for each piece of all loops; beyond this many, lanes test instead."""
MAX_ALONE = 4096
"""As many if one axis alone is cut: a join of many parts."""

Cut = tuple[DimLike, DimLike]
"""A boundary of an axis: the first less the second."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an axis, and which guards hold in it."""

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
    """Is the position the axis, moved by a constant?"""
    return guard.at.terms == ((axis, 1),)


def _pieces(axis: Axis, guards: list[Inside]) -> list[Piece]:
    ends: list[Cut] = [(0, 0), (axis.extent, 0)]
    inner = [(d, g.at.offset) for g in guards for d in (g.low, g.high)]
    inside = [c for c in inner if not _le(c, ends[0]) and not _le(ends[1], c)]
    cuts = _sorted([*ends, *inside])
    if cuts is None:
        return [Piece(ends[0], ends[1])]
    return [
        Piece(low, high, {g: _holds(g, low, high) for g in guards})
        for low, high in itertools.pairwise(cuts)
    ]


def _le(a: Cut, b: Cut) -> bool:
    return provably_le(a[0] - a[1], b[0] - b[1])


def _sorted(cuts: list[Cut]) -> list[Cut] | None:
    """In order, each once; None where the order is not known for all sizes."""
    unique: dict[DimLike, Cut] = {}
    for low, offset in cuts:
        unique.setdefault(low - offset, (low, offset))
    found = list(unique.values())
    if not all(_le(a, b) or _le(b, a) for i, a in enumerate(found) for b in found[:i]):
        return None
    return sorted(found, key=functools.cmp_to_key(lambda a, b: -1 if _le(a, b) else 1))


def _holds(guard: Inside, low: Cut, high: Cut) -> bool:
    offset = guard.at.offset
    return _le((guard.low, offset), low) and _le(high, (guard.high, offset))
