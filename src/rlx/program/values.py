"""Values of a program under construction, with the operators of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.core.dtype import DType
from rlx.program.nodes import BinaryOp, CompareOp, Number, UnaryOp, Value

if TYPE_CHECKING:
    from rlx.program.thread_builder import ThreadBuilder


class Var:
    """A value of one thread. Numbers beside it take its dtype; `//` and `%` are those of C."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ThreadBuilder, value: Value) -> None:
        self.builder, self.value = builder, value

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def _binary(self, op: BinaryOp, other: Var | Number, *, is_right: bool = False) -> Var:
        builder = self.builder
        there = other if isinstance(other, Var) else builder.const(other, self.dtype)
        return builder.binary(op, there, self) if is_right else builder.binary(op, self, there)

    def _compare(self, op: CompareOp, other: Var | Number) -> Var:
        return self.builder.compare(op, self, self.builder.like(other, self))

    def _unary(self, op: UnaryOp) -> Var:
        return self.builder.unary(op, self)

    def __add__(self, other: Var | Number) -> Var:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Var:
        return self._binary("add", other, is_right=True)

    def __sub__(self, other: Var | Number) -> Var:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> Var:
        return self._binary("sub", other, is_right=True)

    def __mul__(self, other: Var | Number) -> Var:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> Var:
        return self._binary("mul", other, is_right=True)

    def __truediv__(self, other: Var | Number) -> Var:
        return self._binary("div", other)

    def __rtruediv__(self, other: Number) -> Var:
        return self._binary("div", other, is_right=True)

    def __floordiv__(self, other: Var | Number) -> Var:
        return self._binary("div", other)

    def __mod__(self, other: Var | Number) -> Var:
        return self._binary("rem", other)

    def __and__(self, other: Var | Number) -> Var:
        return self._binary("and", other)

    def __or__(self, other: Var | Number) -> Var:
        return self._binary("or", other)

    def __xor__(self, other: Var | Number) -> Var:
        return self._binary("xor", other)

    def __lshift__(self, other: Var | Number) -> Var:
        return self._binary("shl", other)

    def __rshift__(self, other: Var | Number) -> Var:
        return self._binary("shr", other)

    def __lt__(self, other: Var | Number) -> Var:
        return self._compare("lt", other)

    def __le__(self, other: Var | Number) -> Var:
        return self._compare("le", other)

    def __gt__(self, other: Var | Number) -> Var:
        return self._compare("gt", other)

    def __ge__(self, other: Var | Number) -> Var:
        return self._compare("ge", other)

    def eq(self, other: Var | Number) -> Var:
        return self._compare("eq", other)

    def ne(self, other: Var | Number) -> Var:
        return self._compare("ne", other)

    def __neg__(self) -> Var:
        return self._unary("neg")

    def __invert__(self) -> Var:
        return self._unary("not")

    def __abs__(self) -> Var:
        return self._unary("abs")

    def floor(self) -> Var:
        return self._unary("floor")

    def ceil(self) -> Var:
        return self._unary("ceil")

    def trunc(self) -> Var:
        return self._unary("trunc")

    def round(self) -> Var:
        return self._unary("round")

    def min(self, other: Var | Number) -> Var:
        return self._binary("min", other)

    def max(self, other: Var | Number) -> Var:
        return self._binary("max", other)

    def to(self, dtype: DType) -> Var:
        return self.builder.convert(self, dtype)

    def bits(self, dtype: DType) -> Var:
        return self.builder.bitcast(self, dtype)

    def where(self, condition: Var, otherwise: Var | Number) -> Var:
        """This where the condition holds, else the other."""
        return self.builder.select(condition, self, self.builder.like(otherwise, self))


class Variable(Var):
    """A value that loops and branches may replace, if they carry it: `total += x` does."""

    __slots__ = ()

    def set(self, value: Var | Number) -> None:
        self.value = self.builder.like(value, self).value

    def __iadd__(self, other: Var | Number) -> Variable:
        self.set(self + other)
        return self

    def __imul__(self, other: Var | Number) -> Variable:
        self.set(self * other)
        return self


class BufferRef:
    """A buffer in global memory: `x[i]` loads an element, `y[i] = v` stores one."""

    def __init__(self, builder: ThreadBuilder, name: str, dtype: DType) -> None:
        self.builder, self.name, self.dtype = builder, name, dtype

    def __getitem__(self, index: Var | int) -> Var:
        return self.builder.load(self, index)[0]

    def __setitem__(self, index: Var | int, value: Var | Number) -> None:
        self.builder.store(self, index, [value])

    def load(self, index: Var | int, width: int = 1, mask: Var | None = None) -> list[Var]:
        return self.builder.load(self, index, width, mask)

    def store(
        self, index: Var | int, values: Sequence[Var | Number], mask: Var | None = None
    ) -> None:
        self.builder.store(self, index, values, mask)


class SharedRef:
    """An array in the block's shared memory, with the same operations."""

    def __init__(self, builder: ThreadBuilder, name: str, dtype: DType) -> None:
        self.builder, self.name, self.dtype = builder, name, dtype

    def __getitem__(self, index: Var | int) -> Var:
        return self.load(index)[0]

    def __setitem__(self, index: Var | int, value: Var | Number) -> None:
        self.store(index, [value])

    def load(
        self,
        index: Var | int,
        width: int = 1,
        mask: Var | None = None,
        rank: Var | int | None = None,
    ) -> list[Var]:
        """Neighbours; of another block of the cluster, if its rank is given."""
        return self.builder.shared_load(self, index, width, mask, rank)

    def store(
        self, index: Var | int, values: Sequence[Var | Number], mask: Var | None = None
    ) -> None:
        self.builder.shared_store(self, index, values, mask)
