"""Attention as `torch.onnx.export(dynamo=True)` writes it is one attention op for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

from rlx.frontends.onnx.model import from_proto
from rlx.ir.mir import Node
from rlx.passes.context import Context
from rlx.passes.simplify import simplify
from rlx.rules.engine import Missed
from tests.onnx.nodes import ours, same, theirs

RNG = np.random.default_rng(3)
LOWEST = "-3.4028234663852886e38"

HEADS = """
    {x}3 = Reshape (x{n}, {x}_split)
    {x} = Transpose <perm = [0, 2, 1, 3]> ({x}3)
"""
TRANSPOSED_KEYS = """
    k_flat = Reshape (k, k_merged)
    k_back = Transpose <perm = [0, 2, 1]> (k_flat)
    k_t = Reshape (k_back, k_unmerged)
"""
SCALED = """
    q_s = Mul (q, root)
    k_s = Mul (k_t, root)
    s = MatMul (q_s, k_s)
"""
GUARDED = """
    p0 = Softmax <axis = -1> (m)
    is_nan = IsNaN (p0)
    p = Where (is_nan, zero, p0)
"""
END = """
    o = MatMul (p, v)
    o3 = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (o3, joined)
"""
PENALTY = """
    see = Cast <to = 9> (x3)
    penalty = Where (see, zero, lowest)
    m = Add (s, penalty)
"""
KV_REPEATED = """
    {x}_one = Unsqueeze ({x}, two)
    {x}_wide = Expand ({x}_one, {x}_groups)
"""


def heads(*names: str) -> str:
    return "".join(HEADS.format(x=x, n="qkv".index(x)) for x in names)


def model(body: str, inputs: Sequence[str], b: Any, **more: str) -> ModelProto:
    """Queries, keys and values of four heads of eight; `b` is the batch, perhaps a name."""
    one = 2 if isinstance(b, str) else b
    constants = {
        "q_split": f"int64[4] = {{{one if b == one else 0}, -1, 4, 8}}",
        "k_split": "int64[4] = {0, -1, 4, 8}", "v_split": "int64[4] = {0, -1, 4, 8}",
        "k_merged": "int64[3] = {-1, 6, 8}", "k_unmerged": "int64[4] = {-1, 4, 8, 6}",
        "joined": "int64[3] = {0, -1, 32}", "root": "float = {0.5946035575}",
        "zero": "float = {0.0}", "lowest": f"float = {{{LOWEST}}}", "two": "int64[1] = {2}",
        **more,
    }  # fmt: skip
    used = "\n".join(
        f"    {name} = Constant <value = {text.replace(' = ', ' ')}> ()"
        for name, text in constants.items()
        if name in body
    )
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]>\n'
        f"exported ({', '.join(inputs)}) => (float[o0, o1, 32] y) {{\n{used}\n{body}\n}}"
    )


QKV = [f"float[b, 6, 32] x{i}" for i in range(3)]
MASK = "bool[b, 1, 6, 6] x3"
GQA = ["float[b, 6, 32] x0", "float[b, 6, 16] x1", "float[b, 6, 16] x2", MASK]
GROUPS = {
    "k_split": "int64[4] = {0, -1, 2, 8}", "v_split": "int64[4] = {0, -1, 2, 8}",
    "k_groups": "int64[5] = {1, 2, 2, 6, 8}", "v_groups": "int64[5] = {1, 2, 2, 6, 8}",
    "v_joined": "int64[4] = {-1, 4, 6, 8}",
}  # fmt: skip

MODELS: dict[str, tuple[ModelProto, str]] = {
    "ViT": (
        model(heads("q", "k", "v") + TRANSPOSED_KEYS + SCALED + "    m = Add (s, zero)\n"
              + GUARDED + END, QKV, "b"),
        "none",
    ),
    "CLIP": (
        model(heads("q", "k", "v") + TRANSPOSED_KEYS + SCALED
              + "    p = Softmax <axis = -1> (s)\n" + END, QKV, "b"),
        "none",
    ),
    "BERT": (
        model(heads("q", "k", "v") + TRANSPOSED_KEYS + SCALED + PENALTY + GUARDED + END,
              [*QKV, MASK], "b"),
        "bias",
    ),
    "T5": (
        model(
            heads("q", "k", "v") + TRANSPOSED_KEYS
            + "    s = MatMul (q, k_t)\n    seen = Where (x3, x4, lowest)\n    m = Add (s, seen)\n"
            + "    p = Softmax <axis = -1> (m)\n" + END,
            [*QKV, MASK, "float[1, 4, 6, 6] x4"], "b",
        ),
        "bias",
    ),
    "llama": (
        model(
            heads("q", "k", "v") + KV_REPEATED.format(x="k") + KV_REPEATED.format(x="v")
            + "    k_flat = Reshape (k_wide, k_merged)\n"
            + "".join(TRANSPOSED_KEYS.splitlines(keepends=True)[2:])
            + "    v4 = Reshape (v_wide, v_joined)\n"
            + SCALED + PENALTY + GUARDED + END.replace("(p, v)", "(p, v4)"),
            GQA, "b", **GROUPS,
        ),
        "bias",
    ),
    "DeBERTa": (
        model(
            heads("q", "k", "v")
            + "    q_flat = Reshape (q, k_merged)\n    k_flat = Reshape (k, k_merged)\n"
            + "    k_t = Transpose <perm = [0, 2, 1]> (k_flat)\n    k_d = Div (k_t, root)\n"
            + "    s3 = MatMul (q_flat, k_d)\n    s4 = Add (s3, x4)\n"
            + "    s = Reshape (s4, by_head)\n    m = Where (x3, s, lowest)\n"
            + "    p4 = Softmax <axis = -1> (m)\n    p = Reshape (p4, merged)\n"
            + "    v_flat = Reshape (v, k_merged)\n    o0 = MatMul (p, v_flat)\n"
            + "    o = Reshape (o0, heads)\n" + END.split("\n", 2)[2],
            [*QKV, MASK, "float[1, 6, 6] x4"], "b",
            by_head="int64[4] = {-1, 4, 6, 6}", merged="int64[3] = {-1, 6, 6}",
            heads="int64[4] = {-1, 4, 6, 8}",
        ),
        "bias",
    ),
}  # fmt: skip


def arrays(proto: ModelProto) -> list[Any]:
    """Values of every input, at a batch of 2; the last query of a row sees no key."""
    return [
        value([d.dim_value or 2 for d in i.type.tensor_type.shape.dim]) for i in proto.graph.input
    ]


def value(dims: Sequence[int]) -> Any:
    if dims[1:2] != [1]:
        return RNG.normal(size=dims).astype(np.float32)
    mask = np.broadcast_to(np.tri(6, dtype=bool), [*dims[:2], 6, 6]).copy()
    mask[1, :, 5] = False
    return mask


def nodes(proto: ModelProto) -> tuple[list[Node], Context]:
    context = Context.of("cpu")
    return simplify(from_proto(proto).graph, context).order(), context


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_is_one_attention(name: str) -> None:
    proto, kind = MODELS[name]
    found = nodes(proto)[0]
    (attention,) = [n for n in found if n.op == "attention"]
    assert attention.attrs["mask_kind"] == kind
    assert attention.attrs["kv_heads"] == (2 if name == "llama" else None)
    assert not {"softmax", "is_nan", "matmul", "expand"} & {n.op for n in found}
    values = arrays(proto)
    same(ours(proto, values), theirs(proto, values))


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        ("    p = Softmax <axis = 2> (s)\n", "not over the keys"),
        ("    e = Exp (s)\n    p = Softmax <axis = -1> (e)\n", "exp of the scores"),
        ("    m = Mul (s, x3)\n    p = Softmax <axis = -1> (m)\n", "scaled key by key"),
        ("    m = Where (x4, s, x3)\n    p = Softmax <axis = -1> (m)\n", "no one number"),
        ("    m = Where (x4, s, root)\n    p = Softmax <axis = -1> (m)\n", "still has a weight"),
    ],
)
def test_a_softmax_between_products_that_is_no_attention_says_why(tail: str, why: str) -> None:
    inputs = [*QKV, "float[6] x3", "bool[b, 1, 6, 6] x4"]
    proto = model(heads("q", "k", "v") + TRANSPOSED_KEYS + SCALED + tail + END, inputs, "b")
    found, context = nodes(proto)
    assert "softmax" in {n.op for n in found}
    reasons = [e.reason for e in context.rewrites if isinstance(e, Missed)]
    assert any(why in reason for reason in reasons)
