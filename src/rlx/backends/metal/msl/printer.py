"""MSL of SIMT programs: kernels with their arguments, and what each node becomes.

    kernel rlx_name(p_x0, p_x1, …, sizes, block_index, block_count, thread_index)

Buffers are at the first indices of the argument table, the scalars, as one struct, behind them.
Where there are more buffers than the table has entries, one struct has their addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from rlx.backends.gpu.expand.functions import expand_functions
from rlx.backends.gpu.source.structured import Expressions, Statements
from rlx.backends.metal.machine import (
    MAX_ADDRESSES,
    MAX_THREADS,
    THREADGROUP_BYTES,
    Family,
    has_address_struct,
)
from rlx.backends.metal.msl.arithmetic import is_native
from rlx.backends.metal.msl.groups import Groups
from rlx.backends.metal.msl.memory import buffer_name
from rlx.backends.metal.msl.types import F64, NAMES, STORED
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.program import nodes as ir
from rlx.program.expand.reductions import expand_reductions
from rlx.program.nodes import Node
from rlx.program.program import Program

PRAGMAS = """\
#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif"""
NO_CONTRACTION = "#pragma clang fp contract(off)"
"""Forbids fused multiply-adds in the kernel that begins with it; Metal before 3.2 has no pragma for
a whole source."""
HELPERS = """\
inline float minimum_of(float a, float b) { return a < b || a != a ? a : b; }
inline float maximum_of(float a, float b) { return a > b || a != a ? a : b; }
inline half minimum_of(half a, half b) { return a < b || a != a ? a : b; }
inline half maximum_of(half a, half b) { return a > b || a != a ? a : b; }
inline float bf16_of_bits(ushort x) { return as_type<float>(uint(x) << 16); }
inline ushort bits_of_bf16(float x) { return ushort(as_type<uint>(x) >> 16); }
inline float round_bf16(float x) {
 const uint bits = as_type<uint>(x);
 const uint rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
 return as_type<float>(x != x ? (bits | 0x400000u) & 0xffff0000u : rounded);
}
"""
"""NaN is kept by minima and maxima; a bf16 is the upper half of an f32, rounded to nearest even."""
MATRICES = (ir.TileFill, ir.TileLoad, ir.TileMul, ir.TileStore)
WARPS = (ir.Shuffle, ir.Reduce, ir.ReduceScatter, *MATRICES)


def kernel_name(name: str) -> str:
    """Of a program's kernel: no word of the language."""
    return "rlx_" + re.sub(r"\W", "_", name)


def msl(program: Program, family: Family) -> str:
    """The source of one kernel."""
    _check(program, family)
    made = printable(program)
    _check_memory(made)
    return Printer(made).source()


def printable(program: Program) -> Program:
    """The program in nodes that the printer has."""
    return expand_reductions(expand_functions(program, is_native, has_f64=False))


def _check(program: Program, family: Family) -> None:
    """What the family does not have is refused before anything is printed."""
    name = f"program {program.name}"
    for node in program.nodes:
        if isinstance(node, WARPS) and 1 < family.simd < program.warp:
            raise UnsupportedError(
                f"{name}: {type(node).__name__} in warps of {program.warp}, and simdgroups of "
                f"{family.name} have {family.simd} threads; lower it for them."
            )
        if isinstance(node, MATRICES) and not family.has_matrices:
            raise UnsupportedError(f"{name}: {family.name} multiplies no matrices.")
    if program.cluster > 1 or program.maps or program.mbarriers:
        raise UnsupportedError(f"{name}: Metal has no clusters and no tensor maps.")
    if program.block > MAX_THREADS:
        raise UnsupportedError(
            f"{name}: {program.block} threads; a threadgroup has at most {MAX_THREADS}."
        )
    if len(program.buffers) > MAX_ADDRESSES:
        raise UnsupportedError(
            f"{name}: {len(program.buffers)} buffers; a kernel of Metal has at most "
            f"{MAX_ADDRESSES}. Split what it computes, such as a concatenation, in two."
        )


def _check_memory(program: Program) -> None:
    used = sum(-(-s.size_bytes // 16) * 16 for s in program.shared)
    if used > THREADGROUP_BYTES:
        raise UnsupportedError(
            f"program {program.name}: {used} bytes of threadgroup memory; a threadgroup has "
            f"{THREADGROUP_BYTES}."
        )


class Printer(Groups):
    """One kernel."""

    language: ClassVar[str] = "Metal"
    endless: ClassVar[str] = "while (true)"

    def type_name(self, dtype: DType) -> str:
        if dtype is F64 or dtype.is_complex:
            raise self.unsupported(None, f"{dtype}; use f32.")
        return NAMES[dtype]

    def constant(self, name: str, kind: str, expression: str) -> str:
        return f"const {kind} {name} = {expression};"

    def variable(self, name: str, kind: str, expression: str | None) -> str:
        return f"{kind} {name};" if expression is None else f"{kind} {name} = {expression};"

    def expressions(self) -> Expressions:
        return {
            ir.Const: self.constant_node,
            ir.Position: self.position,
            ir.Binary: self.binary,
            ir.Compare: self.compare,
            ir.Unary: self.unary,
            ir.Call: self.call,
            ir.Fma: self.fma,
            ir.Select: self.select,
            ir.Convert: self.convert,
            ir.Bitcast: self.bitcast,
            ir.TableLoad: self.table_load,
        }

    def statements(self) -> Statements:
        return {
            ir.Load: self.load,
            ir.Store: self.store,
            ir.Atomic: self.atomic,
            ir.SharedLoad: self.shared_load,
            ir.SharedStore: self.shared_store,
            ir.Barrier: self.barrier,
            ir.Shuffle: self.shuffle,
            ir.AsyncCopy: self.async_copy,
            ir.AsyncCommit: self._nothing,
            ir.AsyncWait: self._nothing,
            ir.ReleaseDependents: self._nothing,
            ir.WaitDependencies: self._nothing,
            ir.TileFill: self.tile_fill,
            ir.TileLoad: self.tile_load,
            ir.TileMul: self.tile_mul,
            ir.TileStore: self.tile_store,
        }

    def _nothing(self, node: Node) -> None:
        """Copies are done at once, and kernels begin when those before have ended."""

    # -- the source ------------------------------------------------------------------------------

    def source(self) -> str:
        if self._has_struct:
            self.lines += [f" {kind} {name} = buffers.{name};" for kind, name in self._buffers()]
        for array in self.program.shared:
            self.lines += self.declared_array(array)
        for scalar in self.program.scalars:
            kind = self.type_name(scalar.value.dtype)
            self.do(self.constant(f"k_{scalar.name}", kind, f"sizes.k_{scalar.name}"))
            self.held[scalar.value] = f"k_{scalar.name}"
        self.nodes(self.program.body)
        return "\n".join([*self._head(), *self.lines, "}", ""])

    def _head(self) -> Iterator[str]:
        yield "#include <metal_stdlib>"
        if any(isinstance(n, MATRICES) for n in self.program.nodes):
            yield "#include <metal_simdgroup_matrix>"
        yield "using namespace metal;"
        yield PRAGMAS
        yield HELPERS
        yield from (self.declared_table(t.name) for t in self.program.tables)
        if self._has_struct:
            yield from ("struct Buffers {", *(f" {k} {n};" for k, n in self._buffers()), "};")
        if self.program.scalars:
            yield "struct Sizes {"
            for scalar in self.program.scalars:
                yield f" {self.type_name(scalar.value.dtype)} k_{scalar.name};"
            yield "};"
        yield f"[[kernel, max_total_threads_per_threadgroup({self.program.block})]]"
        yield f"void {kernel_name(self.program.name)}("
        yield ",\n".join(self._parameters())
        yield ") {"
        yield f" {NO_CONTRACTION}"
        yield " const int thread_index = int(thread_index_);"

    @property
    def _has_struct(self) -> bool:
        return has_address_struct(len(self.program.buffers))

    def _buffers(self) -> Iterator[tuple[str, str]]:
        """The type and the name of each."""
        for buffer in self.program.buffers:
            if buffer.dtype not in STORED:
                raise self.unsupported(None, f"buffer of {buffer.dtype}; use f32.")
            space = "device" if buffer.is_written else "device const"
            yield f"{space} {STORED[buffer.dtype]}*", buffer_name(buffer.name)

    def _parameters(self) -> Iterator[str]:
        given = [("constant Buffers&", "buffers")] if self._has_struct else list(self._buffers())
        if self.program.scalars:
            given.append(("constant Sizes&", "sizes"))
        yield from (f" {kind} {name} [[buffer({i})]]" for i, (kind, name) in enumerate(given))
        yield " uint3 block_index [[threadgroup_position_in_grid]]"
        yield " uint3 block_count [[threadgroups_per_grid]]"
        yield " uint thread_index_ [[thread_index_in_threadgroup]]"
