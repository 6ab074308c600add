"""Named dims that a weight or another size of the model settles."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.core.dim import Dim, DimLike, dim_min, evaluate
from rlx.core.shape import DimsDiffer
from rlx.frontends.dim_ranges import equal_for, ranges_for
from rlx.frontends.onnx.model import from_proto
from tests.effort import tries

RNG = np.random.default_rng(4)
ML = "ai.onnx.ml"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]


def floats(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


def model(
    nodes: list[tuple[Any, ...]], inputs: dict[str, list[Any]], weights: dict[str, Any]
) -> Any:
    """Nodes are (operator, operands, results, attributes); y is the output."""
    made = [helper.make_node(op, i.split(), o.split(), **attrs) for op, i, o, attrs in nodes]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes=made, name="g", inputs=infos, outputs=[y], initializer=held)
    return helper.make_model(graph, opset_imports=OPSETS)


def one(op: str, weights: dict[str, Any], dims: list[Any], **attrs: Any) -> Any:
    return model([(op, " ".join(["x", *weights]), "y", attrs)], {"x": dims}, weights)


PINNED: dict[str, Callable[[int], Any]] = {
    "MatMul": lambda k: one("MatMul", {"w": floats(k, 3)}, ["b", "c"]),
    "Gemm": lambda k: one("Gemm", {"w": floats(3, k)}, ["b", "c"], transB=1),
    "Einsum": lambda k: one("Einsum", {"w": floats(3, k)}, ["b", "c"], equation="bc,dc->bd"),
    "Add": lambda k: one("Add", {"w": floats(k)}, ["b", "c"]),
    "Concat": lambda k: one("Concat", {"w": floats(2, k)}, ["b", "c"], axis=0),
    "Conv": lambda k: one("Conv", {"w": floats(2, k, 1)}, ["b", "c", "n"]),
    "ConvTranspose": lambda k: one("ConvTranspose", {"w": floats(k, 2, 3)}, ["b", "c", "n"]),
    "BatchNormalization": lambda k: one(
        "BatchNormalization",
        {n: np.abs(floats(k)) + 1 for n in ("scale", "bias", "mean", "var")},
        ["b", "c", "n"],
    ),
    "LayerNormalization": lambda k: one("LayerNormalization", {"w": floats(k)}, ["b", "c"]),
    "LSTM": lambda k: one(
        "LSTM", {"w": floats(1, 8, k), "r": floats(1, 8, 2)}, ["n", "b", "c"], hidden_size=2
    ),
    "GRU": lambda k: one(
        "GRU", {"w": floats(1, 6, k), "r": floats(1, 6, 2)}, ["n", "b", "c"], hidden_size=2
    ),
    "ScatterElements": lambda k: one(
        "ScatterElements", {"i": np.zeros((1, k), np.int64), "u": floats(1, k)}, [4, "c"]
    ),
    "ScatterND": lambda k: one(
        "ScatterND", {"i": np.array([[1], [0]]), "u": floats(2, k)}, ["b", "c"]
    ),
    "Scaler": lambda k: one("Scaler", {}, ["b", "c"], domain=ML, scale=[2.0] * k, offset=[1.0] * k),
    "LinearRegressor": lambda k: one(
        "LinearRegressor", {}, ["b", "c"], domain=ML, coefficients=[0.5] * k, intercepts=[0.5]
    ),
    "SVMRegressor": lambda k: one(
        "SVMRegressor",
        {},
        ["b", "c"],
        domain=ML,
        n_supports=2,
        kernel_type="LINEAR",
        rho=[0.5],
        support_vectors=[0.25] * (2 * k),
        coefficients=[1.0, -2.0],
        kernel_params=[0.0, 0.0, 0.0],
    ),
    "LinearClassifier": lambda k: model(
        [
            (
                "LinearClassifier",
                "x",
                "label y",
                {
                    "domain": ML,
                    "coefficients": [0.5] * k + [-0.25] * k + [0.125] * k,
                    "intercepts": [0.0, 0.5, -1.0],
                    "classlabels_ints": [0, 1, 2],
                    "post_transform": "SOFTMAX",
                },
            )
        ],
        {"x": ["b", "c"]},
        {},
    ),
    "two nodes": lambda k: model(
        [("Concat", "x w", "t", {"axis": 1}), ("MatMul", "t v", "y", {})],
        {"x": [2, "c"]},
        {"w": floats(2, 3), "v": floats(3 + k, 2)},
    ),
    "half of it": lambda k: model(
        [("Split", "x", "t u", {"axis": 1}), ("MatMul", "u w", "y", {})],
        {"x": ["b", "c"]},
        {"w": floats(k, 2)},
    ),
}


REPEATED = ("Add", "LayerNormalization", "ScatterElements")
"""Those that take more sizes than one."""


def fitting(name: str, k: int) -> dict[str, Any]:
    """Arrays of the size that has a meaning: 3 for dims that nothing settles."""
    size = {"c": 2 * k if name == "half of it" else k}
    declared = PINNED[name](k).graph.input
    dims = [[d.dim_value or size.get(d.dim_param, 3) for d in i.type.tensor_type.shape.dim]
            for i in declared]  # fmt: skip
    return {i.name: floats(*d) for i, d in zip(declared, dims)}


@pytest.mark.parametrize("k", [1, 2, 5, 9, 30])
@pytest.mark.parametrize("name", PINNED)
def test_a_weight_settles_a_named_dim(name: str, k: int) -> None:
    """One program for the size at which the model has a meaning; another size is an error of the
    node that it does not fit, or is broadcast."""
    proto, x = PINNED[name](k), fitting(name, k)
    loaded = from_proto(proto)
    exe = rlx.compile(loaded, "reference")
    expected: Any = next(iter(ReferenceEvaluator(proto).run(["y"], x)))
    np.testing.assert_allclose(exe.run(x)["y"], expected, rtol=2e-5, atol=2e-5)
    assert not loaded.is_static, loaded.why_static
    if name not in REPEATED and (k > 1 or name != "Scaler"):
        wider = {n: np.repeat(a, 2, axis=-1 if a.ndim == 2 else 1) for n, a in x.items()}
        if name in ("LSTM", "GRU"):
            wider = {n: np.repeat(a, 2, axis=2) for n, a in x.items()}
        with pytest.raises(rlx.Error):
            exe.run(wider)


def test_what_is_repeated_is_for_the_other_programs() -> None:
    """1 against 5 is right, too."""
    proto = PINNED["Add"](5)
    exe = rlx.compile(from_proto(proto), "reference")
    w = numpy_helper.to_array(proto.graph.initializer[0])
    for x in (floats(3, 5), floats(3, 1), floats(2, 5)):
        np.testing.assert_array_equal(exe(x), x + w)
    with pytest.raises(rlx.Error, match="4"):
        exe(floats(3, 4))


def random_size(n: Dim) -> DimLike:
    a, b, k = (int(v) for v in RNG.integers(0, 9, 3))
    inner: DimLike = int(RNG.integers(1, 4)) * n + a
    match int(RNG.integers(4)):
        case 0:
            return inner
        case 1:
            return inner // (k + 1) + b
        case 2:
            return dim_min(inner, 3 * b)
        case _:
            return inner // (k + 1) * (k + 1)


def test_ranges_have_sizes_and_all_of_them_fit() -> None:
    """A range that two sizes give a dim is not empty, and never of sizes at which they differ,
    whatever was known of the dim before."""
    found = 0
    for _ in range(tries(400, 8000)):
        low = int(RNG.choice([0, 1, 7, 9000]))
        high = None if RNG.random() < 0.5 else low + int(RNG.integers(0, 12))
        n = Dim("n", low, high)
        left = random_size(n)
        right = random_size(n) if RNG.random() < 0.5 else int(RNG.integers(0, 40))
        ranges = ranges_for(DimsDiffer("", left, right))
        if ranges is None:
            continue
        found += 1
        r = ranges["n"]
        assert low <= r.low <= (r.low if r.high is None else r.high), r
        assert high is None or (r.high is not None and r.high <= high), r
        for size in range(r.low, 1 + (r.low + 60 if r.high is None else r.high), r.multiple):
            at = [evaluate(d, {"n": size}) for d in (left, right)]
            assert left == 0 or right == 0 or at[0] == at[1], (left, right, r, at)
        r.dim("n")
    assert found > 50


def test_a_dim_is_what_makes_two_sizes_equal() -> None:
    a, b, c = Dim("a"), Dim("b"), Dim("c")
    for left, right, solution in (
        (a + b, b + c, ("c", a)),
        (c, a + b, ("c", a + b)),
        (dim_min(c, a + b), a + b, ("c", a + b)),
        (2 * a * (b + 1), 2 * c * (b + 1), ("c", a)),
        (a * b + 1, c, ("c", a * b + 1)),
        (a, 1 << 20, ("a", 1 << 20)),
        (a * b, 2 * c, None),
        (a - 1, b, ("a", b + 1)),
    ):
        assert equal_for(DimsDiffer("", left, right)) == solution, (left, right)


def test_a_dim_that_is_a_sum_of_others() -> None:
    """A mask over past and new keys: one program for calls in which it is, whatever its name."""
    proto = model(
        [("Concat", "p x", "t", {"axis": 1}), ("Add", "t m", "y", {})],
        {"p": ["b", "past"], "x": ["b", "n"], "m": ["b", "all"]},
        {},
    )
    loaded = from_proto(proto)
    exe = rlx.compile(loaded)
    assert isinstance(exe, rlx.Executable)
    for past, n in ((0, 1), (3, 1), (4, 2), (9, 5)):
        p, x, m = floats(2, past), floats(2, n), floats(2, past + n)
        np.testing.assert_array_equal(exe(p, x, m), np.concatenate([p, x], 1) + m)
    assert len(exe.programs) == 1
    p, x, m = floats(2, 3), floats(2, 1), floats(2, 1)
    np.testing.assert_array_equal(exe(p, x, m), np.concatenate([p, x], 1) + m)
    with pytest.raises(rlx.Error, match="broadcast"):
        exe(p, x, floats(2, 5))


def test_many_compiles_of_one_model_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes that no formula relates are compiled one by one; who calls with ever new ones is told
    from the ninth on."""
    proto = model(
        [("Transpose", "x", "t", {"perm": [1, 0]}), ("Reshape", "t s", "y", {})],
        {"x": ["a", "b"]},
        {"s": np.array([7, -1])},
    )
    exe = rlx.compile(from_proto(proto), "reference")
    with caplog.at_level(logging.INFO, "rlx"):
        for n in range(1, 11):
            x = floats(n, 7)
            np.testing.assert_array_equal(exe(x), x.T)
    levels = [r.levelno for r in caplog.records if "as no program" in r.getMessage()]
    assert levels == [logging.INFO] * 8 + [logging.WARNING] * 2
    assert "compile 9: pad" in caplog.text
