"""Exported models in a browser, on WebGPU's driver in software: `make test-browser`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from demo.web.server import served
from rlx import Dim, FusionOptions, Graph, Shape, ops
from tests.browser import graphs, web
from tests.browser.driver import WEBGPU, Browser, PageError, browser, missing

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""Sums of up to 300 terms of f32, and functions of WGSL, which differ from NumPy's in last bits."""


PAGE = Path(__file__).parents[2] / "docs" / "browser.md"
HELD = """
const count = model.runtime.gpu.pipelines.size;
const make = GPUDevice.prototype.createComputePipelineAsync;
let asked = 0, release;
const all = new Promise((done) => (release = done));
GPUDevice.prototype.createComputePipelineAsync = async function (how) {
  if (++asked === count) release();
  await all;
  return make.call(this, how);
};
try { await model.reload(); } finally { GPUDevice.prototype.createComputePipelineAsync = make; }
return [asked, count];
"""
"""Loads a model while no pipeline is made before the last one is asked for."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if absent := missing():
        pytest.skip(
            f"{' and '.join(absent)} not installed: apt-get install chromium chromium-driver"
        )
    with browser((1280, 800), WEBGPU) as made:
        yield made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with served(root) as made:
        yield made


def opened(window: Browser, root: Path, address: str, case: graphs.Case, plan: str) -> None:
    graph, params, _ = case
    if not (root / graph.name).exists():
        web.exported(graph, root, graph.name, params=params, engines=("webgpu",))
    web.opened(window, address, graph.name, plan=plan)


@pytest.mark.parametrize("plan", ["gpu", "software"])
@pytest.mark.parametrize("name", graphs.CASES)
def test_a_page_computes_what_numpy_does(
    window: Browser, root: Path, address: str, name: str, plan: str
) -> None:
    case = graph, params, calls = graphs.CASES[name]()
    opened(window, root, address, case, plan)
    for given in calls:
        found, want = web.run(window, graph, given), web.expected(graph, params, given)
        for output, array in want.items():
            assert found[output].shape == array.shape
            np.testing.assert_allclose(found[output], array, **CLOSE, err_msg=output)


def test_pipelines_are_asked_for_at_once(window: Browser, root: Path, address: str) -> None:
    """Those of the prologue, which normalises the weights, and those of calls."""
    g = Graph("prologue")
    x, w = g.input("x", Shape([Dim("n", 1, 64), 64])), g.param("w", Shape([64, 64]))
    g.set_outputs({"y": ops.softmax(ops.matmul(x, ops.softmax(w, axis=0)), axis=1)})
    usual, params = FusionOptions(sizes={"n": 16}), {"w": graphs.normal(1, 64, 64)}
    web.exported(g, root, g.name, params=params, options=usual, engines=("webgpu",))
    web.opened(window, address, g.name, plan="software")
    script = "const { plan } = model.runtime; return plan.routines[plan.main].prologue.length"
    assert window.run(script) > 0
    asked, count = window.wait(HELD)
    assert asked == count >= 3


def test_the_documentation_runs(window: Browser, root: Path, address: str) -> None:
    g = Graph("readme")
    x = g.input("x", Shape([Dim("n", 1, 64), 3]))
    g.set_outputs({"y": x + 1.0, "z": x * 2.0})
    web.exported(g, root, g.name)
    web.opened(window, address, g.name)
    (shown,) = re.findall(r"```js\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script = f"const x = Float32Array.of(1, 2, 3, 4, 5, 6);\n{shown}\nexport {{ y, z }};"
    (root / g.name / "readme.js").write_text(script, "utf-8")
    y, dims, z = window.wait(
        "const { y, z } = await import(given[0]); const found = [[...y], y.dims, z.dims];"
        "z.destroy(); return found;",
        f"{address}{g.name}/readme.js",
    )
    assert y == [2, 3, 4, 5, 6, 7]
    assert dims == z == [2, 3]


def test_a_call_on_known_sizes_allocates_nothing(window: Browser, root: Path, address: str) -> None:
    case = graph, _, (few, many, *_) = graphs.layers()
    opened(window, root, address, case, "software")
    for given in (few, many, few):
        web.run(window, graph, given)
    before = window.run("return counts")
    for given in (few, many) * 3:
        web.run(window, graph, given)
    assert window.run("return counts") == before


def test_outputs_stay_on_the_gpu_for_the_next_call(
    window: Browser, root: Path, address: str
) -> None:
    g = Graph("doubled")
    x = g.input("x", Shape([5, 3]))
    g.set_outputs({"y": ops.exp(x) * 2.0})
    opened(window, root, address, (g, {}, []), "software")
    given = {"x": graphs.normal(0, 5, 3)}
    found = window.wait(
        "const { y } = await model.run(values(given[0]), { keep: true });"
        "const twice = await model.run({ x: y }); y.destroy(); return plain(twice);",
        web.sent(given),
    )
    want = 2 * np.exp(2 * np.exp(given["x"]))
    np.testing.assert_allclose(web.received(found, {"y": np.float32})["y"], want, **CLOSE)


def test_a_failure_of_a_kernel_names_its_node(window: Browser, root: Path, address: str) -> None:
    case = graph, params, (good, bad, _) = graphs.gathering()
    opened(window, root, address, case, "software")
    want = web.expected(graph, params, good)["y"]
    np.testing.assert_array_equal(web.run(window, graph, good)["y"], want)
    with pytest.raises(PageError, match=r"gather.*range") as raised:
        web.run(window, graph, bad)
    assert "gather" in raised.value.node
    np.testing.assert_array_equal(web.run(window, graph, good)["y"], want)


def test_a_lost_device_rejects_and_is_opened_again(
    window: Browser, root: Path, address: str
) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case, "software")
    script = (
        "const call = model.run(values(given[0]));model.runtime.gpu.device.destroy(); await call;"
    )
    with pytest.raises(PageError, match=r"device was lost.*reload"):
        window.wait(script, web.sent(few))
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)
    window.wait("model.runtime.gpu.device.destroy(); await model.reload();")
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)


def test_weights_are_cached_and_checked(window: Browser, root: Path, address: str) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case, "software")
    window.wait(
        "const store = await caches.open('rlx-weights');"
        "while (!(await store.keys()).length) await new Promise((done) => setTimeout(done, 20));"
    )
    window.requests()
    window.wait("await model.reload()")
    assert not [r for r in window.requests() if r.endswith("weights.bin")]
    folder = root / graph.name
    raw = bytearray((folder / "weights.bin").read_bytes())
    (folder / "weights.bin").write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    try:
        window.wait("await model.reload()")
        want = web.expected(graph, params, few)["y"]
        np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)
        window.wait("await caches.delete('rlx-weights')")
        with pytest.raises(PageError, match="another SHA-256"):
            window.wait("await model.reload()")
    finally:
        (folder / "weights.bin").write_bytes(raw)


WRONG = {
    "{}": 'input "x" is missing',
    "{x: new Float32Array(65)}": "n, 64",
    "{x: {data: new Float32Array(64), dims: [64]}}": "n, 64.*dims 64",
    "{x: {data: new Float32Array(64 * 513), dims: [513, 64]}}": "dim n is 513.*1 to 512",
    "{x: new Float64Array(64)}": "Float32Array, not a Float64Array",
    "{x: [[1, 2], [3]]}": "differ in length",
    "{x: new Float32Array(64), z: [1]}": 'no input "z".*x',
}


def test_what_is_wrong_with_inputs_is_said(window: Browser, root: Path, address: str) -> None:
    opened(window, root, address, graphs.layers(), "software")
    for given, said in WRONG.items():
        with pytest.raises(PageError, match=f"RlxError: .*{said}"):
            window.wait(f"await model.run({given})")
    found = window.wait("return plain(await model.run({x: new Float32Array(128)}))")
    assert found["sums"][0] == [2]


def test_a_model_that_is_disposed_of_holds_nothing(
    window: Browser, root: Path, address: str
) -> None:
    opened(window, root, address, graphs.layers(), "software")
    window.wait("await model.run({x: new Float32Array(64)}); await model.dispose();")
    assert window.run("return counts.live") == 0
    with pytest.raises(PageError, match="disposed"):
        window.wait("await model.run({x: new Float32Array(64)})")


def test_a_profile_has_every_kernel(window: Browser, root: Path, address: str) -> None:
    opened(window, root, address, graphs.layers(), "software")
    found = window.wait("return model.profile({x: new Float32Array(640)})")
    assert found["wallMs"] > 0
    assert len(found["kernels"]) >= 2
    assert all(k["us"] >= 0 and k["node"] for k in found["kernels"])
