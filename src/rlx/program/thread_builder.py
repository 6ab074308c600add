"""Values and memory accesses of one thread, as a builder makes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from rlx.core.dtype import INTEGERS, DType
from rlx.core.errors import Error
from rlx.program import nodes as ir
from rlx.program.functions import FUNCTIONS
from rlx.program.nodes import Node, Number, Value
from rlx.program.regions import OpenRegions, is_number, key_of
from rlx.program.values import BufferRef, SharedRef, Var, Variable

I32, BOOL = DType.I32, DType.BOOL
HALVES = (DType.F16, DType.BF16)
EXACT_INTEGER = 1 << 53
"""Integers up to it are doubles."""


class ThreadBuilder(OpenRegions):
    """Nodes of one thread by itself."""

    # -- values ----------------------------------------------------------------------------------

    def const(self, value: Number, dtype: DType) -> Var:
        held = _in_range(value, dtype)
        key = key_of(ir.Const, (), dtype, repr(held))
        node = self.known(key)  # most numbers come again and again
        if node is None:
            node = self.remember(key, ir.Const(value=held, results=(Value(dtype),)))
        return Var(self, node.results[0])

    def like(self, value: Var | Number, other: Var) -> Var:
        """A number in the dtype of a value beside it; values as they are."""
        return value if isinstance(value, Var) else self.const(value, other.dtype)

    def index(self, value: Var | int) -> Var:
        return value if isinstance(value, Var) else self.const(value, I32)

    def variable(self, value: Var | Number, dtype: DType | None = None) -> Variable:
        given = value if isinstance(value, Var) else self.const(value, dtype or I32)
        return Variable(self, given.value)

    def position(self, of: ir.Place, dim: int = 0) -> Var:
        return self.value(ir.Position(of=of, dim=dim, results=(Value(I32),)))

    @property
    def thread(self) -> Var:
        return self.position("thread")

    @property
    def lane(self) -> Var:
        """In the warp; where a target has none, each thread is a warp of its own."""
        return self.position("lane") if self.made.warp > 1 else self.const(0, I32)

    @property
    def warp(self) -> Var:
        return self.position("warp") if self.made.warp > 1 else self.thread

    def lane_of(self, lanes: int) -> Var:
        """In a group of threads that access memory together: in the warp, where that is one."""
        return self.lane if lanes == self.made.warp else self.thread % lanes

    def group_of(self, lanes: int) -> Var:
        """The number of that group in the block."""
        return self.warp if lanes == self.made.warp else self.thread // lanes

    @property
    def rank(self) -> Var:
        """Of the block in its cluster."""
        return self.position("rank")

    def block_index(self, dim: int = 0) -> Var:
        return self.position("block", dim)

    def block_count(self, dim: int = 0) -> Var:
        return self.position("blocks", dim)

    def binary(self, op: ir.BinaryOp, a: Var, b: Var) -> Var:
        if a.value.type not in INTEGERS:
            return self._binary(op, a.value, b.value)
        short = self.simplified(op, a.value, b.value)
        if short is not None:
            return Var(self, short) if isinstance(short, Value) else self.const(short, a.dtype)
        return self._integer_sum(a, b) if op == "add" else self._binary(op, a.value, b.value)

    def _binary(self, op: ir.BinaryOp, a: Value, b: Value) -> Var:
        args, dtype = (a, b), a.dtype
        key = key_of(ir.Binary, args, dtype, op)
        node = self.known(key)
        if node is None:
            node = self.remember(key, ir.Binary(op=op, args=args, results=(Value(dtype),)))
        return Var(self, node.results[0])

    def _integer_sum(self, a: Var, b: Var) -> Var:
        """Numbers are added last: indices that differ by a number share the rest, and their
        addresses are one and an offset. Integers wrap, so the order does not matter."""
        (x, m), (y, n) = self._addend(a), self._addend(b)
        if m == 0 and n == 0:
            return self._binary("add", a.value, b.value)
        if x is None or y is None:
            root = x or y
            assert root is not None
            total = self._binary("add", root, self.const(m + n, a.dtype).value)
            self.addends[total.value] = (root, m + n)
            return total
        return self.binary(
            "add", self.binary("add", Var(self, x), Var(self, y)), self.const(m + n, a.dtype)
        )

    def _addend(self, x: Var) -> tuple[Value | None, int]:
        """An integer as a value and a number whose sum it is."""
        number = self.number_of(x.value)
        if number is not None:
            return None, int(number)
        return self.addends.get(x.value, (x.value, 0))

    def compare(self, op: ir.CompareOp, a: Var, b: Var) -> Var:
        return self.value(ir.Compare(op=op, args=(a.value, b.value), results=(Value(BOOL),)))

    def unary(self, op: ir.UnaryOp, a: Var) -> Var:
        if op == "abs" and a.dtype.is_integer and not a.dtype.is_signed:
            return a
        return self.value(ir.Unary(op=op, args=(a.value,), results=(Value(a.dtype),)))

    def call(self, function: str, *args: Var, fast: bool = False) -> Var:
        """A function of `functions.py`."""
        if function not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise Error(f"program {self.made.name}: no function {function!r}. Use one of: {known}.")
        made = ir.Call(
            function=function,
            accuracy="fast" if fast else "precise",
            args=tuple(a.value for a in args),
            results=(Value(args[0].dtype),),
        )
        return self.value(made)

    def fma(self, a: Var, b: Var | Number, c: Var | Number) -> Var:
        args, dtype = (a.value, self.like(b, a).value, self.like(c, a).value), a.dtype
        key = key_of(ir.Fma, args, dtype)
        node = self.known(key)
        if node is None:
            node = self.remember(key, ir.Fma(args=args, results=(Value(dtype),)))
        return Var(self, node.results[0])

    def select(self, condition: Var, yes: Var, no: Var) -> Var:
        if yes.value is no.value:
            return yes
        args = (condition.value, yes.value, no.value)
        return self.value(ir.Select(args=args, results=(Value(yes.value.type),)))

    def convert(self, x: Var, dtype: DType) -> Var:
        if x.dtype is dtype:
            return x
        number = self.number_of(x.value)
        if number is not None and x.dtype.is_integer and dtype.is_integer:
            return self.const(number, dtype)
        narrow = self.widened.get(x.value)
        if narrow is not None and narrow.dtype is dtype:
            return Var(self, narrow)
        made = self.value(ir.Convert(args=(x.value,), results=(Value(dtype),)))
        if x.dtype in HALVES and dtype is DType.F32:
            self.widened[made.value] = x.value
        return made

    def bitcast(self, x: Var, dtype: DType) -> Var:
        if x.dtype is dtype:
            return x
        return self.value(ir.Bitcast(args=(x.value,), results=(Value(dtype),)))

    # -- memory ----------------------------------------------------------------------------------

    def load(
        self,
        buffer: BufferRef,
        index: Var | int,
        width: int = 1,
        mask: Var | None = None,
        hint: ir.Hint = "",
    ) -> list[Var]:
        args = (self.index(index), *([mask] if mask is not None else []))
        results = tuple(Value(buffer.dtype) for _ in range(width))
        return self.values(
            ir.Load(buffer=buffer.name, hint=hint, args=values_of(args), results=results)
        )

    def store(
        self,
        buffer: BufferRef,
        index: Var | int,
        values: Sequence[Var | Number],
        mask: Var | None = None,
        hint: ir.Hint = "",
    ) -> None:
        args = self._stored(buffer, index, values, mask)
        has_mask = mask is not None
        self.add(ir.Store(buffer=buffer.name, has_mask=has_mask, hint=hint, args=args))

    def atomic(
        self,
        buffer: BufferRef,
        op: Literal["add", "min", "max", "or", "and"],
        index: Var | int,
        value: Var | Number,
        mask: Var | None = None,
    ) -> None:
        args = self._stored(buffer, index, [value], None)
        more = () if mask is None else (mask.value,)
        self.add(ir.Atomic(buffer=buffer.name, op=op, args=(*args, *more)))

    def shared_load(
        self,
        memory: SharedRef,
        index: Var | int,
        width: int = 1,
        mask: Var | None = None,
        rank: Var | int | None = None,
    ) -> list[Var]:
        args = [self.index(index), *([mask] if mask is not None else [])]
        args += [] if rank is None else [self.index(rank)]
        node = ir.SharedLoad(
            memory=memory.name,
            has_mask=mask is not None,
            is_remote=rank is not None,
            args=values_of(args),
            results=tuple(Value(memory.dtype) for _ in range(width)),
        )
        return self.values(node)

    def shared_store(
        self,
        memory: SharedRef,
        index: Var | int,
        values: Sequence[Var | Number],
        mask: Var | None = None,
    ) -> None:
        args = self._stored(memory, index, values, mask)
        self.add(ir.SharedStore(memory=memory.name, has_mask=mask is not None, args=args))

    def _stored(
        self,
        memory: BufferRef | SharedRef,
        index: Var | int,
        values: Sequence[Var | Number],
        mask: Var | None,
    ) -> tuple[Value, ...]:
        given = [v if isinstance(v, Var) else self.const(v, memory.dtype) for v in values]
        masks = [] if mask is None else [mask]
        return values_of([self.index(index), *masks, *given])

    # -- nodes -----------------------------------------------------------------------------------

    def value(self, node: Node) -> Var:
        return Var(self, self.interned(node).result)

    def values(self, node: Node) -> list[Var]:
        return [Var(self, r) for r in self.interned(node).results]


def values_of(args: Sequence[Var]) -> tuple[Value, ...]:
    return tuple(a.value for a in args)


def _in_range(value: Number, dtype: DType) -> Number:
    """The number as the dtype holds it."""
    if type(value) is int and dtype is I32 and -(1 << 31) <= value < 1 << 31:
        return value
    if not is_number(value):
        raise Error(f"{value!r} is no number.")
    if dtype.is_integer:
        bits = dtype.itemsize * 8
        low = int(value) & ((1 << bits) - 1)
        return low - (1 << bits) if dtype.is_signed and low >> (bits - 1) else low
    if dtype is DType.F64:
        return float(value)
    if dtype is DType.F32 and (type(value) is float or abs(value) <= EXACT_INTEGER):
        return ctypes.c_float(value).value
    with np.errstate(all="ignore"):
        held: Any = np.asarray(value).astype(dtype.numpy)
    return cast(Number, held.astype(np.float64).item() if dtype.is_float else held.item())
