"""Scalar expressions of quantised blocks: the weight at one position of a block of bytes.

    i = POSITION
    q = u8(2 + i % 16) >> i // 16 * 4 & 15
    weight = cast(bitcast(u16(0), F16), F32) * cast(q, F32)

A format is stated once, as the value of its weight at position i: integer loads at byte offsets
that depend on i alone, elementwise ops of the op table, and lookups in constant tables. Each op of
floats rounds once, in the order stated. The NumPy meaning and the lowering (`block_arrays`) and the
code of every target (from `block_terms`) are derived from the expression, which says nothing of how
many weights are decoded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.ops.op import lookup

Array = NDArray[Any]
F16, F32, U8, U16, U32 = DType.F16, DType.F32, DType.U8, DType.U16, DType.U32


@dataclass(frozen=True, eq=False)
class Table:
    """Constant vectors, one per row; made when they are first read."""

    name: str
    dtype: DType
    width: int
    """Components of a row."""
    make: Callable[[], Array]

    @cached_property
    def values(self) -> Array:
        """[rows, width]."""
        return np.ascontiguousarray(self.make(), self.dtype.numpy).reshape(-1, self.width)


@dataclass(frozen=True, eq=False, slots=True)
class Expr:
    """A number of a block; operators apply ops of the table, constants have the left's dtype."""

    dtype: DType
    args: tuple[Expr, ...] = ()

    def __add__(self, other: Expr | float) -> Expr:
        return apply("add", self, self.like(other))

    def __radd__(self, other: float) -> Expr:
        return apply("add", self.like(other), self)

    def __sub__(self, other: Expr | float) -> Expr:
        return apply("sub", self, self.like(other))

    def __rsub__(self, other: float) -> Expr:
        return apply("sub", self.like(other), self)

    def __mul__(self, other: Expr | float) -> Expr:
        return apply("mul", self, self.like(other))

    def __floordiv__(self, other: Expr | int) -> Expr:
        return apply("div", self, self.like(other))

    def __mod__(self, other: Expr | int) -> Expr:
        return apply("rem", self, self.like(other))

    def __and__(self, other: Expr | int) -> Expr:
        return apply("bit_and", self, self.like(other))

    def __or__(self, other: Expr | int) -> Expr:
        return apply("bit_or", self, self.like(other))

    def __xor__(self, other: Expr | int) -> Expr:
        return apply("bit_xor", self, self.like(other))

    def __lshift__(self, by: Expr | int) -> Expr:
        return apply("shift_left", self, self._amount(by))

    def __rshift__(self, by: Expr | int) -> Expr:
        return apply("shift_right", self, self._amount(by))

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __lt__(self, other: Expr | float) -> Expr:
        return apply("less", self, self.like(other))

    def equals(self, other: Expr | float) -> Expr:
        return apply("equal", self, self.like(other))

    def differs(self, other: Expr | float) -> Expr:
        return apply("not_equal", self, self.like(other))

    def like(self, other: Expr | float) -> Expr:
        return other if isinstance(other, Expr) else Const(self.dtype, value=other)

    def _amount(self, by: Expr | int) -> Expr:
        return cast(by, self.dtype) if isinstance(by, Expr) else self.like(by)


@dataclass(frozen=True, eq=False, slots=True)
class Position(Expr):
    """The index of the weight in its block."""


@dataclass(frozen=True, eq=False, slots=True)
class Const(Expr):
    """A number."""

    value: float = 0


@dataclass(frozen=True, eq=False, slots=True)
class Load(Expr):
    """The little-endian integer at a byte offset, the one argument, that depends on the position
    alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Operand(Expr):
    """A number that is not stored in the block, and is the same for all its weights."""

    name: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Expr):
    """An elementwise op of the table."""

    op: str = ""

    @property
    def attrs(self) -> Mapping[str, Any]:
        return {"to": self.dtype} if self.op in ("cast", "bitcast") else {}


@dataclass(frozen=True, eq=False, slots=True)
class Lookup(Expr):
    """A component of a table's row: the arguments are the row, and the column, which depends on the
    position alone."""

    table: Table = None  # pyright: ignore[reportAssignmentType]


POSITION: Expr = Position(U32)
COMPARISONS = ("less", "equal", "not_equal")


def apply(op: str, *args: Expr) -> Expr:
    """An op of the table, of operands of one dtype."""
    found = args[1:] if op == "where" else args
    if len({a.dtype for a in found}) > 1:
        raise Error(f"{op} of {', '.join(str(a.dtype) for a in args)}: state the cast")
    return Apply(DType.BOOL if op in COMPARISONS else found[0].dtype, args, op)


def cast(x: Expr, to: DType) -> Expr:
    return x if x.dtype is to else Apply(to, (x,), "cast")


def bitcast(x: Expr, to: DType) -> Expr:
    return x if x.dtype is to else Apply(to, (x,), "bitcast")


def where(condition: Expr, yes: Expr | float, no: Expr) -> Expr:
    return apply("where", condition, no.like(yes), no)


def real(x: Expr) -> Expr:
    """An integer as f32."""
    return cast(x, F32)


def signed(x: Expr) -> Expr:
    """A byte from -128 to 127."""
    return bitcast(x, DType.I8)


def load(dtype: DType, at: Expr | int) -> Expr:
    return Load(dtype, (POSITION.like(at),))


def u8(at: Expr | int) -> Expr:
    return load(U8, at)


def u16(at: Expr | int) -> Expr:
    return load(U16, at)


def u32(at: Expr | int) -> Expr:
    return load(U32, at)


def f16(bits: Expr) -> Expr:
    """The f16 with these bits, as f32."""
    return cast(bitcast(bits, F16), F32)


def bit(x: Expr, number: Expr | int) -> Expr:
    """Is a bit of an integer set?"""
    return (x >> number & 1).differs(0)


def field_of(at: int, number: Expr, bits: int) -> Expr:
    """One of the fields of `bits` that are packed from a byte on, the least significant first."""
    per_byte = 8 // bits
    return u8(at + number // per_byte) >> number % per_byte * bits & (1 << bits) - 1


def plane(at: int, run: int, bits: int) -> Expr:
    """Fields stored in bit planes: of a run of bytes the lowest `bits` of each, then the next, and
    on; then those of the next run."""
    i, planes = POSITION, 8 // bits
    byte = u8(at + i // (run * planes) * run + i % run)
    return byte >> i // run % planes * bits & (1 << bits) - 1


def row_of(table: Table, row: Expr) -> Expr:
    """The component of a table's row that belongs to the position."""
    return Lookup(table.dtype, (row, POSITION % table.width), table)


@dataclass(frozen=True, eq=False, slots=True)
class BlockFormat:
    """How many weights a block has and in how many bytes, and what each is."""

    weights: int
    block_bytes: int
    value: Expr


# -- what depends on the position alone -----------------------------------------------------------


def postorder(root: Expr) -> list[Expr]:
    """Every expression once, arguments first."""
    found: dict[Expr, None] = {}
    stack = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            found[node] = None
        elif node not in found:
            stack += [(node, True), *((a, False) for a in reversed(node.args))]
    return list(found)


def numbers(node: Expr, args: tuple[Array, ...]) -> Array:
    """A lookup or an op on arrays, by the op's meaning."""
    if isinstance(node, Lookup):
        return node.table.values[args[0], args[1]]
    assert isinstance(node, Apply)
    with np.errstate(all="ignore"):
        made = lookup(node.op).reference(*args, **node.attrs)
    return np.asarray(made, node.dtype.numpy)


def position_values(block_format: BlockFormat) -> dict[Expr, Array]:
    """Expression → its value at every position, for those that depend on the position alone."""
    found: dict[Expr, Array] = {}
    for node in postorder(block_format.value):
        match node:
            case Position():
                found[node] = np.arange(block_format.weights, dtype=node.dtype.numpy)
            case Const():
                found[node] = np.full(block_format.weights, node.value, node.dtype.numpy)
            case Apply() | Lookup() if all(a in found for a in node.args):
                found[node] = numbers(node, tuple(found[a] for a in node.args))
            case _:
                pass
    return found
