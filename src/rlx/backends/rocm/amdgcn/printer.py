"""LLVM IR of SIMT programs for AMD GPUs: functions, control flow, and what each node becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx.backends.gpu.expand.functions import expand_functions
from rlx.backends.rocm.amdgcn.arithmetic import is_native
from rlx.backends.rocm.amdgcn.groups import Groups
from rlx.backends.rocm.amdgcn.memory import GLOBAL, Copy
from rlx.backends.rocm.amdgcn.text import BOOL, kind_of
from rlx.backends.rocm.architecture import LDS_BYTES, TRIPLE, Architecture
from rlx.core.errors import UnsupportedError
from rlx.program import nodes as ir
from rlx.program.expand.reductions import expand_reductions
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program, Scalar
from rlx.program.walk import walk

CODE_OBJECT_VERSION = 500
MAX_BLOCK = 1024
UNUSED = (
    "dispatch-id", "dispatch-ptr", "queue-ptr", "lds-kernel-id", "workitem-id-y", "workitem-id-z",
    "hostcall-ptr", "heap-ptr", "default-queue", "completion-action", "multigrid-sync-arg",
    "flat-scratch-init",
)  # fmt: skip
"""What a kernel could be passed in registers and hidden arguments, and never reads here."""
OPTIONAL = {
    "implicitarg-ptr": "llvm.amdgcn.implicitarg.ptr",
    "workgroup-id-y": "llvm.amdgcn.workgroup.id.y",
    "workgroup-id-z": "llvm.amdgcn.workgroup.id.z",
}
"""What it reads where it calls these."""
REFUSED = (
    ir.WarpgroupMul, ir.WarpgroupWait, ir.ProxyFence, ir.RegisterLimit, ir.BulkCopy, ir.Push,
    ir.MbarrierInit, ir.MbarrierArrive, ir.MbarrierWait,
)  # fmt: skip
"""Nodes of clusters, copy engines and products of four warps, which no AMD GPU has."""
WAITS = (ir.AsyncWait, ir.Barrier, ir.For, ir.While)
"""Nodes before which copies that are under way are finished."""
WARPS = (ir.Shuffle, ir.Reduce, ir.ReduceScatter)


def llvm_ir(program: Program, target: Architecture) -> str:
    """The module of one kernel, which has the program's name.

    Its arguments are the addresses of the buffers, then the scalars. Shared memory is static.
    """
    _check(program, target)
    return Printer(printable(program), target).module()


def printable(program: Program) -> Program:
    """The program in nodes that the printer has."""
    return expand_reductions(expand_functions(program, is_native))


def _check(program: Program, target: Architecture) -> None:
    """What the architecture does not have is refused before anything is printed."""
    name = f"program {program.name}"
    for node in program.nodes:
        if isinstance(node, REFUSED):
            kind = type(node).__name__
            raise UnsupportedError(f"{name}: {target.name} has no {kind}; lower it without.")
        if isinstance(node, WARPS) and program.warp > target.wave:
            raise UnsupportedError(
                f"{name}: {type(node).__name__} in warps of {program.warp}, and waves of "
                f"{target.name} have {target.wave} lanes; lower it for them."
            )
    if program.cluster > 1 or program.maps or program.mbarriers:
        raise UnsupportedError(f"{name}: {target.name} has no clusters and no tensor maps.")
    if program.block > MAX_BLOCK:
        raise UnsupportedError(f"{name}: {program.block} threads; a block has at most {MAX_BLOCK}.")
    used = printable(program).shared_bytes
    if used > LDS_BYTES:
        raise UnsupportedError(
            f"{name}: {used} bytes of shared memory; a block of {target.name} has {LDS_BYTES}."
        )


class Printer(Groups):
    """One module."""

    def __init__(self, program: Program, target: Architecture) -> None:
        super().__init__(program, target)
        self.many: dict[type[Node], Callable[[Any], Sequence[str]]] = {
            ir.Load: self.load,
            ir.SharedLoad: self.shared_load,
            ir.TileElements: self.tile_elements,
            ir.TilePlace: self.tile_place,
        }
        self.single: dict[type[Node], Callable[[Any], str]] = {
            ir.TileFill: self.tile_fill,
            ir.TileLoad: self.tile_load,
            ir.TileMul: self.tile_mul,
            ir.TilePack: self.tile_pack,
            ir.TableLoad: self.table_load,
            ir.Shuffle: self.shuffle,
        }
        self.effects: dict[type[Node], Callable[[Any], None]] = {
            ir.Store: self.store,
            ir.Atomic: self.atomic,
            ir.SharedStore: self.shared_store,
            ir.TileStore: self.tile_store,
            ir.Barrier: self.barrier,
            ir.AsyncCopy: self.async_copy,
            ir.AsyncCommit: self._nothing,
            ir.AsyncWait: lambda node: self.finish_copies(),
            ir.ReleaseDependents: self._nothing,
            ir.WaitDependencies: self._nothing,
            ir.For: self.loop,
            ir.If: self.branch,
            ir.While: self.repeat,
        }

    def _nothing(self, node: Node) -> None:
        """All copies are waited for at once, and kernels begin when those before have ended."""

    # -- the module ------------------------------------------------------------------------------

    def module(self) -> str:
        for scalar in self.program.scalars:
            self.held[scalar.value] = self._argument(scalar)
        self.nodes(self.program.body)
        body = ["entry:", *self.lines, "  ret void", "}"]
        return "\n".join([*self._head(), *body, *self._tail(), ""])

    def _argument(self, scalar: Scalar) -> str:
        dtype = scalar.value.dtype
        if dtype is BOOL or dtype.itemsize < 4:
            raise self.unsupported(f"argument of {dtype}; pass 32 bits")
        return f"%k.{scalar.name}"

    def _head(self) -> Iterator[str]:
        program = self.program
        yield f'target triple = "{TRIPLE}"'
        yield from (self.table(t.name) for t in program.tables)
        yield from (self.array(s) for s in program.shared)
        yield f"define amdgpu_kernel void @{program.name}({', '.join(self._parameters())}) #0 {{"

    def _parameters(self) -> Iterator[str]:
        for buffer in self.program.buffers:
            notes = {"constant": "noalias readonly ", "read": "readonly "}.get(buffer.access, "")
            yield f"{GLOBAL} {notes}align 16 %p.{buffer.name}"
        for scalar in self.program.scalars:
            yield f"{kind_of(scalar.value.dtype)} %k.{scalar.name}"

    def _tail(self) -> Iterator[str]:
        yield from self.declared.values()
        block = self.program.block
        unused = [name for name, function in OPTIONAL.items() if function not in self.declared]
        words = [f'"amdgpu-no-{name}"' for name in (*UNUSED, *unused)]
        words += [f'"amdgpu-flat-work-group-size"="{block},{block}"']
        words += ['"uniform-work-group-size"="true"']
        yield f"attributes #0 = {{ convergent nounwind {' '.join(words)} }}"
        yield "!llvm.module.flags = !{!2}"
        yield "!0 = !{}"
        yield "!1 = !{i32 1}"
        yield f'!2 = !{{i32 1, !"amdhsa_code_object_version", i32 {CODE_OBJECT_VERSION}}}'

    # -- nodes -----------------------------------------------------------------------------------

    def nodes(self, region: Region) -> None:
        for node in region.nodes:
            effect = self.effects.get(type(node))
            if effect is not None:
                effect(node)
                continue
            made = self._results(node)
            self.held.update(zip(node.results, made, strict=True))

    def _results(self, node: Node) -> Sequence[str]:
        several, single = self.many.get(type(node)), self.single.get(type(node))
        if several is not None:
            return several(node)
        made = self.computed(node) if single is None else single(node)
        if made is None:
            raise self.unsupported(f"{type(node).__name__}; expand it")
        return [made]

    # -- control ---------------------------------------------------------------------------------

    def _phis(self, params: Sequence[Value]) -> int:
        """Names for values that are one thing at first and another in the next round; the line
        of the first, which `_close` completes."""
        start = len(self.lines)
        for param in params:
            self.held[param] = self.fresh()
            self.lines.append("")
        return start

    def _close(
        self, at: int, params: Sequence[Value], first: Sequence[str], before: str, more: list[str]
    ) -> None:
        """Complete the phis: values of the block before, and of the current one."""
        for i, (param, given, next_) in enumerate(zip(params, first, more, strict=True)):
            kind = self.type_of(param.type)
            sources = f"[ {given}, %{before} ], [ {next_}, %{self.block} ]"
            self.lines[at + i] = f"  {self.held[param]} = phi {kind} {sources}"

    def _body(self, region: Region) -> None:
        """Of a loop: values of one round are not there in the next, so its copies end with it."""
        self.nodes(region)
        self.finish_copies()

    def loop(self, node: ir.For) -> None:
        (body,) = node.regions
        self.finish_copies()
        first, before = self.all([node.args[0], *node.args[3:]]), self.block
        high, step = self.all(node.args[1:3])
        head, inside, end = self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        phis = self._phis(body.params)
        index, kind = self.one(body.params[0]), kind_of(body.params[0].dtype)
        self.branch_to(self.let(f"icmp slt {kind} {index}, {high}"), inside, end)
        self.begin(inside)
        self._body(body)
        more = [self.let(f"add {kind} {index}, {step}"), *self.all(body.yields)]
        self._close(phis, body.params, first, before, more)
        self.jump(head)
        self.begin(end)
        self.held.update(zip(node.results, self.all(body.params[1:]), strict=True))

    def branch(self, node: ir.If) -> None:
        if any(isinstance(n, WAITS) for region in node.regions for n in walk(region)):
            self.finish_copies()
        yes, no, end = self.label(), self.label(), self.label()
        self.branch_to(self.one(node.args[0]), yes, no)
        sides: list[tuple[list[str], str]] = []
        begun: list[tuple[list[Copy], str]] = []
        for label, region in zip((yes, no), node.regions, strict=True):
            before, self.copies = self.copies, []
            self.begin(label)
            self.nodes(region)
            sides.append((self.all(region.yields), self.block))
            begun.append((self.copies, self.block))
            self.copies = before
            self.jump(end)
        self.begin(end)
        for i, result in enumerate(node.results):
            sources = [(values[i], block) for values, block in sides]
            self.held[result] = self.phi(self.type_of(result.type), *sources)
        self.merge_copies(begun)

    def repeat(self, node: ir.While) -> None:
        test, body = node.regions
        self.finish_copies()
        first, before = self.all(node.args), self.block
        head, inside, end = self.label(), self.label(), self.label()
        self.jump(head)
        self.begin(head)
        phis = self._phis(test.params)
        self._body(test)
        self.branch_to(self.one(test.yields[0]), inside, end)
        self.begin(inside)
        self.held.update(zip(body.params, self.all(test.params), strict=True))
        self._body(body)
        self._close(phis, test.params, first, before, self.all(body.yields))
        self.jump(head)
        self.begin(end)
        self.held.update(zip(node.results, self.all(test.params), strict=True))
