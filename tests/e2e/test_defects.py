"""Known defects of other systems, each shown to be done right here."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.interpret import evaluate

F32 = rlx.DType.F32
TARGETS = [t.value for t in rlx.FusionTarget]


def everywhere(g: rlx.Graph, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs as the graph says; every target's plan agrees to f32 rounding."""
    want = evaluate(g, values)
    for target in TARGETS:
        params = {n.attrs["name"]: values[n.attrs["name"]] for n in g.params}
        exe = rlx.compile(g, like=target, params=params)
        made = exe.run({n.attrs["name"]: values[n.attrs["name"]] for n in g.inputs})
        for got, expected in zip(made.values(), want, strict=True):
            # a handful of f32 roundings of numbers below 100
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4, err_msg=target)
    return want


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=dims).astype(np.float32)


def test_1_a_product_that_is_an_output_keeps_its_value() -> None:
    g = rlx.Graph("d1")
    x, w = g.input("x", rlx.Shape([3, 4])), g.param("w", rlx.Shape([4, 5]))
    b = g.param("b", rlx.Shape([5]))
    product = g.mm(x, w)
    g.set_outputs([product, g.relu(g.add(product, b))])
    values = {"x": normal(3, 4), "w": normal(4, 5, seed=1), "b": normal(5, seed=2)}
    want = everywhere(g, values)
    np.testing.assert_allclose(want[0], values["x"] @ values["w"], rtol=1e-5)


@pytest.mark.parametrize("shared", ["gate", "up"])
def test_2_swiglu_with_a_shared_gate_or_up(shared: str) -> None:
    g = rlx.Graph("d2")
    x = g.input("x", rlx.Shape([3, 4]))
    gate = g.mm(x, g.param("wg", rlx.Shape([4, 6])))
    up = g.mm(x, g.param("wu", rlx.Shape([4, 6])))
    g.set_outputs([g.mul(g.silu(gate), up), {"gate": gate, "up": up}[shared]])
    everywhere(g, {"x": normal(3, 4), "wg": normal(4, 6, seed=1), "wu": normal(4, 6, seed=2)})


def test_3_broadcast_in_a_region_is_numpys() -> None:
    g = rlx.Graph("d3")
    a, b = g.input("a", rlx.Shape([8, 1])), g.input("b", rlx.Shape([8, 16]))
    g.set_outputs([g.relu(g.mul(g.add(a, b), b))])
    values = {"a": normal(8, 1), "b": normal(8, 16, seed=1)}
    want = everywhere(g, values)
    np.testing.assert_array_equal(want[0], np.maximum((values["a"] + values["b"]) * values["b"], 0))
    assert rlx.CompilePipeline().compile_graph(g).fusion.elementwise_region == 1


def test_5_fused_swiglu_unfused_applies_silu_to_the_gate() -> None:
    cat = normal(2, 6)
    for gate_first in (False, True):
        low = ops.fused_swiglu.lowered([cat], {"gate_first": gate_first})[0]
        gate, up = (cat[:, :3], cat[:, 3:]) if gate_first else (cat[:, 3:], cat[:, :3])
        np.testing.assert_allclose(low, gate / (1 + np.exp(-gate)) * up, rtol=1e-5)
        np.testing.assert_allclose(ops.fused_swiglu(cat, gate_first=gate_first), low, rtol=1e-6)


def test_8_shape_rules_refuse_what_has_no_meaning() -> None:
    g = rlx.Graph("d8")
    x = g.input("x", rlx.Shape([2, 3]))
    i = g.input("i", rlx.Shape([2], rlx.DType.I64))
    wrong = [
        lambda: g.gather(x, i, axis=2),
        lambda: g.reshape(x, dims=(4, 2)),
        lambda: g.narrow(x, axis=1, start=2, length=2),
        lambda: g.sum(x, axes=(2,)),
        lambda: g.transpose(x, perm=(0, 0)),
    ]
    for build in wrong:
        with pytest.raises(rlx.GraphError, match=r"test_defects.py:\d+"):
            build()


def test_9_equality_and_fingerprint_see_contents() -> None:
    def graph(value: float, padding: int) -> rlx.Graph:
        g = rlx.Graph("d9")
        x, w = g.input("x", rlx.Shape([1, 1, 4, 4])), g.constant(np.full((1, 1, 3, 3), value, "f4"))
        g.set_outputs([g.conv2d(x, w, padding=(padding,) * 4)])
        return g

    assert graph(1.0, 0) == graph(1.0, 0)
    assert graph(1.0, 0) != graph(2.0, 0)
    assert graph(1.0, 0) != graph(1.0, 1)
    prints = {
        rlx.CompilePipeline().compile_graph(graph(v, p)).lir.fingerprint
        for v, p in ((1.0, 0), (2.0, 0), (1.0, 1))
    }
    assert len(prints) == 3


def test_11_folding_is_exact_in_every_dtype() -> None:
    g = rlx.Graph("d11")
    x = g.input("x", rlx.Shape([2], rlx.DType.I64))
    big = g.constant(np.array([2**53 + 1, -(2**62)], np.int64))
    gelu = g.gelu(g.constant(np.array([0.5, -1.5], np.float64)))
    g.set_outputs([g.add(x, g.mul(big, g.constant(np.array([3, 1], np.int64)))), gelu])
    result = rlx.CompilePipeline().compile_graph(g)
    assert not any(n.op in ("mul", "gelu") for n in result.lir.mir.graph.order())
    made = rlx.compile(g).run({"x": np.array([1, 2], np.int64)})
    np.testing.assert_array_equal(made["output0"], [3 * (2**53 + 1) + 1, -(2**62) + 2])
    import math

    want = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in (0.5, -1.5)]
    np.testing.assert_allclose(made["output1"], want, rtol=1e-14)  # a few f64 roundings


def test_12_comparisons_are_bool_inside_and_outside_regions() -> None:
    g = rlx.Graph("d12")
    a, b = g.input("a", rlx.Shape([4])), g.input("b", rlx.Shape([4]))
    mask = g.less(g.add(a, b), b)
    g.set_outputs([mask, g.where(mask, a, b)])
    want = everywhere(g, {"a": normal(4), "b": normal(4, seed=1)})
    assert want[0].dtype == np.bool_
    for target in TARGETS:
        assert rlx.compile(g, like=target).outputs["output0"].dtype is rlx.DType.BOOL


@pytest.mark.parametrize("kind", ["custom", "bias"])
def test_13_mask_kinds_mean_what_they_say(kind: str) -> None:
    """custom: 1 keeps and 0 ignores a key; bias is added to the scores."""
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4, seed=1), normal(1, 2, 5, 4, seed=2)
    keep = np.array([[1, 1, 0, 1, 0]], np.float32)
    scores = q @ k.swapaxes(-1, -2) / 2.0
    bias = np.where(keep[:, None, None, :] < 0.5, -1e30, 0.0).astype(np.float32)
    mask = keep if kind == "custom" else np.broadcast_to(bias, (1, 2, 3, 5)).copy()
    scores = scores + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    want = (e / e.sum(-1, keepdims=True)) @ v
    got = ops.attention(q, k, v, mask, num_heads=2, mask_kind=kind)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_14_no_pass_touches_the_outputs() -> None:
    from bench.models import welch

    g = welch(with_spectrum=True, batch=4, n_fft=16)
    peaks = g.welch_peaks(g.outputs[0], k=2, n_segments=2)
    g.set_outputs({"spectrum": g.outputs[0], "peaks": peaks, "again": peaks})
    for target in TARGETS:
        exe = rlx.compile(g, like=target)
        assert list(exe.outputs) == ["spectrum", "peaks", "again"]
        made = exe.run({"segments": normal(8, 16)})
        assert made["spectrum"].shape == (8, 32)
        np.testing.assert_array_equal(made["peaks"], made["again"])
