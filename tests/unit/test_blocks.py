"""Blocks: whatever the policy, lowering means what the block means, stated in plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx import FusionPolicy, blocks
from rlx.ir import block
from rlx.ir.interpret import evaluate
from rlx.ir.text import read_module
from tests.unit import model_cases
from tests.unit.block_cases import (
    CLOSE,
    FUSABLE,
    SIZES,
    Case,
    arrays,
    as_list,
    built,
    conv,
    conv_norm,
    gelu,
    gelu_tanh,
    inputs,
    layer_norm,
    log_mel,
    relu,
    results,
    rms_norm,
    silu,
    welch,
)

X, W = ("b", "s", 8), (8, 6)
MEL = (("b", 20), (8,), (4, 5))
PEAKS = {"k": 3, "n_fft": 8, "hop": 4}
IMAGE, KERNEL = ("b", 4, "s", 6), (6, 4, 3, 3)
WINDOW = {"stride": (2, 1), "padding": (1, 0, 2, 1), "groups": 2}
FFN = (X, (8, 12), (8, 12), (12, 8))
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
    *model_cases.CASES,
]


each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_policy = pytest.mark.parametrize("policy", FusionPolicy, ids=lambda p: p.value)


def test_every_block_has_a_case():
    assert {case.block for case in CASES} == set(block.table())


@each_case
@each_policy
def test_lowering_means_what_the_block_means(case, policy):
    given = results(built(case, policy, SIZES), case)
    for made, expected in zip(given, case.expected(arrays(case)), strict=True):
        np.testing.assert_allclose(made, expected, **CLOSE)


@each_case
def test_the_body_is_the_meaning_and_the_fusable_spelling(case):
    values = arrays(case)
    called = as_list(getattr(blocks, case.block)(*values, **case.attrs))
    module = built(case, FUSABLE, SIZES)
    evaluated = evaluate(module.graph, inputs(values))
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
    grown = {"log_mel_spectrogram": 1, "patch_embedding": -1}.get(case.block, 0)
    if any("..." in r.dims for r in decl.signature.results):
        assert [s.rank for s in node.shapes] == [node.inputs[0].rank + grown]
    else:
        given = decl.of_given(node.attrs)
        assert given.signature.infer([i.shape for i in node.inputs], node.attrs) == node.shapes


@each_case
@each_policy
def test_text_reads_back(case, policy):
    module = built(case, policy)
    assert str(module).startswith(f'hir "{case.block}" {policy.value} {{')
    assert read_module(str(module)) == module


@each_case
def test_half_floats_keep_their_dtype(case):
    module = built(case, FUSABLE, SIZES, rlx.DType.BF16)
    assert {n.dtype for n in module.outputs} == {rlx.DType.BF16}


def test_a_decoder_repeats_no_key_head():
    case = next(c for c in CASES if c.block == "llama_decoder_block")
    ops = [n.op for n in built(case, FUSABLE).lower().graph.order()]
    assert ops.count("attention") == 1
    assert ops.count("rope") == 2
    assert ops.count("matmul") == 7
    assert not {"narrow", "concat", "expand", "tile", "reshape", "constant", "cast"} & set(ops)


def test_transformer_block_is_the_decoder():
    case = next(c for c in CASES if c.block == "llama_decoder_block")
    made = built(replace(case, block="transformer_block"))
    assert [n.op for n in made.nodes if n.op.endswith("block")] == ["llama_decoder_block"]


def test_items_of_a_block_lead_to_its_results():
    case = next(c for c in CASES if c.block == "llama_decoder_step")
    lowered = built(case, FUSABLE).lower().graph
    assert [o.op for o in lowered.outputs] == ["add", "concat", "concat"]
    assert "item" not in {n.op for n in lowered.order()}


def test_heads_must_fit_their_projections():
    case = next(c for c in CASES if c.block == "llama_decoder_block")
    with pytest.raises(rlx.GraphError, match="wq is 16 wide, but 8 heads of 4 are 32"):
        built(replace(case, attrs=case.attrs | {"num_heads": 8}))
