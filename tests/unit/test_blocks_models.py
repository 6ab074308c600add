"""Blocks of models: Direct, Fusable and unfused, node by node and compiled, mean the same, at
lengths 0 and 1 too, under every mask, and however a sequence is cut."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import rlx
from rlx import FusionPolicy, HirModule, blocks
from rlx.ir.interpret import evaluate
from rlx.ops.quant.gguf import SCHEMES
from rlx.passes.context import Context
from rlx.passes.legalise import legalise
from rlx.passes.options import DispatchPolicy, FusionOptions
from tests.effort import sample
from tests.unit import model_cases
from tests.unit.block_cases import (
    CLOSE,
    FUSABLE,
    SIZES,
    Case,
    arrays,
    built,
    inputs,
    results,
    silu,
)
from tests.unit.model_cases import DELTA, HEADS, LAYER, MASKS, decoding, recalling, stepping

each_policy = pytest.mark.parametrize("policy", FusionPolicy, ids=lambda p: p.value)
UNFUSED = FusionOptions(skip_fusion=True, dispatch=DispatchPolicy(mode="force_common"))
"""Every op that has a lowering as its lowering, and nothing fused again."""


def assert_close(given, expected):
    for a, b in zip(given, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, **CLOSE)


# -- compiled -------------------------------------------------------------------------------------


NEEDS_ROWS = ("pooler", "audio_stem")
"""The first row, and windows, of nothing are errors."""


def lengths(case):
    """Sequences of no step, of one and of more, where the case has sequences."""
    has_any = any("s" in (dims or ()) for dims in case.operands)
    return [0, 1, 5] if has_any and case.block not in NEEDS_ROWS else [5]


@pytest.mark.parametrize("case", model_cases.CASES, ids=str)
@each_policy
def test_compiled_is_what_the_block_means_at_any_length(case, policy):
    module = built(case, policy).bind({"b": 2, "p": 3, "t": 4})
    lowered = module.lower().graph
    compiled = [rlx.compile(module, like=like) for like in ("cpu", "cuda")]
    for length in lengths(case):
        values = arrays(case, SIZES | {"s": length})
        given, expected = inputs(values), case.expected(values)
        assert_close(evaluate(lowered, given), expected)
        for model in compiled:
            assert_close(model.run(given).values(), expected)


ONE_POLICY = [
    (case, policy)
    for i, case in enumerate(model_cases.CASES)
    for policy in sample(list(FusionPolicy), 2, i % 2)
]


@pytest.mark.parametrize(("case", "policy"), ONE_POLICY, ids=str)
def test_unfused_is_what_the_block_means(case, policy):
    values = arrays(case)
    model = rlx.compile(built(case, policy, SIZES), options=UNFUSED)
    kernels = {n.op for n in model.lir.mir.graph.order()}
    assert not {"attention", "moe_ffn", "gated_delta_net", "rope", "rms_norm"} & kernels
    assert not [k for k in kernels if k.startswith("fused") or k.endswith("region")]
    assert_close(model.run(inputs(values)).values(), case.expected(values))


# -- masks and lengths ----------------------------------------------------------------------------

LENGTHS = [(0, 0), (0, 3), (1, 0), (1, 3), (4, 0), (4, 1)]


def masked(kind, kv_heads):
    """A step of a layer with this mask and as many heads of keys."""
    dims, attrs = MASKS[kind]
    width = 4 * kv_heads
    layer = (*LAYER[:3], (8, width), (8, width), *LAYER[5:])
    case = stepping((dims,), layer, kv_heads=kv_heads, mask_kind=kind, **attrs)
    past = (("b", "p", width),) * 2
    return replace(case, operands=(*case.operands[:12], *past, *case.operands[14:]))


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("kind", MASKS)
@each_policy
def test_every_mask_at_every_length(kind, kv_heads, policy):
    case = masked(kind, kv_heads)
    module = built(case, policy).bind({"b": 2})
    lowered = module.lower().graph
    spelled_out = legalise(lowered, Context.of("cpu", UNFUSED))
    assert "attention" not in {n.op for n in spelled_out.order()}
    compiled = [rlx.compile(module, like=like) for like in ("cpu", "cuda")]
    for length, past in LENGTHS:
        values = arrays(case, {"b": 2, "s": length, "p": past})
        given, expected = inputs(values), case.expected(values)
        for graph in (lowered, spelled_out):
            assert_close(evaluate(graph, given), expected)
        for model in compiled:
            assert_close(model.run(given).values(), expected)


# -- sequences cut --------------------------------------------------------------------------------


def test_steps_with_a_cache_are_the_whole_layer():
    case = decoding(
        (None, (16,), (8,), (8,), None, (4,), (4,)), mask_kind="sliding_window", window=3
    )
    values = arrays(case)
    x, cos, sin = values[0], values[6], values[7]
    k = v = np.zeros((2, 0, 8))
    made = []
    for part in (slice(0, 2), slice(2, 2), slice(2, 3), slice(3, 5)):
        now = [x[:, part], *values[1:6], cos[part], sin[part], *values[8:12]]
        y, k, v = blocks.llama_decoder_step(*now, k, v, *values[12:], **case.attrs)
        made.append(y)
    assert_close([np.concatenate(made, 1)], case.expected(values))


def test_convolutions_go_on_from_their_state():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 7, 3)), rng.normal(size=(3, 4))
    state, made = np.zeros((2, 3, 3)), []
    for part in (slice(0, 1), slice(1, 1), slice(1, 6), slice(6, 7)):
        y, state = blocks.causal_conv_step(x[:, part], w, state, activation="silu")
        made.append(y)
    expected = silu(model_cases.causal(x, w)[0])
    assert_close([np.concatenate(made, 1), state], [expected, x[:, -3:]])


def test_delta_layers_go_on_from_their_states():
    case = recalling()
    x, *weights = arrays(case)
    states, made = (None, None), []
    for part in (slice(0, 1), slice(1, 4), slice(4, 5)):
        y, *states = blocks.gated_delta_net_layer(x[:, part], *weights, None, *states, **case.attrs)
        made.append(y)
    assert_close([np.concatenate(made, 1), *states], case.expected([x, *weights]))


# -- experts --------------------------------------------------------------------------------------


@each_policy
def test_an_expert_that_is_not_chosen_does_not_matter(policy):
    case = model_cases.mixing(top_k=2)
    x, router, gate, up, down = arrays(case)
    router[:, 3] = 0.0
    router[0, 3] = -100.0
    x[..., 0] = 1.0 + np.abs(x[..., 0])
    values = [x, router, gate, up, down]
    expected = case.expected(values)
    down[3] = np.inf
    made = evaluate(built(case, policy, SIZES).lower().graph, inputs(values))
    assert_close(made, expected)


def test_direct_multiplies_by_the_chosen_experts_alone():
    case = model_cases.mixing(top_k=2)
    spelled = {p: {n.op for n in built(case, p).lower().graph.order()} for p in FusionPolicy}
    assert "moe_ffn" in spelled[FusionPolicy.DIRECT]
    assert not {"moe_ffn", "grouped_matmul"} & spelled[FUSABLE]


def test_a_shared_expert_is_whole():
    case = model_cases.mixing((*model_cases.SHARED[:2],), top_k=2)
    with pytest.raises(rlx.GraphError, match="shared_gate, shared_up and shared_down"):
        built(case)


# -- packed weights -------------------------------------------------------------------------------


def packed_case(scheme, operands, meaning, **attrs):
    return Case(
        "dequant_linear", operands, meaning, {"scheme": scheme, **attrs}, frozenset({2}),
        {1: ("u8", 64), 3: ("u8", 9)},
    )  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@each_policy
def test_every_gguf_scheme_multiplies_as_gguf_decodes_it(scheme, policy):
    gguf = pytest.importorskip("gguf", reason="the source of the schemes")
    kind = gguf.GGMLQuantizationType[scheme.upper()]
    size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    if (SCHEMES[scheme].weights, SCHEMES[scheme].block_bytes) != (size, bytes_):
        pytest.fail(f"a block of {scheme} is {size} weights in {bytes_} bytes")

    def meaning(x, packed):
        if scheme == "q8_k":
            return x @ q8_k(packed).T
        return x @ gguf.quants.dequantize(packed, kind).astype(float).T

    case = packed_case(scheme, (("b", "s", 2 * size), (3, 2 * bytes_)), meaning)
    # Weights of some tens make sums of some hundreds: what cancels is relative to those.
    values = arrays(case)
    np.testing.assert_allclose(
        results(built(case, policy), case)[0], case.expected(values)[0], rtol=1e-12, atol=1e-9
    )


def q8_k(packed):
    """gguf decodes no q8_k: an f32 scale, 256 bytes with a sign, and sums that nobody needs."""
    runs = packed.reshape(len(packed), -1, 292)
    scale = np.ascontiguousarray(runs[..., :4]).view(np.float32).astype(float)
    return (runs[..., 4:260].view(np.int8) * scale).reshape(len(packed), -1)


def fp8(packed, exponent_bits):
    """Bytes below 64 are positive and have no special meaning."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = (packed >> mantissa_bits).astype(int)
    part = (packed & (2**mantissa_bits - 1)) / 2.0**mantissa_bits
    return np.where(
        exponent == 0, part * 2.0 ** (1 - bias), (1 + part) * 2.0 ** (exponent - float(bias))
    )


def halves(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).astype(float)


NUMBERS = {
    "int8": lambda p: p.view(np.int8).astype(float),
    "uint8": lambda p: p.astype(float),
    "int4": lambda p: (halves(p) + 8) % 16 - 8,
    "uint4": halves,
    "fp8_e4m3": lambda p: fp8(p, 4),
    "fp8_e5m2": lambda p: fp8(p, 5),
}


def blockwise(numbers, x, packed, scale, zero=None):
    n = numbers(packed).reshape(*scale.shape, 4)
    n = n if zero is None else n - zero[..., None].astype(float)
    return x @ (n * scale[..., None]).reshape(len(packed), -1).T


WITH_ZERO = [(scheme, True) for scheme in NUMBERS if not scheme.startswith("fp8")]


@pytest.mark.parametrize(("scheme", "has_zero"), [*((s, False) for s in NUMBERS), *WITH_ZERO])
@each_policy
def test_every_packing(scheme, has_zero, policy):
    size = 4 if scheme.endswith("int4") else 8
    operands = (("s", 8), (5, size), (5, 2), *[(5, 2)] * has_zero)
    case = packed_case(scheme, operands, partial(blockwise, NUMBERS[scheme]), run=4)
    assert_close(results(built(case, policy), case), case.expected(arrays(case)))


@pytest.mark.parametrize(
    ("scheme", "operands", "attrs", "message"),
    [
        ("q8_0", (("s", 32), (5, 34), (5, 1)), {}, "holds its own scales"),
        ("q8_0", (("s", 32), (5, 34)), {"run": 32}, "holds its own scales"),
        ("int8", (("s", 8), (5, 8)), {"run": 4}, "needs operand scale and attribute run"),
        ("int8", (("s", 8), (5, 8), (5, 2)), {}, "needs operand scale and attribute run"),
        ("int8", (("s", 8), (5, 8), (5, 2)), {"run": 3}, "are not 2 blocks of 3"),
        ("q8_0", (("s", 33), (5, 34)), {}, "33"),
    ],
)
def test_packed_weights_are_checked(scheme, operands, attrs, message):
    with pytest.raises(rlx.GraphError, match=message):
        built(packed_case(scheme, operands, None, **attrs))


# -- provenance and what is refused ---------------------------------------------------------------


@pytest.mark.parametrize("case", model_cases.CASES, ids=str)
@each_policy
def test_every_op_says_which_block_it_is_of(case, policy):
    label = f"dequant_linear({case.attrs.get('scheme')})"
    wanted = label if case.block == "dequant_linear" else case.block
    for node in built(case, policy).lower().graph.order():
        if node.op not in ("input", "constant"):
            assert wanted in [o.text for o in node.origins if o.kind == "block"], node


def with_operand(case, index, dims):
    return replace(case, operands=(*case.operands[:index], dims, *case.operands[index + 1 :]))


LONG = (None, (16,), (8,), (8,), (8,), (4,), (4,))
REFUSED = [
    (with_operand(decoding(LONG), 13, (8,)), "its dim e is 8, but 16"),
    (with_operand(decoding(LONG), 17, (8,)), "expected head_dim=4, got 8"),
    (with_operand(decoding(), 6, ("s", 1)), r"expected \[..., length, 2\]"),
    (with_operand(stepping(), 12, ("b", "p", 4)), "its dim g is 4, but 8"),
    (with_operand(stepping(), 13, ("b", "t", 8)), "its dim p is t, but p"),
    (decoding(mask_kind="custom"), "needs a mask"),
    (decoding(window=2), "window=2 with mask_kind 'causal'"),
    (decoding(n_rot=6), "n_rot=6 must be even, and at most the 4"),
    (recalling(key_heads=3), "key_heads=3 must divide num_heads=4"),
    (recalling(operands=(*DELTA[:2], (8, 20), *DELTA[3:6], (20, 3), *DELTA[7:])),
     "w_qkv is 20 wide, but twice 2 heads of 3 and 4 of 3 are 24"),
    (recalling(operands=(*DELTA[:9], (4,), DELTA[10])), "w_gate is 12 wide"),
    (recalling((None, ("b", 3, 24))), r"expected \[b, 2, 24\]"),
    (Case("patch_embedding", (("b", 3, 4, 6), (8, 3, 2, 3), None, None, (3, 8)), None),
     "there are 3 positions for 4 rows"),
    (Case("bert_embeddings", (*model_cases.TABLES, ("b", "s")), None, whole=model_cases.IDS),
     "no kind_table"),
    (Case("bert_embeddings", (("b", "s"), (9, 8), (4, 8), (8,), (8,)), None,
          whole=model_cases.IDS), "may be past the end of axis 0: 4"),
    (model_cases.mixing(top_k=6), "6"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_does_not_fit_is_refused(case, message):
    with pytest.raises(rlx.GraphError, match=message):
        built(case)


def test_operands_are_left_out_by_name():
    case = decoding((None, None, None, (8,)))
    plain = decoding()
    module = HirModule("named")
    nodes = [module.input(f"v{i}", rlx.Shape([SIZES.get(d, d) for d in dims], "f64"))
             for i, dims in enumerate(plain.operands)]  # fmt: skip
    bias = module.input("v15", rlx.Shape([8], "f64"))
    made = module.llama_decoder_block(*nodes, bv=bias, **HEADS)
    assert made.attrs["without"] == ("mask", "bq", "bk")
    assert len(made.inputs) == 13
    module.set_outputs([made])
    values = arrays(case)
    assert_close(evaluate(module.lower().graph, inputs(values)), case.expected(values))


def test_names_to_leave_out_are_checked_and_have_one_spelling():
    module = HirModule("spelled")
    x, up, down = (module.input(n, rlx.Shape(d)) for n, d in zip("xud", ((2, 8), (8, 6), (6, 8))))
    bias = module.input("b", rlx.Shape([6]))
    with pytest.raises(rlx.GraphError, match="without: 'up' is no operand to be left out"):
        module.graph.node(rlx.ir.block.find("gelu_ffn"), (x, up, down), {"without": ("up",)})
    one = module.gelu_ffn(x, up, down, bias)
    assert one is module.gelu_ffn(x, up, down, bias, without=("down_bias",))
    assert one.attrs["without"] == ()


def test_aliases_are_the_models_own_names():
    for alias in ("qwen_decoder_block", "transformer_block"):
        (made,) = built(replace(decoding(), block=alias)).outputs
        assert made.op == "llama_decoder_block"
    encoder = next(c for c in model_cases.CASES if c.block == "prenorm_encoder_block")
    for alias in ("vision_encoder_block", "audio_encoder_block"):
        (made,) = built(replace(encoder, block=alias)).outputs
        assert made.op == "prenorm_encoder_block"
