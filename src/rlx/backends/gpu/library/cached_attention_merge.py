"""Chunks of keys combined: m = max mᵢ, fᵢ = exp(mᵢ - m), y = Σ fᵢ · oᵢ / Σ fᵢ · lᵢ, in the order of
the keys. A thread has a column of a query of a head."""

from __future__ import annotations

import math

from rlx.backends.gpu.library.cached_operands import Cached, Parts
from rlx.backends.gpu.library.writer import Writer
from rlx.core.dim import DimLike
from rlx.program.values import Var

UNROLLED = 8
"""Chunks whose loads are under way at once."""


def merge(w: Writer, given: Cached, parts: Parts, points: DimLike) -> None:
    """The program."""
    b, flat = w.b, w.thread
    with b.when(flat < w.dim(points)):
        dims = (*given.y.layout.dims[:2], given.heads, given.columns)
        row, query, head, column = w.split(flat, dims)
        start, fits = given.position(w, row)
        place = start + query
        low = given.first(w, place) // given.chunk
        high = (place // given.chunk + 1).where(fits, low)
        first = parts.row(w, given, (row, query, head, w.number(0)))
        y = _combined(w, given, parts, (first, low, high), column)
        where = [row, query, head * given.columns + column]
        w.store(given.y, w.at(given.y.layout, where), [y.to(given.y.dtype)])


def _combined(
    w: Writer, given: Cached, parts: Parts, chunks: tuple[Var, Var, Var], column: Var
) -> Var:
    """Of the chunks from one on to another, behind the first of the row."""
    b, (first, low, high) = w.b, chunks
    sums, stats = w.ref(parts.sums), w.ref(parts.stats)
    top = b.variable(-math.inf, given.dtype)
    with b.loop(low, high, UNROLLED, carry=[top]) as base:
        masks = [base + i < high for i in range(UNROLLED)]
        found = [stats.load((first + base + i) * 2, 1, m)[0] for i, m in enumerate(masks)]
        for x, mask in zip(found, masks):
            top.set(top.max(x.where(mask, -math.inf)))
    shift = top.where(top.ne(-math.inf), 0.0)
    total, value = b.variable(0.0, given.dtype), b.variable(0.0, given.dtype)
    with b.loop(low, high, UNROLLED, carry=[total, value]) as base:
        masks = [base + i < high for i in range(UNROLLED)]
        at = [first + base + i for i in range(UNROLLED)]
        both = [stats.load(a * 2, 2, m) for a, m in zip(at, masks)]
        held = [sums.load(a * given.columns + column, 1, m)[0] for a, m in zip(at, masks)]
        for (most, weights), x, mask in zip(both, held, masks):
            factor = b.call("exp", most - shift).where(mask, 0.0)
            total.set(b.fma(factor, weights, total))
            value.set(b.fma(factor, x, value))
    return value / total.where(total.ne(0.0), 1.0)
