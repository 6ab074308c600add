"""Where a decoder's cached keys and values are: arguments and results of a call, states of a
session, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rlx.core.dim import Dim, DimLike, dim_min
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.frontends.gguf.architecture import Architecture
from rlx.ir.hir import HirModule
from rlx.ir.mir import Node
from rlx.ops.nn.cached_attention import BLOCK

CacheKind = Literal["arguments", "session"]
CacheFormat = Literal["f16", "bf16", "f32", "q8_0"]
"""What a session caches: floats, or i8 with a scale in f16 for each 32 elements of a head."""
CACHED = ("key", "value")
WINDOW, WINDOW_POSITIONS = "window_", "window_positions"
"""What names of states of layers with a sliding window begin with, where they are shorter than the
context, and where rows stand in them."""


WINDOW_MARGIN = 64
"""Tokens by which a sequence may always be cut back."""
SHIFT = 192
"""Rows by whose multiples caches of windows are shifted. Blocks of keys of kernels divide it, so
that a sum has the same bits wherever its window begins."""


def window_rows(a: Architecture, context: int, step: int) -> int | None:
    """Rows of the cache of a layer with a sliding window, where that is less than the context: the
    window, by how much a sequence may be cut back, and the tokens of a call."""
    windows = [w for w in a.windows if w is not None]
    rows = max(windows, default=context) + WINDOW_MARGIN + SHIFT + step
    return rows if rows < context else None


class Caches(Protocol):
    """Caches of a decoder that is being built."""

    def rows(self, table: Node, seq: Dim, trained: int | None) -> Node:
        """The rows of a table, one for each position, at the positions of a call's tokens. Its
        second half is for sequences of more than `trained` tokens, where there is such a number."""
        ...

    def attend(self, layer: int, q: Node, k: Node, v: Node, how: Mapping[str, Any]) -> Node:
        """Attention of the queries over what is cached and over new keys and values, which are
        cached then."""
        ...

    @property
    def outputs(self) -> dict[str, Node]:
        """What a call gives beside its logits."""
        ...


@dataclass(slots=True)
class ArgumentCaches:
    """Inputs `past_key_N` and `past_value_N` f32[batch, past, kv heads · depth]; the outputs
    `key_N` and `value_N` have this call's tokens behind the past. Any target runs it, and each call
    copies them."""

    module: HirModule
    pasts: list[tuple[Node, Node]]
    past: Dim
    outputs: dict[str, Node] = field(default_factory=dict[str, Node])

    @classmethod
    def of(cls, m: HirModule, a: Architecture, batch: Dim, context: int) -> ArgumentCaches:
        past = Dim("past", 0, context)
        shape = Shape([batch, past, a.kv_heads * a.head_dim])
        inputs = ([m.input(f"past_{k}_{i}", shape) for k in CACHED] for i in range(a.layers))
        return cls(m, [(k, v) for k, v in inputs], past)

    def rows(self, table: Node, seq: Dim, trained: int | None) -> Node:
        start = self.past + _half(table, self.past + seq, trained)
        return self.module.narrow(table, axis=0, start=start, length=seq)

    def attend(self, layer: int, q: Node, k: Node, v: Node, how: Mapping[str, Any]) -> Node:
        m, (past_k, past_v) = self.module, self.pasts[layer]
        k, v = m.concat([past_k, k], axis=1), m.concat([past_v, v], axis=1)
        self.outputs |= {f"key_{layer}": k, f"value_{layer}": v}
        return m.attention(q, k, v, mask_kind=_mask(how), **how)


@dataclass(slots=True)
class NoCaches:
    """A call has all tokens of its sequences."""

    module: HirModule
    outputs: dict[str, Node] = field(default_factory=dict[str, Node])

    def rows(self, table: Node, seq: Dim, trained: int | None) -> Node:
        start = _half(table, seq, trained)
        return self.module.narrow(table, axis=0, start=start, length=seq)

    def attend(self, layer: int, q: Node, k: Node, v: Node, how: Mapping[str, Any]) -> Node:
        return self.module.attention(q, k, v, mask_kind=_mask(how), **how)


def _half(table: Node, length: DimLike, trained: int | None) -> DimLike:
    """Where the rows for a sequence of this length begin."""
    if trained is None:
        return 0
    return int(table.shape.static_dims[0]) // 2 * dim_min(1, length // (trained + 1))


def _mask(how: Mapping[str, Any]) -> Literal["causal", "sliding_window"]:
    return "causal" if how["window"] is None else "sliding_window"


@dataclass(slots=True)
class SessionCaches:
    """States `key_N` and `value_N` [slots, context, kv heads · depth], with `key_scale_N` and
    `value_scale_N` where they are quantised. Row b of a batch belongs to the slot `slots`[b], and
    its tokens stand from `positions`[b] on: a call writes their keys and values there, in place,
    and reads what is before them. Layers with a sliding window have shorter states where that is
    less, `window_key_N` …, and rows stand from `window_positions`[b] on in them: who calls shifts
    them to the beginning before they are full."""

    module: HirModule
    states: list[list[Node]]
    """Of each layer: keys, values, and their scales."""
    slots: Node
    positions: Node
    window_positions: Node
    """Of layers with a window; `positions`, where their states are as long as others."""
    outputs: dict[str, Node] = field(default_factory=dict[str, Node])

    @classmethod
    def of(
        cls, m: HirModule, a: Architecture, batch: Dim, context: int, step: int, cached: CacheFormat
    ) -> SessionCaches:
        if cached == "q8_0":
            _check_blocks(a)
        slots, positions = (m.input(n, Shape([batch], DType.I32)) for n in ("slots", "positions"))
        short = window_rows(a, context, step)
        at = positions if short is None else m.input(WINDOW_POSITIONS, positions.shape)
        width = a.kv_heads * a.head_dim
        states: list[list[Node]] = []
        for i, window in enumerate(a.windows):
            is_short = window is not None and short is not None
            shapes = _shapes(short if is_short else context, width, cached)
            kind = WINDOW if is_short else ""
            states.append([m.state(f"{kind}{n}_{i}", s) for n, s in shapes.items()])
        return cls(m, states, slots, positions, at)

    def rows(self, table: Node, seq: Dim, trained: int | None) -> Node:
        del trained  # a sequence comes in several calls, and a table is for the context
        m = self.module
        start = m.expand_dims(m.cast(self.positions, to=DType.I64), axes=(1,))
        line = m.iota(dims=(1, seq), axis=1, dtype=DType.I64)
        return m.gather(table, m.add(start, line), axis=0)

    def attend(self, layer: int, q: Node, k: Node, v: Node, how: Mapping[str, Any]) -> Node:
        m, states = self.module, self.states[layer]
        rows = [m.cast(x, to=states[0].shape.dtype) for x in (k, v)]
        if len(states) > len(rows):
            (k, k_scale), (v, v_scale) = (self._quantised(x) for x in (k, v))
            rows = [k, v, k_scale, v_scale]
        at = self.positions if how["window"] is None else self.window_positions
        keys, values, *scales = (
            m.append(state, new, at, self.slots, axis=1) for state, new in zip(states, rows)
        )
        return m.cached_attention(q, keys, values, at, self.slots, *scales, **how)

    def _quantised(self, x: Node) -> tuple[Node, Node]:
        """Codes from -127 to 127, and the scales of their blocks."""
        codes, scales = self.module.block_quantize(x, packing="int8", block=BLOCK)
        m = self.module
        return m.bitcast(codes, to=DType.I8), m.cast(scales, to=DType.F16)


def _shapes(rows: int | None, width: int, cached: CacheFormat) -> dict[str, Shape]:
    """The states of a layer."""
    dims = [Dim("slots", 1), rows or 0]
    if cached != "q8_0":
        return {name: Shape([*dims, width], DType(cached)) for name in CACHED}
    codes, scales = Shape([*dims, width], DType.I8), Shape([*dims, width // BLOCK], DType.F16)
    return {**dict.fromkeys(CACHED, codes), **{f"{name}_scale": scales for name in CACHED}}


def _check_blocks(a: Architecture) -> None:
    if a.head_dim % BLOCK:
        raise Error(
            f"heads of {a.head_dim} elements are not whole blocks of {BLOCK}, as a cache in q8_0 "
            "has them. Cache them in f16."
        )


def caches_of(
    kind: CacheKind, m: HirModule, a: Architecture, batch: Dim, lengths: tuple[int, int],
    cached: CacheFormat,
) -> Caches:  # fmt: skip
    """The caches of a decoder, where they are wanted: for a context, and as many tokens of a call;
    those of a session have the format."""
    if kind == "arguments":
        return ArgumentCaches.of(m, a, batch, lengths[0])
    return SessionCaches.of(m, a, batch, *lengths, cached)
