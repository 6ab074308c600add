"""Operands of an attention in one layout, [batch, heads, length, depth], whatever layout they are
given in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.program.task import Step
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout

Q, K, V, MASK = range(4)
"""The buffers of operands."""
INF = float("inf")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An attention with operands [batch, heads, length, depth].

    Grouped queries: those of the heads of one kv head are rows of one product. Row f is query f //
    group of the head f % group, so that neighbouring rows see nearly the same keys.
    """

    dtype: DType
    q: Layout
    k: Layout
    v: Layout
    out: Layout
    mask: Layout | None
    """Broadcast to the scores, [batch, heads, queries, keys]."""
    mask_dtype: DType
    kind: str
    window: int | None
    scale: float
    softcap: float | None
    masked_rows: str

    @classmethod
    def of(cls, step: Step) -> AttentionSpec:
        attrs, (q, k, v, *masks) = step.node.attrs, step.operands
        heads = attrs["num_heads"]
        kv_heads = heads if attrs["kv_heads"] is None else attrs["kv_heads"]
        q, out = (_by_head(x, heads) for x in (q, step.results[0]))
        k, v = (_by_head(x, kv_heads) for x in (k, v))
        kind, scale = attrs["mask_kind"], attrs["scale"]
        scores = (*q.dims[:3], k.dims[2])
        mask = _by_key(masks[0], kind).expanded(scores) if masks else None
        dtypes = [i.shape.dtype for i in step.node.inputs]
        if scale is None:
            scale = max(int(q.dims[3]), 1) ** -0.5
        return cls(
            dtypes[0], q, k, v, out, mask, dtypes[-1], kind, attrs["window"], scale,
            attrs["softcap"], attrs["masked_rows"],
        )  # fmt: skip

    @property
    def compute(self) -> DType:
        return self.dtype.compute

    @property
    def batch(self) -> DimLike:
        return self.q.dims[0]

    @property
    def kv_heads(self) -> int:
        return int(self.k.dims[1])

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return int(self.q.dims[1]) // self.kv_heads

    @property
    def queries(self) -> DimLike:
        return self.q.dims[2]

    @property
    def keys(self) -> DimLike:
        return self.k.dims[2]

    @property
    def depth(self) -> int:
        return int(self.q.dims[3])

    @property
    def value_depth(self) -> DimLike:
        return self.v.dims[3]

    @property
    def rows(self) -> DimLike:
        """Of one kv head."""
        return self.queries * self.group

    @property
    def is_positional(self) -> bool:
        """Is the mask a function of positions alone (causal, sliding window)?"""
        return self.kind in ("causal", "sliding_window")

    @property
    def has_one_mask(self) -> bool:
        """Is the mask the same for all rows of a kv head?"""
        if self.mask is None:
            return False
        _, heads, queries, _ = self.mask.strides
        return queries == 0 and (heads == 0 or self.group == 1)

    @property
    def sizes(self) -> tuple[DimLike, ...]:
        """Every dynamic size, once."""
        return tuple(dict.fromkeys(d for d in self._numbers() if not is_static(d)))

    def _numbers(self) -> Iterator[DimLike]:
        for layout in (self.q, self.k, self.v, self.out, self.mask):
            if layout is not None:
                yield from (*layout.dims, *layout.strides, layout.offset)

    def masked(self, s: Vec, mask: Vec) -> Vec:
        """Scores under a loaded custom mask or bias; NaN shows a key."""
        if self.kind == "bias":
            return s + mask
        return s.like(-INF).where(hidden(mask), s)

    def divisor(self, total: Vec, keys: Bound) -> Vec:
        """The divisor of the weighted sums. A row with all weights 0 gives zeros where a mask may
        be the cause and `masked_rows` asks for it, else 0 / 0; without a key at all it is an empty
        sum."""
        is_none = total.equals(0.0)
        if self.kind == "none" or self.masked_rows == "nan":
            empty = total.code.let(f"icmp eq i64 {keys}, 0")
            is_none = is_none & total.code.splat(empty, DType.BOOL)
        return total.like(1.0).where(is_none, total)

    @property
    def flops(self) -> DimLike:
        pairs = self.batch * self.q.dims[1] * self.queries * self.keys
        return pairs * (2 * self.depth + 2 * self.value_depth + 40)

    @property
    def traffic(self) -> DimLike:
        """The bytes of keys and values: what dominates where queries are few."""
        lines = self.batch * self.kv_heads * self.keys
        return lines * (self.depth + self.value_depth) * self.dtype.itemsize


def hidden(mask: Vec) -> Vec:
    """Where a custom mask hides the key."""
    return ~mask if mask.dtype is DType.BOOL else mask < 0.5


def _by_head(x: Layout, heads: int) -> Layout:
    """[batch, heads, length, depth] of either layout."""
    if len(x.dims) == 4:
        return x
    (batch, length, width), (across, along, step) = x.dims, x.strides
    depth = width // heads
    dims, strides = (batch, heads, length, depth), (across, depth * step, along, step)
    return Layout(dims, strides, x.offset)


def _by_key(x: Layout, kind: str) -> Layout:
    """A custom mask of rank 2 is [batch, keys]; any other is broadcast to the scores."""
    if kind != "custom" or len(x.dims) != 2:
        return x
    return Layout((x.dims[0], 1, 1, x.dims[1]), (x.strides[0], 0, 0, x.strides[1]), x.offset)


def greater(x: Vec, y: Vec) -> Vec:
    """The greater; y where x is NaN, which the exponential still propagates."""
    return x.where(x > y, y)
