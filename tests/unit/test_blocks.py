"""Blocks: whatever the policy, lowering means what the block means, stated in plain NumPy.

Sizes given by name are dims of that name; SIZES says how large they are when bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import FusionPolicy, HirModule, block, blocks
from rlx.ir.interpret import evaluate
from rlx.ir.text import read_module

F64 = rlx.DType.F64
FUSABLE = FusionPolicy.FUSABLE
# Spellings differ in the order of sums of up to 16 terms, a few deep: some tens of roundings.
# Norms and softmax keep values near 1, so 1e-12 is more than 4,000 roundings of an f64.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
SIZES = {"b": 2, "s": 5, "p": 3}
Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """Operands of a block, what it is given beside them, and what must come out."""

    block: str
    operands: tuple[Dims, ...]
    meaning: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    positive: frozenset[int] = frozenset()
    """Operands that must not be negative, such as a variance."""

    def __str__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.block}-{len(self.operands)}-{values}"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


def rms_norm(x, scale, bias=0.0, *, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale + bias


def layer_norm(x, scale, bias, *, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * scale + bias


def rope(x, cos, sin, head_dim):
    """Each head's halves are the parts of complex numbers, turned by their position's angles."""
    heads = x.reshape(*x.shape[:-1], -1, head_dim)
    a, b = np.split(heads, 2, -1)
    c, s = cos[..., None, :], sin[..., None, :]
    return np.concatenate([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def attention(q, k, v, *, heads, kv_heads, is_causal=False, keep=None):
    """Softmax attention, one query head at a time."""
    size = q.shape[-1] // heads
    out = []
    for h in range(heads):
        of = h * kv_heads // heads
        qh, kh = q[..., h * size : (h + 1) * size], k[..., of * size : (of + 1) * size]
        scores = qh @ np.swapaxes(kh, -1, -2) / np.sqrt(size)
        rows, columns = scores.shape[-2:]
        if is_causal:
            past = columns - rows
            later = np.arange(columns)[None, :] > np.arange(rows)[:, None] + past
            scores = np.where(later, -np.inf, scores)
        if keep is not None:
            scores = np.where(keep[:, None, :] < 0.5, -1e9, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out.append(weights @ v[..., of * size : (of + 1) * size])
    return np.concatenate(out, -1)


def decoder_step(x, n1, wq, wk, wv, wo, cos, sin, n2, up, gate, down, past_k=None, past_v=None):
    """Four query heads and two key heads of 4, causal."""
    h = rms_norm(x, n1, eps=1e-6)
    q, k, v = rope(h @ wq, cos, sin, 4), rope(h @ wk, cos, sin, 4), h @ wv
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 1), np.concatenate([past_v, v], 1)
    x = x + attention(q, k, v, heads=4, kv_heads=2, is_causal=True) @ wo
    h = rms_norm(x, n2, eps=1e-6)
    return x + (silu(h @ gate) * (h @ up)) @ down, k, v


def encoder(x, wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, up, ub, down, db, g2, b2, keep=None):
    """Two heads."""
    q, k, v = x @ wq + bq, x @ wk + bk, x @ wv + bv
    mixed = attention(q, k, v, heads=2, kv_heads=2, keep=keep) @ wo + bo
    x = layer_norm(mixed + x, g1, b1, eps=1e-12)
    return layer_norm(gelu(x @ up + ub) @ down + db + x, g2, b2, eps=1e-12)


def conv(x, w, bias=None, *, stride=(1, 1), padding=(0, 0, 0, 0), groups=1):
    """One output number at a time."""
    top, left, bottom, right = padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    o, i, kh, kw = w.shape
    rows = (padded.shape[2] - kh) // stride[0] + 1
    columns = (padded.shape[3] - kw) // stride[1] + 1
    made = np.zeros((x.shape[0], o, rows, columns))
    for c, r, k in np.ndindex(o, rows, columns):
        first, y, z = c * groups // o * i, r * stride[0], k * stride[1]
        window = padded[:, first : first + i, y : y + kh, z : z + kw]
        made[:, c, r, k] = (window * w[c]).sum((1, 2, 3)) + (0 if bias is None else bias[c])
    return made


def conv_norm(x, w, scale, bias, mean, var):
    scale, bias, mean, var = (v[:, None, None] for v in (scale, bias, mean, var))
    return (conv(x, w) - mean) / np.sqrt(var + 1e-5) * scale + bias


def frames(x, n_fft, hop):
    count = (x.shape[-1] - n_fft) // hop + 1
    return np.stack([x[..., i * hop : i * hop + n_fft] for i in range(count)], -2)


def log_mel(x, window, filters, *, is_centred):
    """Whisper's: powers filtered, in tens, no more than 8 below the loudest band."""
    x = np.pad(x, [(0, 0), (4, 4)], mode="reflect") if is_centred else x
    power = np.abs(np.fft.rfft(frames(x, 8, 3) * window)) ** 2
    mel = np.log10(np.maximum(power @ filters.T, 1e-10))
    return (np.maximum(mel, mel.max(-1, keepdims=True) - 8) + 4) / 4


def welch(x, window=1.0):
    """The 3 strongest bins of segments of 8, one every 4."""
    power = (np.abs(np.fft.rfft(frames(x, 8, 4) * window)) ** 2).mean(-2)
    power[:, 1:4] *= 2
    strongest = np.argsort(-power, -1)[:, :3]
    pairs = np.stack([strongest, np.take_along_axis(power, strongest, -1)], -1)
    return pairs.reshape(len(x), 6)


X, W = ("b", "s", 8), (8, 6)
MEL = (("b", 20), (8,), (4, 5))
PEAKS = {"k": 3, "n_fft": 8, "hop": 4}
IMAGE, KERNEL = ("b", 4, "s", 6), (6, 4, 3, 3)
WINDOW = {"stride": (2, 1), "padding": (1, 0, 2, 1), "groups": 2}
FFN = (X, (8, 12), (8, 12), (12, 8))
HEADS = {"num_heads": 4, "kv_heads": 2, "head_dim": 4}
DECODER = (
    X, (8,), (8, 16), (8, 8), (8, 8), (16, 8), ("s", 2), ("s", 2), (8,), (8, 12), (8, 12), (12, 8),
)  # fmt: skip
ENCODER = (
    X, (8, 8), (8,), (8, 8), (8,), (8, 8), (8,), (8, 8), (8,), (8,), (8,),
    (8, 12), (12,), (12, 8), (8,), (8,), (8,),
)  # fmt: skip

CASES = [
    Case("linear", (X, W), lambda x, w: x @ w),
    Case("linear", (X, W, (6,)), lambda x, w, b: x @ w + b),
    Case("linear", (X, W), lambda x, w: silu(x @ w), {"activation": "silu"}),
    Case("linear", (X, W, (6,)), lambda x, w, b: relu(x @ w + b), {"activation": "relu"}),
    Case("linear", (("s", 8), W, (6,)), lambda x, w, b: np.tanh(x @ w + b), {"activation": "tanh"}),
    Case("linear_fused", (X, W, (6,)), lambda x, w, b: gelu(x @ w + b), {"activation": "gelu"}),
    Case("linear_fused", (X, W, (6,)), lambda x, w, b: x @ w + b),
    Case("shared_linear_pair", (X, W, (8, 3)), lambda x, v, w: x @ v, {"slot": 0}),
    Case("shared_linear_pair", (X, W, (8, 3)), lambda x, v, w: x @ w, {"slot": 1}),
    Case("swiglu_ffn", FFN, lambda x, u, g, d: (silu(x @ g) * (x @ u)) @ d),
    Case("geglu_ffn", FFN, lambda x, u, g, d: (gelu(x @ g) * (x @ u)) @ d),
    Case("gelu_ffn", (X, (8, 12), (12, 8)), lambda x, u, d: gelu(x @ u) @ d),
    Case(
        "gelu_ffn",
        (X, (8, 12), (12, 8), (12,), (8,)),
        lambda x, u, d, a, b: gelu_tanh(x @ u + a) @ d + b,
        {"approximate": True},
    ),
    Case(
        "residual_rms_norm",
        (X, X, (8,)),
        lambda x, r, g: rms_norm(x + r, g, eps=1e-3),
        {"eps": 1e-3},
    ),
    Case(
        "residual_rms_norm",
        (X, X, (8,), (8,)),
        lambda x, r, g, b: rms_norm(x + r, g, b, eps=1e-6),
    ),
    Case(
        "residual_layer_norm",
        (X, X, (8,), (8,)),
        lambda x, r, g, b: layer_norm(x + r, g, b, eps=1e-5),
    ),
    Case("llama_decoder_block", DECODER, lambda *v: decoder_step(*v)[0], HEADS),
    Case("llama_decoder_step", (*DECODER, ("b", "p", 8), ("b", "p", 8)), decoder_step, HEADS),
    Case("encoder_block", ENCODER, encoder, {"num_heads": 2}),
    Case(
        "encoder_block",
        (*ENCODER, ("b", "s")),
        encoder,
        {"num_heads": 2, "mask_kind": "custom"},
        frozenset({17}),
    ),
    Case("conv_block", (IMAGE, KERNEL), conv),
    Case(
        "conv_block",
        (IMAGE, KERNEL, (6,)),
        lambda *v: relu(conv(*v)),
        {"activation": "relu"},
    ),
    Case("conv_block", (IMAGE, (6, 2, 3, 2), (6,)), lambda *v: conv(*v, **WINDOW), WINDOW),
    Case("conv_norm_block", (IMAGE, KERNEL, *[(6,)] * 4), conv_norm, {}, frozenset({5})),
    Case(
        "conv_norm_block",
        (IMAGE, KERNEL, *[(6,)] * 4),
        lambda *v: silu(conv_norm(*v)),
        {"activation": "silu"},
        frozenset({5}),
    ),
    Case(
        "log_mel_spectrogram",
        MEL,
        lambda *v: log_mel(*v, is_centred=True),
        {"n_fft": 8, "hop": 3},
        frozenset({2}),
    ),
    Case(
        "log_mel_spectrogram",
        MEL,
        lambda *v: log_mel(*v, is_centred=False),
        {"n_fft": 8, "hop": 3, "center": False},
        frozenset({2}),
    ),
    Case("welch", (("b", 30),), welch, PEAKS),
    Case("welch", (("b", 30), (8,)), welch, PEAKS),
]


each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_policy = pytest.mark.parametrize("policy", FusionPolicy, ids=lambda p: p.value)


def names(case: Case) -> list[str]:
    return [f"v{i}" for i in range(len(case.operands))]


def built(
    case: Case, policy: FusionPolicy = FusionPolicy.DIRECT, sizes: dict[str, int] | None = None
):
    """A module of the one block, over named dims or over their sizes."""
    module = HirModule(case.block, policy)
    known = sizes or {}
    dims = [[known.get(d, rlx.Dim(d)) if isinstance(d, str) else d for d in ds]
            for ds in case.operands]  # fmt: skip
    nodes = [module.input(n, rlx.Shape(ds, F64)) for n, ds in zip(names(case), dims)]
    made = getattr(module, case.block)(*nodes, **case.attrs)
    module.set_outputs(made if isinstance(made, tuple) else [made])
    return module


def arrays(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    drawn = [rng.normal(size=[SIZES.get(d, d) for d in ds]) for ds in case.operands]
    return [np.abs(a) if i in case.positive else a for i, a in enumerate(drawn)]


def results(module: HirModule, case: Case) -> list[np.ndarray]:
    return evaluate(module.lower().graph, dict(zip(names(case), arrays(case))))


def as_list(made):
    return list(made) if isinstance(made, tuple | list) else [made]


def test_every_block_has_a_case():
    assert {case.block for case in CASES} == set(block.table())


@each_case
@each_policy
def test_lowering_means_what_the_block_means(case, policy):
    given = results(built(case, policy, SIZES), case)
    for made, expected in zip(given, as_list(case.meaning(*arrays(case))), strict=True):
        np.testing.assert_allclose(made, expected, **CLOSE)


@each_case
def test_the_body_is_the_meaning_and_the_fusable_spelling(case):
    values = arrays(case)
    called = as_list(getattr(blocks, case.block)(*values, **case.attrs))
    module = built(case, FUSABLE, SIZES)
    evaluated = evaluate(module.graph, dict(zip(names(case), values)))
    for a, b, c in zip(called, evaluated, results(module, case), strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()


@each_case
@each_policy
def test_named_dims_lower_as_sizes_do(case, policy):
    dynamic, static = built(case, policy), built(case, policy, SIZES)
    assert dynamic.bind(SIZES) == static
    assert dynamic.lower().graph.bind(SIZES) == static.lower().graph
    for a, b in zip(results(dynamic, case), results(static, case), strict=True):
        assert a.tobytes() == b.tobytes()


@each_case
def test_the_signature_states_the_results(case):
    decl = block.table()[case.block]
    (node,) = (n for n in built(case).nodes if n.op == case.block)
    grown = case.block == "log_mel_spectrogram"
    if any("..." in r.dims for r in decl.signature.results):
        assert [s.rank for s in node.shapes] == [node.inputs[0].rank + grown]
    else:
        assert decl.signature.infer([i.shape for i in node.inputs], node.attrs) == node.shapes


@each_case
@each_policy
def test_text_reads_back(case, policy):
    module = built(case, policy)
    assert str(module).startswith(f'hir "{case.block}" {policy.value} {{')
    assert read_module(str(module)) == module


@each_case
def test_half_floats_keep_their_dtype(case):
    module = HirModule("half", FUSABLE)
    dims = [[SIZES.get(d, d) for d in ds] for ds in case.operands]
    nodes = [module.input(n, rlx.Shape(ds, "bf16")) for n, ds in zip(names(case), dims)]
    made = getattr(module, case.block)(*nodes, **case.attrs)
    assert {n.dtype for n in as_list(made)} == {rlx.DType.BF16}


def test_a_decoder_repeats_no_key_head():
    (case,) = (c for c in CASES if c.block == "llama_decoder_block")
    ops = [n.op for n in built(case, FUSABLE).lower().graph.order()]
    assert ops.count("attention") == 1
    assert ops.count("rope") == 2
    assert ops.count("matmul") == 7
    assert not {"narrow", "concat", "expand", "tile", "reshape", "constant", "cast"} & set(ops)


def test_transformer_block_is_the_decoder():
    (case,) = (c for c in CASES if c.block == "llama_decoder_block")
    module = HirModule("alias")
    nodes = [module.input(n, rlx.Shape([SIZES.get(d, d) for d in ds]))
             for n, ds in zip(names(case), case.operands)]  # fmt: skip
    assert module.transformer_block(*nodes, **case.attrs).op == "llama_decoder_block"


def test_items_of_a_block_lead_to_its_results():
    (case,) = (c for c in CASES if c.block == "llama_decoder_step")
    lowered = built(case, FUSABLE).lower().graph
    assert [o.op for o in lowered.outputs] == ["add", "concat", "concat"]
    assert "item" not in {n.op for n in lowered.order()}


def test_heads_must_fit_their_projections():
    (case,) = (c for c in CASES if c.block == "llama_decoder_block")
    with pytest.raises(rlx.GraphError, match="wq is 16 wide, but 8 heads of 4 are 32"):
        built(Case(case.block, case.operands, case.meaning, case.attrs | {"num_heads": 8}))
