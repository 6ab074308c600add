"""Loads and stores of SIMT programs in LLVM IR.

Neighbours are one vector, aligned to its size, as programs access them from a multiple of their
width on. A masked access is a branch around it. Indices of accesses that happen are not negative,
so 32-bit ones are extended by zeros, which leaves the sign out of the address arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.rocm.amdgcn.arithmetic import Arithmetic
from rlx.backends.rocm.amdgcn.text import BOOL, kind_of, literal, stored_kind
from rlx.backends.rocm.architecture import Architecture
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value
from rlx.program.program import Program, Shared

GLOBAL, LOCAL, CONSTANT = "ptr addrspace(1)", "ptr addrspace(3)", "ptr addrspace(4)"
STREAMED = ", !nontemporal !1"
INVARIANT = ", !invariant.load !0"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy to shared memory that is under way: what was loaded, and where it goes."""

    kind: str
    value: str
    place: str
    size: int
    mask: str = ""
    """Does it happen at all?"""


ATOMICS = {"add": "add", "or": "or", "and": "and"}


class Memory(Arithmetic):
    """Nodes that access memory."""

    def __init__(self, program: Program, target: Architecture) -> None:
        super().__init__(program, target)
        self.constants = {}
        self.buffers = {b.name: b for b in program.buffers}
        self.arrays: dict[str, Shared] = {s.name: s for s in program.shared}
        self.copies: list[Copy] = []

    # -- addresses -------------------------------------------------------------------------------

    def _wide(self, index: Value) -> str:
        at = self.one(index)
        return at if index.dtype is DType.I64 else self.let(f"zext i32 {at} to i64")

    def address(self, buffer: str, index: Value) -> str:
        """Of an element in global memory."""
        kind = stored_kind(self.buffers[buffer].dtype)
        return self.let(f"getelementptr {kind}, {GLOBAL} %p.{buffer}, i64 {self._wide(index)}")

    def narrow(self, index: Value) -> str:
        """An index of shared memory, which fits 32 bits."""
        at = self.one(index)
        return self.let(f"trunc i64 {at} to i32") if index.dtype is DType.I64 else at

    def shared_address(self, memory: str, index: str) -> str:
        """Of an element in shared memory, through the array's permutation."""
        array = self.arrays[memory]
        kind, size = stored_kind(array.dtype), array.dtype.itemsize
        if not array.is_swizzled:
            return self.let(f"getelementptr {kind}, {LOCAL} @s.{memory}, i32 {index}")
        byte = self.let(f"mul i32 {index}, {size}")
        row = self.let(f"and i32 {self.let(f'lshr i32 {byte}, 3')}, 112")
        byte = self.let(f"xor i32 {byte}, {row}")
        return self.let(f"getelementptr i8, {LOCAL} @s.{memory}, i32 {byte}")

    # -- accesses --------------------------------------------------------------------------------

    def where(self, mask: str, access: Callable[[], str], kind: str) -> str:
        """What an access gives where the mask holds, and zeros elsewhere."""
        here, yes, end = self.block, self.label(), self.label()
        self.branch_to(mask, yes, end)
        self.begin(yes)
        made = access()
        last = self.block
        self.jump(end)
        self.begin(end)
        return self.phi(kind, (made, last), (_zero(kind), here))

    def only(self, mask: str, access: Callable[[], None]) -> None:
        """An access where the mask holds."""
        if not mask:
            access()
            return
        yes, end = self.label(), self.label()
        self.branch_to(mask, yes, end)
        self.begin(yes)
        access()
        self.jump(end)
        self.begin(end)

    def read_vector(self, place: str, dtype: DType, count: int, mask: str, notes: str = "") -> str:
        """Neighbours as one vector; `place` is the type and the name of a pointer."""
        kind = vector_kind(stored_kind(dtype), count)
        text = f"load {kind}, {place}, align {count * dtype.itemsize}{notes}"
        if not mask:
            return self.let(text)
        return self.where(mask, lambda: self.let(text), kind)

    def parts(self, vector: str, dtype: DType, count: int) -> list[str]:
        head = f"extractelement {vector_kind(stored_kind(dtype), count)} {vector}"
        found = [self.let(f"{head}, i32 {i}") for i in range(count)] if count > 1 else [vector]
        if dtype is not BOOL:
            return found
        return [self.let(f"icmp ne i8 {byte}, 0") for byte in found]

    def vector(self, kind: str, values: Sequence[str]) -> str:
        """Values of one type together."""
        if len(values) == 1:
            return values[0]
        made = "poison"
        for i, value in enumerate(values):
            head = f"insertelement <{len(values)} x {kind}> {made}"
            made = self.let(f"{head}, {kind} {value}, i32 {i}")
        return made

    def write_vector(self, place: str, dtype: DType, values: Sequence[str], notes: str) -> None:
        kind, size = stored_kind(dtype), dtype.itemsize * len(values)
        if dtype is BOOL:
            values = [self.let(f"zext i1 {v} to i8") for v in values]
        given = f"{vector_kind(kind, len(values))} {self.vector(kind, values)}"
        self.do(f"store {given}, {place}, align {size}{notes}")

    # -- nodes -----------------------------------------------------------------------------------

    def load(self, node: ir.Load) -> list[str]:
        buffer, count = self.buffers[node.buffer], len(node.results)
        mask = "".join(self.all(node.args[1:]))
        notes = STREAMED if node.hint == "stream" else ""
        notes += INVARIANT if buffer.access == "constant" else ""
        place = f"{GLOBAL} {self.address(node.buffer, node.args[0])}"
        read = self.read_vector(place, buffer.dtype, count, mask, notes)
        return self.parts(read, buffer.dtype, count)

    def store(self, node: ir.Store) -> None:
        dtype = self.buffers[node.buffer].dtype
        values = self.all(node.args[1 + node.has_mask :])
        place = f"{GLOBAL} {self.address(node.buffer, node.args[0])}"
        notes = STREAMED if node.hint == "stream" else ""
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.only(mask, lambda: self.write_vector(place, dtype, values, notes))

    def atomic(self, node: ir.Atomic) -> None:
        dtype = self.buffers[node.buffer].dtype
        if dtype.is_float or dtype.itemsize < 4:
            raise self.unsupported(f"atomic {node.op} of {dtype}")
        op = ATOMICS.get(node.op, node.op if dtype.is_signed else f"u{node.op}")
        place = f"{GLOBAL} {self.address(node.buffer, node.args[0])}"
        value = f"{kind_of(dtype)} {self.one(node.args[1])}"
        text = f'atomicrmw {op} {place}, {value} syncscope("agent") monotonic'
        self.only("".join(self.all(node.args[2:])), lambda: self.do(text))

    def _own(self, node: ir.SharedLoad) -> None:
        if node.is_remote:
            raise self.unsupported("shared memory of other blocks (SharedLoad with is_remote)")

    def shared_load(self, node: ir.SharedLoad) -> list[str]:
        self._own(node)
        dtype, count = self.arrays[node.memory].dtype, len(node.results)
        place = f"{LOCAL} {self.shared_address(node.memory, self.narrow(node.args[0]))}"
        mask = self.one(node.args[1]) if node.has_mask else ""
        return self.parts(self.read_vector(place, dtype, count, mask), dtype, count)

    def shared_store(self, node: ir.SharedStore) -> None:
        dtype = self.arrays[node.memory].dtype
        values = self.all(node.args[1 + node.has_mask :])
        place = f"{LOCAL} {self.shared_address(node.memory, self.narrow(node.args[0]))}"
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.only(mask, lambda: self.write_vector(place, dtype, values, ""))

    def table_load(self, node: ir.TableLoad) -> str:
        table = self.program.table(node.table)
        kind, at = stored_kind(table.dtype), self._wide(node.args[0])
        place = self.let(f"getelementptr {kind}, {CONSTANT} @t.{node.table}, i64 {at}")
        size = table.dtype.itemsize
        read = self.let(f"load {kind}, {CONSTANT} {place}, align {size}{INVARIANT}")
        return self.let(f"icmp ne i8 {read}, 0") if table.dtype is BOOL else read

    # -- asynchronous copies ---------------------------------------------------------------------

    def async_copy(self, node: ir.AsyncCopy) -> None:
        """A load to registers; the store is made later, when somebody waits for it, so that the
        load is under way meanwhile."""
        dtype = self.arrays[node.memory].dtype
        mask = "".join(self.all(node.args[2:]))
        source = f"{GLOBAL} {self.address(node.buffer, node.args[1])}"
        read = self.read_vector(source, dtype, node.width, mask)
        place = self.shared_address(node.memory, self.narrow(node.args[0]))
        kind = vector_kind(stored_kind(dtype), node.width)
        self.copies.append(Copy(kind, read, place, node.width * dtype.itemsize))

    def finish_copies(self) -> None:
        """The stores of all copies that are under way."""
        for copy in self.copies:
            text = f"store {copy.kind} {copy.value}, {LOCAL} {copy.place}, align {copy.size}"
            self.only(copy.mask, functools.partial(self.do, text))
        self.copies = []

    def merge_copies(self, sides: Sequence[tuple[list[Copy], str]]) -> None:
        """Copies that began in one of several blocks, which control has come from."""
        for copies, own in sides:
            for copy in copies:
                values = {own: (copy.value, copy.place, copy.mask or "true")}
                kinds = (copy.kind, LOCAL, "i1")
                none = ("poison", "poison", "false")
                value, place, mask = (
                    self.phi(kind, *((values.get(b, none)[i], b) for _, b in sides))
                    for i, kind in enumerate(kinds)
                )
                self.copies.append(Copy(copy.kind, value, place, copy.size, mask))

    def table(self, name: str) -> str:
        """The declaration of a table."""
        table = self.program.table(name)
        kind = stored_kind(table.dtype)
        dtype = DType.U8 if table.dtype is BOOL else table.dtype
        values = ", ".join(f"{kind} {literal(v, dtype)}" for v in table.values)
        head = f"@t.{name} = internal addrspace(4) constant"
        return f"{head} [{len(table.values)} x {kind}] [{values}], align 16"

    def array(self, shared: Shared) -> str:
        """The declaration of an array in shared memory."""
        kind = f"[{shared.count} x {stored_kind(shared.dtype)}]"
        head = f"@s.{shared.name} = internal unnamed_addr addrspace(3) global"
        return f"{head} {kind} poison, align {shared.align}"


def vector_kind(kind: str, count: int) -> str:
    return kind if count == 1 else f"<{count} x {kind}>"


def _zero(kind: str) -> str:
    if kind.startswith("<"):
        return "zeroinitializer"
    return "0" if kind.startswith("i") else "0.0"
