"""Attention and rotary positions against ONNX's reference, and one query and key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "attention": "onnx.reference Attention; each query written out in Python",
    "rope": "onnx.reference RotaryEmbedding; complex numbers turned by e^(i·angle)",
}
RNG = np.random.default_rng(41)
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
"""f64: two sums of up to 9 products of numbers of about 1, and a softmax between them."""
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}
"""The same where ONNX keeps scale or softcap as an f32 attribute."""
LENGTHS = [(5, 5), (3, 6), (6, 3), (1, 4), (1, 1)]
"""Of queries and keys; with more queries than keys, the first see nothing under a mask."""
HEADS = [(1, 1), (4, 4), (4, 2), (4, 1)]
BATCH, DEPTH, VALUE_DEPTH = 2, 4, 3

Sees = Callable[[int, int, int, int], bool]


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims)


def operands(heads: tuple[int, int], lengths: tuple[int, int]) -> list[np.ndarray]:
    (h, kv), (queries, keys) = heads, lengths
    return [
        normal(BATCH, h, queries, DEPTH),
        normal(BATCH, kv, keys, DEPTH),
        normal(BATCH, kv, keys, VALUE_DEPTH),
    ]


def packed(x: np.ndarray) -> np.ndarray:
    """[batch, length, heads·depth] of [batch, heads, length, depth]."""
    return np.concatenate([x[:, h] for h in range(x.shape[1])], axis=-1)


def written_out(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, score: Callable[..., float], sees: Sees
) -> np.ndarray:
    """The mean of the values a query sees, weighed by e^score; zeros where it sees none."""
    made = np.zeros((*q.shape[:3], v.shape[3]))
    run = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        seen = [j for j in range(k.shape[2]) if sees(b, h, i, j)]
        weights = [math.exp(score(b, h, i, j, q[b, h, i] @ k[b, h // run, j])) for j in seen]
        for j, w in zip(seen, weights):
            made[b, h, i] += w / math.fsum(weights) * v[b, h // run, j]
    return made


def compare(qkv: list[np.ndarray], mask: list[np.ndarray], want: np.ndarray, **attrs: Any) -> None:
    """In both layouts."""
    heads = {"num_heads": qkv[0].shape[1], "kv_heads": qkv[1].shape[1]}
    got = ops.attention(*qkv, *mask, **heads, **attrs)
    np.testing.assert_allclose(got, want, **CLOSE)
    flat = ops.attention(*map(packed, qkv), *mask, **heads, **attrs)
    np.testing.assert_allclose(flat, packed(want), **CLOSE)


def plain(b: int, h: int, i: int, j: int, s: float) -> float:
    return s / math.sqrt(DEPTH)


def sees_all(*_: int) -> bool:
    return True


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", HEADS)
def test_attention_by_each_query(heads: tuple[int, int], lengths: tuple[int, int]) -> None:
    """Every kind of mask, and every way to scale."""
    qkv = operands(heads, lengths)
    shift = lengths[1] - lengths[0]
    compare(qkv, [], written_out(*qkv, plain, sees_all))
    compare(qkv, [], written_out(*qkv, lambda *a: 0.3 * a[4], sees_all), scale=0.3)
    capped = written_out(*qkv, lambda *a: 2 * math.tanh(plain(*a) / 2), sees_all)
    compare(qkv, [], capped, softcap=2.0)
    causal = written_out(*qkv, plain, lambda b, h, i, j: j <= i + shift)
    compare(qkv, [], causal, mask_kind="causal")
    for window in (0, 1, 3):
        near = written_out(*qkv, plain, lambda b, h, i, j, w=window: 0 <= i + shift - j <= w)
        compare(qkv, [], near, mask_kind="sliding_window", window=window)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", HEADS)
def test_attention_under_given_masks(heads: tuple[int, int], lengths: tuple[int, int]) -> None:
    qkv = operands(heads, lengths)
    keys = RNG.random((BATCH, lengths[1]))
    keys[1] = 0.0  # a batch that sees nothing
    by_key = written_out(*qkv, plain, lambda b, h, i, j: keys[b, j] >= 0.5)
    compare(qkv, [keys], by_key, mask_kind="custom")
    compare(qkv, [keys >= 0.5], by_key, mask_kind="custom")
    whole = RNG.random((BATCH, heads[0], *lengths)) < 0.6
    by_pair = written_out(*qkv, plain, lambda *at: bool(whole[at]))
    compare(qkv, [whole], by_pair, mask_kind="custom")
    bias = normal(BATCH, heads[0], *lengths)
    added = written_out(*qkv, lambda *a: plain(*a) + bias[a[:4]], sees_all)
    compare(qkv, [bias], added, mask_kind="bias")
    row = bias[:1, :1]
    shared = written_out(*qkv, lambda *a: plain(*a) + row[0, 0, a[2], a[3]], sees_all)
    compare(qkv, [row], shared, mask_kind="bias")


def onnx_attention(qkv: list[np.ndarray], mask: np.ndarray | None = None, **attrs: Any) -> Any:
    return run_onnx("Attention", [*qkv, mask], attrs, opset=24)[0]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", HEADS)
def test_attention_is_onnxs(heads: tuple[int, int], lengths: tuple[int, int]) -> None:
    qkv = operands(heads, lengths)
    numbers = {"num_heads": heads[0], "kv_heads": heads[1]}
    theirs = {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    np.testing.assert_allclose(ops.attention(*qkv, **numbers), onnx_attention(qkv), **CLOSE)
    flat = [packed(x) for x in qkv]
    got = ops.attention(*flat, **numbers, scale=0.3, softcap=2.0)
    want = onnx_attention(flat, scale=0.3, softcap=2.0, **theirs)
    np.testing.assert_allclose(got, want, **ROUNDED)
    bias, shown = normal(BATCH, heads[0], *lengths), RNG.random((BATCH, 1, *lengths)) < 0.6
    for kind, mask in (("bias", bias), ("custom", shown)):
        got = ops.attention(*qkv, mask, **numbers, mask_kind=kind)
        np.testing.assert_allclose(got, onnx_attention(qkv, mask), **CLOSE)


@pytest.mark.parametrize("lengths", [(4, 4), (3, 6), (1, 4)])
def test_causal_attention_is_onnxs_with_a_cache(lengths: tuple[int, int]) -> None:
    """ONNX counts positions from the keys that it kept: those before the first query."""
    qkv = operands((4, 2), lengths)
    numbers = {"num_heads": 4, "kv_heads": 2}
    past = lengths[1] - lengths[0]
    given = [qkv[0], *(x[:, :, past:] for x in qkv[1:]), None, *(x[:, :, :past] for x in qkv[1:])]
    (want,) = run_onnx("Attention", given, {"is_causal": 1}, opset=24)
    np.testing.assert_allclose(ops.attention(*qkv, **numbers, mask_kind="causal"), want, **CLOSE)
    for window in (0, 2):
        attrs = {"is_causal": 1, "left_window_size": window}
        (want,) = run_onnx("Attention", given, attrs, opset=25)
        got = ops.attention(*qkv, **numbers, mask_kind="sliding_window", window=window)
        np.testing.assert_allclose(got, want, **CLOSE)


# -- rotary positions -----------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("depth", "turned"), [(8, 8), (8, 4), (6, 2), (2, 2)])
def test_rope(depth: int, turned: int, interleaved: bool) -> None:
    heads, length = 3, 5
    x, angle = normal(BATCH, length, heads * depth), normal(length, turned // 2)
    got = ops.rope(
        x, np.cos(angle), np.sin(angle), head_dim=depth, n_rot=turned, interleaved=interleaved
    )
    tables = [np.tile(f(angle), (BATCH, 1, 1)) for f in (np.cos, np.sin)]
    attrs = {"interleaved": int(interleaved), "num_heads": heads, "rotary_embedding_dim": turned}
    (want,) = run_onnx("RotaryEmbedding", [x, *tables], attrs)
    np.testing.assert_allclose(got, want, **CLOSE)

    whole = x.reshape(BATCH, length, heads, depth).copy()
    for t, i in np.ndindex(length, turned // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + turned // 2)
        z = (whole[:, t, :, a] + 1j * whole[:, t, :, b]) * np.exp(1j * angle[t, i])
        whole[:, t, :, a], whole[:, t, :, b] = z.real, z.imag
    np.testing.assert_allclose(got, whole.reshape(x.shape), **CLOSE)


def test_rope_by_position_ids() -> None:
    """Angles of each batch row, which ONNX looks up in a table."""
    x, angle, ids = normal(BATCH, 5, 8), normal(20, 4), RNG.integers(0, 20, (BATCH, 5))
    cos, sin = np.cos(angle), np.sin(angle)
    (want,) = run_onnx("RotaryEmbedding", [x, cos, sin, ids], {"num_heads": 1})
    np.testing.assert_allclose(ops.rope(x, cos[ids], sin[ids]), want, **CLOSE)
