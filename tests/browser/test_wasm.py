"""Exported models in a browser, on WebAssembly: `make test-browser`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from demo.web.server import served
from rlx import Dim, Graph, Shape, ops
from tests.browser import graphs, web
from tests.browser.driver import NO_GPU, WEBGPU, Browser, PageError, browser, missing

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""Sums of up to 300 terms of f32, in another order than NumPy's."""
CALLS = 200
FLAGS = {"no adapter": NO_GPU, "software": WEBGPU}
"""Browsers that WebAssembly is the better engine of."""


@pytest.fixture(scope="module", params=FLAGS)
def window(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if absent := missing():
        pytest.skip(
            f"{' and '.join(absent)} not installed: apt-get install chromium chromium-driver"
        )
    with browser((1280, 800), FLAGS[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wasm")


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with served(root) as made:
        yield made


def opened(
    window: Browser, root: Path, address: str, case: graphs.Case, **options: str
) -> tuple[str, str]:
    """A page that has loaded a graph: its engine, and why that."""
    graph, params, _ = case
    if not (root / graph.name).exists():
        web.exported(graph, root, graph.name, params=params)
    web.opened(window, address, graph.name, **options)
    engine, why = window.run("return [model.engine, model.why]")
    return engine, why


@pytest.mark.parametrize("name", graphs.CASES)
def test_a_page_computes_what_numpy_does(
    window: Browser, root: Path, address: str, name: str
) -> None:
    case = graph, params, calls = graphs.CASES[name]()
    engine, why = opened(window, root, address, case)
    assert engine == "wasm"
    assert "WebGPU" in why
    for given in calls:
        found, want = web.run(window, graph, given), web.expected(graph, params, given)
        for output, array in want.items():
            assert found[output].shape == array.shape
            np.testing.assert_allclose(found[output], array, **CLOSE, err_msg=output)


@pytest.mark.parametrize("simd", ["simd", "relaxed"])
def test_both_sets_of_instructions_run(
    window: Browser, root: Path, address: str, simd: str
) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    engine, why = opened(window, root, address, case, engine="wasm", simd=simd)
    assert (engine, why) == ("wasm", "the page asked for it")
    assert ("relaxed" in window.run("return model.adapter")) == (simd == "relaxed")
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)


def test_without_relaxed_simd_there_is_another_program(
    window: Browser, root: Path, address: str
) -> None:
    """A browser of 2021: it validates no module that has the instruction."""
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case)
    window.requests()
    window.wait(
        "const { validate } = WebAssembly;"
        "WebAssembly.validate = (raw) => !raw.includes(133) && validate(raw);"
        "await model.reload();"
    )
    assert window.run("return model.adapter") == "128-bit SIMD, one thread"
    assert [r for r in window.requests() if r.endswith(".wasm")] == [
        f"{address}{graph.name}/program.wasm"
    ]
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)


def test_an_engine_alone_is_downloaded(window: Browser, root: Path, address: str) -> None:
    window.open("about:blank")
    window.requests()
    opened(window, root, address, graphs.layers())
    window.wait("await model.run({x: new Float32Array(64)})")
    names = {r.rpartition("/")[2] for r in window.requests()}
    assert {"rlx.js", "wasm.js", "model.json", "wasm.json", "program-relaxed.wasm"} <= names
    assert not names & {"webgpu.js", "gpu.json", "software.json", "program.wasm"}


def test_a_model_that_webgpu_refuses_runs(window: Browser, root: Path, address: str) -> None:
    g = Graph("doubles")
    x = g.input("x", Shape([Dim("n", 1, 64), 4], "f64"))
    g.set_outputs({"y": ops.exp(x) * 3.0})
    engine, why = opened(window, root, address, (g, {}, []))
    assert (engine, "WGSL has no 64-bit floats" in why) == ("wasm", True)
    given = {"x": graphs.normal(0, 5, 4).astype(np.float64)}
    found = web.run(window, g, given)["y"]
    np.testing.assert_allclose(found, 3 * np.exp(given["x"]), rtol=1e-14)
    with pytest.raises(PageError, match=r"(?s)no WebGPU: .*64-bit floats"):
        web.opened(window, address, g.name, engine="webgpu")


def test_calls_do_not_grow_memory(window: Browser, root: Path, address: str) -> None:
    opened(window, root, address, graphs.layers())
    script = (
        "for (let i = 0; i < given[0]; i++) await model.run({x: new Float32Array(64 * given[1])});"
    )
    held = "return model.runtime.memory.buffer.byteLength"
    window.wait(script, 1, 400)
    before = window.run(held)
    window.wait(script, CALLS, 400)
    window.wait(script, CALLS, 3)
    assert window.run(held) == before


def test_what_is_on_the_gpu_is_refused(window: Browser, root: Path, address: str) -> None:
    opened(window, root, address, graphs.layers())
    for given in ("true", '["y"]'):
        with pytest.raises(PageError, match=r"stay on the GPU.*WebAssembly.*Use arrays"):
            window.wait(f"await model.run({{x: new Float32Array(64)}}, {{keep: {given}}})")


def test_a_failure_of_a_kernel_names_its_node(window: Browser, root: Path, address: str) -> None:
    case = graph, params, (good, bad, _) = graphs.gathering()
    opened(window, root, address, case)
    want = web.expected(graph, params, good)["y"]
    with pytest.raises(PageError, match=r"gather.*range") as raised:
        web.run(window, graph, bad)
    assert "gather" in raised.value.node
    np.testing.assert_array_equal(web.run(window, graph, good)["y"], want)


def test_a_model_that_is_disposed_of_or_broken_is_loaded_again(
    window: Browser, root: Path, address: str
) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case)
    with pytest.raises(PageError, match="broke off"):
        window.wait(
            "model.runtime.native = () => { throw new WebAssembly.RuntimeError('unreachable'); };"
            "await model.run({x: new Float32Array(64)});"
        )
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)
    window.wait("await model.dispose()")
    with pytest.raises(PageError, match="disposed"):
        window.wait("await model.run({x: new Float32Array(64)})")


def test_the_page_of_a_folder_says_its_engine(window: Browser, root: Path, address: str) -> None:
    opened(window, root, address, graphs.layers())
    window.open(f"{address}layers/?engine=wasm")
    said = window.wait(
        "while (!document.documentElement.dataset.ready)"
        " await new Promise((d) => setTimeout(d, 20));"
        "return document.getElementById('engine').textContent"
    )
    assert said.startswith("WebAssembly (128-bit relaxed SIMD, one thread)")
    window.click("#run")
    times = "return document.getElementById('times').textContent"
    window.wait(
        "while (!document.getElementById('times').textContent)"
        " await new Promise((d) => setTimeout(d, 20));"
    )
    assert "ms a call" in window.run(times)


WORKER = """
const text = `
import { load } from "${given[0]}rlx.js";
onmessage = async ({ data }) => {
  try {
    const model = await load("${given[0]}");
    const { y } = await model.run({ x: data });
    postMessage({ engine: model.engine, y: Array.from(y), dims: y.dims });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};`;
const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
const worker = new Worker(address, { type: "module" });
const answer = new Promise((done) => (worker.onmessage = ({ data }) => done(data)));
worker.postMessage(values(given[1]).x.data);
return answer;
"""


def test_a_worker_runs_a_model(window: Browser, root: Path, address: str) -> None:
    """Calls block the thread that makes them, which need not be the page's."""
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case)
    answer = window.wait(WORKER, f"{address}{graph.name}/", web.sent(few))
    assert answer.get("engine") == "wasm", answer
    want = web.expected(graph, params, few)["y"]
    found = np.array(answer["y"], np.float32).reshape(answer["dims"])
    np.testing.assert_allclose(found, want, **CLOSE)


GPU = """
Object.defineProperty(navigator, "gpu", { configurable: true, value: {
  requestAdapter: async () => ({
    info: { vendor: "acme" }, limits: {}, features: new Set(),
    requestDevice: async () => { throw new Error("no memory is left"); },
  }),
} });
"""
"""A GPU that gives no device."""


def test_a_gpu_that_fails_leaves_it_to_webassembly(
    window: Browser, root: Path, address: str
) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case)
    window.wait(f"{GPU} await model.reload();")
    engine, why = window.run("return [model.engine, model.why]")
    assert (engine, why) == ("wasm", "WebGPU gives no device: no memory is left")
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)


def test_a_page_that_may_not_compile_webassembly_takes_any_webgpu(
    window: Browser, root: Path, address: str
) -> None:
    case = graph, params, (few, *_) = graphs.layers()
    opened(window, root, address, case)
    has_adapter = window.wait("return (await navigator.gpu?.requestAdapter()) != null")
    reload = (
        "WebAssembly.instantiate = async () => { throw new WebAssembly.CompileError('no'); };"
        "await model.reload();"
    )
    if not has_adapter:
        with pytest.raises(PageError, match=r"no adapter.*refuses the model's WebAssembly: no"):
            window.wait(reload)
        return
    window.wait(reload)
    assert window.run("return model.engine") == "webgpu"
    want = web.expected(graph, params, few)["y"]
    np.testing.assert_allclose(web.run(window, graph, few)["y"], want, **CLOSE)
