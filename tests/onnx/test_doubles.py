"""f64 on targets that have none: what only an importer computes in it becomes f32, what a model
states is refused, or becomes f32 by option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import rlx
from rlx.__main__ import main
from rlx.core.dtype import DType
from rlx.frontends.onnx.model import from_proto
from rlx.passes.context import Context
from rlx.passes.doubles import narrow_doubles
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend
from tests.onnx.nodes import one_node, ours

WEBGPU = SimulatedBackend(laws.WEBGPU)
RNG = np.random.default_rng(5)
EPS = float(np.finfo(np.float32).eps)
WHAT = "f64_as_f32"


def floats(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


def compiled(graph: rlx.Graph, options: FusionOptions | None = None) -> CompileResult:
    return CompilePipeline(WEBGPU.target(), options=options).compile(graph)


def on_webgpu(
    model: ModelProto, arrays: list[Any], options: FusionOptions | None = None
) -> tuple[Any, list[rlx.Decision]]:
    """What the simulated machine gives, and what was decided about f64."""
    graph = from_proto(model).graph
    result = compiled(graph, options)
    program = WEBGPU.load(WEBGPU.build(WEBGPU.program(result.lir)))
    given = [arrays[int(n.attrs["name"][1:])] for n in graph.inputs]
    made = program.run(program.prepare({}, None), given, [None] * len(graph.outputs))
    return made[0], [d for d in result.decisions if d.what == WHAT]


SCALES = np.array([1, 1, 1.7, 2.3], np.float32)
BYTES = RNG.integers(-128, 128, (1, 2, 7, 7)).astype(np.int8)
FLOATS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "resize": (
        "Resize",
        [floats(1, 2, 5, 6), None, SCALES],
        {"opset": 19, "known": (2,), "mode": "linear", "dims": [1, 2, "h", "w"]},
    ),
    "cubic": (
        "Resize",
        [floats(1, 2, 5, 6), None, SCALES],
        {"opset": 19, "known": (2,), "mode": "cubic", "antialias": 1, "dims": [1, 2, "h", "w"]},
    ),
    "dft": ("DFT", [floats(2, 12, 1)], {"opset": 17, "axis": 1}),
    "half dft": ("DFT", [floats(2, 12, 1)], {"opset": 17, "axis": 1, "onesided": 1}),
    "window": ("HannWindow", [np.array(33)], {"opset": 17, "known": (0,)}),
    "pow": ("Pow", [np.abs(floats(3, 4)).astype(np.float16), floats(3, 4)], {"opset": 15}),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_an_operator_computes_in_f64_becomes_f32(name: str) -> None:
    """A few roundings of f32 apart: of coordinates up to 16, or of sums of 12 terms. Of f16 both
    round the same number but at a tie."""
    op, arrays, how = FLOATS[name]
    model = one_node(op, arrays, **how)
    [wanted] = ours(model, arrays)
    got, [decision] = on_webgpu(model, arrays)
    assert decision.verdict
    assert "the target has no f64" in decision.reason
    assert all("onnx y0" in place for place in decision.where)
    eps = EPS if got.dtype == np.float32 else float(np.finfo(np.float16).eps)
    assert got.dtype == wanted.dtype
    assert np.abs(got - wanted).max() <= 16 * eps * max(1.0, np.abs(wanted).max())


def test_frames_need_no_f64() -> None:
    arrays = [floats(2, 40, 1), np.array(5), floats(16)]
    model = one_node("STFT", arrays, opset=17, known=(1,), onesided=1)
    got, _ = on_webgpu(model, arrays)
    [wanted] = ours(model, arrays)
    assert np.abs(got - wanted).max() <= 16 * EPS * np.abs(wanted).max()  # sums of 16 terms


def test_means_of_bytes_are_exact() -> None:
    """A sum of nine bytes is exact in f32, and so is a quotient that is whole."""
    model = one_node("AveragePool", [BYTES], opset=19, kernel_shape=[3, 3])
    got, decisions = on_webgpu(model, [BYTES])
    assert decisions
    assert (got == ours(model, [BYTES])[0]).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_integers_that_f32_may_not_have_are_refused(dtype: Any) -> None:
    model = one_node("AveragePool", [BYTES.astype(dtype)], opset=19, kernel_shape=[3, 3])
    with pytest.raises(rlx.UnsupportedError, match=r"(?s)cast at onnx y0.*no 64-bit floats"):
        compiled(from_proto(model).graph)


def _chain(*nodes: tuple[str, dict[str, Any]], name: str = "") -> ModelProto:
    """Operators one after the other, from x0 of f32 to an output; `name` is that of them all."""
    names = [f"x{i}" for i in range(len(nodes) + 1)]
    made = [
        helper.make_node(op, [a], [b], name=name or f"n{b}", **attrs)
        for (op, attrs), a, b in zip(nodes, names, names[1:])
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [6]) for n in (names[0], names[-1])]
    return helper.make_model(
        helper.make_graph(made, "chain", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
    )


DOUBLE, SINGLE = ("Cast", {"to": TensorProto.DOUBLE}), ("Cast", {"to": TensorProto.FLOAT})


def test_functions_of_bytes_are_truncated_alike() -> None:
    """Powers that are whole come out whole in f32 too, before what is after the point is lost."""
    base, exponent = (a.reshape(-1) for a in np.meshgrid(np.arange(16), np.arange(9) / 2))
    is_byte = base**exponent < 256
    arrays = [base[is_byte].astype(np.uint8), exponent[is_byte].astype(np.float32)]
    model = one_node("Pow", arrays, opset=15)
    got, [_] = on_webgpu(model, arrays)
    assert (got == ours(model, arrays)[0]).all()


@pytest.mark.parametrize("between", [[], [("Sin", {})], [("Sin", {}), ("Exp", {})]])
def test_what_a_model_states_is_refused_unless_asked_for(between: list[Any]) -> None:
    model = _chain(DOUBLE, *between, SINGLE, ("Neg", {}))
    graph, x = from_proto(model).graph, floats(6)
    if between:  # without, the two casts are none
        with pytest.raises(rlx.UnsupportedError, match="no 64-bit floats"):
            compiled(graph)
    got, decisions = on_webgpu(model, [x], FusionOptions(f64="f32"))
    assert [d.reason for d in decisions] == ["asked for: computed in f32, as the target has no f64"]
    # two functions, each within some roundings, of values up to e
    assert np.abs(got - ours(model, [x])[0]).max() <= 16 * EPS


@pytest.mark.parametrize("target", ["wgpu", "metal"])
def test_the_refusal_names_the_option(target: str) -> None:
    graph = from_proto(_chain(DOUBLE, ("Sin", {}), SINGLE)).graph
    with pytest.raises(rlx.UnsupportedError, match=r"(?s)sin at onnx nx2.*option f64='f32'"):
        CompilePipeline(target).compile(graph)
    CompilePipeline(target, options=FusionOptions(f64="f32")).compile(graph)


def test_operators_of_one_name_share_no_values() -> None:
    graph = from_proto(_chain(DOUBLE, ("Sin", {}), SINGLE, name="same")).graph
    with pytest.raises(rlx.UnsupportedError, match=r"(?s)sin at onnx same: .*no 64-bit floats"):
        compiled(graph)


def test_the_option_of_a_compile_and_of_the_command(tmp_path: Path) -> None:
    model, x = _chain(DOUBLE, ("Sin", {}), SINGLE), floats(6)
    path, plan = tmp_path / "m.onnx", tmp_path / "m.lir"
    path.write_bytes(model.SerializeToString())
    graph = from_proto(model).graph
    exe = rlx.compile(graph, "reference", like="metal", f64="f32", cache=False)
    # the sine of what is f32 already: one more rounding
    assert np.abs(exe(x) - np.sin(x.astype(np.float64))).max() <= 2 * EPS
    assert exe.explain().options["f64"] == "f32"
    asked = ["compile", str(path), "--emit", "lir", "-t", "metal", "-o", str(plan)]
    assert main(asked) == 1
    assert main([*asked, "--f64", "f32"]) == 0
    assert "f64[" not in plan.read_text()


def test_loops_of_f64_become_f32_by_option() -> None:
    graph = rlx.Graph("loop")
    x = graph.input("x", rlx.Shape([3]))
    body = rlx.Graph("body")
    carried = body.input("c", rlx.Shape([3], DType.F64))
    body.set_outputs([rlx.ops.mul(carried, np.float64(0.5))])
    wide = rlx.ops.cast(x, to=DType.F64)
    made = graph.node("scan", (wide,), {"body": body, "length": 4, "num_carries": 1})
    last = graph.node("item", (made,), {"index": 0})
    graph.set_outputs([rlx.ops.cast(last, to=DType.F32)])
    with pytest.raises(rlx.UnsupportedError, match="no 64-bit floats"):
        compiled(graph)
    assert compiled(graph, FusionOptions(f64="f32")).lir


def extremes() -> np.ndarray[Any, Any]:
    """Numbers of f64 of every exponent that f32 has and around, ties and what is nearest to them,
    subnormal ones, and those that are no finite numbers."""
    exponents = np.arange(860, 1170, dtype=np.uint64) << np.uint64(52)
    fractions = [0, 1, 1 << 28, (1 << 28) + 1, 3 << 28, (1 << 52) - 1, (1 << 52) - (1 << 28)]
    bits = np.add.outer(exponents, np.array(fractions, np.uint64)).reshape(-1)
    made = bits.view(np.float64)
    return np.concatenate([made, -made, [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324]])


def converted(dtype: DType, wide: DType, x: Any) -> Any:
    """What the simulated machine gives for the same numbers in another dtype."""
    graph = rlx.Graph("wide")
    given = graph.input("x", rlx.Shape(x.shape, dtype))
    graph.set_outputs({"y": rlx.ops.cast(given, to=wide)})
    lir = compiled(graph, FusionOptions(f64="f32")).lir
    program = WEBGPU.load(WEBGPU.build(WEBGPU.program(lir)))
    return program.run(program.prepare({}, None), [x], [None])[0]


def same_bits(x: Any, y: Any) -> bool:
    """No NaN is compared by its bits."""
    raw = (np.where(np.isnan(a), 0, a.view(f"u{a.itemsize}")) for a in (x, y))
    return bool(np.array_equal(*raw) and np.array_equal(np.isnan(x), np.isnan(y)))


def test_what_is_given_and_returned_is_converted_bit_by_bit() -> None:
    wide = extremes()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32)
    assert same_bits(converted(DType.F64, DType.F32, wide), narrow)
    assert same_bits(converted(DType.F32, DType.F64, narrow), narrow.astype(np.float64))


def test_interfaces_keep_their_dtype() -> None:
    """Inputs, params and outputs of f64 are there as the model has them; one that is given back is
    not rounded."""
    graph, wide = rlx.Graph("wide"), rlx.Shape([3, 4], DType.F64)
    x, w = graph.input("x", wide), graph.param("w", wide)
    graph.set_outputs({"y": rlx.ops.exp(rlx.ops.mul(x, w)), "x": x, "sum": rlx.ops.sum(x, axes=1)})
    result = compiled(graph, FusionOptions(f64="f32"))
    assert [d.reason for d in result.decisions if d.what == WHAT]
    program = WEBGPU.load(WEBGPU.build(WEBGPU.program(result.lir)))
    given, weights = RNG.normal(size=(2, 3, 4))
    y, same, total = program.run(program.prepare({"w": weights}, None), [given], [None] * 3)
    assert y.dtype == same.dtype == total.dtype == np.float64
    assert (same == given).all()
    # a product's rounding in an exponent below 8, and a sum of four terms
    assert np.abs(y / np.exp(given * weights) - 1).max() <= 16 * EPS
    assert np.abs(total - given.sum(1)).max() <= 4 * EPS * np.abs(given).sum(1).max()


def test_complex_interfaces_are_refused() -> None:
    graph = rlx.Graph("wide")
    x = graph.input("x", rlx.Shape([3], DType.C128))
    graph.set_outputs({"y": rlx.ops.real(x)})
    with pytest.raises(rlx.UnsupportedError, match=r"input 'x'.*has no c128.*c64 in the model"):
        compiled(graph, FusionOptions(f64="f32"))


@pytest.mark.parametrize("verb", ["check", "explain"])
def test_verbs_that_plan_take_the_option(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_chain(DOUBLE, ("Sin", {}), SINGLE).SerializeToString())
    asked = [verb, str(path), "-t", "metal"]
    assert main(asked) == 1
    assert main([*asked, "--f64", "f32"]) == 0


def test_targets_with_f64_are_left_alone() -> None:
    op, arrays, how = FLOATS["dft"]
    graph = from_proto(one_node(op, arrays, **how)).graph
    for options in (None, FusionOptions(f64="f32")):
        context = Context.of("cpu", options)
        assert narrow_doubles(graph, context) is graph
        assert not context.log.decisions


def test_the_option_is_checked() -> None:
    with pytest.raises(rlx.Error, match="f64 is 'f16'"):
        FusionOptions(f64="f16")  # pyright: ignore[reportArgumentType]
    assert FusionOptions(f64="f32").digest() != FusionOptions().digest()
