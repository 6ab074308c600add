"""Loop kernels: an index space, and what is stored at each point of it.

    i, k = Axis("i", 8), Axis("k", 64)
    e = exp(x[i, k] - max over k of x[i, k])
    store y[i, k] = e / sum over k of e

A Reduce binds its axis inside its body; outside it the same axis is the output's. So `e` above is
one node that is used in two passes over the row, and a backend can see that it may keep it instead
of computing it twice. Index maps are affine; there is no division in them. Equal expressions of a
kernel are the same object.

Rounding to f16 and bf16 is part of the expressions: arithmetic is in f32, with a cast to the half
wherever the graph has a value of that dtype, so that it is the same number for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ops.op import Op, lookup

SELECTING = frozenset(
    {"maximum", "minimum", "where", "neg", "abs", "floor", "ceil", "trunc", "round"}
)
"""Of half floats these give half floats: there is nothing to round."""
MAX_SELECTIONS = 8
"""How many of them, one on the other, are looked through."""


@dataclass(frozen=True, eq=False, slots=True)
class Axis:
    """A loop index, 0 ≤ index < extent."""

    name: str
    extent: DimLike

    def __repr__(self) -> str:
        return f"{self.name}<{self.extent}"


@dataclass(frozen=True, slots=True)
class Affine:
    """offset + Σ coefficient · axis: the only index arithmetic a kernel has."""

    terms: tuple[tuple[Axis, DimLike], ...] = ()
    offset: DimLike = 0

    @classmethod
    def of(cls, value: Axis | DimLike) -> Affine:
        return cls(((value, 1),)) if isinstance(value, Axis) else cls((), value)

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(a for a, _ in self.terms)

    @property
    def axis(self) -> Axis | None:
        """The axis, if this is one by itself."""
        match self:
            case Affine(((axis, 1),), 0):
                return axis
            case _:
                return None

    def coefficient(self, axis: Axis) -> DimLike:
        return next((c for a, c in self.terms if a is axis), 0)

    def __add__(self, other: Affine | DimLike) -> Affine:
        right = other if isinstance(other, Affine) else Affine((), other)
        total: dict[Axis, DimLike] = dict(self.terms)
        for axis, c in right.terms:
            total[axis] = total.get(axis, 0) + c
        kept = tuple((a, c) for a, c in total.items() if c != 0)
        return Affine(kept, self.offset + right.offset)

    def __mul__(self, factor: DimLike) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.offset * factor)

    def __str__(self) -> str:
        parts = [a.name if c == 1 else f"{_factor(c)}*{a.name}" for a, c in self.terms]
        parts += [str(self.offset)] if self.offset != 0 or not parts else []
        return " + ".join(parts)


def strided(layout: Layout, axes: Sequence[Axis]) -> Affine:
    """The index of an element of a layout, an axis for each dim."""
    terms = zip(axes, layout.strides, strict=True)
    return Affine(tuple((a, s) for a, s in terms if s != 0), layout.offset)


def _factor(dim: DimLike) -> str:
    return f"({dim})" if " " in str(dim) else str(dim)


@dataclass(frozen=True, eq=False, slots=True)
class Expr:
    """A value at each point of the index space."""

    dtype: DType
    args: tuple[Expr, ...] = ()
    free: frozenset[Axis] = frozenset()
    """The axes the value varies with."""


@dataclass(frozen=True, eq=False, slots=True)
class Const(Expr):
    """A number."""

    value: Any = None


@dataclass(frozen=True, eq=False, slots=True)
class Size(Expr):
    """A dim as a value."""

    dim: DimLike = 0


@dataclass(frozen=True, eq=False, slots=True)
class Index(Expr):
    """A position as a value."""

    at: Affine = field(default_factory=Affine)


@dataclass(frozen=True, eq=False, slots=True)
class Inside(Expr):
    """low ≤ position < high. Pads and concats choose by it; where the position is one axis, a
    backend cuts the loop there instead of testing."""

    at: Affine = field(default_factory=Affine)
    low: DimLike = 0
    high: DimLike = 0


@dataclass(frozen=True, eq=False, slots=True)
class Load(Expr):
    """An element of an operand: at an affine index, plus rows · stride for gathered rows."""

    operand: int = 0
    at: Affine = field(default_factory=Affine)
    stride: DimLike = 0
    """Of the gathered row, which is the one argument; 0 where there is none."""
    bound: DimLike = 0
    """The gathered row must be below this."""


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Expr):
    """An elementwise op of the table."""

    op: Op = None  # pyright: ignore[reportAssignmentType]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, eq=False, slots=True)
class Choose(Expr):
    """The second argument where the first holds, else the third; the other is not read."""


@dataclass(frozen=True, eq=False, slots=True)
class Reduce(Expr):
    """The body folded over an axis by sum, prod, max or min."""

    fold: str = "sum"
    axis: Axis = None  # pyright: ignore[reportAssignmentType]

    @property
    def identity(self) -> int | float:
        """What changes nothing when it is folded in; the fold of no steps."""
        if self.fold in ("sum", "prod"):
            return {"sum": 0, "prod": 1}[self.fold]
        is_max = self.fold == "max"
        if self.dtype.is_float:
            return float("-inf" if is_max else "inf")
        if self.dtype is DType.BOOL:
            return not is_max
        bits = self.dtype.itemsize * 8 - self.dtype.is_signed
        return (-(2**bits) if self.dtype.is_signed else 0) if is_max else 2**bits - 1


@dataclass(frozen=True, eq=False, slots=True)
class Accumulator(Expr):
    """A finished sum of a contraction, rounded to its dtype."""

    part: int = 0
    """Which of its sums, where it has several."""


@dataclass(frozen=True, slots=True)
class Store:
    """result[at] = value."""

    result: int
    at: Affine
    value: Expr


@dataclass(frozen=True, slots=True)
class Kernel:
    """For every point of the axes that a store's index varies with, do the store."""

    name: str
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    nodes: tuple[Expr, ...] = field(init=False, repr=False, compare=False)
    """Every expression once, arguments first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(postorder(s.value for s in self.stores)))

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """The axes that reductions bind, in the order they are met."""
        return tuple(dict.fromkeys(n.axis for n in self.nodes if isinstance(n, Reduce)))

    def __str__(self) -> str:
        number = {n: i for i, n in enumerate(self.nodes)}
        head = f"kernel {self.name} over {', '.join(map(repr, self.axes))}"
        lines = [f"  v{i}: {n.dtype} = {describe(n, number)}" for n, i in number.items()]
        lines += [f"  store r{s.result}[{s.at}] = v{number[s.value]}" for s in self.stores]
        return "\n".join([head, *lines])


def describe(node: Expr, number: Mapping[Expr, int]) -> str:
    """One expression as text, its arguments by number."""
    args = [f"v{number[a]}" for a in node.args]
    match node:
        case Const():
            return repr(node.value)
        case Size():
            return f"size {node.dim}"
        case Index():
            return f"index {node.at}"
        case Inside():
            return f"{node.low} <= {node.at} < {node.high}"
        case Load():
            row = f" + {args[0]}*{node.stride}" if args else ""
            return f"load x{node.operand}[{node.at}{row}]"
        case Reduce():
            return f"{node.fold} over {node.axis.name} of {args[0]}"
        case Apply():
            extra = [f"{k}={v}" for k, v in node.attrs.items()]
            return f"{node.op.name}({', '.join(args + extra)})"
        case _:
            return f"choose({', '.join(args)})"


def postorder(roots: Iterable[Expr], known: Iterable[Expr] = ()) -> Iterator[Expr]:
    """Every node once, arguments first; not those that are known, nor what only they need."""
    seen = set(known)
    stack = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack += [(node, True), *((a, False) for a in reversed(node.args))]


class Exprs:
    """Makes expressions, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Expr] = {}

    def const(self, value: Any, dtype: DType) -> Expr:
        key = ("const", value.tobytes(), dtype)
        return self._make(key, lambda: Const(dtype, value=value))

    def size(self, dim: DimLike, dtype: DType) -> Expr:
        return self._make(("size", dim, dtype), lambda: Size(dtype, dim=dim))

    def index(self, at: Affine) -> Expr:
        return self._make(("index", at), lambda: Index(DType.I64, free=at.axes, at=at))

    def inside(self, at: Affine, low: DimLike, high: DimLike) -> Expr:
        key = ("inside", at, low, high)
        return self._make(key, lambda: Inside(DType.BOOL, (), at.axes, at, low, high))

    def load(self, operand: int, at: Affine, dtype: DType) -> Expr:
        key = ("load", operand, at)
        return self._make(key, lambda: Load(dtype, (), at.axes, operand, at))

    def gather(
        self, operand: int, at: Affine, dtype: DType, row: Expr, stride: DimLike, bound: DimLike
    ) -> Expr:
        key = ("gather", operand, at, id(row), stride)
        free = at.axes | row.free
        return self._make(key, lambda: Load(dtype, (row,), free, operand, at, stride, bound))

    def apply(self, op: Op, args: Sequence[Expr], attrs: Mapping[str, Any], dtype: DType) -> Expr:
        """An op of the table. Half floats compute in f32 and are rounded once, here."""
        if op.name == "cast":
            return self.narrowed(args[0], dtype) or self._apply(op, args, attrs, dtype)
        if dtype.compute is dtype or op.is_exact or op.name in SELECTING:
            return self._apply(op, args, attrs, dtype)
        wide = self._apply(op, [self.widened(a) for a in args], attrs, dtype.compute)
        return self.cast(wide, dtype)

    def op(self, name: str, *args: Expr | float) -> Expr:
        """An op of the table without attributes; numbers are constants of the others' dtype."""
        given = [a for a in args if isinstance(a, Expr)]
        dtype = next((a.dtype for a in given if a.dtype is not DType.BOOL), DType.BOOL)
        made = [a if isinstance(a, Expr) else self.number(a, dtype) for a in args]
        op = lookup(name)
        (result,) = op.infer([Shape((), a.dtype) for a in made], {})
        return self.apply(op, made, {}, result.dtype)

    def number(self, value: float, dtype: DType) -> Expr:
        return self.const(np.asarray(value, dtype.numpy), dtype)

    def cast(self, x: Expr, to: DType) -> Expr:
        return x if x.dtype is to else self.apply(lookup("cast"), [x], {"to": to}, to)

    def widened(self, x: Expr) -> Expr:
        """A half float as f32, other values as they are."""
        return self.cast(x, x.dtype.compute)

    def _apply(self, op: Op, args: Sequence[Expr], attrs: Mapping[str, Any], dtype: DType) -> Expr:
        key = ("apply", op.name, *map(id, args), *attrs.items())
        return self._make(key, lambda: Apply(dtype, tuple(args), _free(args), op, attrs))

    def narrowed(self, x: Expr, to: DType, depth: int = 0) -> Expr | None:
        """An f32 that holds a half float already, as that half float: such as max(x, 0)."""
        if to.compute is to or x.dtype is not to.compute or depth > MAX_SELECTIONS:
            return None
        match x:
            case Const(value=value):
                half = value.astype(to.numpy)
                return self.const(half, to) if half.astype(value.dtype) == value else None
            case Apply(op=op, args=(given,)) if op.name == "cast":
                return given if given.dtype is to else None
            case Apply(op=op) if op.name in SELECTING:
                parts = [
                    a if a.dtype is DType.BOOL else self.narrowed(a, to, depth + 1) for a in x.args
                ]
                found = [a for a in parts if a is not None]
                return self._apply(op, found, x.attrs, to) if len(found) == len(parts) else None
            case _:
                return None

    def choose(self, guard: Expr, yes: Expr, no: Expr) -> Expr:
        args = (guard, yes, no)
        return self._make(("choose", *map(id, args)), lambda: Choose(yes.dtype, args, _free(args)))

    def reduce(self, fold: str, axis: Axis, body: Expr) -> Expr:
        key = ("reduce", fold, axis, id(body))
        return self._make(key, lambda: Reduce(body.dtype, (body,), body.free - {axis}, fold, axis))

    def _make(self, key: tuple[object, ...], make: Any) -> Expr:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
        return found


def _free(args: Iterable[Expr]) -> frozenset[Axis]:
    return frozenset[Axis]().union(*(a.free for a in args))
