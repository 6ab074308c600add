"""Arithmetic of SIMT programs in LLVM IR.

No instruction has fast-math flags, so LLVM neither contracts nor reorders. What a node leaves open
(dividing by 0, shifting by the width, floats that fit no integer) LLVM calls undefined: operands
are made safe first, so that such a node gives some number and nothing else.
"""

from __future__ import annotations

from rlx.backends.rocm.amdgcn.text import (
    BOOL,
    F16,
    F32,
    F64,
    HALVES,
    I32,
    Text,
    kind_of,
    literal,
    suffix_of,
)
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Value

ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
PREDICATES = {
    "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"), "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip
"""Of floats, signed and unsigned integers."""
LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453
SUBNORMAL = 2.0**-126
"""Below it, the special function unit takes a number for 0."""
POWERS = {"sqrt": ("sqrt", -12), "rsqrt": ("rsq", 12), "reciprocal": ("rcp", 24)}
"""Instructions of powers of x, and the exponent of 2 by which the power of 2²⁴ x is too small."""
NATIVE_FAST = frozenset({"exp", "exp2", "log", *POWERS})


def is_native(call: ir.Call) -> bool:
    """Functions that instructions give with the accuracy asked for."""
    if call.accuracy == "fast":
        return call.function in NATIVE_FAST
    return call.function == "sqrt"


class Arithmetic(Text):
    """Nodes that compute."""

    constants: dict[Value, int | float | bool]

    # -- binary ----------------------------------------------------------------------------------

    def binary(self, node: ir.Binary) -> str:
        dtype = node.result.dtype
        a, b = self.all(node.args)
        if dtype is BOOL:
            op = {"min": "and", "max": "or"}.get(node.op, node.op)
            return self.let(f"{op} i1 {a}, {b}")
        if dtype.is_float:
            return self._float(node.op, dtype, a, b)
        return self._integer(node, dtype, a, b)

    def _float(self, op: str, dtype: DType, a: str, b: str) -> str:
        kind = kind_of(dtype)
        if op in FLOAT_OPS:
            return self.let(f"{FLOAT_OPS[op]} {kind} {a}, {b}")
        if op not in ("min", "max"):
            raise self.unsupported(f"{op} of {dtype}; expand it")
        if dtype in HALVES:
            wide = [self.converted(x, dtype, F32) for x in (a, b)]
            return self.converted(self._float(op, F32, *wide), F32, dtype)
        return self.call(kind, f"llvm.{op}imum.{suffix_of(dtype)}", (kind, a), (kind, b))

    def _integer(self, node: ir.Binary, dtype: DType, a: str, b: str) -> str:
        kind, sign = kind_of(dtype), "s" if dtype.is_signed else "u"
        match node.op:
            case "div" | "rem":
                return self.let(f"{sign}{node.op} {kind} {a}, {self._divisor(node, dtype)}")
            case "shl" | "shr":
                op = "shl" if node.op == "shl" else "ashr" if dtype.is_signed else "lshr"
                amount = self._amount(node.args[1], dtype)
                return self.let(f"{op} {kind} {a}, {amount}")
            case "min" | "max":
                name = f"llvm.{sign}{node.op}.{suffix_of(dtype)}"
                return self.call(kind, name, (kind, a), (kind, b))
            case _:
                return self.let(f"{node.op} {kind} {a}, {b}")

    def _amount(self, value: Value, dtype: DType) -> str:
        """Of a shift, modulo the width."""
        bits, b = dtype.itemsize * 8, self.one(value)
        if 0 <= self.constants.get(value, -1) < bits:
            return b
        return self.let(f"and {kind_of(dtype)} {b}, {bits - 1}")

    def _divisor(self, node: ir.Binary, dtype: DType) -> str:
        """1 for 0; and for -1 where the least number is divided, whose quotient wraps."""
        kind, (a, b) = kind_of(dtype), self.all(node.args)
        if self.constants.get(node.args[1]) not in (None, 0, -1):
            return b
        is_wrong = self.let(f"icmp eq {kind} {b}, 0")
        if dtype.is_signed:
            least = -(1 << (dtype.itemsize * 8 - 1))
            is_least = self.let(f"icmp eq {kind} {a}, {least}")
            wraps = self.let(f"and i1 {is_least}, {self.let(f'icmp eq {kind} {b}, -1')}")
            is_wrong = self.let(f"or i1 {is_wrong}, {wraps}")
        return self.let(f"select i1 {is_wrong}, {kind} 1, {kind} {b}")

    # -- the rest --------------------------------------------------------------------------------

    def compare(self, node: ir.Compare) -> str:
        dtype = node.args[0].dtype
        a, b = self.all(node.args)
        of_float, of_signed, of_unsigned = PREDICATES[node.op]
        if dtype.is_float:
            return self.let(f"fcmp {of_float} {kind_of(dtype)} {a}, {b}")
        predicate = of_signed if dtype.is_signed and dtype is not BOOL else of_unsigned
        return self.let(f"icmp {predicate} {kind_of(dtype)} {a}, {b}")

    def unary(self, node: ir.Unary) -> str:
        dtype, x = node.result.dtype, self.one(node.args[0])
        kind = kind_of(dtype)
        if node.op == "not":
            return self.let(f"xor {kind} {x}, {'true' if dtype is BOOL else '-1'}")
        if not dtype.is_float:
            if node.op == "neg":
                return self.let(f"sub {kind} 0, {x}")
            if not dtype.is_signed:
                return x
            return self.call(kind, f"llvm.abs.{suffix_of(dtype)}", (kind, x), ("i1", "false"))
        if node.op == "neg":
            return self.let(f"fneg {kind} {x}")
        if dtype in HALVES and node.op in ROUNDINGS:
            wide = self._rounded(node.op, F32, self.converted(x, dtype, F32))
            return self.converted(wide, F32, dtype)
        return self._rounded(node.op, dtype, x)

    def _rounded(self, op: str, dtype: DType, x: str) -> str:
        kind, name = kind_of(dtype), ROUNDINGS.get(op, "fabs")
        return self.call(kind, f"llvm.{name}.{suffix_of(dtype)}", (kind, x))

    def fma(self, node: ir.Fma) -> str:
        dtype = node.result.dtype
        if dtype not in (F16, F32, F64):
            raise self.unsupported(f"fma of {dtype}; convert it")
        kind = kind_of(dtype)
        given = [(kind, x) for x in self.all(node.args)]
        return self.call(kind, f"llvm.fma.{suffix_of(dtype)}", *given)

    def select(self, node: ir.Select) -> str:
        condition, yes, no = self.all(node.args)
        kind = self.type_of(node.result.type)
        return self.let(f"select i1 {condition}, {kind} {yes}, {kind} {no}")

    # -- functions -------------------------------------------------------------------------------

    def function(self, node: ir.Call) -> str:
        if not is_native(node):
            raise self.unsupported(f"{node.accuracy} {node.function}; expand functions first")
        x, dtype = self.one(node.args[0]), node.result.dtype
        match node.accuracy, node.function:
            case "precise", _:
                kind = kind_of(dtype)
                return self.call(kind, f"llvm.sqrt.{suffix_of(dtype)}", (kind, x))
            case _, "exp":
                scaled = self.let(f"fmul float {x}, {literal(LOG2_E, F32)}")
                return self._special("exp2", scaled)
            case _, "exp2":
                return self._special("exp2", x)
            case _, "log":
                made = self.call("float", "llvm.log2.f32", ("float", x))
                return self.let(f"fmul float {made}, {literal(LN2, F32)}")
            case _, name:
                return self._power(name, x)

    def _special(self, name: str, x: str) -> str:
        return self.call("float", f"llvm.amdgcn.{name}.f32", ("float", x))

    def _power(self, name: str, x: str) -> str:
        """Of a subnormal number, by the power of its multiple by 2²⁴."""
        instruction, exponent = POWERS[name]
        size = self.call("float", "llvm.fabs.f32", ("float", x))
        is_small = self.let(f"fcmp olt float {size}, {literal(SUBNORMAL, F32)}")
        large = self.let(f"fmul float {x}, {literal(2.0**24, F32)}")
        given = self.let(f"select i1 {is_small}, float {large}, float {x}")
        power = self._special(instruction, given)
        scaled = self.let(f"fmul float {power}, {literal(2.0**exponent, F32)}")
        return self.let(f"select i1 {is_small}, float {scaled}, float {power}")

    # -- dtypes ----------------------------------------------------------------------------------

    def convert(self, node: ir.Convert) -> str:
        return self.converted(self.one(node.args[0]), node.args[0].dtype, node.result.dtype)

    def converted(self, x: str, given: DType, to: DType) -> str:
        kind, made = kind_of(given), kind_of(to)
        if given is to or (kind == made and not given.is_float):
            return x
        if to is BOOL:
            compare = "fcmp une" if given.is_float else "icmp ne"
            return self.let(f"{compare} {kind} {x}, {literal(0, given)}")
        if given.is_float and to.is_float:
            return self._between_floats(x, given, to)
        if given.is_float:
            sign = "s" if to.is_signed else "u"
            return self.let(f"freeze {made} {self.let(f'fpto{sign}i {kind} {x} to {made}')}")
        is_signed = given.is_signed and given is not BOOL
        if to.is_float:
            return self._from_integer(x, given, to, "sitofp" if is_signed else "uitofp")
        if to.itemsize < given.itemsize and given is not BOOL:
            return self.let(f"trunc {kind} {x} to {made}")
        return self.let(f"{'sext' if is_signed else 'zext'} {kind} {x} to {made}")

    def _between_floats(self, x: str, given: DType, to: DType) -> str:
        """Between half floats, and of f64 to bf16, by way of f32."""
        if (given in HALVES and to in HALVES) or (given is F64 and to is DType.BF16):
            return self._between_floats(self._between_floats(x, given, F32), F32, to)
        op = "fpext" if to.itemsize > given.itemsize else "fptrunc"
        return self.let(f"{op} {kind_of(given)} {x} to {kind_of(to)}")

    def _from_integer(self, x: str, given: DType, to: DType, op: str) -> str:
        """To half floats by way of f32, as everywhere."""
        wide = F32 if to in HALVES else to
        made = self.let(f"{op} {kind_of(given)} {x} to {kind_of(wide)}")
        return self.converted(made, wide, to)

    def bitcast(self, node: ir.Bitcast) -> str:
        x, given, to = self.one(node.args[0]), node.args[0].dtype, node.result.dtype
        if kind_of(given) == kind_of(to):
            return x
        return self.let(f"bitcast {kind_of(given)} {x} to {kind_of(to)}")

    # -- positions -------------------------------------------------------------------------------

    def thread(self) -> str:
        return self.call(I32, "llvm.amdgcn.workitem.id.x")

    def lane(self) -> str:
        return self.let(f"and i32 {self.thread()}, {self.target.wave - 1}")

    def position(self, node: ir.Position) -> str:
        axis, warp = "xyz"[node.dim], self.program.warp
        match node.of:
            case "thread":
                return self.thread()
            case "lane":
                return self.let(f"and i32 {self.thread()}, {warp - 1}")
            case "warp":
                return self._warp(warp)
            case "block":
                return self.call(I32, f"llvm.amdgcn.workgroup.id.{axis}")
            case "blocks":
                return self._blocks(node.dim)
            case "rank":
                return "0"

    def _warp(self, warp: int) -> str:
        """The same in all lanes of a wave: a scalar, if a warp is a wave."""
        made = self.let(f"lshr i32 {self.thread()}, {warp.bit_length() - 1}")
        if warp != self.target.wave:
            return made
        return self.call(I32, "llvm.amdgcn.readfirstlane.i32", (I32, made))

    def _blocks(self, dim: int) -> str:
        """The first three words of the implicit arguments (code object version 5)."""
        start = self.call("ptr addrspace(4)", "llvm.amdgcn.implicitarg.ptr")
        place = self.let(f"getelementptr inbounds i32, ptr addrspace(4) {start}, i32 {dim}")
        return self.let(f"load i32, ptr addrspace(4) {place}, align 4, !invariant.load !0")

    def computed(self, node: Node) -> str | None:
        """The result of a node that only computes; None where it does more."""
        match node:
            case ir.Const():
                self.constants[node.result] = node.value
                return literal(node.value, node.result.dtype)
            case ir.Position():
                return self.position(node)
            case ir.Binary():
                return self.binary(node)
            case ir.Compare():
                return self.compare(node)
            case ir.Unary():
                return self.unary(node)
            case ir.Call():
                return self.function(node)
            case ir.Fma():
                return self.fma(node)
            case ir.Select():
                return self.select(node)
            case ir.Convert():
                return self.convert(node)
            case ir.Bitcast():
                return self.bitcast(node)
            case _:
                return None
