"""Loads, stores and atomics of SIMT programs in WGSL.

An access is a call of one function per buffer, width and mask, which moves words; here numbers
become words, and words numbers. Shared arrays of numbers narrower than a word are packed where
nothing stores less than a word of them; else each number has a word of its own, if there is room,
or is put into its word by atomics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rlx.backends.wgpu.wgsl.arithmetic import Arithmetic
from rlx.backends.wgpu.wgsl.bindings import Access, Words, function_lines, word_type
from rlx.backends.wgpu.wgsl.text import BF16, BOOL, F16, F32, HALVES, I32, U32, WIDE, literal
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value

NATIVE = (F32, I32, U32)


class Memory(Arithmetic):
    """Nodes that access memory."""

    shared_limit: int = 0
    """Bytes of shared memory that a block may have."""

    @cached_property
    def accesses(self) -> dict[Access, None]:
        """Those that were printed, in order."""
        return {}

    def index(self, value: Value) -> str:
        held = self.one(value)
        return f"bitcast<i32>(({held}).x)" if value.dtype in WIDE else held

    def element(self, access: Access, index: Value) -> str:
        """Of a binding, where buffers begin at some element."""
        return f"first_{access.buffer} + {self.index(index)}"

    def function(self, access: Access) -> str:
        self.accesses[access] = None
        return access.function

    # -- buffers ---------------------------------------------------------------------------------

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {b.name: i for i, b in enumerate(self.program.buffers)}

    def load(self, node: ir.Load) -> None:
        """Of a buffer that nothing here writes, also where the mask does not hold: its first
        element is there."""
        mask, number = self.all(node.args[1:]), self._numbers[node.buffer]
        is_always = bool(mask) and node.buffer not in self.written
        access = Access(number, "load", len(node.results), bool(mask), is_always)
        index = self.index(node.args[0])
        if is_always:
            mask = [self.named(node.args[1])]
            index = f"select(0i, {index}, {mask[0]})"
        given = [f"first_{number} + {index}", *mask]
        self.read(node.results, access, given, self.program.buffer(node.buffer).dtype)

    @cached_property
    def written(self) -> frozenset[str]:
        """Buffers that the program writes."""
        nodes = (n for n in self.program.nodes if isinstance(n, ir.Store | ir.Atomic))
        return frozenset(n.buffer for n in nodes)

    def store(self, node: ir.Store) -> None:
        values = node.args[1 + node.has_mask :]
        access = Access(self._numbers[node.buffer], "store", len(values), node.has_mask)
        mask = self.all(node.args[1 : 1 + node.has_mask])
        self.write(self.element(access, node.args[0]), values, mask, access)

    def atomic(self, node: ir.Atomic) -> None:
        dtype = self.program.buffer(node.buffer).dtype
        is_compared = node.op in ("min", "max")
        if dtype in HALVES or dtype is BOOL or (is_compared and dtype in WIDE):
            raise self.unsupported(node, f"atomic {node.op} of {dtype}; use i32 or f32.")
        access = Access(self._numbers[node.buffer], node.op, 1, len(node.args) > 2)
        index = self.element(access, node.args[0])
        self.write(index, node.args[1:2], self.all(node.args[2:]), access)

    # -- shared memory ---------------------------------------------------------------------------

    @cached_property
    def _arrays(self) -> dict[str, int]:
        return {s.name: i for i, s in enumerate(self.program.shared)}

    @cached_property
    def _slots(self) -> dict[str, DType]:
        """How the elements of a shared array are in memory: as they are, or in a word each, which
        needs no atomics, where that fits."""
        found = {s.name: s.dtype for s in self.program.shared}
        for node in self.program.nodes:
            if isinstance(node, ir.SharedStore):
                count = len(node.args) - 1 - node.has_mask
                if count * found[node.memory].itemsize < 4:
                    found[node.memory] = U32
        for array in sorted(self.program.shared, key=lambda s: -s.count):
            if self._shared_bytes(found) > self.shared_limit:
                found[array.name] = array.dtype
        return found

    def _shared_bytes(self, slots: dict[str, DType]) -> int:
        """Arrays begin at multiples of a vector."""
        sizes = (s.count * slots[s.name].itemsize for s in self.program.shared)
        return sum(-(-size // 16) * 16 for size in sizes)

    def shared_load(self, node: ir.SharedLoad) -> None:
        if node.is_remote:
            raise self.unsupported(node, "clusters; lower it without.")
        number, count = self._arrays[node.memory], len(node.results)
        access = Access(number, "load", count, node.has_mask, is_shared=True)
        given = [self.index(node.args[0]), *self.all(node.args[1:])]
        self.read(node.results, access, given, self._slots[node.memory])

    def shared_store(self, node: ir.SharedStore) -> None:
        values = node.args[1 + node.has_mask :]
        number = self._arrays[node.memory]
        access = Access(number, "store", len(values), node.has_mask, is_shared=True)
        mask = self.all(node.args[1 : 1 + node.has_mask])
        self.write(self.index(node.args[0]), values, mask, access, self._slots[node.memory])

    def shared_lines(self) -> list[str]:
        """The declarations of the shared arrays that are used, and their functions."""
        lines: list[str] = []
        for array in self.program.shared:
            slot, number = self._slots[array.name], self._arrays[array.name]
            mine = [a for a in self.accesses if a.is_shared and a.buffer == number]
            if mine:
                words = Words.of(f"s{number}", [(a, slot) for a in mine])
                size = -(-array.count * slot.itemsize // 4 // words.unit)
                lines.append(f"var<workgroup> {words.name}: array<{words.element}, {size}>;")
                lines += [line for a in mine for line in function_lines(a, slot, words)]
        return lines

    @property
    def shared_bytes(self) -> int:
        return self._shared_bytes(self._slots)

    # -- tables ----------------------------------------------------------------------------------

    def table_load(self, node: ir.TableLoad) -> None:
        dtype = self.program.table(node.table).dtype
        word = f"table_{node.table}[{self.index(node.args[0])}]"
        self.give(node.results, [word if dtype in WIDE else self.of_bits(word, dtype)])

    def table_lines(self) -> list[str]:
        """Tables as bits, which constants may be where their numbers may not."""
        made: list[str] = []
        for table in self.program.tables:
            words = [_bits(v, table.dtype) for v in table.values]
            kind = f"array<{word_type(2 if table.dtype in WIDE else 1)}, {len(words)}>"
            made.append(f"const table_{table.name}: {kind} = {kind}({', '.join(words)});")
        return made

    # -- words and numbers -----------------------------------------------------------------------

    def read(
        self, results: Sequence[Value], access: Access, given: Sequence[str], slot: DType
    ) -> None:
        """Loads stay where they are: their words have a name."""
        dtype, count = results[0].dtype, len(results)
        self.type_name(dtype)
        call = f"{self.function(access)}({', '.join(given)})"
        words = access.words(slot)
        if dtype in NATIVE and slot.itemsize == 4:
            kind = self.type_name(dtype)
            kind = kind if count == 1 else f"vec{count}<{kind}>"
            name = self.let(kind, call if dtype is U32 else f"bitcast<{kind}>({call})")
            self.give(results, _parts(name, count))
            return
        name = self.let(word_type(words), call)
        self.give(results, self._unpacked(_parts(name, words), dtype, slot, count))

    def _unpacked(self, words: list[str], dtype: DType, slot: DType, count: int) -> list[str]:
        if dtype in WIDE:
            name = words[0].split(".")[0]
            return [name] if count == 1 else [f"{name}.xy", f"{name}.zw"]
        if slot.itemsize == 4 or count == 1:
            return [self.of_bits(w, dtype) for w in words]
        per_word = 4 // dtype.itemsize
        return [self._part(words[i // per_word], i % per_word, dtype) for i in range(count)]

    def _part(self, word: str, number: int, dtype: DType) -> str:
        """One of the numbers that share a word."""
        if dtype is F16:
            return f"unpack2x16float({word}).{'xy'[number]}"
        if dtype is BF16:
            return f"bitcast<f32>({word} {'& 0xffff0000u' if number else '<< 16u'})"
        bits = dtype.itemsize * 8
        given = f"bitcast<i32>({word})" if dtype.is_signed else word
        made = f"extractBits({given}, {number * bits}u, {bits}u)"
        return f"({made} != 0u)" if dtype is BOOL else made

    def write(
        self,
        index: str,
        values: Sequence[Value],
        mask: Sequence[str],
        access: Access,
        slot: DType | None = None,
    ) -> None:
        dtype = values[0].dtype
        words = self._packed(values, dtype, slot or dtype)
        self.do(f"{self.function(access)}({', '.join([index, words, *mask])});")

    def _packed(self, values: Sequence[Value], dtype: DType, slot: DType) -> str:
        """Numbers as the word, or the vector of words, that they are in memory."""
        held, count = self.all(values), len(values)
        self.type_name(dtype)
        if dtype in WIDE:
            return held[0] if count == 1 else f"vec4<u32>({', '.join(held)})"
        if dtype in NATIVE and count > 1:
            made = f"vec{count}<{self.type_name(dtype)}>({', '.join(held)})"
            return made if dtype is U32 else f"bitcast<vec{count}<u32>>({made})"
        if dtype is F16 and self.has_f16 and slot.itemsize < 4 and count > 1:
            bits = [f"pack2x16float(vec2<f32>({a}, {b}))" for a, b in zip(held[::2], held[1::2])]
            return bits[0] if count == 2 else f"vec{len(bits)}<u32>({', '.join(bits)})"
        bits = [self._bits(h, dtype) for h in held]
        if slot.itemsize < 4:
            bits = self._joined(bits, dtype)
        return bits[0] if len(bits) == 1 else f"vec{len(bits)}<u32>({', '.join(bits)})"

    def _bits(self, held: str, dtype: DType) -> str:
        """A half float that was just rounded is not so again."""
        rounding = f"to_{dtype}("
        if dtype in HALVES and held.startswith(rounding):
            return f"{dtype}_bits({held.removeprefix(rounding)}"
        return self.bits_of(held, dtype)

    def _joined(self, bits: list[str], dtype: DType) -> list[str]:
        """Numbers narrower than a word put together to words."""
        size = dtype.itemsize * 8
        per_word = min(len(bits), 32 // size)
        if dtype not in HALVES and dtype is not BOOL and per_word > 1:
            bits = [f"({b} & {(1 << size) - 1:#x}u)" for b in bits]
        return [
            " | ".join(f"({b} << {j * size}u)" if j else b for j, b in enumerate(part))
            for part in (bits[i : i + per_word] for i in range(0, len(bits), per_word))
        ]


def _parts(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}.{c}" for c in "xyzw"[:count]]


def _bits(value: float, dtype: DType) -> str:
    """A number as a constant word, or two."""
    if dtype in WIDE:
        return literal(int(value), dtype)
    raw = np.asarray(value, dtype.numpy).tobytes()
    return f"{int.from_bytes(raw, 'little'):#x}u"
