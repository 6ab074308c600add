"""Loads and stores of SIMT programs in PTX.

Vectors of numbers of fewer than 32 bits are accessed as 32-bit words, and their parts taken out of
them or put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cuda.ptx.arithmetic import Arithmetic
from rlx.backends.cuda.ptx.text import BF16, BOOL, F16, bits_of, kind_of, literal
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Value
from rlx.program.program import Program, Shared, shared_offsets

HALVES = (F16, BF16)
I64 = DType.I64
MAX_IMMEDIATE = 1 << 16
"""Elements that an instruction adds to an address."""
SWIZZLE_BYTES = 1024
"""What the permutation of a swizzled array repeats in."""


@dataclass(frozen=True, slots=True)
class SharedIndex:
    """Where an element of shared memory is."""

    at: str
    """What the array's permutation is of."""
    bytes: int = 0
    """To be added behind it: a number of the instruction."""
    moved: str = ""
    """Bytes to be added behind it, in a register."""


class Memory(Arithmetic):
    """Nodes that access memory."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.offsets = shared_offsets(program)
        self.maker: dict[Value, Node] = {r: n for n in program.nodes for r in n.results}

    def binary(self, node: ir.Binary) -> str:
        """Quotients by powers of two are shifts: the assembler divides by any number, constant or
        not, by way of a reciprocal, some twenty instructions."""
        if node.op not in ("div", "rem"):
            return super().binary(node)
        number, dtype = self.maker.get(node.args[1]), node.result.dtype
        if not isinstance(number, ir.Const):
            return super().binary(node)
        by = int(number.value) if dtype.is_integer and dtype.itemsize >= 4 else 0
        if by < 2 or by & (by - 1):
            return super().binary(node)
        return self._by_power(node.op, dtype, self.one(node.args[0]), by.bit_length() - 1)

    def _by_power(self, op: str, dtype: DType, x: str, power: int) -> str:
        """Towards 0: of a negative number, of it and the divisor less 1."""
        bits = bits_of(dtype)
        moved = x
        if dtype.is_signed:
            sign = self.let(dtype, f"shr.s{bits}", x, str(bits - 1))
            moved = self.let(
                dtype, f"add.s{bits}", x, self.let(dtype, f"shr.u{bits}", sign, str(bits - power))
            )
        if op == "div":
            return self.let(dtype, f"shr.{kind_of(dtype)}", moved, str(power))
        if not dtype.is_signed:
            return self.let(dtype, f"and.b{bits}", x, str((1 << power) - 1))
        whole = self.let(dtype, f"and.b{bits}", moved, str(-(1 << power)))
        return self.let(dtype, f"sub.s{bits}", x, whole)

    # -- addresses -------------------------------------------------------------------------------

    def address(self, buffer: str, index: Value) -> str:
        """Of an element in global memory, as an operand without its brackets. Constant addends of
        the index are part of the instruction: indices are in range, so nothing wraps."""
        size, more = self.program.buffer(buffer).dtype.itemsize, 0
        while (found := self._addends(index)) is not None and 0 <= found[1] <= MAX_IMMEDIATE:
            index, more = found[0], more + found[1] * size
        at = self.one(index)
        if index.dtype is I64:
            moved = self.let(I64, "mul.lo.s64", at, str(size))
        else:
            moved = self.let(I64, "mul.wide.s32", at, str(size))
        return operand_at(self.let(I64, "add.s64", f"%P_{buffer}", moved), more)

    def shared_address(self, memory: str, index: str, index_dtype: DType = DType.I32) -> str:
        """Of an element in shared memory, through the array's permutation."""
        array = self.program.memory(memory)
        at = self.let(None, "cvt.u32.u64", index) if index_dtype is I64 else index
        byte = self.let(None, "mul.lo.u32", at, str(array.dtype.itemsize))
        if array.is_swizzled:
            row = self.let(None, "shr.u32", byte, "3")
            byte = self.let(None, "xor.b32", byte, self.let(None, "and.b32", row, "112"))
        start = self.let(None, "add.u32", "%SMEM", str(self.offsets[memory]))
        return self.let(None, "add.u32", start, byte)

    def shared_index(self, memory: str, index: Value) -> SharedIndex:
        """An index with the addends apart that the permutation does not change: constant ones are
        part of the instruction, those that vary, such as the start of a stage, are added behind,
        and what is permuted is computed once for many."""
        array, more = self.program.memory(memory), 0
        size = array.dtype.itemsize
        unit = SWIZZLE_BYTES if array.is_swizzled else 1
        while (found := self._addends(index)) is not None:
            value, number = found
            if number < 0 or number * size % unit:
                break
            index, more = value, more + number * size
        if not array.is_swizzled or index.dtype is I64:
            at = self.one(index)
            at = self.let(None, "cvt.u32.u64", at) if index.dtype is I64 else at
            return SharedIndex(at, more)
        terms = self._terms(index)
        whole = [t for t in terms if self._is_multiple(t, unit // size)]
        rest = [t for t in terms if t not in whole]
        if not whole or not rest:
            return SharedIndex(self.one(index), more)
        moved = self.let(None, "mul.lo.u32", self._sum(whole), str(size))
        return SharedIndex(self._sum(rest), more, moved)

    def _terms(self, index: Value) -> list[Value]:
        """The addends of an index."""
        node = self.maker.get(index)
        if not isinstance(node, ir.Binary) or node.op != "add":
            return [index]
        return [t for a in node.args for t in self._terms(a)]

    def _is_multiple(self, value: Value, of: int) -> bool:
        """Is it a product with a multiple of a number?"""
        node = self.maker.get(value)
        if not isinstance(node, ir.Binary) or node.op != "mul":
            return False
        numbers = [self.maker.get(a) for a in node.args]
        return any(isinstance(n, ir.Const) and int(n.value) % of == 0 for n in numbers)

    def _sum(self, terms: Sequence[Value]) -> str:
        total = self.one(terms[0])
        for term in terms[1:]:
            total = self.let(None, "add.u32", total, self.one(term))
        return total

    def _addends(self, index: Value) -> tuple[Value, int] | None:
        """A value and a number whose sum it is."""
        node = self.maker.get(index)
        if not isinstance(node, ir.Binary) or node.op != "add":
            return None
        for value, other in (node.args, node.args[::-1]):
            number = self.maker.get(other)
            if isinstance(number, ir.Const):
                return value, int(number.value)
        return None

    def shared_operand(self, memory: str, index: Value) -> str:
        """An element in shared memory as an operand of an instruction."""
        found = self.shared_index(memory, index)
        return self.shared_place(memory, found.at, found)

    def shared_place(self, memory: str, at: str, index: SharedIndex) -> str:
        """An operand: what is permuted, moved by what is not."""
        address = self.shared_address(memory, at)
        if index.moved:
            address = self.let(None, "add.u32", address, index.moved)
        return operand_at(address, index.bytes)

    def of_rank(self, address: str, rank: str) -> str:
        """The same place in the shared memory of another block of the cluster."""
        return self.let(None, "mapa.shared::cluster.u32", address, rank)

    def array(self, memory: str) -> Shared:
        return self.program.memory(memory)

    # -- accesses --------------------------------------------------------------------------------

    def read(self, space: str, address: str, dtype: DType, count: int, mask: str = "") -> list[str]:
        """Neighbours from an address on; zeros where the mask does not hold."""
        if count > 1 and dtype.itemsize < 4:
            return self._read_words(space, address, dtype, count, mask)
        suffix = self._suffix(dtype)
        held = [self.register(DType.U32 if dtype is BOOL else dtype) for _ in range(count)]
        if mask:
            kind = "b16" if dtype in HALVES else _mov(dtype)
            for register in held:
                zero = "0" if dtype in HALVES else literal(0, dtype)
                self.do(f"mov.{kind}", register, zero)
        self.do(f"ld.{space}{_vector(count)}.{suffix}", _tuple(held), f"[{address}]", when=mask)
        if dtype is BOOL:
            return [self.let(BOOL, "setp.ne.u32", r, "0") for r in held]
        return held

    def _suffix(self, dtype: DType) -> str:
        """The type of an access: numbers are extended on the way in."""
        if dtype in HALVES:
            return "b16"
        if dtype.is_float:
            return kind_of(dtype)
        sign = "s" if dtype.is_signed else "u"
        return f"{sign}{dtype.itemsize * 8}"

    def _read_words(
        self, space: str, address: str, dtype: DType, count: int, mask: str
    ) -> list[str]:
        size = dtype.itemsize * count
        words = [self.register(None) for _ in range(max(1, size // 4))]
        for word in words if mask else ():
            self.do("mov.b32", word, "0")
        suffix = "b32" if size >= 4 else "u16"
        instruction = f"ld.{space}{_vector(len(words))}.{suffix}"
        self.do(instruction, _tuple(words), f"[{address}]", when=mask)
        per_word = 4 // dtype.itemsize
        return [self._part(words[i // per_word], i % per_word, dtype) for i in range(count)]

    def _part(self, word: str, number: int, dtype: DType) -> str:
        """One of the numbers that share a word."""
        size = dtype.itemsize * 8
        if dtype in HALVES:
            low, high = self.register(dtype), self.register(dtype)
            self.do("mov.b32", f"{{{low}, {high}}}", word)
            return high if number else low
        kind = "s32" if dtype.is_signed else "u32"
        made = self.let(None, f"bfe.{kind}", word, str(number * size), str(size))
        return self.let(BOOL, "setp.ne.u32", made, "0") if dtype is BOOL else made

    def write(
        self, space: str, address: str, dtype: DType, values: Sequence[str], mask: str = ""
    ) -> None:
        held = [self.number(v) if dtype is BOOL else v for v in values]
        suffix = self._suffix(dtype)
        if len(held) > 1 and dtype.itemsize < 4:
            held, suffix = self._words(held, dtype)
        self._write(space, address, held, suffix, mask)

    def _write(self, space: str, address: str, held: Sequence[str], suffix: str, mask: str) -> None:
        instruction = f"st.{space}{_vector(len(held))}.{suffix}"
        self.do(instruction, f"[{address}]", _tuple(held), when=mask)

    def write_values(
        self, space: str, address: str, dtype: DType, values: Sequence[Value], mask: str
    ) -> None:
        if dtype in HALVES and len(values) > 1:
            self._write(space, address, self.packed(values, dtype), "b32", mask)
        else:
            self.write(space, address, dtype, self.all(values), mask)

    def packed(self, values: Sequence[Value], dtype: DType) -> list[str]:
        """Pairs of half floats as words; pairs that were just rounded are so in one instruction."""
        return [self._pair(a, b, dtype) for a, b in zip(values[::2], values[1::2])]

    def _pair(self, low: Value, high: Value, dtype: DType) -> str:
        nodes = [self.maker.get(v) for v in (low, high)]
        given = [n.args[0] for n in nodes if isinstance(n, ir.Convert)]
        if len(given) == 2 and all(v.dtype is DType.F32 for v in given):
            first, second = self.all(given)
            return self.let(None, f"cvt.rn.{dtype.value}x2.f32", second, first)
        return self.let(None, "mov.b32", f"{{{self.one(low)}, {self.one(high)}}}")

    def _words(self, values: Sequence[str], dtype: DType) -> tuple[list[str], str]:
        """Numbers put together to words, and the type of their access."""
        if dtype in HALVES:
            pairs = zip(values[::2], values[1::2])
            return [self.let(None, "mov.b32", f"{{{a}, {b}}}") for a, b in pairs], "b32"
        size = dtype.itemsize * 8
        per_word = min(len(values), 4 // dtype.itemsize)
        words: list[str] = []
        for i in range(0, len(values), per_word):
            word = values[i]
            for j, more in enumerate(values[i + 1 : i + per_word], 1):
                word = self.let(None, "bfi.b32", more, word, str(j * size), str(size))
            words.append(word)
        return words, "b32" if per_word * size == 32 else "b16"

    # -- nodes -----------------------------------------------------------------------------------

    def load(self, node: ir.Load) -> list[str]:
        dtype = self.program.buffer(node.buffer).dtype
        mask = "".join(self.all(node.args[1:]))
        address = self.address(node.buffer, node.args[0])
        return self.read("global", address, dtype, len(node.results), mask)

    def store(self, node: ir.Store) -> None:
        dtype = self.program.buffer(node.buffer).dtype
        mask = self.one(node.args[1]) if node.has_mask else ""
        address = self.address(node.buffer, node.args[0])
        self.write_values("global", address, dtype, node.args[1 + node.has_mask :], mask)

    def atomic(self, node: ir.Atomic) -> None:
        dtype = self.program.buffer(node.buffer).dtype
        if dtype.is_float or dtype.itemsize < 4:
            raise self.unsupported(f"atomic {node.op} of {dtype}")
        kind = f"b{bits_of(dtype)}" if node.op in ("and", "or") else kind_of(dtype)
        if node.op == "add" and dtype is I64:
            kind = "u64"
        mask = "".join(self.all(node.args[2:]))
        address = self.address(node.buffer, node.args[0])
        self.do(f"red.global.{node.op}.{kind}", f"[{address}]", self.one(node.args[1]), when=mask)

    def shared_load(self, node: ir.SharedLoad) -> list[str]:
        dtype = self.array(node.memory).dtype
        mask = self.one(node.args[1]) if node.has_mask else ""
        if not node.is_remote:
            operand = self.shared_operand(node.memory, node.args[0])
            return self.read("shared", operand, dtype, len(node.results), mask)
        index = node.args[0]
        address = self.shared_address(node.memory, self.one(index), index.dtype)
        there = self.of_rank(address, self.one(node.args[-1]))
        return self.read("shared::cluster", there, dtype, len(node.results), mask)

    def shared_store(self, node: ir.SharedStore) -> None:
        dtype = self.array(node.memory).dtype
        operand = self.shared_operand(node.memory, node.args[0])
        mask = self.one(node.args[1]) if node.has_mask else ""
        self.write_values("shared", operand, dtype, node.args[1 + node.has_mask :], mask)

    def table_load(self, node: ir.TableLoad) -> str:
        table = self.program.table(node.table)
        index, size = node.args[0], str(table.dtype.itemsize)
        wide = self.converted(self.one(index), index.dtype, I64)
        start = self.let(I64, "mov.u64", node.table)
        place = self.let(I64, "mad.lo.s64", wide, size, start)
        return self.let(table.dtype, f"ld.const.{kind_of(table.dtype)}", f"[{place}]")


def operand_at(address: str, more: int) -> str:
    """An address and bytes behind it, as an operand without its brackets."""
    return f"{address}+{more}" if more else address


def _vector(count: int) -> str:
    return "" if count == 1 else f".v{count}"


def _tuple(registers: Sequence[str]) -> str:
    return registers[0] if len(registers) == 1 else "{" + ", ".join(registers) + "}"


def _mov(dtype: DType) -> str:
    return kind_of(dtype) if dtype.is_float else f"b{bits_of(dtype)}"
