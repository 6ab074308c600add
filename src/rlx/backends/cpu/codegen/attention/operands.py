"""Attention on the CPU: its sizes and prices, and pieces of its arithmetic on vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load
from rlx.backends.cpu.codegen.math.expression_vectors import on_vectors
from rlx.backends.cpu.library.strided_copy import load_index
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.kernel import attention
from rlx.kernel.attention import Attention, K, MaskOperand, Positional
from rlx.kernel.lower.attention import SCALES
from rlx.ops.nn.cached_attention import BLOCK


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
    cached = form.cached
    held = (cached.positions, cached.slots, *cached.scales) if cached else ()
    for layout in (form.q, form.k, form.v, form.out, mask.layout if mask else None, *held):
        if layout is not None:
            yield from (*layout.dims, *layout.strides, layout.offset)
    if isinstance(form.mask, Positional):
        yield form.mask.offset


def enter_cache(w: Writer, form: Attention, batch: Bound, first: int) -> tuple[Bound, Bound]:
    """The entry of a cache that a row of the batch reads, and the position of its first query;
    `first` is the buffer of the positions. What is out of range is failure 1."""
    held = form.cached
    assert held is not None
    place = w.place(held.positions, [batch])
    room = w.code.i64("sub", w.size(form.keys), w.size(form.queries))
    start = load_index(w, first, place, held.index, w.code.i64("add", room, 1))
    if held.slots is None:
        return batch, start
    slot = w.place(held.slots, [batch])
    return load_index(w, first + 1, slot, held.index, w.size(form.k.dims[0])), start


@dataclass(frozen=True, slots=True)
class CachedLine:
    """A key or a value of a head in memory, read as the sums are: widened, and multiplied by the
    scales of its blocks where it is quantised."""

    w: Writer
    form: Attention
    pointer: str
    step: Bound
    """Of its elements."""
    scales: str | None
    scale_step: Bound
    scale_dtype: DType

    @classmethod
    def of(
        cls, w: Writer, form: Attention, number: int, at: tuple[Bound, Bound, Bound]
    ) -> CachedLine:
        """The line of an entry, a head and a key; `number` is the operand, keys or values."""
        layout = (form.k, form.v)[number - K]
        pointer = w.pointer(number, w.place(layout, (*at, 0)), form.kv_dtype)
        step = w.size(layout.strides[3])
        if form.cached is None or not form.cached.scales:
            return cls(w, form, pointer, step, None, 0, form.sums)
        scales, dtype = form.cached.scales[number - K], form.cached.scale_dtypes[number - K]
        where = w.pointer(SCALES + number - K, w.place(scales, (*at, 0)), dtype)
        return cls(w, form, pointer, step, where, w.size(scales.strides[3]), dtype)

    def vector(self, at: Bound, mask: Vec | None) -> Vec:
        """The elements from one on, which is the first of a vector."""
        code, sums = self.w.code, self.form.sums
        value = load(code, self.form.kv_dtype, self.address(at), self.step, mask).to(sums)
        if self.scales is None:
            return value
        block = at // BLOCK if isinstance(at, int) else code.integer("div", at, BLOCK, DType.U64)
        where = code.i64("mul", block, self.scale_step)
        scale = advanced(code, self.scales, where, self.scale_dtype)
        return value * load(code, self.scale_dtype, scale, 0).to(sums)

    def address(self, at: Bound) -> str:
        code = self.w.code
        return advanced(code, self.pointer, code.i64("mul", at, self.step), self.form.kv_dtype)


def flops(form: Attention) -> DimLike:
    pairs = form.batch * form.heads * form.queries * form.keys
    return pairs * (2 * form.depth + 2 * form.value_depth + 40)


def traffic(form: Attention) -> DimLike:
    """The bytes of keys and values: what dominates where queries are few."""
    lines, elements = form.batch * form.kv_heads * form.keys, form.depth + form.value_depth
    held = elements * form.kv_dtype.itemsize
    if form.cached is not None and form.cached.scales:
        held = held + elements // BLOCK * form.cached.scale_dtypes[0].itemsize
    return lines * held


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
        empty = total.code.compare("eq", keys, 0)
        given.append(total.code.splat(empty, DType.BOOL))
    return on_vectors(form.share, *given)
