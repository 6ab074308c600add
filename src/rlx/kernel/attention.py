"""Attention: two contractions around an online softmax.

    s[b, h, i, j] = Σ_d scale · q[b, h, i, d] · k[b, h', j, d]       h' = h // group
    s             = softcap · tanh(s / softcap), then masked
    m[b, h, i]    = max_j s
    p[b, h, i, j] = exp(s - m)
    o[b, h, i, e] = Σ_j p · v[b, h', j, e] / Σ_j p

The maximum may be that of the keys so far: sums over them are multiplied by exp(m - m') where it
becomes m'. So keys can be taken in blocks, and blocks can be combined in any grouping.

Each piece of this arithmetic is a method that makes expressions of expressions. The meaning of the
form (`kernel`) and the code of a target are made of the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel import interpret
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store, strided
from rlx.ops.op import Array

INF = float("inf")
Q, K, V, MASK = range(4)
"""The operands."""


@dataclass(frozen=True, slots=True)
class Positional:
    """Query i is at position i + offset among the keys, and sees those up to it: all of them, or
    no more than `window` before it (causal and sliding-window masks; the offset is the number of
    past keys)."""

    offset: DimLike
    window: int | None = None

    def __str__(self) -> str:
        end = "" if self.window is None else f" <= {self.window}"
        return f"keys j of query i with 0 <= i + {self.offset} - j{end}"


@dataclass(frozen=True, slots=True)
class MaskOperand:
    """A mask in memory, broadcast to the scores: [batch, heads, queries, keys]."""

    layout: Layout
    dtype: DType


class Visibility(MaskOperand):
    """It hides the keys where it is False, or below 0.5; NaN shows a key."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"keys shown by x{MASK}: {self.dtype}"


class Bias(MaskOperand):
    """It is added to the scores."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"x{MASK}: {self.dtype} added"


Mask = Positional | Visibility | Bias | None


@dataclass(frozen=True, slots=True)
class Past:
    """The keys and values before those of k and v, in operands of their own, the last two: a cache
    that is read where it lies."""

    k: Layout
    v: Layout

    @property
    def keys(self) -> DimLike:
        return self.k.dims[2]

    def __str__(self) -> str:
        return f"the first {self.keys} keys apart"


@dataclass(frozen=True, slots=True)
class Rotary:
    """Queries and new keys are turned by their positions: elements d and d + pairs of a head by an
    angle, whose cosine and sine are operands, the last two. Layouts are [batch, length, pairs]."""

    cos: Layout
    sin: Layout
    dtype: DType

    @property
    def pairs(self) -> int:
        return int(self.cos.dims[2])

    def __str__(self) -> str:
        return f"queries and new keys turned, {self.pairs} pairs of a head"


@dataclass(frozen=True, slots=True)
class Cached:
    """Keys and values are in entries of a cache. Each row of the batch reads one of them, its own
    or that of `slots`, up to its queries, which stand from a position of its own on. Positions and
    slots are operands, and so are the scales of keys and values that are quantised, the last
    ones."""

    positions: Layout
    slots: Layout | None
    index: DType
    """Of positions and slots."""
    dtype: DType
    """Of keys and values."""
    scales: tuple[Layout, ...] = ()
    """Of keys and of values, for each block of a head: [entries, heads, length, blocks]."""
    scale_dtypes: tuple[DType, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """The operands q, k, v and perhaps a mask, then past keys and values, then cosines and sines.
    Layouts are [batch, heads, length, depth]; k and v have fewer heads where a group of query heads
    shares one."""

    name: str
    q: Layout
    k: Layout
    v: Layout
    out: Layout
    mask: Mask
    scale: float
    softcap: float | None
    masked_rows: Literal["zeros", "nan"]
    """What a query gives that sees no key, or only scores of -inf, under a mask."""
    dtype: DType
    """Of q, k, v and the result."""
    sums: DType
    """Of scores, weights and their sums."""
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    past: Past | None = None
    rotary: Rotary | None = None
    cached: Cached | None = None
    """The op's own meaning is then that of the form: where it reads is data."""

    @property
    def kv_dtype(self) -> DType:
        """Of keys and values."""
        return self.dtype if self.cached is None else self.cached.dtype

    @property
    def batch(self) -> DimLike:
        return self.q.dims[0]

    @property
    def heads(self) -> int:
        return int(self.q.dims[1])

    @property
    def kv_heads(self) -> int:
        return int(self.k.dims[1])

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> DimLike:
        return self.q.dims[2]

    @property
    def keys(self) -> DimLike:
        """All of them."""
        new = self.k.dims[2]
        return new if self.past is None else self.past.keys + new

    def past_operand(self, number: int) -> int:
        """The operand before that of keys or values."""
        behind = 2 if self.rotary is None else 4
        return len(self.operands) - behind + (number - K)

    @property
    def angle_operands(self) -> tuple[int, int]:
        """Those of cosines and sines."""
        return len(self.operands) - 2, len(self.operands) - 1

    @property
    def depth(self) -> int:
        return int(self.q.dims[3])

    @property
    def value_depth(self) -> DimLike:
        return self.v.dims[3]

    @property
    def gives_zeros(self) -> bool:
        """Does a row without weights give zeros instead of 0 / 0?"""
        return self.mask is not None and self.masked_rows == "zeros"

    # -- the arithmetic -------------------------------------------------------------------------

    def scaled(self, e: Exprs, q: Expr) -> Expr:
        return e.op("mul", q, self.scale)

    def capped(self, e: Exprs, s: Expr) -> Expr:
        """softcap · tanh(s / softcap)."""
        if self.softcap is None:
            return s
        return e.op("mul", e.op("tanh", e.op("mul", s, 1 / self.softcap)), self.softcap)

    def seen(self, e: Exprs, s: Expr, distance: Expr) -> Expr:
        """The scores of keys so far before the query's position."""
        assert isinstance(self.mask, Positional)
        shown = e.op("greater_equal", distance, 0)
        if self.mask.window is not None:
            shown = e.op("logical_and", shown, e.op("less_equal", distance, self.mask.window))
        return e.op("where", shown, s, -INF)

    def masked(self, e: Exprs, s: Expr, mask: Expr) -> Expr:
        """The scores under an element of the mask operand."""
        if isinstance(self.mask, Bias):
            return e.op("add", s, mask)
        return e.op("where", hidden(e, mask), -INF, s)

    def share(self, e: Exprs, total: Expr, has_no_keys: Expr | None = None) -> Expr:
        """What weighted sums are multiplied by, where `total` is the sum of the weights: one over
        it. Where rows without weights give NaN, `has_no_keys` says whether there are no keys at
        all: the result is then an empty sum."""
        is_none = e.op("equal", total, 0.0)
        if has_no_keys is not None:
            is_none = e.op("logical_and", is_none, has_no_keys)
        divisor = e.op("where", is_none, 1.0, total)
        return e.op("div", e.number(1.0, total.dtype), divisor)

    # -- the meaning ----------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """The same work as a plain loop nest, which is also what it means."""
        e, a = Exprs(), _Axes.of(self)
        weight = self._weight(e, a)
        total = e.reduce("sum", a.j, weight)
        values = self._of_key(e, V, (a.b, a.h, a.j, a.e))
        weighted = e.reduce("sum", a.j, e.op("mul", weight, values))
        if self.gives_zeros:
            share = self.share(e, total)
        else:
            share = self.share(e, total, e.op("equal", e.size(self.keys, DType.I64), 0))
        made = e.cast(e.op("mul", weighted, share), self.dtype)
        store = Store(0, a.at(self.out, self.group, a.i, a.e), made)
        return Kernel(self.name, (a.b, a.h, a.g, a.i, a.e), (store,), self.operands, self.results)

    def _weight(self, e: Exprs, a: _Axes) -> Expr:
        q = self._turned(e, Q, a.at(self.q, self.group, a.i, a.d), self.q, (a.b, a.i, a.d))
        k = self._of_key(e, K, (a.b, a.h, a.j, a.d))
        s = e.reduce("sum", a.d, e.op("mul", self.scaled(e, q), k))
        s = self.capped(e, s)
        match self.mask:
            case Positional(offset):
                distance = Affine.of(a.i) + Affine.of(a.j) * -1 + offset
                s = self.seen(e, s, e.index(distance))
            case Visibility(layout, dtype) | Bias(layout, dtype):
                mask = e.load(MASK, a.at(layout, self.group, a.i, a.j), dtype)
                s = self.masked(e, s, e.widened(mask))
            case None:
                pass
        return weight(e, s, base(e, e.reduce("max", a.j, s)))

    def _of_key(self, e: Exprs, number: int, axes: tuple[Axis, ...]) -> Expr:
        """An element of a key or of its value."""
        layout, (b, _, j, d) = (self.k, self.v)[number - K], axes
        count = 0 if self.past is None else self.past.keys
        at = strided(layout, axes) + layout.strides[2] * count * -1
        new = self._turned(e, number, at, layout, (b, j, d), count)
        if self.past is None:
            return new
        before = (self.past.k, self.past.v)[number - K]
        old = e.load(self.past_operand(number), strided(before, axes), self.dtype)
        return e.choose(e.inside(Affine.of(j), 0, count), e.cast(old, self.sums), new)

    def _turned(
        self,
        e: Exprs,
        number: int,
        at: Affine,
        layout: Layout,
        axes: tuple[Axis, Axis, Axis],
        first: DimLike = 0,
    ) -> Expr:
        """An element of queries, keys or values at a batch, a position and a place in the head; the
        first position has the first angles."""

        def element(shift: int = 0) -> Expr:
            moved = at + layout.strides[3] * shift
            return e.cast(e.load(number, moved, self.dtype), self.sums)

        if self.rotary is None or number == V:
            return element()
        pairs, d = self.rotary.pairs, Affine.of(axes[2])
        low = self._sum(e, element(), "sub", element(pairs), axes, (first, 0))
        high = self._sum(e, element(), "add", element(-pairs), axes, (first, pairs))
        rest = e.choose(e.inside(d, pairs, 2 * pairs), high, element())
        return e.choose(e.inside(d, 0, pairs), low, rest)

    def _sum(
        self,
        e: Exprs,
        x: Expr,
        sign: str,
        y: Expr,
        axes: tuple[Axis, Axis, Axis],
        start: tuple[DimLike, int],
    ) -> Expr:
        """x · cos ± y · sin, rounded as a value is; angles from a position and a pair on."""
        assert self.rotary is not None
        parts: list[Expr] = []
        pairs = zip((x, y), (self.rotary.cos, self.rotary.sin), self.angle_operands)
        for value, layout, number in pairs:
            back = layout.strides[1] * start[0] + layout.strides[2] * start[1]
            angle = e.load(number, strided(layout, axes) + back * -1, self.rotary.dtype)
            parts.append(e.op("mul", value, e.cast(angle, self.sums)))
        return e.cast(e.cast(e.op(sign, *parts), self.dtype), self.sums)

    def __str__(self) -> str:
        a = _Axes.of(self)
        facts = [f"query heads {self.group} per kv head", f"mask: {self.mask or 'none'}"]
        facts += [f"masked rows give {self.masked_rows}"] if self.mask is not None else []
        facts += [str(x) for x in (self.past, self.rotary) if x is not None]
        return (
            f"{self.kernel()}\n  attention of queries {a.i}, keys {a.j}, depth {a.d}, value depth "
            f"{a.e}, sums in {self.sums}\n  {', '.join(facts)}"
        )


def run(form: Attention, operands: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """What it means: its results on contiguous operands."""
    return interpret.run(form.kernel(), operands, sizes)


def hidden(e: Exprs, mask: Expr) -> Expr:
    """Where an element of a visibility mask hides the key."""
    return e.op("logical_not", mask) if mask.dtype is DType.BOOL else e.op("less", mask, 0.5)


def greater(e: Exprs, x: Expr, y: Expr) -> Expr:
    """The maximum of scores: y where x is NaN, which its exponential still propagates."""
    return e.op("where", e.op("greater", x, y), x, y)


def base(e: Exprs, top: Expr) -> Expr:
    """What is subtracted from scores of which `top` is the maximum: 0 where all are -inf."""
    return e.op("where", e.op("equal", top, -INF), 0.0, top)


def weight(e: Exprs, s: Expr, subtracted: Expr) -> Expr:
    """exp(s - base); of an earlier maximum, the factor that corrects the sums up to it."""
    return e.op("exp", e.op("sub", s, subtracted))


@dataclass(frozen=True, slots=True)
class _Axes:
    """Batch, kv head, member of its group, query, key, depth, value depth."""

    b: Axis
    h: Axis
    g: Axis
    i: Axis
    j: Axis
    d: Axis
    e: Axis

    @classmethod
    def of(cls, form: Attention) -> _Axes:
        extents = (form.batch, form.kv_heads, form.group, form.queries, form.keys, form.depth)
        return cls(*(Axis(n, x) for n, x in zip("bhgijde", (*extents, form.value_depth))))

    def at(self, layout: Layout, group: int, row: Axis, column: Axis) -> Affine:
        """The index of a value that has all query heads."""
        across, head, down, along = layout.strides
        strides = (across, head * group, head, down, along)
        axes = (self.b, self.h, self.g, row, column)
        dims = tuple(a.extent for a in axes)
        return strided(Layout(dims, strides, layout.offset), axes)
