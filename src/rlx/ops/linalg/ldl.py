"""Factors l · d · lᵀ of symmetric and Hermitian matrices, definite or not, after Bunch and Kaufman.
See `linalg` for conventions.

Factors are LAPACK's: below the blocks of d, which are 1 × 1 or 2 × 2, the columns of l as they were
when they were eliminated, so that rows swapped later are not swapped in them. The pivot of a 1 × 1
block is the number, from 1 on, of the row that it was swapped with; both of a 2 × 2 block have the
number that its second row was swapped with, negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.draw import Draw, Spec
from rlx.ops.linalg.factorization import FACTORS, Drawn, draw_square, guarded
from rlx.ops.op import Array, Kind, op

ALPHA = (1.0 + 17.0**0.5) / 8.0
"""How much of its column a diagonal entry must be: it bounds the growth of what is left."""


def _ldl_shape(a: Shape, *, hermitian: bool) -> tuple[Shape, Shape]:
    del hermitian
    return a, Shape(a.dims[:-1], DType.I64)


@op(
    "x[*b n n] -> x[*b n n], i64[...]",
    kind=Kind.SPECIAL,
    jumps=True,
    shape=_ldl_shape,
    flops="b*n*n*n//3",
    why_no_lowering=FACTORS,
)
def ldl_factor(a: Array, *, hermitian: bool = False) -> tuple[Array, Array]:
    """l below d, in one lower triangle, and the pivots: of a = l · d · lᵀ, or lᴴ if `hermitian`.
    Only the lower triangle of a is read. A block of a singular matrix may be 0."""
    half = np.tril(a)
    if hermitian:
        half = np.where(np.eye(a.shape[-1], dtype=bool), np.real(half), half)
    pivots = np.broadcast_to(np.arange(1, a.shape[-1] + 1), a.shape[:-1]).copy()

    def factors(stack: Array) -> tuple[Array]:
        made = stack.copy()
        for index in np.ndindex(stack.shape[:-2]):
            pivots[index] = _bunch_kaufman(made[index], hermitian)
        return (made,)

    (ld,) = guarded(factors, half.astype(a.dtype))
    return ld, pivots


def _size(x: Any) -> Any:
    return np.abs(np.real(x)) + np.abs(np.imag(x))


def _bunch_kaufman(a: Array, hermitian: bool) -> list[int]:
    """The factors in place, column by column."""
    n, k, pivots = len(a), 0, list[int]()
    while k < n:
        row, step = _choose(a, k)
        _exchange(a, k, k + step - 1, row, hermitian)
        pivots += [row + 1] if step == 1 else [-row - 1] * 2
        _eliminate(a, k, step, hermitian)
        k += step
    return pivots


def _choose(a: Array, k: int) -> tuple[int, int]:
    """The row to swap with, and the size of the block."""
    here, column = _size(a[k, k]), _size(a[k + 1 :, k])
    most = column.max(initial=0.0)
    if max(here, most) == 0 or here >= ALPHA * most:
        return k, 1
    i = k + 1 + int(column.argmax())
    row_most = max(_size(a[i, k:i]).max(initial=0.0), _size(a[i + 1 :, i]).max(initial=0.0))
    if here >= ALPHA * most * (most / row_most):
        return k, 1
    return (i, 1) if _size(a[i, i]) >= ALPHA * row_most else (i, 2)


def _exchange(a: Array, k: int, i: int, p: int, hermitian: bool) -> None:
    """Swap the rows and columns i and p of what is left, within the lower triangle."""
    if i == p:
        return
    a[p + 1 :, [i, p]] = a[p + 1 :, [p, i]]
    column, row = a[i + 1 : p, i].copy(), a[p, i + 1 : p].copy()
    a[i + 1 : p, i] = np.conjugate(row) if hermitian else row
    a[p, i + 1 : p] = np.conjugate(column) if hermitian else column
    a[i, i], a[p, p] = a[p, p].copy(), a[i, i].copy()
    if hermitian:
        a[p, i] = np.conjugate(a[p, i])
    if i > k:
        a[[i, p], k] = a[[p, i], k]


def _eliminate(a: Array, k: int, step: int, hermitian: bool) -> None:
    turned = np.conjugate if hermitian else (lambda x: x)
    rest = slice(k + step, len(a))
    columns = a[rest, k : k + step].copy()
    if step == 1:
        if a[k, k] == 0:
            return
        made = columns / a[k, k]
    else:
        side = turned(a[k + 1, k])
        block = np.array([[a[k, k], side], [a[k + 1, k], a[k + 1, k + 1]]], a.dtype)
        made = np.linalg.solve(block.T, columns.T).T
    a[rest, rest] -= np.tril(made @ turned(columns).T)
    a[rest, k : k + step] = made


@op(
    "x[*b n n], i64[*b n], x[*b n k] -> x[*b n k]",
    kind=Kind.SPECIAL,
    jumps=True,
    flops="2*b*n*n*k",
    why_no_lowering=FACTORS,
)
def ldl_solve(ld: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Array:
    """The x with a · x = b, of the factors that ldl_factor gives. Blocks of 0 divide as floats do.
    Pivots that name no row are taken for the nearest that does."""
    made = b.copy()
    for index in np.ndindex(ld.shape[:-2]):
        _substitute(ld[index], pivots[index].tolist(), made[index], hermitian)
    return made


def _blocks(pivots: list[int]) -> list[tuple[int, int, int]]:
    """First row, size and swapped row of each block: one row where its pivot is positive, or
    no other row is left."""
    found, k = list[tuple[int, int, int]](), 0
    while k < len(pivots):
        step = 1 if pivots[k] > 0 or k + 1 == len(pivots) else 2
        found.append((k, step, min(max(abs(pivots[k]), 1), len(pivots)) - 1))
        k += step
    return found


def _substitute(ld: Array, pivots: list[int], b: Array, hermitian: bool) -> None:
    turned = np.conjugate if hermitian else (lambda x: x)
    blocks = _blocks(pivots)
    for k, step, row in blocks:
        last, here, rest = k + step - 1, slice(k, k + step), slice(k + step, len(ld))
        b[[last, row]] = b[[row, last]]
        b[rest] -= ld[rest, here] @ b[here]
        b[here] = _block_solution(ld[here, here], b[here], hermitian)
    for k, step, row in reversed(blocks):
        last, here, rest = k + step - 1, slice(k, k + step), slice(k + step, len(ld))
        b[here] -= turned(ld[rest, here]).T @ b[rest]
        b[[last, row]] = b[[row, last]]


def _block_solution(d: Array, b: Array, hermitian: bool) -> Array:
    """Of a 2 × 2 block by Cramer's rule, scaled by the entry beside the diagonal."""
    first = np.real(d[0, 0]) if hermitian else d[0, 0]
    if len(d) == 1:
        return b / first
    low, high = d[1, 0], np.conjugate(d[1, 0]) if hermitian else d[1, 0]
    last = np.real(d[1, 1]) if hermitian else d[1, 1]
    upper, lower = first / high, last / low
    over = upper * lower - 1
    top, bottom = b[0] / high, b[1] / low
    return np.stack([(lower * top - bottom) / over, (upper * bottom - top) / over])


# -- drawing --------------------------------------------------------------------------------------


@ldl_factor.sample
def _(draw: Draw) -> Drawn:
    return [draw_square(draw, "plain")], {"hermitian": draw.coin()}


@ldl_solve.sample
def _(draw: Draw) -> Drawn:
    """A pivot of 0 stands for a 2 × 2 block."""
    n, stack, dtype = draw.size(), draw.dims(0, 2), draw.dtype("x")
    given = [
        Spec((*stack, n, n), dtype, "regular"),
        Spec((*stack, n), DType.I64, f"index:{n + 1}"),
        Spec((*stack, n, draw.size()), dtype, "plain"),
    ]
    return given, {"hermitian": draw.coin()}
