"""Lines of an LLVM function: names, literals, basic blocks, and the values that names stand for.

A number is a value of its LLVM type; truth values are i1 in registers and bytes in memory. A tile
is one vector of the elements that a lane's registers hold.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from rlx.backends.rocm.amdgcn.fragments import Fragments
from rlx.backends.rocm.architecture import Architecture
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.program.nodes import Number, Value
from rlx.program.program import Program
from rlx.program.types import TileType, Type, dtype_of

BOOL, F16, BF16, F32, F64 = DType.BOOL, DType.F16, DType.BF16, DType.F32, DType.F64
HALVES = (F16, BF16)
FLOATS = {F16: "half", BF16: "bfloat", F32: "float", F64: "double"}
SUFFIXES = {F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}
"""Of the names of intrinsics."""
I32, I64 = "i32", "i64"


def kind_of(dtype: DType) -> str:
    """The LLVM type of a number in registers."""
    if dtype is BOOL:
        return "i1"
    return FLOATS.get(dtype, f"i{dtype.itemsize * 8}")


def stored_kind(dtype: DType) -> str:
    """The LLVM type of a number in memory."""
    return "i8" if dtype is BOOL else kind_of(dtype)


def suffix_of(dtype: DType) -> str:
    return SUFFIXES.get(dtype, f"i{dtype.itemsize * 8}")


def literal(value: Number, dtype: DType) -> str:
    """A number as an operand: floats by their bits, f32 as the f64 of the same value."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype in HALVES:
        bits = np.asarray(value).astype(dtype.numpy).view(np.uint16)
        return f"0x{'H' if dtype is F16 else 'R'}{int(bits):04X}"
    if dtype.is_float:
        number = float(np.float32(value)) if dtype is F32 else float(value)
        return "0x" + struct.pack(">d", number).hex().upper()
    return str(int(value))


class Text:
    """The lines of one function, and the declarations that they need."""

    def __init__(self, program: Program, target: Architecture) -> None:
        self.program, self.target = program, target
        self.fragments = Fragments.of(target)
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.held: dict[Value, str] = {}
        self.names = 0
        self.block = "entry"
        """The basic block that lines go to."""

    # -- lines -----------------------------------------------------------------------------------

    def fresh(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def let(self, instruction: str) -> str:
        """The name of an instruction's result."""
        name = self.fresh()
        self.do(f"{name} = {instruction}")
        return name

    def call(self, result: str, function: str, *args: tuple[str, str], flags: str = "") -> str:
        """A call of an intrinsic with operands of these types; its result's name, or nothing."""
        kinds = ", ".join(k for k, _ in args)
        self.declared[function] = f"declare {result} @{function}({kinds})"
        given = ", ".join(f"{k} {v}" for k, v in args)
        text = f"call {flags}{result} @{function}({given})"
        if result == "void":
            self.do(text)
            return ""
        return self.let(text)

    # -- basic blocks ----------------------------------------------------------------------------

    def label(self) -> str:
        self.names += 1
        return f"b{self.names}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch_to(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, kind: str, *sources: tuple[str, str]) -> str:
        """One of several values, by the block that control came from."""
        return self.let(f"phi {kind} " + ", ".join(f"[ {v}, %{b} ]" for v, b in sources))

    # -- values ----------------------------------------------------------------------------------

    def one(self, value: Value) -> str:
        return self.held[value]

    def all(self, values: Sequence[Value]) -> list[str]:
        return [self.held[v] for v in values]

    def type_of(self, kind: Type) -> str:
        """The LLVM type of a value."""
        if isinstance(kind, TileType):
            return f"<{self.fragments.registers(self.tile(kind))} x {kind_of(kind.dtype)}>"
        return kind_of(dtype_of(kind))

    def tile(self, kind: TileType) -> TileType:
        """The tile, if the architecture has it."""
        why = self.fragments.why_not(kind, self.program.warp)
        if why:
            raise self.unsupported(f"tile {kind}: {why}")
        return kind

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"program {self.program.name}: {self.target.name} has no {what}.")
