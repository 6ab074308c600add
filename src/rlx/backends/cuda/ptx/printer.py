"""SIMT programs as PTX text, for the driver to assemble.

Reductions and functions that PTX lacks are expanded before. Nothing here optimises: ptxas does
common subexpressions, address arithmetic and register allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.cuda.ptx.arithmetic import is_native
from rlx.backends.cuda.ptx.groups import Groups
from rlx.backends.cuda.ptx.text import BOOL, bits_of, kind_of, literal
from rlx.backends.gpu.expand.functions import expand_functions
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.expand.reductions import expand_reductions
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program, Scalar

SHARED_ALIGN = 1024
"""Of the block's memory: what the swizzle of a 128-byte row repeats in."""
TENSOR_MAP_BYTES = 128
HOPPER = (
    ir.BulkCopy, ir.Push, ir.ProxyFence, ir.MbarrierInit, ir.MbarrierArrive, ir.MbarrierWait,
    ir.ReleaseDependents, ir.WaitDependencies,
)  # fmt: skip


ONLY_90A = (ir.WarpgroupMul, ir.WarpgroupWait, ir.RegisterLimit)
BOUND = frozenset((*HOPPER, *ONLY_90A, ir.TileStore))
"""What some architectures do not have."""


def ptx(program: Program, architecture: Architecture | None = None) -> str:
    """The module of one kernel, which has the program's name.

    Its parameters are the addresses of the buffers, then the scalars, then the tensor maps. Shared
    memory is dynamic: `printable(program).shared_bytes` of it.
    """
    return printed(program, architecture or Architecture())[0]


def printed(program: Program, target: Architecture) -> tuple[str, int]:
    """The module of one kernel, and the bytes of shared memory that a launch asks for."""
    made = printable(program)
    return _Printer(made, target).module(), made.shared_bytes


def printable(program: Program) -> Program:
    """The program in nodes that PTX has; its shared memory is what a launch asks for."""
    expanded = expand_functions(program, is_native)
    return expand_reductions(expanded, has_word_reductions=program.warp == 32)


class _Printer(Groups):
    """One module."""

    def __init__(self, program: Program, target: Architecture) -> None:
        super().__init__(program)
        self.target = target

    def module(self) -> str:
        self._check()
        for scalar in self.program.scalars:
            self.give(scalar.value, *self._argument(scalar))
        if any(isinstance(n, ir.WarpgroupMul) for n in self.program.nodes):
            self.uniform_warp = self._uniform_warp()
        self.nodes(self.program.body)
        return "\n".join([*self._head(), *self._declared(), *self.lines, "\tret;", "}", ""])

    def _uniform_warp(self) -> str:
        """Roles of warps are branches on a value that the assembler knows to be the warp's, or
        else products of four warps are in control flow that may diverge."""
        thread = self.let(DType.I32, "mov.u32", "%tid.x")
        warp = self.let(DType.I32, "shr.u32", thread, "5")
        return self.let(DType.I32, "shfl.sync.idx.b32", warp, "0", "31", "0xffffffff")

    def _check(self) -> None:
        """What the architecture does not have is refused before anything is printed."""
        for node in self.program.nodes:
            if type(node) not in BOUND:
                continue
            name = type(node).__name__
            is_matrix = isinstance(node, ir.TileStore) and node.args[1].dtype is not DType.F32
            if (isinstance(node, HOPPER) or is_matrix) and self.target.capability < 90:
                raise self.unsupported(f"{name} on {self.target.name}: it begins with sm_90")
            if isinstance(node, ONLY_90A) and self.target.name != "sm_90a":
                raise self.unsupported(f"{name} on {self.target.name}: sm_90a has it alone")
        if self.program.cluster > 1 and self.target.capability < 90:
            raise self.unsupported(f"clusters on {self.target.name}: they begin with sm_90")

    # -- the module ------------------------------------------------------------------------------

    def _head(self) -> Iterator[str]:
        program = self.program
        yield f".version {self.target.version}"
        yield f".target {self.target.name}"
        yield ".address_size 64"
        for table in program.tables:
            values = ", ".join(literal(v, table.dtype) for v in table.values)
            size, kind = len(table.values), kind_of(table.dtype)
            yield f".const .align 8 .{kind} {table.name}[{size}] = {{{values}}};"
        yield f".extern .shared .align {SHARED_ALIGN} .b8 smem[];"
        yield f".visible .entry {program.name}("
        yield ",\n".join(self._parameters())
        yield ")"
        yield f".maxntid {program.block}, 1, 1"
        if program.resident or any(isinstance(n, ir.RegisterLimit) for n in program.nodes):
            yield f".minnctapersm {max(1, program.resident)}"
        if program.cluster > 1:
            yield ".explicitcluster"
            yield f".reqnctapercluster {program.cluster}, 1, 1"
        yield "{"

    def _parameters(self) -> Iterator[str]:
        for buffer in self.program.buffers:
            yield f"\t.param .u64 .ptr .global .align 16 k_{buffer.name}"
        for scalar in self.program.scalars:
            yield f"\t.param .{self._kind(scalar)} k_{scalar.name}"
        for tensor in self.program.maps:
            yield f"\t.param .align 64 .b8 k_{tensor.name}[{TENSOR_MAP_BYTES}]"

    def _kind(self, scalar: Scalar) -> str:
        dtype = scalar.value.dtype
        if dtype is BOOL or (not dtype.is_float and dtype.itemsize < 4) or dtype.itemsize < 4:
            raise self.unsupported(f"argument of {dtype}; pass 32 bits")
        return kind_of(dtype)

    def _declared(self) -> Iterator[str]:
        for (prefix, kind), count in sorted(self.counts.items()):
            yield f"\t.reg .{kind} %{prefix}<{count + 1}>;"
        yield "\t.reg .b32 %SMEM;"
        yield "\tmov.u32 %SMEM, smem;"
        for buffer in self.program.buffers:
            yield f"\t.reg .b64 %P_{buffer.name};"
            yield f"\tld.param.u64 %P_{buffer.name}, [k_{buffer.name}];"
            yield f"\tcvta.to.global.u64 %P_{buffer.name}, %P_{buffer.name};"
        for tensor in self.program.maps:
            yield f"\t.reg .b64 %P_{tensor.name};"
            yield f"\tmov.b64 %P_{tensor.name}, k_{tensor.name};"
            yield f"\tcvta.param.u64 %P_{tensor.name}, %P_{tensor.name};"

    def _argument(self, scalar: Scalar) -> list[str]:
        dtype = scalar.value.dtype
        return [self.let(dtype, f"ld.param.{self._kind(scalar)}", f"[k_{scalar.name}]")]

    # -- nodes -----------------------------------------------------------------------------------

    def nodes(self, region: Region) -> None:
        for node in region.nodes:
            kind = type(node)
            if (register := ONE.get(kind)) is not None:
                self.held[node.results[0]] = [register(self, node)]
            elif (effect := EFFECTS.get(kind)) is not None:
                effect(self, node)
            else:
                self._several(node)

    def _several(self, node: Node) -> None:
        rule = MANY.get(type(node))
        if rule is None:
            raise self.unsupported(f"{type(node).__name__}; expand it")
        made = rule(self, node)
        if len(node.results) == 1:
            self.held[node.result] = list(made)
            return
        for result, register in zip(node.results, made, strict=True):
            self.give(result, register)

    # -- control ---------------------------------------------------------------------------------

    def assign(self, values: Sequence[Value], given: Sequence[Value]) -> None:
        """All at once: a value may be one of those that are replaced. What is in its registers
        already, as the sums of products under way are, stays there."""
        pairs = [p for p in zip(values, given, strict=True) if self.held[p[0]] != self.held[p[1]]]
        staged = [self.fresh(source) for _, source in pairs]
        for registers, (_, source) in zip(staged, pairs):
            self.move(source, registers, self.held[source])
        for (value, _), registers in zip(pairs, staged):
            self.move(value, self.held[value], registers)

    def own(self, values: Sequence[Value], given: Sequence[Value]) -> None:
        """Registers that loops and branches write, with their first values."""
        for value, source in zip(values, given, strict=True):
            registers = self.fresh(value)
            self.move(source, registers, self.held[source])
            self.held[value] = registers

    def loop(self, node: ir.For) -> None:
        (body,) = node.regions
        low, high, step = node.args[:3]
        index, *params = body.params
        self.own([index, *params], [low, *node.args[3:]])
        head, end = self.label(), self.label()
        self.mark(head)
        kind = kind_of(index.dtype)
        done = self.let(BOOL, f"setp.ge.{kind}", self.one(index), self.one(high))
        self.do("bra", end, when=done)
        self.nodes(body)
        self.assign(params, body.yields)
        at = self.one(index)
        self.do(f"add.s{bits_of(index.dtype)}", at, at, self.one(step))
        self.do("bra", head)
        self.mark(end)
        for result, param in zip(node.results, params):
            self.held[result] = self.held[param]

    def branch(self, node: ir.If) -> None:
        then, other = node.regions
        for result in node.results:
            self.held[result] = self.fresh(result)
        no, end = self.label(), self.label()
        self.do("bra", no, when=f"!{self.one(node.args[0])}")
        self.nodes(then)
        self.assign(node.results, then.yields)
        if other.nodes or other.yields:
            self.do("bra", end)
        self.mark(no)
        self.nodes(other)
        self.assign(node.results, other.yields)
        self.mark(end)

    def repeat(self, node: ir.While) -> None:
        test, body = node.regions
        self.own(test.params, node.args)
        head, end = self.label(), self.label()
        self.mark(head)
        self.nodes(test)
        self.do("bra", end, when=f"!{self.one(test.yields[0])}")
        for param, source in zip(body.params, test.params):
            self.held[param] = self.held[source]
        self.nodes(body)
        self.assign(test.params, body.yields)
        self.do("bra", head)
        self.mark(end)
        for result, param in zip(node.results, test.params):
            self.held[result] = self.held[param]


# Tables of functions rather than of methods: a printer that holds its own methods is a cycle, which
# only the garbage collector frees, with all values and lines of its program.
ONE: Mapping[type[Node], Callable[[_Printer, Any], str]] = {
    ir.Const: _Printer.const,
    ir.Position: _Printer.position,
    ir.Binary: _Printer.binary,
    ir.Compare: _Printer.compare,
    ir.Unary: _Printer.unary,
    ir.Call: _Printer.call,
    ir.Fma: _Printer.fma,
    ir.Convert: _Printer.convert,
    ir.Bitcast: _Printer.bitcast,
    ir.TableLoad: _Printer.table_load,
    ir.Shuffle: _Printer.shuffle,
    ir.Reduce: _Printer.word_reduction,
}
"""How nodes whose result is one register are printed."""
MANY: Mapping[type[Node], Callable[[_Printer, Any], Sequence[str]]] = {
    ir.Select: _Printer.select,
    ir.Load: _Printer.load,
    ir.SharedLoad: _Printer.shared_load,
    ir.TileFill: _Printer.tile_fill,
    ir.TileLoad: _Printer.tile_load,
    ir.TileMul: _Printer.tile_mul,
    ir.WarpgroupMul: _Printer.warpgroup_mul,
    ir.TileElements: _Printer.tile_elements,
    ir.TilePack: _Printer.tile_pack,
    ir.TilePlace: _Printer.tile_place,
}
"""The same of several registers: those of one result, or one of each."""
EFFECTS: Mapping[type[Node], Callable[[_Printer, Any], None]] = {
    ir.Store: _Printer.store,
    ir.Atomic: _Printer.atomic,
    ir.SharedStore: _Printer.shared_store,
    ir.TileStore: _Printer.tile_store,
    ir.Barrier: _Printer.barrier,
    ir.AsyncCopy: _Printer.async_copy,
    ir.AsyncCommit: _Printer.async_commit,
    ir.AsyncWait: _Printer.async_wait,
    ir.MbarrierInit: _Printer.mbarrier_init,
    ir.MbarrierArrive: _Printer.mbarrier_arrive,
    ir.MbarrierWait: _Printer.mbarrier_wait,
    ir.BulkCopy: _Printer.bulk_copy,
    ir.Push: _Printer.push,
    ir.WarpgroupWait: _Printer.warpgroup_wait,
    ir.RegisterLimit: _Printer.register_limit,
    ir.ProxyFence: lambda printer, node: printer.do("fence.proxy.async.shared::cta"),
    ir.ReleaseDependents: lambda printer, node: printer.do("griddepcontrol.launch_dependents"),
    ir.WaitDependencies: lambda printer, node: printer.do("griddepcontrol.wait"),
    ir.For: _Printer.loop,
    ir.If: _Printer.branch,
    ir.While: _Printer.repeat,
}
"""How nodes without a result, or with regions, are printed."""
