"""HIR modules: building, counting, provenance, lowering and errors."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import FusionPolicy, HirModule
from rlx.ir.hir import wrap_mir_graph
from rlx.ir.mir import Origin
from rlx.ops.op import Kind

DIRECT, FUSABLE = FusionPolicy.DIRECT, FusionPolicy.FUSABLE

each_policy = pytest.mark.parametrize("policy", FusionPolicy, ids=lambda p: p.value)


# -- node counts -----------------------------------------------------------------------------------


def ops_of(module: HirModule) -> list[str]:
    return [n.op for n in module.lower().graph.order() if not n.is_leaf]


def one(name: str, *dims: tuple[int, ...], policy=DIRECT, **attrs) -> HirModule:
    """A module of one block over operands of `dims`."""
    module = HirModule(name, policy)
    operands = [module.input(f"v{i}", rlx.Shape(d)) for i, d in enumerate(dims)]
    module.set_outputs([getattr(module, name)(*operands, **attrs)])
    return module


X, W, B = (2, 4), (4, 6), (6,)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "tanh", "exp"])
def test_direct_linear_with_bias_is_one_op(activation):
    module = one("linear", X, W, B, activation=activation)
    assert ops_of(module) == ["fused_matmul_bias_act"]
    assert module.lower().graph.outputs[0].attrs["activation"] == activation
    assert len(module.lower()) == 4


@each_policy
def test_linear_without_bias_is_a_product(policy):
    assert ops_of(one("linear", X, W, policy=policy)) == ["matmul"]
    assert ops_of(one("linear", X, W, policy=policy, activation="relu")) == ["matmul", "relu"]


def test_fusable_linear_is_primitive():
    module = one("linear", X, W, B, policy=FUSABLE, activation="silu")
    assert ops_of(module) == ["matmul", "add", "silu"]


def test_linear_fused_is_one_op_under_any_policy():
    assert ops_of(one("linear_fused", X, W, B, policy=FUSABLE)) == ["fused_matmul_bias_act"]


FFN = ((2, 4), (4, 8), (4, 8), (8, 4))


def test_direct_swiglu_has_8_nodes():
    module = one("swiglu_ffn", *FFN)
    assert ops_of(module) == ["concat", "matmul", "fused_swiglu", "matmul"]
    assert len(module.lower()) == 8


def test_fusable_swiglu_has_9_nodes():
    module = one("swiglu_ffn", *FFN, policy=FUSABLE)
    assert sorted(ops_of(module)) == ["matmul", "matmul", "matmul", "mul", "silu"]
    assert len(module.lower()) == 9


def test_direct_norms_are_fused():
    rows = ((2, 4), (2, 4), (4,), (4,))
    assert ops_of(one("residual_rms_norm", *rows)) == ["fused_residual_rms_norm"]
    assert ops_of(one("residual_rms_norm", *rows[:3])) == ["fused_residual_rms_norm"]
    assert ops_of(one("residual_layer_norm", *rows)) == ["fused_residual_ln"]
    assert ops_of(one("residual_rms_norm", *rows, policy=FUSABLE)) == ["add", "rms_norm"]
    assert ops_of(one("residual_layer_norm", *rows, policy=FUSABLE)) == ["add", "layer_norm"]


def test_a_shared_pair_is_two_products():
    module = HirModule("pair")
    x, v, w = (module.input(n, rlx.Shape(s)) for n, s in (("x", X), ("v", W), ("w", W)))
    picked = [module.shared_linear_pair(x, v, w, slot=s) for s in (0, 1, 0)]
    assert picked[0] is picked[2]
    module.set_outputs(picked)
    assert ops_of(module) == ["matmul", "matmul"]
    labels = [
        o.text for n in module.lower().graph.outputs[:2] for o in n.origins if o.kind == "block"
    ]
    assert labels == ["shared_linear_pair[0]", "shared_linear_pair[1]"]


# -- building --------------------------------------------------------------------------------------


def small() -> tuple[HirModule, rlx.Node, rlx.Node]:
    module = HirModule("small")
    return module, module.input("x", rlx.Shape(X)), module.param("w", rlx.Shape(W))


def test_operands_go_by_name_too():
    module, x, w = small()
    b = module.param("b", rlx.Shape(B))
    made = module.linear(x, w, bias=b, activation="relu")
    assert module.linear(x, w, b, "relu") is made
    assert module.linear(w=w, x=x, bias=b, activation="relu") is made


def test_table_ops_stand_in_hir_as_they_are():
    module, x, w = small()
    module.set_outputs([module.mir("softmax", module.matmul(x, w) + 1.0, axis=-1)])
    lowered = module.lower()
    assert ops_of(module) == ["matmul", "add", "softmax"]
    assert lowered.graph == module.graph


def test_blocks_promote_dtypes():
    module, x, _ = small()
    made = module.linear(x, np.ones((4, 2)))
    assert made.dtype is rlx.DType.F64
    assert made.inputs[0].op == "cast"


def test_output_names_survive():
    module, x, w = small()
    module.set_outputs({"y": module.linear(x, w)})
    assert module.lower().graph.output_names == ("y",)


def test_leaves_keep_their_place():
    module, x, _ = small()
    unused = module.input("unused", rlx.Shape([3]))
    module.set_outputs([module.relu(x)])
    lowered = module.lower().graph
    assert [n.attrs["name"] for n in lowered.inputs] == ["x", "unused"]
    assert [n.attrs["name"] for n in lowered.params] == ["w"]
    assert unused.shape == lowered.inputs[1].shape


def test_equality_is_structural_and_counts_the_policy():
    def make(policy=DIRECT, activation="relu"):
        return one("linear", X, W, policy=policy, activation=activation)

    assert make() == make()
    assert make() != make(activation="silu")
    assert make() != make(FUSABLE)
    assert make().with_policy(FUSABLE) == make(FUSABLE)
    assert make() != make().graph


def test_a_graph_becomes_a_module():
    graph = rlx.Graph("ops")
    x = graph.input("x", rlx.Shape(X))
    graph.set_outputs([graph.relu(x)])
    module = wrap_mir_graph(graph)
    assert module.lower().graph == graph
    made = module.linear(module.outputs[0], np.ones((4, 1), np.float32))
    module.set_outputs([made])
    assert ops_of(module) == ["relu", "matmul"]


def test_blocks_inside_a_body_are_lowered():
    inner = one("linear", X, W)
    module, x, w = small()
    module.set_outputs([module.mir("region", x, w, body=inner.graph)])
    (region,) = module.lower().graph.outputs
    assert [n.op for n in region.attrs["body"].order()] == ["input", "input", "matmul"]


def test_a_long_chain_lowers():
    module, x, _ = small()
    weight = module.param("square", rlx.Shape([4, 4]))
    for _ in range(3000):
        x = module.linear(x, weight)
    module.set_outputs([x])
    assert len(module.lower()) == 3000 + 3


# -- provenance ------------------------------------------------------------------------------------


@each_policy
def test_every_op_of_a_block_says_which(policy):
    module = HirModule("net", policy)
    x, up, gate, down = (module.input(n, rlx.Shape(d)) for n, d in zip("xugd", FFN))
    with module.scope("layer0"):
        y = module.named("ffn", lambda m: m.swiglu_ffn(x, up, gate, down))
    module.set_outputs([module.relu(module.swiglu_ffn(y, up, gate, down))])
    lowered = module.lower().graph
    made = [n for n in lowered.order() if not n.is_leaf]
    in_layer = [n for n in made if Origin("block", "layer0") in n.origins]
    assert len(in_layer) == (4 if policy is DIRECT else 5)
    for node in in_layer:
        kinds = [o.kind for o in node.origins[:4]]
        texts = [o.text for o in node.origins[:4]]
        assert kinds == ["line", "block", "block", "block"]
        assert texts[0].startswith("test_hir.py:")
        assert texts[1:] == ["layer0", "ffn", "swiglu_ffn"]
    assert all(Origin("block", "swiglu_ffn") in n.origins for n in made[:-1])
    assert [o.kind for o in made[-1].origins] == ["line"]
    assert all(o.kind == "line" for leaf in lowered.leaves for o in leaf.origins)


# -- errors ----------------------------------------------------------------------------------------


def wrong(build, message):
    module, x, w = small()
    with (
        pytest.raises(rlx.GraphError, match=rf"at test_hir\.py:\d+, block spot: {message}") as e,
        module.scope("spot"),
    ):
        build(module, x, w)
    return str(e.value)


def test_errors_name_block_and_label():
    text = wrong(
        lambda m, x, w: m.swiglu_ffn(x, w, w), r"needs operand 'down'\. It takes at least x"
    )
    assert text.startswith("swiglu_ffn at ")
    text = wrong(lambda m, x, w: m.linear(x, None), "needs operand 'w'")
    assert text.startswith("linear at ")
    wrong(lambda m, x, w: m.linear_fused(x, w), "needs operand 'bias'")
    wrong(lambda m, x, w: m.swiglu_ffn(x, None, w, w), "needs operand 'up'")
    wrong(lambda m, x, w: m.linear(x, w, w, w), "takes 2 to 3 operands, got 4")
    wrong(lambda m, x, w: m.swiglu_ffn(x, w, w, w, x), "takes 4 operands, got 5")
    wrong(lambda m, x, w: m.linear(x, w, w=w), "w is given twice")
    wrong(lambda m, x, w: m.linear(w, w), "operand 1 is .*: its dim k is 4, but 6 in operand 0")
    wrong(lambda m, x, w: m.linear(x, w, colour="red"), "has no attribute 'colour'")
    wrong(lambda m, x, w: m.linear(x, w, activation=3), "attribute activation: expected a string")
    wrong(
        lambda m, x, w: m.linear(x, w, activation="rleu"),
        "attribute activation: 'rleu' is no elementwise",
    )
    wrong(lambda m, x, w: m.linear(x, w, activation="add"), "attribute activation: 'add' is no")
    wrong(lambda m, x, w: m.shared_linear_pair(x, w, w, slot=2), "attribute slot: expected one of")


def test_other_modules_and_unknown_blocks_are_refused():
    module, x, w = small()
    other = small()[0]
    with pytest.raises(rlx.GraphError, match="belongs to another graph"):
        other.linear(x, w)
    with pytest.raises(rlx.GraphError, match="no method, block or op 'linaer'"):
        module.linaer(x, w)
    with pytest.raises(rlx.Error, match=r"policy is 'direct'\. Use FusionPolicy"):
        HirModule("m", "direct")


def test_a_module_without_outputs_does_not_lower():
    with pytest.raises(rlx.GraphError, match="has no outputs"):
        small()[0].lower()


def test_blocks_are_no_mir():
    module = one("linear", X, W)
    with pytest.raises(rlx.GraphError, match="is a block, not an op"):
        rlx.MirModule(module.graph)
    assert module.outputs[0].decl.kind is Kind.BLOCK
    assert not hasattr(rlx.Graph("g"), "linear")
