"""Attention as native code: scores, an online softmax and sums of values, block by block.

A unit of work is a block of query rows of one kv head: nothing is kept between units, and keys
and values are read once for all heads that share them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from rlx.backends.cpu.attention_few import (
    Chunks,
    Joined,
    chunks_of,
    record_of,
    scratch_of,
    sizes_of,
)  # fmt: skip
from rlx.backends.cpu.attention_form import Common, Form
from rlx.backends.cpu.attention_rows import KEY_BLOCK, Rows, scratch_places
from rlx.backends.cpu.emit import Function
from rlx.backends.cpu.ir import Bound
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.task import Buffer, Recipe, Step, Task, buffers, grain_of, nanoseconds
from rlx.backends.cpu.tiling import Tiling
from rlx.backends.cpu.writer import Writer
from rlx.dim import DimLike, dim_max, dim_min, is_static, lower_bound

FEW = 8
"""Up to as many rows have lanes along the depth; more fill lanes of their own."""


def make(step: Step, name: str) -> Recipe:
    """How an attention runs. Where one query is as likely as many, there is code for both, and
    the other's tasks have no units."""
    form, isa = Form.of(step), step.isa
    if is_static(form.rows) and 0 < form.rows <= FEW:
        return _of_few(form, isa, name, form.rows, 1)
    if not _may_be_one(form):
        return Recipe((_of_rows(form, isa, name, 1),))
    is_one = dim_min(1, form.queries) * dim_max(0, 2 - form.queries)
    few = _of_few(form, isa, f"{name}.few", form.group, is_one)
    return Recipe((_of_rows(form, isa, name, 1 - is_one), *few.tasks), few.temps)


def _may_be_one(form: Form) -> bool:
    """Is it not known whether one query, beside keys from before, comes, or many?"""
    is_open = not is_static(form.queries) and form.group <= FEW
    return is_open and form.queries != form.keys and lower_bound(form.queries) <= 1


def _of_rows(form: Form, isa: Isa, name: str, times: DimLike) -> Task:
    """Blocks of rows over all keys."""
    tilings = _tilings(form, isa)
    places = [scratch_places(form, t) for t in tilings]
    function = _function(form, tilings, isa, name)
    units = form.batch * form.kv_heads * _parts(form.rows, tilings[0].columns) * times
    grain = grain_of(units, nanoseconds(form.flops, form.traffic))
    scratch = functools.reduce(dim_max, (p["end"] * form.compute.itemsize for p in places))
    return Task(function, _given(form, RESULT), _sizes(form, tilings), units, grain, scratch)


def _of_few(form: Form, isa: Isa, name: str, rows: int, times: DimLike) -> Recipe:
    """All rows over chunks of keys, and then the chunks together."""
    shared: dict[str, str] = {}
    chunks, joined = Chunks(form, isa, rows, shared), Joined(form, isa, rows, shared)
    chunks.write()
    joined.write()
    size, sizes = form.compute.itemsize, sizes_of(form, isa)
    heads = form.batch * form.kv_heads * times
    units = heads * chunks_of(form)
    records = units * rows * record_of(form, isa) * size
    first = Task(
        chunks.function(name), _given(form, RECORDS), sizes, units,
        grain_of(units, nanoseconds(form.flops, form.traffic)), scratch_of(form, isa, rows) * size,
    )  # fmt: skip
    grain = grain_of(heads * rows, nanoseconds(0, records))
    given = (RECORDS, RESULT)
    second = Task(joined.function(f"{name}.joined"), given, sizes, heads * rows, grain)
    return Recipe((first, second), (records,))


RECORDS, RESULT = Buffer("temp", 0), Buffer("result", 0)


def _given(form: Form, made: Buffer) -> tuple[Buffer, ...]:
    return *buffers(3 + (form.mask is not None), 0), made


def _sizes(form: Form, tilings: Sequence[Tiling]) -> tuple[DimLike, ...]:
    """The numbers that the functions are given."""
    places = [p for t in tilings for p in scratch_places(form, t).values() if not is_static(p)]
    return tuple(dict.fromkeys([*form.sizes, *places]))


# -- the sizes of blocks --------------------------------------------------------------------------


def _tilings(form: Form, isa: Isa) -> list[Tiling]:
    """The blocks that rows are cut into, and a narrower one for the last if that holds it."""
    lanes, rows = isa.lanes(form.dtype), form.rows
    if not is_static(rows):
        return [_tiling(form, t, lanes) for t in (_tiles(isa)[0], _tiles(isa)[-1])]
    wide = min(_tiles(isa), key=lambda t: -(-rows // (t[1] * lanes)) * t[1])
    left = rows % (wide[1] * lanes)
    narrow = _tiling(form, _tiles(isa)[-1], _least_lanes(left, lanes))
    if rows <= narrow.columns:
        return [narrow]
    return [_tiling(form, wide, lanes), *([narrow] if 0 < left <= narrow.columns else [])]


def _least_lanes(rows: int, most: int) -> int:
    """The fewest lanes that hold the rows, if they fit a vector; vectors below four are no gain."""
    lanes = min(4, most)
    while lanes < min(rows, most):
        lanes *= 2
    return lanes


def _tiling(form: Form, tile: Tile, lanes: int) -> Tiling:
    """Tiles of every number of lines that may be left over, or of those that are."""
    sizes, vectors = tile
    keys, depth = form.keys, form.value_depth
    if is_static(keys) and is_static(depth) and not form.is_positional:
        lines = (min(keys, KEY_BLOCK), keys % KEY_BLOCK, depth)
        used = {s for extent in lines for s in _cut(extent, sizes)}
        sizes = tuple(s for s in sizes if s in used) or (1,)
    return Tiling(sizes, vectors, lanes, has_panels=True, row_block=0)


def _cut(extent: int, sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield from [size] * (extent // size)
        extent %= size


Tile = tuple[tuple[int, ...], int]
"""Lines of register tiles, most first, and vectors of rows."""


def _tiles(isa: Isa) -> Sequence[Tile]:
    """Tiles that fill the registers, widest first."""
    if isa.registers >= 32:
        return ((6, 2, 1), 4), ((8, 2, 1), 3), ((12, 4, 1), 2), ((12, 4, 1), 1)
    return ((6 if isa.has_fma else 4, 2, 1), 2), ((8, 4, 1), 1)


def _parts(extent: DimLike, size: int) -> DimLike:
    return (extent + size - 1) // size


# -- functions ------------------------------------------------------------------------------------


def _function(form: Form, tilings: Sequence[Tiling], isa: Isa, name: str) -> Function:
    common = Common(_sizes(form, tilings), {})
    writer = Writer(isa, shared=common.shared)
    for dim in common.sizes:
        writer.size(dim)
    before = [
        Rows(form, tiling, isa, common).text(f"{name}.{number}")
        for number, tiling in enumerate(tilings)
    ]
    _units(writer, form, tilings, name)
    return writer.function(name, before)


def _units(writer: Writer, form: Form, tilings: Sequence[Tiling], name: str) -> None:
    """Every unit by the narrowest block that holds its rows."""
    code, width = writer.code, tilings[0].columns
    rows = writer.size(form.rows) if is_static(form.rows) else _rows(writer, form)
    blocks = code.let(f"udiv i64 {code.i64('add', rows, width - 1)}, {width}")
    heads = code.i64("mul", writer.size(form.batch), form.kv_heads)
    stop = code.least("%stop", code.i64("mul", heads, blocks))
    if _may_be_one(form):
        is_one = code.let(f"icmp eq i64 {writer.size(form.queries)}, 1")
        stop = code.let(f"select i1 {is_one}, i64 0, i64 {stop}")
    with code.count("%start", stop, 1) as unit:
        turn, block = (code.let(f"{w} i64 {unit}, {blocks}") for w in ("udiv", "urem"))
        batch, head = (code.let(f"{w} i64 {turn}, {form.kv_heads}") for w in ("udiv", "urem"))
        first = code.i64("mul", block, width)
        count = code.least(code.i64("sub", rows, first), width)
        args = f"i64 {batch}, i64 {head}, i64 {first}, i64 {count}, ptr %scratch"
        _dispatch(writer, tilings, count, f"(ptr %buffers, ptr %sizes, {args})", name)


def _rows(writer: Writer, form: Form) -> Bound:
    return writer.code.i64("mul", writer.size(form.queries), form.group)


def _dispatch(
    writer: Writer, tilings: Sequence[Tiling], count: Bound, args: str, name: str
) -> None:
    code = writer.code
    if len(tilings) == 1:
        code.do(f"call void @{name}.0{args}")
        return
    for number, order in ((0, "sgt"), (1, "sle")):
        with code.when(code.let(f"icmp {order} i64 {count}, {tilings[1].columns}")):
            code.do(f"call void @{name}.{number}{args}")
