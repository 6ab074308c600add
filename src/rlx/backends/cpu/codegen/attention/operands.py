"""Attention on the CPU: its sizes and prices, and pieces of its arithmetic on vectors."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.backends.cpu.codegen.math.expression_vectors import on_vectors
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.kernel import attention
from rlx.kernel.attention import Attention, MaskOperand, Positional


def mask_of(form: Attention) -> MaskOperand | None:
    """The mask operand."""
    return form.mask if isinstance(form.mask, MaskOperand) else None


def window_of(form: Attention) -> int | None:
    """The window of a positional mask."""
    return form.mask.window if isinstance(form.mask, Positional) else None


def rows_of(form: Attention) -> DimLike:
    """The rows of one kv head. Row f is query f // group of the head f % group, so that
    neighbouring rows see nearly the same keys."""
    return form.queries * form.group


def has_one_mask(form: Attention) -> bool:
    """Is the mask operand the same for all rows of a kv head?"""
    mask = mask_of(form)
    if mask is None:
        return False
    _, heads, queries, _ = mask.layout.strides
    return queries == 0 and (heads == 0 or form.group == 1)


def sizes_of(form: Attention) -> tuple[DimLike, ...]:
    """Every dynamic size, once."""
    return tuple(dict.fromkeys(d for d in _numbers(form) if not is_static(d)))


def _numbers(form: Attention) -> Iterator[DimLike]:
    mask = mask_of(form)
    for layout in (form.q, form.k, form.v, form.out, mask.layout if mask else None):
        if layout is not None:
            yield from (*layout.dims, *layout.strides, layout.offset)
    if isinstance(form.mask, Positional):
        yield form.mask.offset


def flops(form: Attention) -> DimLike:
    pairs = form.batch * form.heads * form.queries * form.keys
    return pairs * (2 * form.depth + 2 * form.value_depth + 40)


def traffic(form: Attention) -> DimLike:
    """The bytes of keys and values: what dominates where queries are few."""
    lines = form.batch * form.kv_heads * form.keys
    return lines * (form.depth + form.value_depth) * form.dtype.itemsize


# -- the form's arithmetic on vectors -------------------------------------------------------------


def greater(x: Vec, y: Vec) -> Vec:
    return on_vectors(attention.greater, x, y)


def base(top: Vec) -> Vec:
    return on_vectors(attention.base, top)


def weight(s: Vec, subtracted: Vec) -> Vec:
    return on_vectors(attention.weight, s, subtracted)


def hidden(mask: Vec) -> Vec:
    return on_vectors(attention.hidden, mask)


def share(form: Attention, total: Vec, keys: Bound) -> Vec:
    """One over the divisor of weighted sums."""
    given = [total]
    if not form.gives_zeros:
        empty = total.code.let(f"icmp eq i64 {keys}, 0")
        given.append(total.code.splat(empty, DType.BOOL))
    return on_vectors(form.share, *given)
