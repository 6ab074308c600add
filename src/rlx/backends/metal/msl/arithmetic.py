"""Arithmetic of SIMT programs in MSL.

MSL is C++, where overflow of signed integers, dividing by 0 and shifting by the width have no
meaning: sums are made of unsigned numbers, and divisors and amounts are made safe first. Kernels
are compiled without fast mathematics, so that NaN is a number, and + - * / sqrt and fma round once.
"""

from __future__ import annotations

from rlx.backends.gpu.source.structured import Structured
from rlx.backends.metal.msl.types import BF16, BOOL, F16, F32, NAMES, UNSIGNED, literal
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Value

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%",
           "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}  # fmt: skip
COMPARES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}
NATIVE_FAST = frozenset({"exp", "log", "tanh", "sqrt", "rsqrt", "reciprocal"})
"""Functions of MSL whose errors a fast call may have: exp and log up to 4 units in the last place,
tanh 5, rsqrt 2; those of exp2, 4, are more than it may have."""
WORD = 4
"""Bytes below which C++ computes in int."""


def is_native(call: ir.Call) -> bool:
    """Functions that MSL has with the accuracy asked for."""
    if call.accuracy == "fast":
        return call.function in NATIVE_FAST
    return call.function in ("sqrt", "reciprocal")


class Arithmetic(Structured):
    """Nodes that compute."""

    # -- binary ----------------------------------------------------------------------------------

    def binary(self, node: ir.Binary) -> str:
        dtype = node.result.dtype
        if dtype is BOOL:
            return self._truth(node)
        if dtype.is_float:
            return self._float(node, dtype)
        return self._integer(node, dtype)

    def _truth(self, node: ir.Binary) -> str:
        a, b = self.all(node.args)
        symbol = {"and": "&&", "min": "&&", "or": "||", "max": "||", "xor": "!="}[node.op]
        return f"({a} {symbol} {b})"

    def _float(self, node: ir.Binary, dtype: DType) -> str:
        """Products have names: in one expression with a sum, C++ may round the two as one."""
        a, b = (self.named(v) if self._is_product(v) else self.one(v) for v in node.args)
        if node.op in ("min", "max"):
            return f"{node.op}imum_of({a}, {b})"
        if node.op not in ("add", "sub", "mul", "div"):
            raise self.unsupported(node, f"{node.op} of {dtype}; expand it.")
        return self.rounded(f"({a} {SYMBOLS[node.op]} {b})", dtype)

    def _is_product(self, value: Value) -> bool:
        node = self.makers.get(value)
        return isinstance(node, ir.Binary) and node.op == "mul"

    def rounded(self, expression: str, dtype: DType) -> str:
        """What was computed in f32 as a value of the dtype; half rounds by itself."""
        return f"round_bf16({expression})" if dtype is BF16 else expression

    def _integer(self, node: ir.Binary, dtype: DType) -> str:
        match node.op:
            case "min" | "max":
                return self._extreme(node, dtype)
            case "div" | "rem":
                return self._quotient(node, dtype)
            case "shl" | "shr":
                return self._shifted(node, dtype)
            case "and" | "or" | "xor":
                a, b = self.all(node.args)
                return self._as(f"({a} {SYMBOLS[node.op]} {b})", dtype)
            case _:
                return self._wrapped(node, dtype)

    def _as(self, expression: str, dtype: DType) -> str:
        """Of numbers that C++ has computed in int."""
        return f"{NAMES[dtype]}{expression}" if dtype.itemsize < WORD else expression

    def _wrapped(self, node: ir.Binary, dtype: DType) -> str:
        """Sums, differences and products, of which the low bits are kept."""
        a, b = self.all(node.args)
        made = UNSIGNED[max(WORD, dtype.itemsize)]
        if dtype.is_signed or dtype.itemsize < WORD:
            return f"{NAMES[dtype]}({made}({a}) {SYMBOLS[node.op]} {made}({b}))"
        return f"({a} {SYMBOLS[node.op]} {b})"

    def _extreme(self, node: ir.Binary, dtype: DType) -> str:
        if dtype.itemsize <= WORD:
            a, b = self.all(node.args)
            return f"{node.op}({a}, {b})"
        a, b = (self.named(v) for v in node.args)
        return f"({a} {'<' if node.op == 'min' else '>'} {b} ? {a} : {b})"

    def _quotient(self, node: ir.Binary, dtype: DType) -> str:
        a, by = self.one(node.args[0]), self._divisor(node, dtype)
        return self._as(f"({a} {SYMBOLS[node.op]} {by})", dtype)

    def _divisor(self, node: ir.Binary, dtype: DType) -> str:
        """1 for 0; and for -1 where the least number is divided, whose quotient wraps."""
        a, b = node.args
        if self.number(b) not in (None, 0, -1):
            return self.one(b)
        divisor = self.named(b)
        wrong = f"{divisor} == 0"
        if dtype.is_signed:
            least = literal(-(1 << (dtype.itemsize * 8 - 1)), dtype)
            wrong += f" || ({divisor} == -1 && {self.named(a)} == {least})"
        return f"({wrong} ? {literal(1, dtype)} : {divisor})"

    def _shifted(self, node: ir.Binary, dtype: DType) -> str:
        a, b = self.all(node.args)
        amount, bits = self.number(node.args[1]), dtype.itemsize * 8
        by = (
            str(int(amount)) if amount is not None and 0 <= amount < bits else f"({b} & {bits - 1})"
        )
        if node.op == "shl":
            made = UNSIGNED[max(WORD, dtype.itemsize)]
            return f"{NAMES[dtype]}({made}({a}) << {by})"
        return self._as(f"({a} >> {by})", dtype)

    # -- the rest --------------------------------------------------------------------------------

    def constant_node(self, node: ir.Const) -> str:
        return literal(node.value, node.result.dtype)

    def compare(self, node: ir.Compare) -> str:
        a, b = self.all(node.args)
        return f"({a} {COMPARES[node.op]} {b})"

    def unary(self, node: ir.Unary) -> str:
        dtype, x = node.result.dtype, self.one(node.args[0])
        if dtype is BOOL:
            return f"(!{x})"
        if node.op == "not":
            return self._as(f"(~{x})", dtype)
        if not dtype.is_float:
            return self._signed(node, dtype)
        if node.op == "neg":
            return f"(-{x})"
        name = "fabs" if node.op == "abs" else ROUNDINGS[node.op]
        return f"{name}({x})"

    def _signed(self, node: ir.Unary, dtype: DType) -> str:
        kind, made = NAMES[dtype], UNSIGNED[max(WORD, dtype.itemsize)]
        if node.op == "neg":
            return f"{kind}({made}(0) - {made}({self.one(node.args[0])}))"
        if not dtype.is_signed:
            return self.one(node.args[0])
        x = self.named(node.args[0])
        return f"{kind}({x} < 0 ? {made}(0) - {made}({x}) : {made}({x}))"

    def fma(self, node: ir.Fma) -> str:
        dtype = node.result.dtype
        if dtype not in (F16, F32):
            raise self.unsupported(node, f"fma of {dtype}; convert it.")
        return f"fma({', '.join(self.all(node.args))})"

    def select(self, node: ir.Select) -> str:
        condition, yes, no = self.all(node.args)
        return f"({condition} ? {yes} : {no})"

    def call(self, node: ir.Call) -> str:
        x = self.one(node.args[0])
        if not is_native(node):
            raise self.unsupported(node, f"{node.accuracy} {node.function}; expand it first.")
        if node.function == "reciprocal":
            return f"(1.0f / {x})"
        return f"precise::{node.function}({x})"

    # -- dtypes ----------------------------------------------------------------------------------

    def convert(self, node: ir.Convert) -> str:
        return self.converted(self.one(node.args[0]), node.args[0].dtype, node.result.dtype)

    def converted(self, x: str, given: DType, to: DType) -> str:
        if given is to:
            return x
        if to is BOOL:
            return f"({x} != {literal(0, given)})"
        if to.is_float:
            return self._to_float(x, given, to)
        if given is F16:
            x = f"float({x})"
        if given.is_float and to.itemsize < WORD:
            x = f"{'int' if to.is_signed else 'uint'}({x})"
        return f"{NAMES[to]}({x})"

    def _to_float(self, x: str, given: DType, to: DType) -> str:
        """By way of f32, as everywhere."""
        wide = x if given in (F32, BF16) else f"float({x})"
        if to is F32:
            return wide
        return f"round_bf16({wide})" if to is BF16 else f"half({wide})"

    def bitcast(self, node: ir.Bitcast) -> str:
        x, given, to = self.one(node.args[0]), node.args[0].dtype, node.result.dtype
        if given is to:
            return x
        if given is BF16:
            x, given = f"bits_of_bf16({x})", DType.U16
        if to is BF16:
            bits = x if given is DType.U16 else f"as_type<ushort>({x})"
            return f"bf16_of_bits({bits})"
        return x if given is to else f"as_type<{NAMES[to]}>({x})"

    # -- positions -------------------------------------------------------------------------------

    def position(self, node: ir.Position) -> str:
        axis, warp = "xyz"[node.dim], self.program.warp
        match node.of:
            case "thread":
                return "thread_index"
            case "lane":
                return f"(thread_index & {warp - 1})"
            case "warp":
                return f"(thread_index >> {warp.bit_length() - 1})"
            case "block":
                return f"int(block_index.{axis})"
            case "blocks":
                return f"int(block_count.{axis})"
            case "rank":
                return "0"

    def less(self, dtype: DType, a: str, b: str) -> str:
        return f"{a} < {b}"

    def sum(self, dtype: DType, a: str, b: str) -> str:
        return f"{a} + {b}"

    def in_memory(self, value: Value) -> str:
        """A value as it is stored."""
        x = self.one(value)
        if value.dtype is BF16:
            return f"bits_of_bf16({x})"
        return f"uchar({x})" if value.dtype is BOOL else x

    def from_memory(self, x: str, dtype: DType) -> str:
        if dtype is BF16:
            return f"bf16_of_bits({x})"
        return f"({x} != 0)" if dtype is BOOL else x
