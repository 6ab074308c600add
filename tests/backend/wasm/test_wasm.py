"""Programs in WebAssembly: linked by hand, run by node, compared with the reference.

`python -m tests.backend.wasm.all` runs every op; here is a sample, and what programs promise.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import WASM, WASM_RELAXED, why_not
from rlx.backends.cpu.llvm.compile import object_of
from rlx.backends.cpu.llvm.compile_units import Units
from rlx.backends.cpu.wasm import encoding
from rlx.backends.cpu.wasm.export import WasmPlan, wasm_plan
from rlx.backends.cpu.wasm.linker import linked
from rlx.core.dim import Dim
from rlx.core.errors import Error, UnsupportedError
from rlx.pipeline import CompilePipeline
from tests.backend.wasm.all import found_wrong, law
from tests.backend.wasm.engine import Engine, outputs

SAMPLE = (
    "attention", "conv", "cumsum", "erf", "gather", "lstm", "matmul", "nonzero", "rfft", "sort",
    "top_k", "quantized_matmul",
)  # fmt: skip
DOUBLED = """
define i32 @call(i32 %x) {
  %f = load ptr, ptr @table
  %y = call i32 %f(i32 %x)
  %z = call i32 @added(i32 %y)
  ret i32 %z
}
define internal i32 @doubled(i32 %x) {
  %y = shl i32 %x, 1
  ret i32 %y
}
declare i32 @added(i32)
@table = internal global ptr @doubled
"""
ADDED = """
@steps = internal constant [3 x i32] [i32 5, i32 7, i32 11]
define i32 @added(i32 %x) {
  %at = getelementptr i32, ptr @steps, i32 %x
  %step = load i32, ptr %at
  %y = add i32 %x, %step
  ret i32 %y
}
"""
"""Calls between objects and through a table in memory, and data at an address."""


def plan_of(graph: rlx.Graph, **params: Any) -> WasmPlan:
    lir = CompilePipeline(CpuBackend("wasm").target()).compile(graph).lir
    file = bytearray()

    def add(raw: bytes) -> int:
        file.extend(raw)
        return len(file) - len(raw)

    return wasm_plan(lir, params, add)


# -- the linker -----------------------------------------------------------------------------------


def test_objects_are_linked_into_a_module_that_runs(tmp_path: Path) -> None:
    module = linked([object_of(text, WASM) for text in (DOUBLED, ADDED)], ("call",))
    numbers = [number for number, _ in encoding.sections(module)]
    assert encoding.SectionId.IMPORT not in numbers
    assert _called(module, tmp_path) == 2 + 11


def test_another_linker_gives_the_same_answer(tmp_path: Path) -> None:
    linker = shutil.which("wasm-ld")
    if linker is None:
        pytest.skip("wasm-ld is not installed, which links the same objects")
    paths = [tmp_path / f"{i}.o" for i in range(2)]
    for path, text in zip(paths, (DOUBLED, ADDED)):
        path.write_bytes(object_of(text, WASM))
    made = tmp_path / "made.wasm"
    given = ["--no-entry", "--export=call", "-o", str(made), *map(str, paths)]
    subprocess.run([linker, *given], check=True)
    assert _called(made.read_bytes(), tmp_path) == 2 + 11


def _called(module: bytes, folder: Path) -> int:
    if shutil.which("node") is None:
        pytest.skip("node is not installed, which runs WebAssembly")
    path = folder / "module.wasm"
    path.write_bytes(module)
    script = (
        f"const raw = require('fs').readFileSync({str(path)!r});"
        "console.log(new WebAssembly.Instance(new WebAssembly.Module(raw)).exports.call(1));"
    )
    return int(subprocess.run(["node", "-e", script], check=True, capture_output=True).stdout)


def test_a_function_that_nobody_defines_is_named() -> None:
    with pytest.raises(Error, match="does not define: added"):
        linked([object_of(DOUBLED, WASM)], ("call",))


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(Error, match="this is none"):
        linked([b"\x7fELF"], ("call",))


@pytest.mark.parametrize("number", [0, 1, 63, 64, 127, 128, 300, 2**31, 2**32 - 1])
def test_leb128_is_read_as_it_is_written(number: int) -> None:
    for size in (1, encoding.PADDED_BYTES):
        assert encoding.Reader(encoding.uleb(number, size)).uleb() == number
        signed = number - (1 << 32) if number >> 31 else number
        for value in (signed, ~signed):
            assert encoding.Reader(encoding.sleb(value, size)).sleb() == value
    assert len(encoding.uleb(number, encoding.PADDED_BYTES)) == encoding.PADDED_BYTES


# -- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", SAMPLE)
def test_a_law_of(op: str, engine: Engine) -> None:
    assert not found_wrong(engine, law(op, 1), "simd")


def test_relaxed_multiply_adds_are_used_and_right(engine: Engine) -> None:
    graph, values = _dense(32)
    plan = plan_of(graph, w=values["w"])
    # f32x4.relaxed_madd is opcode 0x105 behind the prefix of vectors
    assert b"\xfd\x85\x02" in plan.modules["relaxed"]
    assert b"\xfd\x85\x02" not in plan.modules["simd"]
    want = np.tanh(values["x"].astype(np.float64) @ values["w"])
    for kind in plan.modules:
        (got,) = outputs(engine, graph, values, kind)
        # sums of 64 products of numbers of size 1
        np.testing.assert_allclose(got, want, atol=64 * 2.0**-23)


def test_relaxed_multiply_adds_keep_nan(engine: Engine) -> None:
    """LLVM makes relaxed minima and maxima of clamps, if it may, which lose NaN."""
    assert not found_wrong(engine, law("quantize_linear", 2), "relaxed")
    graph = rlx.Graph("clamped")
    x, w = graph.input("x", rlx.Shape([4, 8])), graph.param("w", rlx.Shape([8, 8]))
    graph.set_outputs([ops.minimum(ops.maximum(x @ w, 0.0), 6.0)])
    given = np.ones((4, 8), np.float32)
    given[1] = np.nan
    (got,) = outputs(engine, graph, {"x": given, "w": np.eye(8, dtype=np.float32)}, "relaxed")
    np.testing.assert_array_equal(got, given)


def test_functions_that_compare_floats_have_no_relaxed_multiply_adds() -> None:
    call = "call <4 x float> @llvm.wasm.relaxed.madd.v4f32(<4 x float> %x, <4 x float> %y, "
    body = f"  %v1 = {call}<4 x float> %z)\n  ret <4 x float> %v1\n}}\n"
    head = "define internal <4 x float> @{}(<4 x float> %x, <4 x float> %y, <4 x float> %z) #0 {{\n"
    compare = "  %v0 = fcmp ogt <4 x float> %x, %y\n"
    units = Units(WASM_RELAXED)
    declared = (
        "declare <4 x float> @llvm.wasm.relaxed.madd.v4f32(<4 x float>, <4 x float>, <4 x float>)"
    )
    units.shared([("llvm.wasm.relaxed.madd.v4f32", declared)])
    assert not list(
        units.write([head.format("tile") + body, head.format("clamp") + compare + body])
    )
    (relaxed,), rest = list(units.relaxed()), units.last()
    assert "@tile(" in relaxed.text
    assert "@clamp(" not in relaxed.text
    assert "relaxed" not in rest.text
    assert "%v1.product = fmul <4 x float> %x, %y" in rest.text
    object_of(rest.text, WASM_RELAXED)


def _dense(rows: int) -> tuple[rlx.Graph, dict[str, Any]]:
    rng = np.random.default_rng(0)
    graph = rlx.Graph("dense")
    x = graph.input("x", rlx.Shape([Dim("n"), 64]))
    w = graph.param("w", rlx.Shape([64, 40]))
    graph.set_outputs([ops.tanh(x @ w)])
    values = {"x": rng.normal(size=(rows, 64)), "w": rng.normal(size=(64, 40))}
    return graph, {name: array.astype(np.float32) for name, array in values.items()}


def test_one_program_takes_other_sizes_of_named_dims(engine: Engine) -> None:
    graph, values = _dense(3)
    lir = CompilePipeline(CpuBackend("wasm").target()).compile(graph).lir
    program = engine.program(lir, {"w": values["w"]})
    for rows in (3, 50, 7):
        x = np.full((rows, 64), 1 / 64, np.float32)
        (got,) = program.run([x])
        assert got.shape == (rows, 40)
        np.testing.assert_allclose(got, np.tanh(x @ values["w"]), atol=64 * 2.0**-23)
    program.drop()


def test_params_are_in_the_block_of_weights() -> None:
    graph, values = _dense(1)
    plan = plan_of(graph, w=values["w"]).json
    (place,) = plan["params"]
    assert plan["entries"] == [[place, 0, values["w"].nbytes]]
    assert plan["weightBytes"] >= 2 * values["w"].nbytes, "the packed copy is there, too"


def test_a_size_without_a_bound_grows(engine: Engine) -> None:
    """More than the 256 elements that a capacity begins with, and 128 times as many."""
    graph = rlx.Graph("range")
    stop = graph.input("stop", rlx.Shape([], "i64"))
    zero, one = (graph.constant(np.int64(n)) for n in (0, 1))
    graph.set_outputs([ops.arange(zero, stop, one)])
    for count in (3, 1000, 100_000):
        (got,) = outputs(engine, graph, {"stop": np.int64(count)})
        np.testing.assert_array_equal(got, np.arange(count))


def test_a_failure_names_its_node(engine: Engine) -> None:
    graph = rlx.Graph("taken")
    x = graph.input("x", rlx.Shape([5]))
    i = graph.input("i", rlx.Shape([1], "i64"))
    graph.set_outputs([graph.gather(x, i, axis=0)])
    values = {"x": np.arange(5, dtype=np.float32), "i": np.array([9])}
    with pytest.raises(Error, match=r"gather.*out of range"):
        outputs(engine, graph, values)


def test_ops_of_python_are_refused_by_name() -> None:
    graph = rlx.Graph("custom")
    x = graph.input("x", rlx.Shape([4]))
    double = rlx.custom_op("test_wasm.double", lambda x: x * 2, lambda x: x)
    graph.set_outputs([double(x)])
    with pytest.raises(UnsupportedError, match="which a page does not have"):
        plan_of(graph)


@pytest.mark.parametrize("isa", [WASM, WASM_RELAXED], ids=lambda i: i.name)
def test_it_is_planned_and_not_run_here(isa: Any) -> None:
    assert re.search("pages run", why_not(isa) or "")
    graph, _ = _dense(1)
    with pytest.raises(UnsupportedError, match=f"cpu:{isa.name}.*WebAssembly"):
        rlx.compile(graph, target=f"cpu:{isa.name}")
