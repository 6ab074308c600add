"""Long folds with few results, as two kernels: chunks of the fold, then the chunks' folds.

One result of a fold is made by one worker. Where there are fewer of them than workers, the others
would wait; in chunks there is work for all. How many chunks there are follows from the extent
alone, so the result is the same whoever does them.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.core.dim import is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Reduce, Store, postorder
from rlx.kernel.rewrite import Rewriter, rewritten, substitution
from rlx.ops.op import lookup

MIN_CHUNK, MAX_CHUNKS = 8192, 256
MAX_SPLIT_RESULTS = 16
"""Results of a reduction that is split; where there are more, they occupy all workers."""
COMBINES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def split_reduction(kernel: Kernel) -> tuple[Kernel, Kernel] | None:
    """The folds of chunks, and the kernel that reads them as further operands; None where no fold
    is long and alone. What follows may have a long fold again: split it once more.

    A fold inside of another has chunks for every point of that one's axis, too."""
    heads = _heads(kernel)
    if not heads:
        return None
    axis = heads[0].axis
    chunk = Axis("chunk", min(MAX_CHUNKS, int(axis.extent) // MIN_CHUNK))
    heads = tuple(r for r in heads if r.axis.extent == axis.extent and r.free == heads[0].free)
    folds = dict.fromkeys(n.axis for n in kernel.nodes if isinstance(n, Reduce))
    outer = tuple(a for a in (*kernel.axes, *folds) if a in heads[0].free)
    place = _place(outer, chunk)
    partial = _partial(kernel, heads, outer, chunk, place)
    return partial, _final(kernel, heads, chunk, place, partial.results)


def _heads(kernel: Kernel) -> tuple[Reduce, ...]:
    """Long folds with few results, of bodies without such a fold."""
    long = [n for n in kernel.nodes if isinstance(n, Reduce) and _is_long(n)]
    inside = {m: set(postorder(m.args)) for m in long}
    return tuple(r for r in long if not any(other in inside[r] for other in long))


def _is_long(r: Reduce) -> bool:
    length, count = r.axis.extent, product(a.extent for a in r.free)
    if not (is_static(length) and is_static(count)):
        return False
    is_held = r.dtype is not DType.BOOL and r.dtype.compute is r.dtype
    return is_held and length >= 4 * MIN_CHUNK and count <= MAX_SPLIT_RESULTS


def _place(outer: tuple[Axis, ...], chunk: Axis) -> Affine:
    """The offset of a chunk's partial result, for each point of the outer axes."""
    at, weight = Affine.of(chunk), chunk.extent
    for axis in reversed(outer):
        at, weight = at + Affine.of(axis) * weight, weight * axis.extent
    return at


def _length(r: Reduce, chunk: Axis) -> int:
    return int(r.axis.extent) // int(chunk.extent)


def _partial(
    kernel: Kernel, heads: tuple[Reduce, ...], outer: tuple[Axis, ...], chunk: Axis, place: Affine
) -> Kernel:
    exprs, stores = Exprs(), list[Store]()
    for number, r in enumerate(heads):
        inner = Axis(f"{r.axis.name}.in", _length(r, chunk))
        where = Affine.of(chunk) * inner.extent + Affine.of(inner)
        body = Rewriter(exprs, substitution({r.axis: where}))(r.args[0])
        stores.append(Store(number, place, exprs.reduce(r.fold, inner, body)))
    dims = (*(a.extent for a in outer), chunk.extent)
    results = tuple(Shape(dims, r.dtype) for r in heads)
    axes = (chunk, *outer)
    return Kernel(f"{kernel.name}.chunks", axes, tuple(stores), kernel.operands, results)


def _final(
    kernel: Kernel,
    heads: tuple[Reduce, ...],
    chunk: Axis,
    place: Affine,
    temps: tuple[Shape, ...],
) -> Kernel:
    """The kernel with each head a fold of its chunks, and of what no chunk has."""

    def from_chunks(node: Expr, _: list[Expr], exprs: Exprs) -> Expr | None:
        if not isinstance(node, Reduce) or node not in heads:
            return None
        number = len(kernel.operands) + heads.index(node)
        whole = exprs.reduce(node.fold, chunk, exprs.load(number, place, node.dtype))
        return _with_rest(node, whole, chunk, exprs)

    return replace(rewritten(kernel, from_chunks), operands=(*kernel.operands, *temps))


def _with_rest(r: Reduce, whole: Expr, chunk: Axis, exprs: Exprs) -> Expr:
    done = _length(r, chunk) * int(chunk.extent)
    if done == r.axis.extent:
        return whole
    rest = Axis(f"{r.axis.name}.rest", int(r.axis.extent) - done)
    body = Rewriter(exprs, substitution({r.axis: Affine.of(rest) + done}))(r.args[0])
    parts = [whole, exprs.reduce(r.fold, rest, body)]
    return exprs.apply(lookup(COMBINES[r.fold]), parts, {}, r.dtype)
