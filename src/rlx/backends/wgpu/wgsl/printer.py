"""SIMT programs as WGSL modules.

Reductions are expanded before, and functions that WGSL lacks are functions of the module. What
needs warps, clusters, tiles or copies that threads do not wait for is refused: a machine with
`warp=1` and without capabilities has schedules that do not use them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from rlx.backends.wgpu.wgsl.functions import definitions
from rlx.backends.wgpu.wgsl.helpers import called
from rlx.backends.wgpu.wgsl.memory import Memory
from rlx.backends.wgpu.wgsl.module import ENTRY, MAX_WORKGROUPS, Argument, Module, Target
from rlx.backends.wgpu.wgsl.text import F32, I32, U32, WIDE
from rlx.program import nodes as ir
from rlx.program.expand.reductions import expand_reductions
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program, Scalar
from rlx.program.uniformity import Uniformity, Varies
from rlx.program.walk import walk

NAMES = re.compile(r"\b[a-z]\w*")


def module_of(program: Program, target: Target | None = None) -> Module:
    """A verified program as a module."""
    printer = Printer(printable(program), target or Target())
    return printer.module()


def printable(program: Program) -> Program:
    """The program in nodes that WGSL has."""
    return expand_reductions(program)


class Printer(Memory):
    """One module."""

    def __init__(self, program: Program, target: Target) -> None:
        super().__init__(program)
        self.has_f16, self.shared_limit = target.has_f16, target.shared_bytes

    def statements(self) -> dict[type[Node], Callable[[Any], None]]:
        return {
            ir.Load: self.load,
            ir.Store: self.store,
            ir.Atomic: self.atomic,
            ir.SharedLoad: self.shared_load,
            ir.SharedStore: self.shared_store,
            ir.TableLoad: self.table_load,
            ir.Barrier: self.barrier,
            ir.ReleaseDependents: self._nothing,
            ir.WaitDependencies: self._nothing,
        }

    def _nothing(self, node: Node) -> None:
        """A dispatch begins when those before it have ended."""

    # -- the module ------------------------------------------------------------------------------

    def module(self) -> Module:
        program = self.program
        self._check()
        for number, scalar in enumerate(program.scalars):
            self.held[scalar.value] = f"s{number}"
        self.nodes(program.body)
        shared = [*self.shared_lines(), *self._agreements]
        body = [*self.table_lines(), *shared, *self._kernel()]
        body = [*definitions(self.functions.values()), *body]
        buffers = tuple(Argument(b.name, b.dtype) for b in program.buffers)
        scalars = tuple(Argument(s.name, s.value.dtype) for s in program.scalars)
        text = "\n".join([*called(body), *body, ""])
        accesses = tuple(a for a in self.accesses if not a.is_shared)
        name, size = program.name, self.shared_bytes
        made = Module(name, program.block, buffers, scalars, accesses, "", text, size)
        is_half = "native_f16(" in text
        return replace(made, head="enable f16;\n", features=("shader-f16",)) if is_half else made

    def _check(self) -> None:
        program = self.program
        if program.cluster > 1 or program.maps or program.mbarriers:
            raise self.unsupported(None, "clusters and no tensor maps; lower it without.")

    def _argument(self, number: int, scalar: Scalar) -> str:
        dtype = scalar.value.dtype
        if dtype in WIDE:
            return f"vec2<u32>(p.s{number}l, p.s{number}h)"
        if dtype not in (I32, U32, F32):
            raise self.unsupported(None, f"argument of {dtype}; pass 32 or 64 bits.")
        word = f"p.s{number}l"
        return word if dtype is U32 else f"bitcast<{self.type_name(dtype)}>({word})"

    def _kernel(self) -> Iterator[str]:
        yield f"@compute @workgroup_size({self.program.block}, 1, 1)"
        given = (
            "@builtin(local_invocation_index) local: u32",
            "@builtin(workgroup_id) id: vec3<u32>",
        )
        yield f"fn {ENTRY}({', '.join(given)}) {{"
        body = "\n".join(self.lines)
        used = frozenset(NAMES.findall(body))
        yield from (f" {line}" for line in self._blocks(used))
        yield from (f" {line}" for line in self._arguments(used))
        yield body
        yield "}"

    def _blocks(self, used: frozenset[str]) -> Iterator[str]:
        """The thread's number, and which block of the grid it is in: workgroups are counted row by
        row, and those behind the last block end at once."""
        x, y, z = self._grid
        yield "let thread = i32(local);"
        yield "let block = id.x + id.y * p.fold;"
        if not self._is_one_row:
            yield f"if (block >= {x} * {y} * {z}) {{ return; }}"
        is_line = (y, z) == ("1u", "1u")
        places = {
            "block_x": "block" if is_line else f"block % {x}",
            "block_y": f"(block / {x}) % {y}",
            "block_z": f"block / ({x} * {y})",
        }
        yield from (f"let {name} = i32({at});" for name, at in places.items() if name in used)

    @property
    def _grid(self) -> list[str]:
        """Blocks along each dim: a number, or a word of the uniform block."""
        dims = zip("xyz", self.program.grid)
        return [f"{d}u" if isinstance(d, int) else f"p.g{n}" for n, d in dims]

    @property
    def _is_one_row(self) -> bool:
        """Are there as many workgroups as blocks, whatever the sizes?"""
        sizes = [d for d in self.program.grid if isinstance(d, int)]
        return len(sizes) == 3 and math.prod(sizes) <= MAX_WORKGROUPS

    def _arguments(self, used: frozenset[str]) -> Iterator[str]:
        """What is read of the uniform block, once."""
        for number, scalar in enumerate(self.program.scalars):
            if f"s{number}" in used:
                yield f"let s{number} = {self._argument(number, scalar)};"
        for number in sorted({a.buffer for a in self.accesses if not a.is_shared}):
            yield f"let first_{number} = i32(p.b{number});"
        if self.is_rounding:
            yield "zero = p.zero;"

    @property
    def is_rounding(self) -> bool:
        """Are there sums that no compiler may see through?"""
        defined = definitions(self.functions.values())
        return any("rounded(" in line for line in (*self.lines, *defined))

    # -- threads ---------------------------------------------------------------------------------

    def expressions(self) -> dict[type[Node], Callable[[Any], str]]:
        """Functions of a module are not anywhere: only kernels have positions."""
        return {**super().expressions(), ir.Position: self.position}

    def position(self, node: ir.Position) -> str:
        warp = self.program.warp
        match node.of:
            case "thread":
                return "thread"
            case "block":
                return f"block_{'xyz'[node.dim]}"
            case "blocks":
                return f"i32({self._grid[node.dim]})"
            case "lane":
                return f"(thread % {warp}i)" if warp > 1 else "0i"
            case "warp":
                return f"(thread / {warp}i)" if warp > 1 else "thread"
            case _:
                raise self.unsupported(node, "clusters; lower it without.")

    def barrier(self, node: ir.Barrier) -> None:
        if node.scope != "block":
            raise self.unsupported(node, f"barrier of a {node.scope}; use that of the block.")
        self.do("workgroupBarrier();")
        if self._exchanges_buffers:
            self.do("storageBarrier();")

    # -- uniform control flow --------------------------------------------------------------------

    def bound(self, node: Node, value: Value) -> str:
        return self._agreed(node, value) or super().bound(node, value)

    def condition(self, node: Node, value: Value) -> str:
        return self._agreed(node, value) or super().condition(node, value)

    def _agreed(self, node: Node, value: Value) -> str:
        """A value around a barrier that the compiler does not know to be the same in all threads,
        as it comes out of memory: that of the first thread, read in the one way that it trusts."""
        if node not in self._waiting or self._levels.of([value]) < Varies.WARP:
            return ""
        kind, shared = self.type_name(value.dtype), f"u{len(self._agreements)}"
        self._agreements.append(f"var<workgroup> {shared}: {kind};")
        self.do(f"if (thread == 0i) {{ {shared} = {self.one(value)}; }}")
        return self.let(kind, f"workgroupUniformLoad(&{shared})")

    @cached_property
    def _agreements(self) -> list[str]:
        """Declarations of what threads agree upon."""
        return []

    @cached_property
    def _levels(self) -> Uniformity:
        return Uniformity(self.program, trusts_memory=False)

    @cached_property
    def _waiting(self) -> frozenset[Node]:
        """Loops and branches with a barrier inside."""
        control = [n for n in self.program.nodes if n.regions]
        return frozenset(n for n in control if any(map(_has_barrier, n.regions)))

    @cached_property
    def _exchanges_buffers(self) -> bool:
        """Is a buffer both written and read?"""
        loads = (n for n in self.program.nodes if isinstance(n, ir.Load))
        return any(n.buffer in self.written for n in loads)


def _has_barrier(region: Region) -> bool:
    return any(isinstance(n, ir.Barrier) for n in walk(region))
