"""Loads and stores of SIMT programs in MSL.

Neighbours are one vector, aligned to its size, as programs access them from a multiple of their
width on; where MSL has no vector of so many, they are the parts of a vector of words. Swizzled
arrays are laid out plainly: only bank conflicts differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.metal.msl.arithmetic import Arithmetic
from rlx.backends.metal.msl.types import BOOL, NAMES, STORED, literal, vector
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Value
from rlx.program.program import Program, Shared

MAX_VECTOR = 4
VECTOR_BYTES = 16
WORD = 4
WORDS = {1: "uint", 2: "uint2", 4: "uint4"}
"""By words: what neighbours of few bits, and copies, are moved as."""


class Memory(Arithmetic):
    """Nodes that access memory."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.buffers = {b.name: b for b in program.buffers}
        self.arrays = {s.name: s for s in program.shared}

    # -- places ----------------------------------------------------------------------------------

    def index(self, value: Value) -> str:
        """Of accesses that happen, which are not negative."""
        unsigned = "ulong" if value.dtype is DType.I64 else "uint"
        return f"{unsigned}({self.one(value)})"

    def place(self, space: str, name: str, stored: str, kind: str, index: Value, count: int) -> str:
        """The neighbours as one value in memory; `kind` is its type."""
        number = self.number(index)
        at = str(int(number) // count) if number is not None else self.index(index)
        if count == 1:
            return f"{name}[{at}]"
        at = at if number is not None else f"{at} / {count}"
        return f"reinterpret_cast<{space} {kind}*>({name})[{at}]"

    def buffer_place(self, name: str, index: Value, count: int, kind: str = "") -> str:
        buffer = self.buffers[name]
        stored = STORED[buffer.dtype]
        space = "device" if buffer.is_written else "device const"
        return self.place(
            space, buffer_name(name), stored, kind or kind_of(buffer.dtype, count), index, count
        )

    def shared_place(self, name: str, index: Value, count: int, kind: str = "") -> str:
        dtype = self.arrays[name].dtype
        return self.place(
            "threadgroup", shared_name(name), STORED[dtype], kind or kind_of(dtype, count), index,
            count,
        )  # fmt: skip

    # -- accesses --------------------------------------------------------------------------------

    def read(self, node: Node, place: str, dtype: DType, mask: str) -> None:
        """The results of a load."""
        count = len(node.results)
        kind = kind_of(dtype, count)
        loaded = f"{mask} ? {place} : {zero_of(dtype, count)}" if mask else place
        whole = self.let(kind, loaded)
        self.give(node.results, [self.from_memory(p, dtype) for p in parts(whole, dtype, count)])

    def write(self, place: str, dtype: DType, values: Sequence[Value], mask: str) -> None:
        whole = joined([self.in_memory(v) for v in values], dtype)
        line = f"{place} = {whole};"
        self.do(f"if ({mask}) {{ {line} }}" if mask else line)

    def load(self, node: ir.Load) -> None:
        dtype = self.buffers[node.buffer].dtype
        place = self.buffer_place(node.buffer, node.args[0], len(node.results))
        self.read(node, place, dtype, "".join(self.all(node.args[1:])))

    def store(self, node: ir.Store) -> None:
        values = node.args[1 + node.has_mask :]
        place = self.buffer_place(node.buffer, node.args[0], len(values))
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.write(place, self.buffers[node.buffer].dtype, values, mask)

    def shared_load(self, node: ir.SharedLoad) -> None:
        if node.is_remote:
            raise self.unsupported(node, "threadgroup memory of others; lower it without.")
        place = self.shared_place(node.memory, node.args[0], len(node.results))
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.read(node, place, self.arrays[node.memory].dtype, mask)

    def shared_store(self, node: ir.SharedStore) -> None:
        values = node.args[1 + node.has_mask :]
        place = self.shared_place(node.memory, node.args[0], len(values))
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.write(place, self.arrays[node.memory].dtype, values, mask)

    def atomic(self, node: ir.Atomic) -> None:
        dtype = self.buffers[node.buffer].dtype
        if dtype not in (DType.I32, DType.U32):
            raise self.unsupported(node, f"atomic {node.op} of {dtype}; use 32 bits.")
        kind = "atomic_int" if dtype.is_signed else "atomic_uint"
        element = f"{buffer_name(node.buffer)} + {self.index(node.args[0])}"
        at = f"reinterpret_cast<device {kind}*>({element})"
        value = self.one(node.args[1])
        line = f"atomic_fetch_{node.op}_explicit({at}, {value}, memory_order_relaxed);"
        mask = "".join(self.all(node.args[2:]))
        self.do(f"if ({mask}) {{ {line} }}" if mask else line)

    def table_load(self, node: ir.TableLoad) -> str:
        dtype = self.program.table(node.table).dtype
        return self.from_memory(f"{table_name(node.table)}[{self.index(node.args[0])}]", dtype)

    def async_copy(self, node: ir.AsyncCopy) -> None:
        """At once: a copy may be done any time before it is waited for."""
        dtype = self.arrays[node.memory].dtype
        kind = WORDS[node.width * dtype.itemsize // WORD]
        to = self.shared_place(node.memory, node.args[0], node.width, kind)
        source = self.buffer_place(node.buffer, node.args[1], node.width, kind)
        zero = literal(0, dtype) if node.width == 1 else f"{kind}(0u)"
        mask = "".join(self.all(node.args[2:]))
        self.do(f"{to} = {mask} ? {source} : {zero};" if mask else f"{to} = {source};")

    # -- declarations ----------------------------------------------------------------------------

    def declared_table(self, name: str) -> str:
        table = self.program.table(name)
        stored = STORED[table.dtype]
        if table.dtype is DType.BF16:
            raise self.unsupported(None, "table of bf16; use f32.")
        own = DType.U8 if table.dtype is BOOL else table.dtype
        values = ", ".join(literal(v, own) for v in table.values)
        return f"constant {stored} {table_name(name)}[{len(table.values)}] = {{{values}}};"

    def declared_array(self, array: Shared) -> list[str]:
        """An array of 16-byte vectors, so that it is aligned, under its own type."""
        name, stored = shared_name(array.name), STORED[array.dtype]
        count = -(-array.size_bytes // VECTOR_BYTES)
        pointer = f"threadgroup {stored}*"
        return [
            f" threadgroup uint4 {name}_memory[{max(1, count)}];",
            f" {pointer} {name} = reinterpret_cast<{pointer}>({name}_memory);",
        ]


def buffer_name(name: str) -> str:
    return f"p_{name}"


def shared_name(name: str) -> str:
    return f"s_{name}"


def table_name(name: str) -> str:
    return f"t_{name}"


def kind_of(dtype: DType, count: int) -> str:
    """The type of some neighbours in memory."""
    if count <= MAX_VECTOR:
        return vector(STORED[dtype], count)
    return WORDS[count * dtype.itemsize // WORD]


def zero_of(dtype: DType, count: int) -> str:
    """Neighbours that are 0."""
    number = (
        literal(0, dtype)
        if dtype in STORED and STORED[dtype] == NAMES[dtype]
        else (f"{STORED[dtype]}(0)")
    )
    if count == 1:
        return number
    return f"{kind_of(dtype, count)}({number if count <= MAX_VECTOR else '0u'})"


def parts(whole: str, dtype: DType, count: int) -> list[str]:
    """Each of some neighbours."""
    if count == 1:
        return [whole]
    if count <= MAX_VECTOR:
        return [f"{whole}[{i}]" for i in range(count)]
    each = WORD // dtype.itemsize
    small = vector(STORED[dtype], each)
    return [f"as_type<{small}>({whole}[{i // each}])[{i % each}]" for i in range(count)]


def joined(values: Sequence[str], dtype: DType) -> str:
    """Neighbours as one value."""
    count = len(values)
    if count == 1:
        return values[0]
    if count <= MAX_VECTOR:
        return f"{kind_of(dtype, count)}({', '.join(values)})"
    each = WORD // dtype.itemsize
    small = vector(STORED[dtype], each)
    groups = (values[i : i + each] for i in range(0, count, each))
    words = [f"as_type<uint>({small}({', '.join(g)}))" for g in groups]
    return f"{kind_of(dtype, count)}({', '.join(words)})"
