"""Radix keys: the ordered bits of an element above its position, and their sort.

No two keys of a row are equal, so any sort of them is stable: equal elements stay in the order of
their positions. Least-significant-digit radix sort, a byte at a time, takes linear time; few keys
are sorted by insertion.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.math.storage_types import UNSIGNED
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.shared_functions import helper, polled_call
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.program.types import POINTER

INFINITY = {DType.F16: 0x7C00, DType.BF16: 0x7F80, DType.F32: 0x7F800000, DType.F64: 0x7FF << 52}
MAX_32BIT_POSITIONS = 2**32 - 1
"""Rows up to this length have positions of 32 bits."""
INSERTION_SORT_MAX_KEYS = 48
"""Up to this many keys are sorted by insertion."""
HISTOGRAM_BYTES = 256 * 8
KEYS_PER_POLL = 1 << 15
"""Keys between two polls: they take some nanoseconds each."""


@dataclass(frozen=True, slots=True)
class RadixKeys:
    """The radix keys of a dtype: NaN is greater than all, and -0 equals +0."""

    dtype: DType
    descending: bool
    is_wide: bool
    """Do elements or positions take more than 32 bits?"""

    @classmethod
    def of(cls, dtype: DType, length: DimLike, *, descending: bool) -> RadixKeys:
        is_long = is_static(length) and length > MAX_32BIT_POSITIONS
        return cls(dtype, descending, dtype.itemsize > 4 or is_long)

    @property
    def unsigned(self) -> DType:
        """The unsigned integer of an element's bits."""
        return UNSIGNED[self.dtype.itemsize]

    @property
    def key_type(self) -> str:
        return "i128" if self.is_wide else "i64"

    @property
    def key_bytes(self) -> int:
        return 16 if self.is_wide else 8

    @property
    def value_shift(self) -> int:
        """Bit offset of the ordered bits in a key."""
        return 64 if self.is_wide else 32

    def ordered_bits(self, raw: Vec) -> Vec:
        """The bits of elements as unsigned integers in the same order."""
        top = 1 << (8 * self.dtype.itemsize - 1)
        if self.dtype.is_float:
            raw = self._ordered_float_bits(raw, top)
        elif self.dtype.is_signed:
            raw = raw ^ top
        return ~raw if self.descending else raw

    def _ordered_float_bits(self, raw: Vec, top: int) -> Vec:
        """The larger the magnitude of a negative number the less it is: all its bits flip; of
        others only the sign."""
        key = (~raw).where(raw > top, raw | top)
        return raw.like(2 * top - 1).where((raw & (top - 1)) > INFINITY[self.dtype], key)

    # -- scalar keys ----------------------------------------------------------------------------

    def pack(self, code: Code, key: str, position: Bound) -> str:
        """The key of an element's ordered bits and its position."""
        high = self._shifted(code, ELEMENT[self.unsigned], key)
        low = (
            position
            if self.key_type == "i64"
            else code.let(f"zext i64 {position} to {self.key_type}")
        )
        return code.let(f"or {self.key_type} {high}, {low}")

    def _shifted(self, code: Code, element: str, key: str) -> str:
        whole = code.let(f"zext {element} {key} to {self.key_type}")
        return code.let(f"shl {self.key_type} {whole}, {self.value_shift}")

    def load_ordered_bits(self, code: Code, keys: str, number: Bound) -> str:
        """The ordered bits of a key in memory: its upper half, little-endian."""
        at = self.pointer(code, keys, number)
        high = code.advanced(at, self.value_shift // 8, DType.U8)
        return code.let(f"load {ELEMENT[self.unsigned]}, ptr {high}")

    def load_position(self, code: Code, keys: str, number: Bound) -> str:
        at = self.pointer(code, keys, number)
        if self.is_wide:
            return code.load_scalar(at, DType.I64)
        low = code.load_scalar(at, DType.I32)
        return code.converted(low, DType.U32, DType.I64)

    def pointer(self, code: Code, keys: str, number: Bound) -> str:
        return code.let(f"getelementptr {self.key_type}, ptr {keys}, i64 {number}")

    def load(self, code: Code, keys: str, number: Bound) -> str:
        return code.let(f"load {self.key_type}, ptr {self.pointer(code, keys, number)}")

    def store(self, code: Code, key: str, keys: str, number: Bound) -> None:
        code.do(f"store {self.key_type} {key}, ptr {self.pointer(code, keys, number)}")

    # -- sorting --------------------------------------------------------------------------------

    def insert(self, code: Code, keys: str, last: Bound) -> None:
        """Insertion sort's inner loop: move a key down to its place in the sorted prefix."""
        name = f"radix_keys.insert.{self.key_type}"
        helper(code, name, "ptr %keys, i64 %last", self._insert)
        code.do(f"call void @{name}(ptr {keys}, i64 {last})")

    def sort(self, code: Code, keys: str, spare: str, histogram: str, length: Bound) -> str:
        """Where the sorted keys are: in place, or in the spare buffer of the same size. The
        histogram has `HISTOGRAM_BYTES`. A long row polls."""
        args = "ptr %keys, ptr %spare, ptr %histogram, i64 %length, i64 %bytes, ptr %poll"
        name = f"radix_keys.sort.{self.key_type}"
        helper(code, name, args, self._sort, result="ptr")
        given = f"ptr {keys}, ptr {spare}, ptr {histogram}, i64 {length}, i64 {self.dtype.itemsize}"
        return polled_call(code, name, given)

    def _insert(self, code: Code) -> None:
        mine = self.load(code, "%keys", "%last")
        slot, head, look, move, done = code.slot("i64"), *(code.label() for _ in range(4))
        code.do(f"store i64 %last, ptr {slot}", f"br label %{head}")
        code.place(head)
        at = code.load_scalar(slot, DType.I64)
        is_first = code.compare("eq", at, 0)
        code.do(f"br i1 {is_first}, label %{done}, label %{look}")
        code.place(look)
        before = code.i64("sub", at, 1)
        other = self.load(code, "%keys", before)
        is_greater = code.let(f"icmp ugt {self.key_type} {other}, {mine}")
        code.do(f"br i1 {is_greater}, label %{move}, label %{done}")
        code.place(move)
        self.store(code, other, "%keys", at)
        code.do(f"store i64 {before}, ptr {slot}", f"br label %{head}")
        code.place(done)
        self.store(code, mine, "%keys", at)

    def _sort(self, code: Code) -> None:
        with code.when(code.compare("le", "%length", INSERTION_SORT_MAX_KEYS)):
            with code.count(1, "%length", 1) as i:
                self.insert(code, "%keys", i)
            code.do("ret ptr %keys")
            code.place(code.label("never"))
        source, target = code.slot("ptr"), code.slot("ptr")
        code.do(f"store ptr %keys, ptr {source}", f"store ptr %spare, ptr {target}")
        with code.count(0, "%bytes", 1) as digit:
            self._radix_pass(code, digit, source, target)
        code.do(f"ret ptr {code.load_uniform(source, POINTER)}")

    def _radix_pass(self, code: Code, digit: str, source: str, target: str) -> None:
        """One pass of the radix sort: a stable counting sort by one byte."""
        given, to = (code.load_uniform(slot, POINTER) for slot in (source, target))
        digits = code.advanced(given, self.value_shift // 8, DType.U8)
        digits = code.advanced(digits, digit, DType.U8)
        with code.count(0, 256, 1) as i:
            code.store_scalar(_histogram_entry(code, i), 0, DType.I64)
        with code.count(0, "%length", 1, KEYS_PER_POLL) as i:
            at = _histogram_entry(code, self._digit(code, digits, i))
            code.store_scalar(at, code.i64("add", code.load_scalar(at, DType.I64), 1), DType.I64)
        first = code.load_scalar(_histogram_entry(code, self._digit(code, digits, 0)), DType.I64)
        with code.when(code.compare("ne", first, "%length")):
            _exclusive_prefix_sum(code)
            with code.count(0, "%length", 1, KEYS_PER_POLL) as i:
                at = _histogram_entry(code, self._digit(code, digits, i))
                place = code.load_scalar(at, DType.I64)
                code.store_scalar(at, code.i64("add", place, 1), DType.I64)
                self.store(code, self.load(code, given, i), to, place)
            code.do(f"store ptr {to}, ptr {source}", f"store ptr {given}, ptr {target}")

    def _digit(self, code: Code, digits: str, number: Bound) -> str:
        """A byte of a key, as i64."""
        at = self.pointer(code, digits, number)
        return code.converted(code.load_scalar(at, DType.U8), DType.U8, DType.I64)


def _histogram_entry(code: Code, number: str) -> str:
    return code.advanced("%histogram", number, DType.I64)


def _exclusive_prefix_sum(code: Code) -> None:
    """Exclusive prefix sum of the histogram."""
    total = code.slot("i64")
    code.store_scalar(total, 0, DType.I64)
    with code.count(0, 256, 1) as i:
        at = _histogram_entry(code, i)
        before, more = (code.load_scalar(p, DType.I64) for p in (total, at))
        code.store_scalar(at, before, DType.I64)
        code.store_scalar(total, code.i64("add", before, more), DType.I64)


def key_lanes(isa: Isa, dtype: DType) -> int:
    """Elements of one vector of keys."""
    return isa.vector_bytes // max(4, dtype.itemsize)
