"""Values of LLVM programs, with operators.

    y = (x * 2.0 + 1.0).where(x < 0.0, x)

emits four instructions and is the last one's value. All vectors of a function have the same number
of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.backends.cpu.llvm.printer import ELEMENT, INTRINSICS, conversion
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.nodes import BinaryOp, CompareOp, Number, UnaryOp, Value

if TYPE_CHECKING:
    from rlx.backends.cpu.llvm.builder import Code


class Scalar(str):
    """A uniform value. Where an emitter writes LLVM itself, it is its own name."""

    value: Value

    @classmethod
    def of(cls, name: str, value: Value) -> Scalar:
        scalar = cls(name)
        scalar.value = value
        return scalar


Bound = int | str
"""A number, or the name of an i64 value."""


class Vec:
    """A vector value. Bool lanes are i1; half-precision lanes are held as f32."""

    __slots__ = ("code", "dtype", "value")

    def __init__(self, code: Code, value: Value, dtype: DType) -> None:
        self.code, self.value, self.dtype = code, value, dtype

    @property
    def text(self) -> str:
        return self.code.names[self.value]

    @property
    def type(self) -> str:
        return self.code.types[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @property
    def is_number(self) -> bool:
        """Is it a constant, and not NaN?"""
        return self.text.startswith("splat (") and "0x7FF8" not in self.text

    def __add__(self, other: Vec | Number) -> Vec:
        return self._binary("add", other)

    def __sub__(self, other: Vec | Number) -> Vec:
        return self._binary("sub", other)

    def __mul__(self, other: Vec | Number) -> Vec:
        return self._binary("mul", other)

    def __truediv__(self, other: Vec | Number) -> Vec:
        """Of floats; for integers the caller guarantees a nonzero divisor and no overflow."""
        return self._binary("div", other)

    def __mod__(self, other: Vec | Number) -> Vec:
        """Of integers, as division."""
        return self._binary("rem", other)

    def __and__(self, other: Vec | Number) -> Vec:
        return self._binary("and", other)

    def __or__(self, other: Vec | Number) -> Vec:
        return self._binary("or", other)

    def __xor__(self, other: Vec | Number) -> Vec:
        return self._binary("xor", other)

    def __invert__(self) -> Vec:
        return self ^ (1 if self.dtype is DType.BOOL else -1)

    def __lshift__(self, other: Vec | Number) -> Vec:
        """By less than the width."""
        return self._binary("shl", other)

    def __rshift__(self, other: Vec | Number) -> Vec:
        """By less than the width; arithmetic for signed integers."""
        return self._binary("shr", other)

    def __neg__(self) -> Vec:
        if self.is_float:
            return self._unary("neg")
        return self.like(0) - self

    def __lt__(self, other: Vec | Number) -> Vec:
        return self._compare("lt", other)

    def __le__(self, other: Vec | Number) -> Vec:
        return self._compare("le", other)

    def __gt__(self, other: Vec | Number) -> Vec:
        return self._compare("gt", other)

    def __ge__(self, other: Vec | Number) -> Vec:
        return self._compare("ge", other)

    def equals(self, other: Vec | Number) -> Vec:
        return self._compare("eq", other)

    def differs(self, other: Vec | Number) -> Vec:
        return self._compare("ne", other)

    def is_nan(self) -> Vec:
        return self.code.emit(vec.Unordered, DType.BOOL, self.value, self.value)

    def where(self, mask: Vec, other: Vec | Number) -> Vec:
        """Select: this where the mask is set, else the other."""
        otherwise = self.like(other).value
        return self.code.emit(ir.Select, self.dtype, mask.value, self.value, otherwise)

    def call(self, intrinsic: str, *others: Vec | Number) -> Vec:
        """An LLVM intrinsic on vectors of one type."""
        args = [self.value, *(self.like(v).value for v in others)]
        self.code.declare_for(intrinsic, self.dtype, len(args))
        return self.code.emit(vec.Intrinsic, self.dtype, *args, name=intrinsic)

    def fma(self, y: Vec, z: Vec) -> Vec:
        self.code.declare_for("fma", self.dtype, 3)
        return self.code.emit(ir.Fma, self.dtype, self.value, y.value, z.value)

    def abs(self) -> Vec:
        return self._unary("abs")

    def sqrt(self) -> Vec:
        return self._function("sqrt")

    def copysign(self, sign: Vec) -> Vec:
        return self._function("copysign", sign)

    def round(self) -> Vec:
        """Round to nearest, ties to even."""
        if self.code.isa.has_rounding:
            return self._unary("round")
        whole = 2.0**23 if self.dtype is DType.F32 else 2.0**52
        size = self.abs()
        return ((size + whole) - whole).copysign(self).where(size < whole, self)

    def floor(self) -> Vec:
        if self.code.isa.has_rounding:
            return self._unary("floor")
        near = self.round()
        return (near - 1.0).where(near > self, near)

    def trunc(self) -> Vec:
        if self.code.isa.has_rounding:
            return self._unary("trunc")
        return self.abs().floor().copysign(self)

    def bits(self, dtype: DType) -> Vec:
        """Bitcast to a dtype of the same width."""
        return self.code.viewed(ir.Bitcast, self, dtype, ELEMENT[dtype] == ELEMENT[self.dtype])

    def to(self, dtype: DType) -> Vec:
        """Convert; saturating to integers, NaN as 0."""
        if dtype is self.dtype:
            return self
        if dtype is DType.BOOL:
            return self.differs(0)
        if self.is_float and dtype.is_integer:
            return self._saturated(dtype)
        return self.code.viewed(ir.Convert, self, dtype, not conversion(self.dtype, dtype))

    def any(self) -> Scalar:
        """Any lane of a bool vector, as an i1."""
        code = self.code
        name = f"vector.reduce.or.{code.types.element_suffix('i1')}"
        code.declare(name, "i1", self.type)
        return code.scalar(vec.AnyLane, DType.BOOL, self.value)

    def lane(self, number: int = 0) -> Scalar:
        return self.code.scalar(vec.ExtractLane, self.dtype, self.value, lane=number)

    def shuffled(self, picks: Sequence[int]) -> Vec:
        return self.code.emit(vec.Permute, self.dtype, self.value, picks=tuple(picks))

    def joined(self, other: Vec, picks: Sequence[int]) -> Vec:
        """A two-input shuffle."""
        return self.code.emit(vec.Permute, self.dtype, self.value, other.value, picks=tuple(picks))

    def like(self, value: Vec | Number) -> Vec:
        return value if isinstance(value, Vec) else self.code.const(value, self.dtype)

    def made(self, text: str, dtype: DType | None = None) -> Vec:
        """What an emitter wrote itself."""
        return self.code.verbatim(text, dtype or self.dtype)

    def _binary(self, op: BinaryOp, other: Vec | Number) -> Vec:
        right = self.like(other)
        return self.code.emit(ir.Binary, self.dtype, self.value, right.value, op=op)

    def _compare(self, op: CompareOp, other: Vec | Number) -> Vec:
        right = self.like(other)
        return self.code.emit(ir.Compare, DType.BOOL, self.value, right.value, op=op)

    def _unary(self, op: UnaryOp) -> Vec:
        if op != "neg":
            self.code.declare_for(INTRINSICS[op], self.dtype, 1)
        return self.code.emit(ir.Unary, self.dtype, self.value, op=op)

    def _function(self, name: str, *others: Vec) -> Vec:
        args = [self.value, *(v.value for v in others)]
        self.code.declare_for(name, self.dtype, len(args))
        return self.code.emit(ir.Call, self.dtype, *args, function=name)

    def _saturated(self, dtype: DType) -> Vec:
        if dtype.itemsize < 4:
            return self._saturated_narrow(dtype)
        code = self.code
        word = "fptosi" if dtype.is_signed else "fptoui"
        ends = f"{code.types.suffix(dtype)}.{code.types.suffix(self.dtype)}"
        code.declare(f"{word}.sat.{ends}", code.types[dtype], self.type)
        return code.emit(vec.SaturatingConvert, dtype, self.value)

    def _saturated_narrow(self, dtype: DType) -> Vec:
        """Clamp to the bounds, which every float represents, then through i32: LLVM would scalarise
        it. NaN fails the comparison and becomes the lower bound, which is 0 for unsigned."""
        bits = 8 * dtype.itemsize - dtype.is_signed
        low, high = (-(2.0**bits) if dtype.is_signed else 0.0), 2.0**bits - 1
        x = self.where(self.equals(self), 0.0) if dtype.is_signed else self
        x = x.where(x > low, low)
        x = x.where(x < high, high)
        return x.code.emit(ir.Convert, DType.I32, x.value).to(dtype)


def fma(x: Vec, y: Vec | Number, z: Vec | Number) -> Vec:
    """x · y + z rounded once; without an FMA instruction, nearly so."""
    y, z = x.like(y), x.like(z)
    if x.code.isa.has_fma:
        return x.fma(y, z)
    if x.dtype is DType.F32:
        wide = x.to(DType.F64) * y.to(DType.F64) + z.to(DType.F64)
        return wide.to(DType.F32)
    high, low = two_product(x, y)
    total, rest = two_sum(high, z)
    rest = rest + low
    exact = total + rest
    # what is not finite has no error term, and an error of 0 would change the sign of -0
    return exact.where((exact - exact).equals(0.0) & rest.differs(0.0), total)


def two_sum(x: Vec, y: Vec) -> tuple[Vec, Vec]:
    """x + y, and its exact rounding error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x: Vec, y: Vec) -> tuple[Vec, Vec]:
    """x · y of f64, and its exact rounding error."""
    high = x * y
    if x.code.isa.has_fma:
        return high, fma(x, y, -high)
    (a, b), (c, d) = _halves(x), _halves(y)
    return high, (((a * c - high) + a * d) + b * c) + b * d


def _halves(x: Vec) -> tuple[Vec, Vec]:
    """An f64 as the sum of two of at most 26 and 27 bits; truncated, not rounded, so that nothing
    overflows."""
    high = (x.bits(DType.U64) & 0xFFFFFFFFF8000000).bits(DType.F64)
    return high, x - high
