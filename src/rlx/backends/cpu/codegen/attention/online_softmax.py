"""Attention kernels: scores, online softmax and weighted sums of values, block by block.

A unit is a block of query rows of one kv head: no state is carried between units, and keys and
values are read once for all heads of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.backends.cpu.codegen.attention import few_queries as few
from rlx.backends.cpu.codegen.attention.operands import Form
from rlx.backends.cpu.codegen.attention.query_block import KEY_BLOCK, scratch_places, sizes_of
from rlx.backends.cpu.codegen.attention.vectorised_rows import Rows
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    Machine,
    Step,
    Task,
    buffers,
    estimated_ns,
    grain_of,
)
from rlx.backends.cpu.schedule.gemm_tiling import Tiling
from rlx.core.dim import DimLike, dim_max, dim_min, is_static, lower_bound

FEW = 8
"""Up to as many rows are vectorised over the depth; more are vectorised over the rows."""
RECORDS, RESULT = Buffer("temp", 0), Buffer("result", 0)


def make_attention(step: Step, name: str) -> KernelSequence:
    """The kernel sequence of an attention. Where one query is as likely as many, there is code for
    both, and the other's tasks have no units."""
    form = Form.of(step)
    if is_static(form.rows) and 0 < form.rows <= FEW:
        return _of_few(form, step.isa, name, form.rows)
    if not _may_be_one(form):
        return KernelSequence((_of_many(form, step.machine, name),))
    is_one = dim_min(1, form.queries) * dim_max(0, 2 - form.queries)
    made = _of_few(form, step.isa, f"{name}.few", form.group, is_one)
    return KernelSequence((_of_many(form, step.machine, name, 1 - is_one), *made.tasks), made.temps)


def _may_be_one(form: Form) -> bool:
    """Is it unknown whether one query (decode, with past keys) or many come?"""
    is_open = not is_static(form.queries) and form.group <= FEW
    return is_open and form.queries != form.keys and lower_bound(form.queries) <= 1


def _of_many(form: Form, machine: Machine, name: str, times: DimLike = 1) -> Task:
    """Blocks of rows over all keys."""
    tiling = _tiling(form, machine)
    rows = Rows(form, tiling, machine.isa, has_one=not _may_be_one(form))
    rows.write()
    blocks = (form.rows + tiling.columns - 1) // tiling.columns
    units = form.batch * form.kv_heads * blocks * times
    grain = grain_of(units, estimated_ns(form.flops, form.traffic))
    scratch = scratch_places(form, tiling)["end"] * form.compute.itemsize
    sizes = sizes_of(form, tiling)
    return Task(rows.function(name), _given(form, RESULT), sizes, units, grain, scratch)


def _of_few(form: Form, isa: Isa, name: str, rows: int, times: DimLike = 1) -> KernelSequence:
    """All rows over chunks of keys, and then the chunks combined."""
    chunks, joined = few.Chunks(form, isa, rows), few.Joined(form, isa, rows)
    chunks.write()
    joined.write()
    size, sizes = form.compute.itemsize, few.sizes_of(form, isa)
    heads = form.batch * form.kv_heads * times
    units = heads * few.chunks_of(form)
    records = units * rows * few.record_of(form, isa) * size
    grain = grain_of(units, estimated_ns(form.flops, form.traffic))
    scratch = few.scratch_of(form, isa, rows) * size
    first = Task(chunks.function(name), _given(form, RECORDS), sizes, units, grain, scratch)
    grain = grain_of(heads * rows, estimated_ns(0, records))
    given = (RECORDS, RESULT)
    second = Task(joined.function(f"{name}.joined"), given, sizes, heads * rows, grain)
    return KernelSequence((first, second), (records,))


def _given(form: Form, made: Buffer) -> tuple[Buffer, ...]:
    return *buffers(3 + (form.mask is not None), 0), made


# -- register tiles -------------------------------------------------------------------------------


def _tiling(form: Form, machine: Machine) -> Tiling:
    """With AVX-512, whose instructions broadcast a memory operand, tiles of one vector of rows are
    as fast as wider ones, as long as keys and values are in cache, and waste less on the last rows
    and on partially masked keys."""
    isa, rows = machine.isa, form.rows
    lanes = isa.lanes(form.dtype)
    if is_static(rows) and rows <= lanes:
        return _tiles(form, isa, 1, _least_lanes(rows, lanes))
    each = form.traffic // dim_max(1, form.batch * form.kv_heads)
    is_near = lower_bound(each) <= machine.cache_bytes // 2
    return _tiles(form, isa, 1 if isa.has_masks and is_near else isa.registers // 8, lanes)


def _least_lanes(rows: int, most: int) -> int:
    """The fewest lanes that hold the rows; vectors below four are no gain."""
    lanes = min(4, most)
    while lanes < rows:
        lanes *= 2
    return lanes


def _tiles(form: Form, isa: Isa, vectors: int, lanes: int) -> Tiling:
    """Tiles that divide the lines evenly; the largest takes three quarters of the registers, or,
    where products need one of their own, half."""
    most = min(12, isa.registers * (3 if isa.has_fma else 2) // 4 // vectors)
    sizes = (most, max(2, 4 // vectors), 1)
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
