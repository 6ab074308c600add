"""Attention kernels: scores, online softmax and weighted sums of values, block by block.

A unit is a block of query rows of one kv head: no state is carried between units, and keys and
values are read once for all heads of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.backends.cpu.codegen.attention import few_queries as few
from rlx.backends.cpu.codegen.attention import query_chunks
from rlx.backends.cpu.codegen.attention.operands import flops, rows_of, traffic
from rlx.backends.cpu.codegen.attention.query_block import KEY_BLOCK, scratch_places, sizes_of
from rlx.backends.cpu.codegen.attention.vectorised_rows import VectorisedRows
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.backends.cpu.schedule.gemm_tiling import Tiling
from rlx.core.dim import DimLike, dim_max, dim_min, is_static, lower_bound
from rlx.kernel.attention import MASK, Attention, Positional
from rlx.kernel.lower.attention import lower_attention, lower_cached_attention
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.refusal import required

DEPTH_VECTORISED_MAX_ROWS = 8
"""Up to as many rows are vectorised over the depth; more are vectorised over the rows."""
RECORDS, RESULT = Buffer("temp", 0), Buffer("result", 0)


def make_attention(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step that is an attention."""
    form = required(lower_attention(step.node, step.operands, step.results))
    return attention_schedule(form, step.machine, name)


def make_cached_attention(step: Step, name: str) -> Schedule[Task]:
    """The tasks of attention over a cache."""
    form = lower_cached_attention(step.node, step.operands, step.results)
    return attention_schedule(form, step.machine, name)


def attention_schedule(form: Attention, machine: CpuMachine, name: str) -> Schedule[Task]:
    """The tasks of an attention. Where one query is as likely as many, there is code for both, and
    the other's tasks have no units."""
    rows = rows_of(form)
    if is_static(rows) and 0 < rows <= DEPTH_VECTORISED_MAX_ROWS:
        return _few_queries(form, machine, name, rows)
    many = _many_queries
    if form.cached is not None and form.group <= DEPTH_VECTORISED_MAX_ROWS:
        many = _query_chunks
    if not _may_be_one(form):
        return Schedule((many(form, machine, name),))
    is_one = dim_min(1, form.queries) * dim_max(0, 2 - form.queries)
    made = _few_queries(form, machine, f"{name}.few", form.group, is_one)
    return Schedule((many(form, machine, name, 1 - is_one), *made.tasks), made.temps)


def _may_be_one(form: Attention) -> bool:
    """Is it unknown whether one query (decode, with past keys) or many come?"""
    is_open = not is_static(form.queries) and form.group <= DEPTH_VECTORISED_MAX_ROWS
    return is_open and form.queries != form.keys and lower_bound(form.queries) <= 1


def _many_queries(form: Attention, machine: CpuMachine, name: str, times: DimLike = 1) -> Task:
    """Blocks of rows over all keys."""
    tiling, isa = _tiling(form, machine), machine.isa
    has_one = not _may_be_one(form)

    def write(name: str) -> Source:
        rows = VectorisedRows(form, tiling, isa, has_one=has_one)
        rows.write()
        return Source(rows.function(name), sizes_of(form, tiling))

    blocks = (rows_of(form) + tiling.columns - 1) // tiling.columns
    units = form.batch * form.kv_heads * blocks * times
    grain = machine.units_per_task(units, machine.worker_ns(flops(form), traffic(form)))
    scratch = scratch_places(form, tiling)["end"] * form.sums.itemsize
    return Task(TaskCode(name, write), _given(form, RESULT), units, grain, scratch)


def _query_chunks(form: Attention, machine: CpuMachine, name: str, times: DimLike = 1) -> Task:
    """Blocks of queries over a cache, whose rows have the bits of one query alone."""
    isa, each = machine.isa, query_chunks.queries_per_block(form, machine.isa)
    rows = each * form.group

    def write(name: str) -> Source:
        made = query_chunks.QueryChunks(form, isa, rows)
        made.write()
        return Source(made.function(name), few.sizes_of(form, isa))

    units = form.batch * form.kv_heads * ((form.queries + each - 1) // each) * times
    grain = machine.units_per_task(units, machine.worker_ns(flops(form), traffic(form)))
    scratch = query_chunks.block_scratch_of(form, isa, rows) * form.sums.itemsize
    return Task(TaskCode(name, write), _given(form, RESULT), units, grain, scratch)


def _few_queries(
    form: Attention, machine: CpuMachine, name: str, rows: int, times: DimLike = 1
) -> Schedule[Task]:
    """All rows over chunks of keys, and then the chunks combined."""
    isa = machine.isa

    def code(name: str, kind: type[few.KeyChunks | few.CombineChunks]) -> TaskCode:
        def write(name: str) -> Source:
            made = kind(form, isa, rows)
            made.write()
            return Source(made.function(name), few.sizes_of(form, isa))

        return TaskCode(name, write)

    size = form.sums.itemsize
    heads = form.batch * form.kv_heads * times
    units = heads * few.chunks_of(form)
    records = units * rows * few.record_of(form, isa) * size
    grain = machine.units_per_task(units, machine.worker_ns(flops(form), traffic(form)))
    scratch = few.scratch_of(form, isa, rows) * size
    chunks = code(name, few.KeyChunks)
    first = Task(chunks, _given(form, RECORDS), units, grain, scratch)
    grain = machine.units_per_task(heads * rows, machine.worker_ns(0, records))
    joined = code(f"{name}.joined", few.CombineChunks)
    positions = _given(form, RESULT)[MASK:-1] if form.cached else ()
    second = Task(joined, (RECORDS, RESULT, *positions), heads * rows, grain)
    return Schedule((first, second), (records,))


def _given(form: Attention, made: Buffer) -> tuple[Buffer, ...]:
    return *buffers(len(form.operands), 0), made


# -- register tiles -------------------------------------------------------------------------------


def _tiling(form: Attention, machine: CpuMachine) -> Tiling:
    """With AVX-512, whose instructions broadcast a memory operand, tiles of one vector of rows are
    as fast as wider ones, as long as keys and values are in cache, and waste less on the last rows
    and on partially masked keys."""
    isa, rows = machine.isa, rows_of(form)
    lanes = isa.lanes(form.dtype)
    if is_static(rows) and rows <= lanes:
        return _tiles(form, isa, 1, _least_lanes(rows, lanes))
    each = traffic(form) // dim_max(1, form.batch * form.kv_heads)
    is_near = lower_bound(each) <= machine.cache_bytes // 2
    return _tiles(form, isa, 1 if isa.has_masks and is_near else isa.registers // 8, lanes)


def _least_lanes(rows: int, most: int) -> int:
    """The fewest lanes that hold the rows; vectors below four are no gain."""
    lanes = min(4, most)
    while lanes < rows:
        lanes *= 2
    return lanes


def _tiles(form: Attention, isa: Isa, vectors: int, lanes: int) -> Tiling:
    """Tiles that divide the lines evenly; the largest takes three quarters of the registers, or,
    where products need one of their own, half."""
    most = min(12, isa.registers * (3 if isa.has_fma else 2) // 4 // vectors)
    sizes = (most, max(2, 4 // vectors), 1)
    keys, depth = form.keys, form.value_depth
    if is_static(keys) and is_static(depth) and not isinstance(form.mask, Positional):
        lines = (min(keys, KEY_BLOCK), keys % KEY_BLOCK, depth)
        used = {s for extent in lines for s in _cut(extent, sizes)}
        sizes = tuple(s for s in sizes if s in used) or (1,)
    return Tiling(sizes, vectors, lanes, has_panels=True, row_block=0)


def _cut(extent: int, sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield from [size] * (extent // size)
        extent %= size
