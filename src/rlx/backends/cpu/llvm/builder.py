"""LLVM IR builder: a function as text, and vector values with operators.

    y = (x * 2.0 + 1.0).where(x < 0.0, x)

emits four instructions and is the last one's value. All vectors of a function have the same number
of lanes. Loop counters and accumulators are stack slots, which SROA promotes to registers.
Nothing here is undefined behaviour: what LLVM leaves undefined (a shift past the width, a float out
of an integer's range) is emitted so that it is not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.backends.cpu.isa import Isa
from rlx.core.dtype import DType

Bound = int | str
"""A number, or the name of an i64 value."""
Number = int | float

ELEMENT = {
    DType.BOOL: "i1", DType.F32: "float", DType.F64: "double",
    DType.I8: "i8", DType.I16: "i16", DType.I32: "i32", DType.I64: "i64",
    DType.U8: "i8", DType.U16: "i16", DType.U32: "i32", DType.U64: "i64",
}  # fmt: skip
SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}
SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}


@dataclass(frozen=True, eq=False, slots=True)
class Vec:
    """A vector value. Bool lanes are i1; half-precision lanes are held as f32."""

    code: Code
    text: str
    dtype: DType

    @property
    def type(self) -> str:
        return self.code.vector(ELEMENT[self.dtype])

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @property
    def is_number(self) -> bool:
        """Is it a constant, and not NaN?"""
        return self.text.startswith("splat (") and "0x7FF8" not in self.text

    def __add__(self, other: Vec | Number) -> Vec:
        return self._binary("fadd", "add", other)

    def __sub__(self, other: Vec | Number) -> Vec:
        return self._binary("fsub", "sub", other)

    def __mul__(self, other: Vec | Number) -> Vec:
        return self._binary("fmul", "mul", other)

    def __truediv__(self, other: Vec | Number) -> Vec:
        """Of floats; for integers the caller guarantees a nonzero divisor and no overflow."""
        return self._binary("fdiv", "sdiv" if self.dtype.is_signed else "udiv", other)

    def __mod__(self, other: Vec | Number) -> Vec:
        """Of integers, as division."""
        return self._binary("", "srem" if self.dtype.is_signed else "urem", other)

    def __and__(self, other: Vec | Number) -> Vec:
        return self._binary("", "and", other)

    def __or__(self, other: Vec | Number) -> Vec:
        return self._binary("", "or", other)

    def __xor__(self, other: Vec | Number) -> Vec:
        return self._binary("", "xor", other)

    def __invert__(self) -> Vec:
        return self ^ (1 if self.dtype is DType.BOOL else -1)

    def __lshift__(self, other: Vec | Number) -> Vec:
        """By less than the width."""
        return self._binary("", "shl", other)

    def __rshift__(self, other: Vec | Number) -> Vec:
        """By less than the width; arithmetic for signed integers."""
        return self._binary("", "ashr" if self.dtype.is_signed else "lshr", other)

    def __neg__(self) -> Vec:
        if self.is_float:
            return self.made(f"fneg {self.type} {self.text}")
        return self.like(0) - self

    def __lt__(self, other: Vec | Number) -> Vec:
        return self._compare("olt", "lt", other)

    def __le__(self, other: Vec | Number) -> Vec:
        return self._compare("ole", "le", other)

    def __gt__(self, other: Vec | Number) -> Vec:
        return self._compare("ogt", "gt", other)

    def __ge__(self, other: Vec | Number) -> Vec:
        return self._compare("oge", "ge", other)

    def equals(self, other: Vec | Number) -> Vec:
        return self._compare("oeq", "eq", other)

    def differs(self, other: Vec | Number) -> Vec:
        return self._compare("une", "ne", other)

    def is_nan(self) -> Vec:
        return self._compare("uno", "", self)

    def where(self, mask: Vec, other: Vec | Number) -> Vec:
        """Select: this where the mask is set, else the other."""
        no = self.like(other)
        return self.made(
            f"select {mask.type} {mask.text}, {self.type} {self.text}, {no.type} {no.text}"
        )

    def call(self, intrinsic: str, *others: Vec | Number) -> Vec:
        """An LLVM intrinsic on vectors of one type."""
        args = [self, *map(self.like, others)]
        name = f"{intrinsic}.{self.code.suffix(ELEMENT[self.dtype])}"
        return Vec(
            self.code,
            self.code.intrinsic(name, self.type, *(f"{a.type} {a.text}" for a in args)),
            self.dtype,
        )

    def abs(self) -> Vec:
        return self.call("fabs")

    def sqrt(self) -> Vec:
        return self.call("sqrt")

    def copysign(self, sign: Vec) -> Vec:
        return self.call("copysign", sign)

    def round(self) -> Vec:
        """Round to nearest, ties to even."""
        if self.code.isa.has_rounding:
            return self.call("roundeven")
        whole = 2.0**23 if self.dtype is DType.F32 else 2.0**52
        size = self.abs()
        return ((size + whole) - whole).copysign(self).where(size < whole, self)

    def floor(self) -> Vec:
        if self.code.isa.has_rounding:
            return self.call("floor")
        near = self.round()
        return (near - 1.0).where(near > self, near)

    def trunc(self) -> Vec:
        if self.code.isa.has_rounding:
            return self.call("trunc")
        return self.abs().floor().copysign(self)

    def bits(self, dtype: DType) -> Vec:
        """Bitcast to a dtype of the same width."""
        if ELEMENT[dtype] == ELEMENT[self.dtype]:
            return Vec(self.code, self.text, dtype)
        to = self.code.vector(ELEMENT[dtype])
        return self.made(f"bitcast {self.type} {self.text} to {to}", dtype)

    def to(self, dtype: DType) -> Vec:
        """Convert; saturating to integers, NaN as 0."""
        if dtype is self.dtype:
            return self
        if dtype is DType.BOOL:
            return self.differs(0)
        if self.is_float and dtype.is_integer:
            return self._saturated(dtype)
        word = _conversion(self.dtype, dtype)
        if not word:
            return Vec(self.code, self.text, dtype)
        to = self.code.vector(ELEMENT[dtype])
        return self.made(f"{word} {self.type} {self.text} to {to}", dtype)

    def any(self) -> str:
        """Any lane of a bool vector, as an i1."""
        name = f"vector.reduce.or.{self.code.suffix('i1')}"
        return self.code.intrinsic(name, "i1", f"{self.type} {self.text}")

    def lane(self, number: int = 0) -> str:
        return self.code.let(f"extractelement {self.type} {self.text}, i32 {number}")

    def shuffled(self, picks: Sequence[int]) -> Vec:
        order = ", ".join(f"i32 {p}" for p in picks)
        mask = f"{self.code.vector('i32')} <{order}>"
        return self.made(f"shufflevector {self.type} {self.text}, {self.type} poison, {mask}")

    def joined(self, other: Vec, picks: Sequence[int]) -> Vec:
        """A two-input shuffle."""
        order = ", ".join(f"i32 {p}" for p in picks)
        mask = f"{self.code.vector('i32')} <{order}>"
        return self.made(
            f"shufflevector {self.type} {self.text}, {other.type} {other.text}, {mask}"
        )

    def like(self, value: Vec | Number) -> Vec:
        return value if isinstance(value, Vec) else self.code.const(value, self.dtype)

    def made(self, text: str, dtype: DType | None = None) -> Vec:
        return Vec(self.code, self.code.let(text), dtype or self.dtype)

    def _binary(self, of_floats: str, of_integers: str, other: Vec | Number) -> Vec:
        right = self.like(other)
        word = of_floats if self.is_float else of_integers
        return self.made(f"{word} {self.type} {self.text}, {right.text}")

    def _compare(self, of_floats: str, of_integers: str, other: Vec | Number) -> Vec:
        right = self.like(other)
        word = f"fcmp {of_floats}" if self.is_float else f"icmp {self._order(of_integers)}"
        return self.made(f"{word} {self.type} {self.text}, {right.text}", DType.BOOL)

    def _order(self, word: str) -> str:
        if word in ("eq", "ne"):
            return word
        return ("s" if self.dtype.is_signed else "u") + word

    def _saturated(self, dtype: DType) -> Vec:
        to = self.code.vector(ELEMENT[dtype])
        if dtype.itemsize < 4:
            return self._saturated_narrow(dtype)
        kind = "fptosi" if dtype.is_signed else "fptoui"
        ends = [self.code.suffix(ELEMENT[d]) for d in (dtype, self.dtype)]
        name = f"{kind}.sat.{'.'.join(ends)}"
        return Vec(self.code, self.code.intrinsic(name, to, f"{self.type} {self.text}"), dtype)

    def _saturated_narrow(self, dtype: DType) -> Vec:
        """Clamp to the bounds, which every float represents, then through i32: LLVM would scalarise
        it. NaN fails the comparison and becomes the lower bound, which is 0 for unsigned."""
        bits = 8 * dtype.itemsize - dtype.is_signed
        low, high = (-(2.0**bits) if dtype.is_signed else 0.0), 2.0**bits - 1
        x = self.where(self.equals(self), 0.0) if dtype.is_signed else self
        x = x.where(x > low, low)
        x = x.where(x < high, high)
        wide = self.code.vector(ELEMENT[DType.I32])
        return x.made(f"fptosi {x.type} {x.text} to {wide}", DType.I32).to(dtype)


def _conversion(given: DType, to: DType) -> str:
    """LLVM's conversion instruction; none where the bits stay."""
    if given.is_float and to.is_float:
        return "fpext" if given is DType.F32 else "fptrunc"
    if to.is_float:
        return "sitofp" if given.is_signed else "uitofp"
    if to.itemsize < given.itemsize:
        return "trunc"
    if given is DType.BOOL:
        return "zext"
    if to.itemsize == given.itemsize:
        return ""
    return "sext" if given.is_signed else "zext"


def fma(x: Vec, y: Vec | Number, z: Vec | Number) -> Vec:
    """x · y + z rounded once; without an FMA instruction, nearly so."""
    y, z = x.like(y), x.like(z)
    if x.code.isa.has_fma:
        return x.call("fma", y, z)
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


class Code:
    """A function under construction."""

    def __init__(self, lanes: int, isa: Isa, shared: dict[str, str] | None = None) -> None:
        self.lanes, self.isa = lanes, isa
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.shared: dict[str, str] = {} if shared is None else shared
        """Declarations, constants and internal functions, by name: one of each in a module."""
        self.left = "ret i32 {}"
        """How the function returns with the code of a poll; empty where it has no `poll`."""
        self._names = 0

    # -- instructions ---------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"%{prefix}{self._names}"

    def let(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, *statements: str) -> None:
        self.lines += [f"  {s}" for s in statements]

    def slot(self, kind: str) -> str:
        name = self.name("slot")
        self.entry.append(f"  {name} = alloca {kind}, align 64")
        return name

    def intrinsic(self, name: str, result: str, *typed: str) -> str:
        """A call of an LLVM intrinsic; each argument is its type and its name."""
        types = ", ".join(_type_of(t) for t in typed)
        self.shared[f"llvm.{name}"] = f"declare {result} @llvm.{name}({types})"
        text = f"call {result} @llvm.{name}({', '.join(typed)})"
        if result != "void":
            return self.let(text)
        self.do(text)
        return ""

    def function(self, head: str) -> str:
        return "\n".join([f"{head} #0 {{", "entry:", *self.entry, *self.lines, "}", ""])

    # -- values ---------------------------------------------------------------------------------

    def vector(self, element: str) -> str:
        return f"<{self.lanes} x {element}>"

    def suffix(self, element: str) -> str:
        return f"v{self.lanes}{SUFFIX.get(element, element)}"

    def const(self, value: Number, dtype: DType) -> Vec:
        return Vec(self, f"splat ({ELEMENT[dtype]} {literal(value, dtype)})", dtype)

    def splat(self, scalar: Bound, dtype: DType) -> Vec:
        """Broadcast a scalar."""
        if isinstance(scalar, int):
            return self.const(scalar, dtype)
        kind, order = self.vector(ELEMENT[dtype]), self.vector("i32")
        one = self.let(f"insertelement {kind} poison, {ELEMENT[dtype]} {scalar}, i32 0")
        text = f"shufflevector {kind} {one}, {kind} poison, {order} zeroinitializer"
        return Vec(self, self.let(text), dtype)

    def iota(self, dtype: DType) -> Vec:
        """0, 1, 2 … along the lanes."""
        element = ELEMENT[dtype]
        return Vec(self, f"<{', '.join(f'{element} {n}' for n in range(self.lanes))}>", dtype)

    def i64(self, word: str, a: Bound, b: Bound) -> Bound:
        """Index arithmetic, folded where both are constants."""
        if isinstance(a, int) and isinstance(b, int):
            return {"add": a + b, "sub": a - b, "mul": a * b}[word]
        if (word in ("add", "sub") and b == 0) or (word == "mul" and b == 1):
            return a
        if (word == "add" and a == 0) or (word == "mul" and a == 1):
            return b
        return 0 if word == "mul" and 0 in (a, b) else self.let(f"{word} i64 {a}, {b}")

    def least(self, a: Bound, b: Bound) -> Bound:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.intrinsic("smin.i64", "i64", f"i64 {a}", f"i64 {b}")

    def most(self, a: Bound, b: Bound) -> Bound:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.intrinsic("smax.i64", "i64", f"i64 {a}", f"i64 {b}")

    # -- control --------------------------------------------------------------------------------

    def label(self, prefix: str = "L") -> str:
        return self.name(prefix)[1:]

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """An if: lines that run only if the i1 holds."""
        yes, done = self.label("yes"), self.label("done")
        self.do(f"br i1 {condition}, label %{yes}, label %{done}")
        self.lines.append(f"{yes}:")
        yield
        self.do(f"br label %{done}")
        self.lines.append(f"{done}:")

    def poll(self) -> None:
        """Return where the call is interrupted, or has failed in another thread. Cold, and it
        writes no memory that kernels read, so nothing is reloaded after it."""
        effects = "cold nounwind memory(argmem: readwrite, inaccessiblemem: readwrite)"
        code = self.let(f"call i32 {self.let('load ptr, ptr %poll')}(ptr %poll) {effects}")
        with self.when(self.let(f"icmp ne i32 {code}, 0")):
            self.do(self.left.format(code))
            self.lines.append(f"{self.label()}:")

    @contextmanager
    def count(self, low: Bound, high: Bound, step: int, polled: Bound = 0) -> Generator[str]:
        """A loop over low, low + step … below high; a long one polls after each so many
        iterations."""
        known = [n for n in (low, high, polled) if isinstance(n, int)]
        is_short = len(known) == 3 and known[1] - known[0] <= known[2] * step
        if polled == 0 or is_short or not self.left:
            with self._count(low, high, step) as i:
                yield i
            return
        block = self.i64("mul", polled, step)
        with self._count(low, high, block) as first:
            with self.when(self.let(f"icmp ne i64 {first}, {low}")):
                self.poll()
            end = self.least(self.i64("add", first, block), high)
            with self._count(first, end, step) as i:
                yield i

    @contextmanager
    def _count(self, low: Bound, high: Bound, step: Bound) -> Generator[str]:
        slot, head, body, done = self.slot("i64"), *(self.label() for _ in range(3))
        self.do(f"store i64 {low}, ptr {slot}", f"br label %{head}")
        self.lines.append(f"{head}:")
        i = self.let(f"load i64, ptr {slot}")
        more = self.let(f"icmp slt i64 {i}, {high}")
        self.do(f"br i1 {more}, label %{body}, label %{done}")
        self.lines.append(f"{body}:")
        yield i
        self.do(f"store i64 {self.i64('add', i, step)}, ptr {slot}", f"br label %{head}")
        self.lines.append(f"{done}:")

    def repeat(
        self, start: Sequence[Vec], more: Callable[..., Vec], step: Callable[..., Sequence[Vec]]
    ) -> list[Vec]:
        """While any lane wants more, replace the values by the step's."""
        slots = [self.slot(v.type) for v in start]
        head, body, done = (self.label() for _ in range(3))

        def put(values: Sequence[Vec]) -> None:
            self.do(*(f"store {v.type} {v.text}, ptr {s}" for v, s in zip(values, slots)))
            self.do(f"br label %{head}")

        put(start)
        self.lines.append(f"{head}:")
        now = [v.made(f"load {v.type}, ptr {s}") for v, s in zip(start, slots)]
        self.do(f"br i1 {more(*now).any()}, label %{body}, label %{done}")
        self.lines.append(f"{body}:")
        put(step(*now))
        self.lines.append(f"{done}:")
        return now

    def outlined(self, name: str, build: Callable[..., Vec], *args: Vec) -> Vec:
        """An internal function: long code that is emitted once in a module and called."""
        result = args[0].dtype
        full = ".".join([name, *(a.dtype.value for a in args), str(self.lanes)])
        kinds = [a.type for a in args]
        if full not in self.shared:
            self.shared[full] = ""
            inner = Code(self.lanes, self.isa, self.shared)
            made = build(*(Vec(inner, f"%a{i}", a.dtype) for i, a in enumerate(args)))
            inner.do(f"ret {made.type} {made.text}")
            given = ", ".join(f"{k} %a{i}" for i, k in enumerate(kinds))
            self.shared[full] = inner.function(f"define internal {made.type} @{full}({given})")
        given = ", ".join(f"{k} {a.text}" for k, a in zip(kinds, args))
        return args[0].made(f"call {args[0].type} @{full}({given})", result)


def _type_of(typed: str) -> str:
    """The type of `type [attributes] name`."""
    if typed[0] in "<[":
        return typed[: typed.index(">" if typed[0] == "<" else "]") + 1]
    return typed.split()[0]


def literal(value: Number, dtype: DType) -> str:
    """A constant as LLVM writes it; floats by their bits."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if math.isnan(value):
        value = math.nan
    if dtype is DType.F32:
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"
