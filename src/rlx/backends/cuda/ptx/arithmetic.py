"""Arithmetic of SIMT programs in PTX. Every rounding is stated, so that ptxas contracts nothing."""

from __future__ import annotations

from functools import cached_property

from rlx.backends.cuda.ptx.text import BF16, BOOL, F16, F32, F64, Text, bits_of, kind_of, literal
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value

ROUNDINGS = {"floor": "rmi", "ceil": "rpi", "trunc": "rzi", "round": "rni"}
HALVES = (F16, BF16)
I32 = DType.I32
PLAIN = {"add": "add.s32", "sub": "sub.s32", "mul": "mul.lo.s32"}
"""What most indices are made of."""
LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453


def is_native(call: ir.Call) -> bool:
    """Functions that PTX has with the accuracy asked for."""
    return call.function in ("sqrt", "reciprocal") or call.accuracy == "fast"


def is_odd_divisor(number: int) -> bool:
    """Is it a divisor that is no power of two, which shifts do?"""
    return number > 2 and number & (number - 1) != 0


def reciprocal_of(divisor: int) -> tuple[int, int]:
    """A factor of 32 bits and a shift: n / d is the high word of n · factor, shifted, plus 1 where
    n is negative; to a factor that does not fit 31 bits, n is added. The least power of two 2^p
    for which 2^p / d, rounded up, is exact enough for all n (Warren, Hacker's Delight)."""
    greatest = (1 << 31) - 1 - (1 << 31) % divisor
    power = 32
    while (1 << power) <= greatest * (divisor - (1 << power) % divisor):
        power += 1
    factor = ((1 << power) + divisor - (1 << power) % divisor) // divisor
    return factor - (1 << 32 if factor >> 31 else 0), power - 32


class Arithmetic(Text):
    """Nodes that compute."""

    @cached_property
    def integers(self) -> dict[Value, int]:
        """The integer constants that were printed."""
        return {}

    def const(self, node: ir.Const) -> str:
        dtype = node.result.dtype
        if dtype is BOOL:
            return self.let(BOOL, "mov.pred", "-1" if node.value else "0")
        if dtype in HALVES:
            return self._rounded(self.let(F32, "mov.f32", literal(node.value, F32)), dtype)
        if dtype.is_integer:
            self.integers[node.result] = int(node.value)
        suffix = kind_of(dtype) if dtype.is_float else f"b{bits_of(dtype)}"
        return self.let(dtype, f"mov.{suffix}", literal(node.value, dtype))

    # -- binary ----------------------------------------------------------------------------------

    def binary(self, node: ir.Binary) -> str:
        dtype = node.results[0].dtype
        left, right = node.args
        a, b = self.one(left), self.one(right)
        if dtype is BOOL:
            op = {"min": "and", "max": "or"}.get(node.op, node.op)
            return self.let(BOOL, f"{op}.pred", a, b)
        if dtype in HALVES:
            raise self.unsupported(f"{node.op} of {dtype}; convert it to f32")
        if dtype.is_float:
            return self._float(node.op, dtype, a, b)
        divisor = self.integers.get(node.args[1], 0)
        if node.op in ("div", "rem") and dtype is I32 and is_odd_divisor(divisor):
            return self._by_constant(node.op, a, divisor)
        return self._integer(node.op, dtype, a, b)

    def _by_constant(self, op: str, x: str, divisor: int) -> str:
        """Quotient or remainder by a constant: ptxas would divide as by any other number."""
        factor, shift = reciprocal_of(divisor)
        high = self.let(I32, "mul.hi.s32", x, str(factor))
        if factor < 0:
            high = self.let(I32, "add.s32", high, x)
        moved = self.let(I32, "shr.s32", high, str(shift)) if shift else high
        quotient = self.let(I32, "add.s32", moved, self.let(I32, "shr.u32", x, "31"))
        if op == "div":
            return quotient
        return self.let(I32, "mad.lo.s32", quotient, str(-divisor), x)

    def _float(self, op: str, dtype: DType, a: str, b: str) -> str:
        kind = kind_of(dtype)
        if op in ("add", "sub", "mul", "div"):
            return self.let(dtype, f"{op}.rn.{kind}", a, b)
        if op not in ("min", "max"):
            raise self.unsupported(f"{op} of {dtype}; expand it")
        if dtype is F32:
            return self.let(F32, f"{op}.NaN.f32", a, b)
        made = self.let(F64, f"{op}.f64", a, b)
        is_nan = self.let(BOOL, "setp.nan.f64", a, b)
        nan = self.let(F64, "add.rn.f64", a, b)
        return self.let(F64, "selp.f64", nan, made, is_nan)

    def _integer(self, op: str, dtype: DType, a: str, b: str) -> str:
        if op in PLAIN and dtype is I32:
            return self.let(I32, PLAIN[op], a, b)
        kind, size = kind_of(dtype), bits_of(dtype)
        if op in ("and", "or", "xor"):
            return self.let(dtype, f"{op}.b{size}", a, b)
        if op in ("shl", "shr"):
            amount = self.let(I32, "cvt.u32.u64", b) if size == 64 else b
            made = self.let(dtype, f"shl.b{size}" if op == "shl" else f"shr.{kind}", a, amount)
        else:
            made = self.let(dtype, f"mul.lo.{kind}" if op == "mul" else f"{op}.{kind}", a, b)
        is_inside = op in ("shr", "rem", "min", "max")  # of numbers of its width, one of them
        return made if is_inside else self.extended(made, dtype)

    def extended(self, register: str, dtype: DType) -> str:
        """The low bits of a word as the number of 8 or 16 bits that they are."""
        if dtype.itemsize >= 4 or dtype.is_float or dtype is BOOL:
            return register
        size = dtype.itemsize * 8
        if dtype.is_signed:
            return self.let(dtype, "bfe.s32", register, "0", str(size))
        return self.let(dtype, "and.b32", register, str((1 << size) - 1))

    # -- the rest --------------------------------------------------------------------------------

    def compare(self, node: ir.Compare) -> str:
        dtype = node.args[0].dtype
        a, b = self.all(node.args)
        if dtype is BOOL:
            a, b, dtype = self.number(a), self.number(b), DType.U32
        if dtype in HALVES:
            a, b, dtype = self.widened(a, dtype), self.widened(b, dtype), F32
        op = "neu" if node.op == "ne" and dtype.is_float else node.op
        return self.let(BOOL, f"setp.{op}.{kind_of(dtype)}", a, b)

    def number(self, predicate: str) -> str:
        """A truth value as 0 or 1."""
        return self.let(None, "selp.b32", "1", "0", predicate)

    def unary(self, node: ir.Unary) -> str:
        dtype, x = node.result.dtype, self.one(node.args[0])
        if dtype in HALVES:
            raise self.unsupported(f"{node.op} of {dtype}; convert it to f32")
        kind = kind_of(dtype)
        if node.op in ROUNDINGS:
            return self.let(dtype, f"cvt.{ROUNDINGS[node.op]}.{kind}.{kind}", x)
        if node.op == "not":
            suffix = "pred" if dtype is BOOL else f"b{bits_of(dtype)}"
            return self.extended(self.let(dtype, f"not.{suffix}", x), dtype)
        signed = kind if dtype.is_float else f"s{bits_of(dtype)}"
        return self.extended(self.let(dtype, f"{node.op}.{signed}", x), dtype)

    def call(self, node: ir.Call) -> str:
        dtype, (x,) = node.result.dtype, self.all(node.args[:1])
        if node.accuracy == "precise":
            if node.function not in ("sqrt", "reciprocal"):
                raise self.unsupported(f"{node.function}; expand functions first")
            return self.let(dtype, f"{_instruction(node)}.rn.{kind_of(dtype)}", x)
        match node.function:
            case "exp":
                scaled = self.let(F32, "mul.rn.f32", x, literal(LOG2_E, F32))
                return self.let(F32, "ex2.approx.ftz.f32", scaled)
            case "log":
                scaled = self.let(F32, "lg2.approx.f32", x)
                return self.let(F32, "mul.rn.f32", scaled, literal(LN2, F32))
            case "exp2" | "sqrt" | "reciprocal" | "rsqrt" | "tanh":
                flush = ".ftz" if node.function in ("exp2", "reciprocal") else ""
                return self.let(F32, f"{_instruction(node)}.approx{flush}.f32", x)
            case _:
                raise self.unsupported(f"fast {node.function}")

    def fma(self, node: ir.Fma) -> str:
        dtype = node.results[0].dtype
        if dtype not in (F32, F64):
            raise self.unsupported(f"fma of {dtype}; convert it")
        return self.let(dtype, f"fma.rn.{kind_of(dtype)}", *map(self.one, node.args))

    def select(self, node: ir.Select) -> list[str]:
        condition = self.one(node.args[0])
        sides = [self.held[a] for a in node.args[1:]]
        dtype = node.result.dtype
        return [self._selected(dtype, condition, a, b) for a, b in zip(*sides, strict=True)]

    def _selected(self, dtype: DType, condition: str, a: str, b: str) -> str:
        if dtype is BOOL:
            yes, no = (
                self.let(BOOL, "and.pred", condition, a),
                self.let(BOOL, "not.pred", condition),
            )
            return self.let(BOOL, "or.pred", yes, self.let(BOOL, "and.pred", no, b))
        suffix = {F32: "f32", F64: "f64"}.get(dtype, f"b{bits_of(dtype)}")
        return self.let(dtype, f"selp.{suffix}", a, b, condition)

    # -- dtypes ----------------------------------------------------------------------------------

    def convert(self, node: ir.Convert) -> str:
        return self.converted(self.one(node.args[0]), node.args[0].dtype, node.result.dtype)

    def converted(self, x: str, given: DType, to: DType) -> str:
        if given is to:
            return x
        if given is BOOL:
            return self.converted(self.number(x), DType.U32, to)
        if given in HALVES:
            return self.converted(self.widened(x, given), F32, to)
        if to is BOOL:
            op = "neu" if given.is_float else "ne"
            return self.let(BOOL, f"setp.{op}.{kind_of(given)}", x, literal(0, given))
        if to in HALVES:
            return self._rounded(x, to, given)
        if given.is_float or to.is_float:
            return self._float_conversion(x, given, to)
        return self._integer_conversion(x, given, to)

    def widened(self, x: str, half: DType) -> str:
        """A half float as f32: bf16 is its upper half, on every architecture."""
        if half is F16:
            return self.let(F32, "cvt.f32.f16", x)
        zero = self.let(BF16, "mov.b16", "0")
        word = self.let(None, "mov.b32", f"{{{zero}, {x}}}")
        return self.let(F32, "mov.b32", word)

    def _rounded(self, x: str, to: DType, given: DType = F32) -> str:
        """To a half float; to bf16 by way of f32."""
        if to is BF16 or not given.is_float:
            x, given = self.converted(x, given, F32), F32
        return self.let(to, f"cvt.rn.{to.value}.{kind_of(given)}", x)

    def _float_conversion(self, x: str, given: DType, to: DType) -> str:
        if given.is_float and to.is_float:
            rounding = ".rn" if to is F32 else ""
            return self.let(to, f"cvt{rounding}.{kind_of(to)}.{kind_of(given)}", x)
        rounding = "rn" if to.is_float else "rzi"
        made = self.let(to, f"cvt.{rounding}.{kind_of(to)}.{kind_of(given)}", x)
        return made if to.is_float else self.extended(made, to)

    def _integer_conversion(self, x: str, given: DType, to: DType) -> str:
        wide, narrow = bits_of(given), bits_of(to)
        if wide == narrow:
            return self.extended(x, to) if to.itemsize < given.itemsize or to.itemsize < 4 else x
        if narrow == 32:
            return self.extended(self.let(to, "cvt.u32.u64", x), to)
        return self.let(to, f"cvt.{kind_of(to)}.{kind_of(given)}", x)

    def bitcast(self, node: ir.Bitcast) -> str:
        x, given, to = self.one(node.args[0]), node.args[0].dtype, node.result.dtype
        if to in HALVES:
            return x if given in HALVES else self.let(to, "cvt.u16.u32", x)
        if given in HALVES:
            return self.extended(self.let(None, "cvt.u32.u16", x), to)
        if given.is_float == to.is_float:
            return self.extended(x, to)
        return self.let(to, f"mov.b{bits_of(to)}", x)

    def position(self, node: ir.Position) -> str:
        warp = self.program.warp
        names = {
            "block": f"%ctaid.{'xyz'[node.dim]}",
            "blocks": f"%nctaid.{'xyz'[node.dim]}",
            "rank": "%cluster_ctarank",
        }
        if node.of in names:
            return self.let(I32, "mov.u32", names[node.of])
        thread = self.let(I32, "mov.u32", "%tid.x")
        if node.of == "thread":
            return thread
        if node.of == "warp" and self.uniform_warp:
            return self.uniform_warp
        if node.of == "lane":
            return self.let(I32, "and.b32", thread, str(warp - 1))
        return self.let(I32, "shr.u32", thread, str(warp.bit_length() - 1))


def _instruction(node: ir.Call) -> str:
    return {"exp2": "ex2", "reciprocal": "rcp"}.get(node.function, node.function)
