"""Arithmetic of SIMT programs in WGSL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from rlx.backends.gpu.source.structured import Structured
from rlx.backends.wgpu.wgsl.rounding import cancelled
from rlx.backends.wgpu.wgsl.text import (
    BF16,
    BOOL,
    F16,
    F32,
    HALVES,
    I32,
    U32,
    WIDE,
    literal,
    type_of,
)
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Value

OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
FAST = {
    "exp": "exp_f32", "exp2": "exp2_f32", "log": "log_f32", "sqrt": "sqrt", "rsqrt": "inverseSqrt",
}  # fmt: skip
SAFE = ("min", "max", "and", "or", "xor", "not")
"""Operations that overflow for no constants."""
INSIDE = ("shr", "rem", "min", "max", "and", "or", "xor", "div")
"""Operations whose result is a number of 8 or 16 bits where the operands are."""


def is_native(call: ir.Call) -> bool:
    """Functions that WGSL has with the accuracy asked for. Its tanh may be a quotient of sinh and
    cosh, which overflow."""
    if call.function in ("sqrt", "reciprocal"):
        return True
    return call.accuracy == "fast" and call.function in FAST


def function_name(call: ir.Call) -> str:
    return f"{call.function}_{call.accuracy}"


class Arithmetic(Structured):
    """Nodes that compute."""

    language = "WGSL"
    endless = "loop"
    has_f16: bool = False
    """Are there conversions to f16, which round to nearest? Packing alone need not."""

    def constant(self, name: str, kind: str, expression: str) -> str:
        return f"let {name}: {kind} = {expression};"

    def variable(self, name: str, kind: str, expression: str | None) -> str:
        return f"var {name}: {kind}{f' = {expression}' if expression is not None else ''};"

    @cached_property
    def functions(self) -> dict[str, ir.Call]:
        """The functions that the module has to define, by name, with a call of each."""
        return {}

    @cached_property
    def rounded(self) -> frozenset[Value]:
        """Values that no compiler may see through."""
        return cancelled(self.program)

    def type_name(self, dtype: DType) -> str:
        if dtype is DType.F64 or dtype.is_complex:
            raise self.unsupported(None, f"{dtype}; use f32.")
        return type_of(dtype)

    def less(self, dtype: DType, a: str, b: str) -> str:
        return f"lt64i({a}, {b})" if dtype in WIDE else f"{a} < {b}"

    def sum(self, dtype: DType, a: str, b: str) -> str:
        return f"add64({a}, {b})" if dtype in WIDE else f"{a} + {b}"

    def expressions(self) -> dict[type[Node], Callable[[Any], str]]:
        return {
            ir.Const: self.const,
            ir.Binary: self.binary,
            ir.Compare: self.compare,
            ir.Unary: self.unary,
            ir.Call: self.call,
            ir.Fma: self.fma,
            ir.Select: self.select,
            ir.Convert: self.convert,
            ir.Bitcast: self.bitcast,
        }

    def const(self, node: ir.Const) -> str:
        self.type_name(node.result.dtype)
        return literal(node.value, node.result.dtype)

    def operands(self, node: Node) -> list[str]:
        """Its arguments. Of constants alone, they get names: an expression of constants is
        evaluated by compilers, which refuse what overflows."""
        is_safe = isinstance(node, ir.Compare) or getattr(node, "op", "") in SAFE
        if is_safe or any(self.number(a) is None for a in node.args):
            return self.all(node.args)
        return [self.let(self.type_name(a.dtype), self.one(a)) for a in node.args]

    # -- binary ----------------------------------------------------------------------------------

    def binary(self, node: ir.Binary) -> str:
        dtype = node.result.dtype
        a, b = self.operands(node)
        if dtype is BOOL:
            op = {"min": "&", "max": "|"}.get(node.op) or OPERATORS[node.op]
            return f"({a} != {b})" if node.op == "xor" else f"({a} {op} {b})"
        if dtype in HALVES:
            raise self.unsupported(node, f"{node.op} of {dtype}; convert it to f32.")
        if dtype.is_float:
            return self._float(node, a, b)
        if dtype in WIDE:
            return self._wide(node, a, b)
        return self._integer(node, a, b)

    def _float(self, node: ir.Binary, a: str, b: str) -> str:
        if node.op in ("min", "max"):
            return self._extremum(node, a, b)
        if node.op not in ("add", "sub", "mul", "div"):
            raise self.unsupported(node, f"{node.op} of {node.result.dtype}; expand it.")
        if node.args[0] is node.args[1] and node.op in ("sub", "div"):
            b = f"rounded({b})"
        return self.rounding(node, f"({a} {OPERATORS[node.op]} {b})")

    def _extremum(self, node: ir.Binary, a: str, b: str) -> str:
        """NaN if either is; beside a number one comparison does, which NaN fails."""
        for value, other in (node.args, node.args[::-1]):
            number = self.number(other)
            if number is not None and number == number:
                x, y = self.named(value), self.one(other)
                return f"select({x}, {y}, {x} {'<' if node.op == 'max' else '>'} {y})"
        return f"{node.op}_f32({a}, {b})"

    def rounding(self, node: Node, made: str) -> str:
        return f"rounded({made})" if node.result in self.rounded else made

    def _wide(self, node: ir.Binary, a: str, b: str) -> str:
        if node.op in ("and", "or", "xor"):
            return f"({a} {OPERATORS[node.op]} {b})"
        sign = "i" if node.result.dtype.is_signed else "u"
        has_sign = node.op in ("div", "rem", "min", "max", "shr")
        return f"{node.op}64{sign if has_sign else ''}({a}, {b})"

    def _integer(self, node: ir.Binary, a: str, b: str) -> str:
        op, dtype = node.op, node.result.dtype
        number = self.number(node.args[1])
        if op in ("min", "max"):
            return f"{op}({a}, {b})"
        if op in ("shl", "shr"):
            amount = f"{int(number) & 31}u" if number is not None else self._unsigned(b, dtype)
            made = f"({a} {OPERATORS[op]} {amount})"
        else:
            if op in ("div", "rem") and number == 0:
                b = self.let(type_of(dtype), b)
            made = f"({a} {OPERATORS[op]} {b})"
        return made if op in INSIDE else self.extended(made, dtype)

    def _unsigned(self, text: str, dtype: DType) -> str:
        return f"bitcast<u32>({text})" if dtype.is_signed else text

    def extended(self, text: str, dtype: DType) -> str:
        """The low bits of a word as the number of 8 or 16 bits that they are."""
        if dtype.itemsize >= 4 or dtype is BOOL:
            return text
        bits = dtype.itemsize * 8
        return f"extractBits({text}, 0u, {bits}u)"

    # -- the rest --------------------------------------------------------------------------------

    def compare(self, node: ir.Compare) -> str:
        dtype = node.args[0].dtype
        a, b = self.operands(node)
        if dtype in WIDE:
            return self._wide_compare(node.op, dtype, a, b)
        if dtype is BOOL and node.op not in ("eq", "ne"):
            a, b = self.converted(a, BOOL, U32), self.converted(b, BOOL, U32)
        if dtype.is_float and node.op == "ne":
            return f"is_nan({a})" if a == b else f"!({a} == {b})"
        return f"({a} {OPERATORS[node.op]} {b})"

    def _wide_compare(self, op: ir.CompareOp, dtype: DType, a: str, b: str) -> str:
        if op in ("eq", "ne"):
            return f"{'!' if op == 'ne' else ''}eq64({a}, {b})"
        if op in ("gt", "le"):
            a, b = b, a
        name = f"lt64{'i' if dtype.is_signed else 'u'}"
        return f"{'!' if op in ('le', 'ge') else ''}{name}({a}, {b})"

    def unary(self, node: ir.Unary) -> str:
        dtype = node.result.dtype
        (x,) = self.operands(node)
        if dtype in HALVES:
            raise self.unsupported(node, f"{node.op} of {dtype}; convert it to f32.")
        if node.op == "not":
            return self.extended(f"(!{x})" if dtype is BOOL else f"(~{x})", dtype)
        if dtype in WIDE:
            return x if node.op == "abs" and not dtype.is_signed else f"{node.op}64({x})"
        if node.op == "neg":
            negated = f"(-{x})" if dtype.is_float or dtype.is_signed else f"(0u - {x})"
            return self.extended(negated, dtype)
        return self.extended(f"{node.op}({x})", dtype)

    def call(self, node: ir.Call) -> str:
        given = self.operands(node)
        if node.function == "reciprocal":
            return f"(1f / {given[0]})"
        if is_native(node):
            return f"{FAST[node.function]}({given[0]})"
        if node.result.dtype is not F32:
            raise self.unsupported(node, f"{node.function} of {node.result.dtype}; use f32.")
        name = function_name(node)
        self.functions.setdefault(name, node)
        return f"{name}({', '.join(given)})"

    def fma(self, node: ir.Fma) -> str:
        """Rounded once where the adapter fuses it: WGSL need not, and software adapters do not.
        What is lowered counts on it for speed alone."""
        if node.result.dtype is not F32:
            raise self.unsupported(node, f"fma of {node.result.dtype}; convert it.")
        return self.rounding(node, f"fma({', '.join(self.operands(node))})")

    def select(self, node: ir.Select) -> str:
        condition, yes, no = self.all(node.args)
        return f"select({no}, {yes}, {condition})"

    # -- dtypes ----------------------------------------------------------------------------------

    def convert(self, node: ir.Convert) -> str:
        (x,) = self.operands(node)
        return self.converted(x, node.args[0].dtype, node.result.dtype)

    def converted(self, x: str, given: DType, to: DType) -> str:
        self.type_name(to)
        if given is to:
            return x
        if given is BOOL:
            return self._of_bool(x, to)
        if to is BOOL:
            return self._to_bool(x, given)
        if given.is_float:
            return self._of_float(x, given, to)
        if to.is_float:
            return self.rounded_to(self._integer_to_float(x, given), to)
        return self._integer_to_integer(x, given, to)

    def _of_bool(self, x: str, to: DType) -> str:
        zero, one = literal(0, to), literal(1, to)
        return f"select({zero}, {one}, {x})"

    def _to_bool(self, x: str, given: DType) -> str:
        if given in WIDE:
            return f"any({x} != vec2<u32>())"
        zero = literal(0, given)
        return f"!({x} == {zero})" if given.is_float else f"({x} != {zero})"

    def _of_float(self, x: str, given: DType, to: DType) -> str:
        if to.is_float:
            return self.rounded_to(x, to)
        if to in WIDE:
            return f"wide_f32({x})"
        return self.extended(f"{type_of(to)}({x})", to)

    def rounded_to(self, x: str, to: DType) -> str:
        """An f32 as a value of a float dtype."""
        if to is F16 and self.has_f16:
            return f"native_f16({x})"
        return f"to_{to}({x})" if to in HALVES else x

    def _integer_to_float(self, x: str, given: DType) -> str:
        if given in WIDE:
            return f"f32_of_64{'i' if given.is_signed else 'u'}({x})"
        return f"f32({x})"

    def _integer_to_integer(self, x: str, given: DType, to: DType) -> str:
        if given in WIDE and to in WIDE:
            return x
        if to in WIDE:
            return f"wide_i32({x})" if given.is_signed else f"vec2<u32>({x}, 0u)"
        word = f"({x}).x" if given in WIDE else x
        is_signed = False if given in WIDE else given.is_signed
        made = word if is_signed == to.is_signed else f"bitcast<{type_of(to)}>({word})"
        is_inside = to.itemsize > given.itemsize and (to.is_signed or not given.is_signed)
        return made if is_inside else self.extended(made, to)

    def bitcast(self, node: ir.Bitcast) -> str:
        (x,) = self.operands(node)
        given, to = node.args[0].dtype, node.result.dtype
        if given in WIDE or (type_of(given) == type_of(to) and given.itemsize == 4):
            return x
        if given.itemsize == 4:
            return f"bitcast<{type_of(to)}>({x})"
        return self.of_bits(self.bits_of(x, given), to)

    def bits_of(self, x: str, dtype: DType) -> str:
        """A number that is held as the word that has its bits; those above are any."""
        if dtype is BOOL:
            return f"select(0u, 1u, {x})"
        if dtype is F16 and self.has_f16:
            return f"pack2x16float(vec2<f32>({x}, 0f))"
        if dtype in HALVES:
            return f"{dtype}_bits({x})"
        return x if type_of(dtype) == "u32" else f"bitcast<u32>({x})"

    def of_bits(self, word: str, dtype: DType) -> str:
        """The number whose bits a word has, those above being 0."""
        if dtype is BOOL:
            return f"({word} != 0u)"
        if dtype in (F16, BF16):
            return f"{dtype}_value({word})"
        if dtype in (F32, I32):
            return f"bitcast<{type_of(dtype)}>({word})"
        return self.extended(f"bitcast<i32>({word})", dtype) if dtype.is_signed else word
