"""Elementary functions in terms of arithmetic.

The functions are those of the CPU's page (`backends/cpu/codegen/math/elementary.py`), which states
their mathematics and errors once: they are written for anything with a vector's operations, and a
`Lane` here is one value of one thread. Only the range reduction of large angles differs, as a
thread reads its table by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.codegen.math import range_reduction as angles
from rlx.backends.cpu.codegen.math.elementwise import NATIVE
from rlx.backends.gpu.expand.single import SINGLE
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.expand.rewrite import rewritten
from rlx.program.nodes import Node, Number
from rlx.program.program import Program
from rlx.program.values import Var, Variable

F32, F64, I64, U64 = DType.F32, DType.F64, DType.I64, DType.U64
BITS = {F32: DType.U32, F64: DType.U64}
SIGN = {F32: 1 << 31, F64: 1 << 63}
LN2 = 0.6931471805599453
TANH_NEAR = 0.3
"""17/315 · 0.3⁶ is 2⁻¹⁴."""
ISA = SimpleNamespace(has_fma=True, has_scaling=False, maths="precise")
"""What a GPU's arithmetic has of what the functions ask for."""


def expand_functions(
    program: Program, is_native: Callable[[ir.Call], bool], *, has_f64: bool = True
) -> Program:
    """The program with calls of native functions only."""

    def rule(b: Builder, node: Node, args: list[Var], loops: int) -> Sequence[Var] | None:
        assert isinstance(node, ir.Call)
        if is_native(node):
            return None
        return [expanded(b, node, args, has_f64=has_f64)]

    if all(is_native(n) for n in program.nodes if isinstance(n, ir.Call)):
        return program
    return rewritten(program, (ir.Call,), rule)


def expanded(b: Builder, call: ir.Call, args: list[Var], *, has_f64: bool) -> Var:
    """What a function gives, by arithmetic."""
    if call.accuracy == "fast" and call.function == "tanh":
        return _fast_tanh(b, args[0])
    if not has_f64 and call.function in SINGLE:
        return SINGLE[call.function](b, *args)
    return _function(b, call.function, args)


def _function(b: Builder, name: str, args: list[Var]) -> Var:
    lanes = [Lane(a) for a in args]
    match name:
        case "sin" | "cos":
            return _wave(b, args[0], ahead=name == "cos")
        case "fmod":
            return _var(NATIVE["rem"](*cast(Any, lanes)))
        case "reciprocal":
            return 1.0 / args[0]
        case "rsqrt":
            return 1.0 / b.call("sqrt", args[0])
        case "exp2":
            return _exp2(args[0])
        case "log1p":
            return _log1p(b, args[0])
        case _:
            return _var(NATIVE[name](*cast(Any, lanes)))


def _var(lane: Any) -> Var:
    assert isinstance(lane, Lane)
    return lane.var


class Lane:
    """A value with the operations of a vector of the CPU's emitter."""

    __slots__ = ("var",)

    def __init__(self, var: Var) -> None:
        self.var = var

    @property
    def dtype(self) -> DType:
        return self.var.dtype

    @property
    def is_float(self) -> bool:
        return self.var.dtype.is_float

    @property
    def is_number(self) -> bool:
        return self.var.builder.number_of(self.var.value) is not None

    @property
    def code(self) -> Any:
        return SimpleNamespace(isa=ISA, lanes=1, outlined=_outlined, repeat=_repeated)

    def like(self, value: Lane | Number) -> Lane:
        return value if isinstance(value, Lane) else Lane(self.var.builder.like(value, self.var))

    def _of(self, made: Callable[[Var, Var], Var], other: Lane | Number) -> Lane:
        return Lane(made(self.var, self.like(other).var))

    def __add__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a + b, other)

    def __sub__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a - b, other)

    def __mul__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a * b, other)

    def __truediv__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a / b, other)

    def __mod__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a % b, other)

    def __and__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a & b, other)

    def __or__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a | b, other)

    def __xor__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a ^ b, other)

    def __lshift__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a << b, other)

    def __rshift__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a >> b, other)

    def __lt__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a < b, other)

    def __le__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a <= b, other)

    def __gt__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a > b, other)

    def __ge__(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a >= b, other)

    def __neg__(self) -> Lane:
        return Lane(-self.var)

    def __invert__(self) -> Lane:
        return Lane(~self.var)

    def equals(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a.eq(b), other)

    def differs(self, other: Lane | Number) -> Lane:
        return self._of(lambda a, b: a.ne(b), other)

    def is_nan(self) -> Lane:
        return Lane(self.var.ne(self.var))

    def where(self, mask: Lane, other: Lane | Number) -> Lane:
        return Lane(self.var.where(mask.var, self.like(other).var))

    def fma(self, y: Lane, z: Lane) -> Lane:
        return Lane(self.var.builder.fma(self.var, y.var, z.var))

    def abs(self) -> Lane:
        return Lane(abs(self.var))

    def sqrt(self) -> Lane:
        return Lane(self.var.builder.call("sqrt", self.var))

    def copysign(self, sign: Lane) -> Lane:
        dtype = self.var.dtype
        bits, mask = BITS[dtype], SIGN[dtype]
        size = self.var.bits(bits) & (mask - 1)
        return Lane((size | (sign.var.bits(bits) & mask)).bits(dtype))

    def round(self) -> Lane:
        return Lane(self.var.round())

    def floor(self) -> Lane:
        return Lane(self.var.floor())

    def trunc(self) -> Lane:
        return Lane(self.var.trunc())

    def bits(self, dtype: DType) -> Lane:
        return Lane(self.var.bits(dtype))

    def to(self, dtype: DType) -> Lane:
        return Lane(self.var.to(dtype))


def _outlined(name: str, build: Callable[..., Lane], *args: Lane) -> Lane:
    return build(*args)


def _repeated(
    values: Sequence[Lane], more: Callable[..., Lane], step: Callable[..., Sequence[Lane]]
) -> list[Lane]:
    b = cast(Builder, values[0].var.builder)
    held: list[Variable] = [b.variable(v.var) for v in values]
    with b.repeat(held) as again:
        again.when(more(*(Lane(Var(b, h.value)) for h in held)).var)
        made = step(*(Lane(Var(b, h.value)) for h in held))
        for variable, value in zip(held, made, strict=True):
            variable.set(value.var)
    return [Lane(Var(b, h.value)) for h in held]


def _exp2(x: Var) -> Var:
    """2ⁿ · e^(f ln 2) with x = n + f, |f| ≤ ½; beyond 2^±ends the result is 0 or infinite."""
    ends = 160.0 if x.dtype is F32 else 1100.0
    near = x.builder.const(-ends, x.dtype).where(x < -ends, x)
    near = x.builder.const(ends, x.dtype).where(near > ends, near)
    n = near.round()
    part = maths.exp(cast(Any, Lane((near - n) * LN2)))
    whole = Lane(n).to(maths.BITS[x.dtype])
    return _var(maths.scaled(part, cast(Any, whole)))


def _fast_tanh(b: Builder, x: Var) -> Var:
    """1 - 2 / (e^2x + 1), which cancels near 0: there x - x³/3 + 2x⁵/15, off by 17x⁷/315."""
    z = x * x
    near = b.fma(b.fma(z, 2 / 15, -1 / 3), z, 1.0) * x
    far = 1.0 - 2.0 / (b.call("exp", x * 2.0, fast=True) + 1.0)
    return near.where(abs(x) < TANH_NEAR, far)


def _log1p(b: Builder, x: Var) -> Var:
    """log(1 + x), with what 1 + x lost to rounding put back; x itself where that is all."""
    total = x + 1.0
    lost = x - (total - 1.0)
    value = _var(NATIVE["log"](cast(Any, Lane(total)))) + lost / total
    is_plain = (total > 0.0) & (total < float("inf"))
    made = value.where(is_plain, _var(NATIVE["log"](cast(Any, Lane(total)))))
    return x.where(total.eq(1.0) | x.eq(float("inf")), made)


# -- angles ---------------------------------------------------------------------------------------


def _wave(b: Builder, x: Var, *, ahead: bool) -> Var:
    """sin x, or cos x, which is a quadrant ahead; f32 is reduced, and summed, in f64."""
    quarters, r, rest = _quadrants(b, x.to(F64))
    quarters = quarters + int(ahead)
    z = r * r
    if x.dtype is F32:
        sine = b.fma(r * z, _polynomial(z, maths.SIN[F32]), r)
        flat = b.fma(z, -0.5, 1.0)
        cosine = b.fma(z * z, _polynomial(z, maths.COS[F32]), flat)
    else:
        inner = b.fma(z * -0.5, rest, rest)
        sine = r + b.fma(r * z, _polynomial(z, maths.SIN[F64]), inner)
        half = z * 0.5
        flat = 1.0 - half
        tail = ((1.0 - flat) - half) - r * rest
        cosine = flat + b.fma(z * z, _polynomial(z, maths.COS[F64]), tail)
    value = cosine.where((quarters & 1).ne(0), sine)
    made = (-value).where((quarters & 2).ne(0), value).to(x.dtype)
    return made if ahead else made.where(x.ne(0.0), x)


def _polynomial(x: Var, coefficients: Sequence[float]) -> Var:
    return _var(maths.polynomial(cast(Any, Lane(x)), coefficients))


def _two_sum(x: Var, y: Var) -> tuple[Var, Var]:
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _two_product(b: Builder, x: Var, y: Var) -> tuple[Var, Var]:
    high = x * y
    return high, b.fma(x, y, -high)


def _quadrants(b: Builder, x: Var) -> tuple[Var, Var, Var]:
    """n and r + rest with x = n · π/2 + r + rest, |r| ≤ π/4; n is right modulo 4."""
    found = [b.variable(v) for v in _near(b, x)]
    with b.when(~(abs(x) < angles.NEAR), found):
        for variable, value in zip(found, _far(b, x)):
            variable.set(value)
    n, r, rest = (Var(b, v.value) for v in found)
    return n, r, rest


def _near(b: Builder, x: Var) -> tuple[Var, Var, Var]:
    """Cody and Waite's three parts of π/2."""
    x = b.const(0.0, F64).where(abs(x) > angles.NEAR, x)
    shifted = b.fma(x, angles.TWO_OVER_PI, angles.ROUNDER)
    n = shifted - angles.ROUNDER
    first = b.fma(n, -angles.HALF_PI[0], x)
    second, lost = _two_product(b, n, b.const(-angles.HALF_PI[1], F64))
    r, rest = _two_sum(first, second)
    r, more = _two_sum(r, n * -angles.HALF_PI[2])
    return shifted.bits(I64), r, (rest + lost) + more


def _far(b: Builder, x: Var) -> tuple[Var, Var, Var]:
    """Payne and Hanek: x · 2/π modulo 4, by a row of the table for each 32 binary places."""
    rows = angles._table()  # pyright: ignore[reportPrivateUsage]
    table = b.table("two_over_pi", F64, [v for row in rows for v in row])
    size = abs(x)
    exponent = (size.bits(I64) >> 52) - 1075
    row = (exponent.max(0) >> 5).min(angles.ROWS - 1)
    big = size * ((row * -angles.STEP + 1023) << 52).bits(F64)
    high = (big.bits(U64) & 0xFFFFFFFFFC000000).bits(F64)
    total, lost = b.const(0.0, F64), b.const(0.0, F64)
    for i in range(angles.PIECES):
        piece = b.table_load(table, row * angles.PIECES + i)
        for half in (high, big - high):
            part = half * piece
            part = part - (part * 0.25).floor() * 4.0
            total, more = _two_sum(total, part)
            lost = lost + more
    n = total.round()
    fraction, more = _two_sum(total - n, lost)
    r, low = _two_product(b, fraction, b.const(angles.HALF_PI_DD[0], F64))
    low = low + b.fma(fraction, angles.HALF_PI_DD[1], more * angles.HALF_PI_DD[0])
    r, low = _two_sum(r, low)
    sign = _var(Lane(b.const(1.0, F64)).copysign(Lane(x)))
    return (n * sign).to(I64), r * sign + (x - x), low * sign
