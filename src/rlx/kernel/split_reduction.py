"""Long folds with few results, as two kernels: chunks of the fold, then the chunks' folds.

One result of a fold is made by one worker. Where there are fewer of them than workers, the others
would wait; in chunks there is work for all. How many chunks there are follows from the extent
alone, so the result is the same whoever does them.

Folds can also be a kernel of their own, whose results the rest of the kernel reads: then each of
the two runs over its own index space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Reduce, Store, postorder
from rlx.kernel.rewrite import Rewriter, rewritten, substitution
from rlx.ops.op import lookup

MIN_CHUNK, MAX_CHUNKS = 8192, 256
MAX_SPLIT_RESULTS = 16
"""Results of a reduction that is split; where there are more, they occupy all workers."""
COMBINES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the steps of a fold are split; what no chunk has is folded behind them."""

    count: int
    length: DimLike
    is_outermost: bool = False
    """Are the results of a chunk contiguous, or those of all chunks at a point?"""
    is_guarded: bool = False
    """May the chunks reach beyond the end? Steps there are left out, and nothing is left over."""


Chunking = Callable[[Reduce], Chunks | None]
"""The chunks of a fold; None where it is not split."""


def few_results(r: Reduce) -> Chunks | None:
    """Chunks of long folds with few results, for workers that do much each."""
    if not _is_long(r):
        return None
    count = min(MAX_CHUNKS, int(r.axis.extent) // MIN_CHUNK)
    return Chunks(count, int(r.axis.extent) // count)


def split_reduction(
    kernel: Kernel, chunking: Chunking = few_results
) -> tuple[Kernel, Kernel] | None:
    """The folds of chunks, and the kernel that reads them as further operands; None where no fold
    is long and alone. What follows may have a long fold again: split it once more.

    A fold inside of another has chunks for every point of that one's axis, too."""
    heads = _heads(kernel, chunking)
    if not heads:
        return None
    axis, chunks = heads[0].axis, chunking(heads[0])
    assert chunks is not None
    chunk = Axis("chunk", chunks.count)
    heads = tuple(r for r in heads if r.axis.extent == axis.extent and r.free == heads[0].free)
    outer = _outer(kernel, heads[0])
    order = (chunk, *outer) if chunks.is_outermost else (*outer, chunk)
    partial = _partial(kernel, heads, order, chunk, chunks)
    return partial, _final(kernel, heads, order, chunk, chunks, partial.results)


def separated(kernel: Kernel, heads: Sequence[Reduce]) -> tuple[Kernel, Kernel]:
    """A kernel of folds that vary with the same axes, and the rest of the kernel, which reads
    their results as further operands."""
    outer = _outer(kernel, heads[0])
    place, exprs = _place(outer), Exprs()
    copy = Rewriter(exprs)
    stores = tuple(Store(i, place, copy(r)) for i, r in enumerate(heads))
    results = tuple(Shape(tuple(a.extent for a in outer), r.dtype) for r in heads)
    own = Kernel(f"{kernel.name}.folds", outer, stores, kernel.operands, results)

    def loaded(node: Expr, _: list[Expr], exprs: Exprs) -> Expr | None:
        if not isinstance(node, Reduce) or node not in heads:
            return None
        return exprs.load(len(kernel.operands) + heads.index(node), place, node.dtype)

    return own, replace(rewritten(kernel, loaded), operands=(*kernel.operands, *results))


def _outer(kernel: Kernel, head: Reduce) -> tuple[Axis, ...]:
    """The axes that a fold varies with."""
    folds = dict.fromkeys(n.axis for n in kernel.nodes if isinstance(n, Reduce))
    return tuple(a for a in dict.fromkeys((*kernel.axes, *folds)) if a in head.free)


def _heads(kernel: Kernel, chunking: Chunking) -> tuple[Reduce, ...]:
    """Folds that are split, of bodies without such a fold."""
    long = [n for n in kernel.nodes if isinstance(n, Reduce) and chunking(n) is not None]
    inside = {m: set(postorder(m.args)) for m in long}
    return tuple(r for r in long if not any(other in inside[r] for other in long))


def _is_long(r: Reduce) -> bool:
    length, count = r.axis.extent, product(a.extent for a in r.free)
    if not (is_static(length) and is_static(count)):
        return False
    return is_held(r) and length >= 4 * MIN_CHUNK and count <= MAX_SPLIT_RESULTS


def is_held(r: Reduce) -> bool:
    """Is a partial result exact in memory?"""
    return r.dtype is not DType.BOOL and r.dtype.compute is r.dtype


def _place(axes: Sequence[Axis]) -> Affine:
    """The offset of a result for each point of axes, the last the fastest."""
    at, weight = Affine(), 1
    for axis in reversed(axes):
        at, weight = at + Affine.of(axis) * weight, weight * axis.extent
    return at


def _partial(
    kernel: Kernel, heads: tuple[Reduce, ...], order: tuple[Axis, ...], chunk: Axis, chunks: Chunks
) -> Kernel:
    exprs, stores, place = Exprs(), list[Store](), _place(order)
    for number, r in enumerate(heads):
        inner = Axis(f"{r.axis.name}.in", chunks.length)
        where = Affine.of(chunk) * inner.extent + Affine.of(inner)
        body = Rewriter(exprs, substitution({r.axis: where}))(r.args[0])
        if chunks.is_guarded:
            nothing = exprs.number(r.identity, r.dtype)
            body = exprs.choose(exprs.inside(where, 0, r.axis.extent), body, nothing)
        stores.append(Store(number, place, exprs.reduce(r.fold, inner, body)))
    results = tuple(Shape(tuple(a.extent for a in order), r.dtype) for r in heads)
    axes = (chunk, *(a for a in order if a is not chunk))
    return Kernel(f"{kernel.name}.chunks", axes, tuple(stores), kernel.operands, results)


def _final(
    kernel: Kernel,
    heads: tuple[Reduce, ...],
    order: tuple[Axis, ...],
    chunk: Axis,
    chunks: Chunks,
    temps: tuple[Shape, ...],
) -> Kernel:
    """The kernel with each head a fold of its chunks, and of what no chunk has."""
    place = _place(order)

    def from_chunks(node: Expr, _: list[Expr], exprs: Exprs) -> Expr | None:
        if not isinstance(node, Reduce) or node not in heads:
            return None
        number = len(kernel.operands) + heads.index(node)
        whole = exprs.reduce(node.fold, chunk, exprs.load(number, place, node.dtype))
        return _with_rest(node, whole, chunks, exprs)

    return replace(rewritten(kernel, from_chunks), operands=(*kernel.operands, *temps))


def _with_rest(r: Reduce, whole: Expr, chunks: Chunks, exprs: Exprs) -> Expr:
    done = chunks.length * chunks.count
    if chunks.is_guarded or done == r.axis.extent:
        return whole
    rest = Axis(f"{r.axis.name}.rest", r.axis.extent - done)
    body = Rewriter(exprs, substitution({r.axis: Affine.of(rest) + done}))(r.args[0])
    parts = [whole, exprs.reduce(r.fold, rest, body)]
    return exprs.apply(lookup(COMBINES[r.fold]), parts, {}, r.dtype)
