"""The search of `make demo-web` in a browser: `make test-browser`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.workloads.minilm import published_folder
from demo.asking import BUILT_IN
from demo.web.server import served
from tests.browser import graphs, web
from tests.browser.driver import MEASURED, NO_GPU, WEBGPU, Browser, browser, missing

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "demo" / "corpus.txt"
AGAINST, WIDER = ((HERE / f"{name}.js").read_text() for name in ("contrast", "wider"))
CALLS = 200
READY = """
for (;;) {
  const { ready } = document.documentElement.dataset;
  if (ready) return [ready, document.getElementById("engine").textContent];
  await new Promise((done) => setTimeout(done, 20));
}
"""
RANKED = "return (await ranked(given[0])).map(({ row, score }) => [row, score])"
ODD = (
    "Ünïcödé café naïve", "北京 is 中文字", "ΣΑΣ İstanbul ſtraße ẞ", "a\tb\nc\rd\ufffde\u200bf",
    "don't stop—believing… “q” $5 + 3 = 8^2 ~`|<>", "x" * 101 + " ok", "word " * 300, "", "  ",
    "Ǆ ﬁ ℌ ½", "हिन्दी में", "emoji 😀 text 👩‍👩‍👧", "unaffable supercalifragilistic",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Path:
    found = published_folder()
    if found is None or find_spec("tokenizers") is None:
        pytest.skip("the model or its tokenizer is not installed: make demo")
    return found


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from demo.web.build import build

    root = tmp_path_factory.mktemp("search")
    build(model, CORPUS, root)
    graph, params, _ = graphs.layers()
    web.exported(graph, root, "another", params=params)
    return root


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as made:
        yield made


PAGES = {
    "webgpu": (WEBGPU, "?engine=webgpu", "WebGPU on "),
    "wasm": ((*NO_GPU, MEASURED), "", "WebAssembly (128-bit relaxed SIMD, one thread), as "),
}
"""By engine: the browser, how its page is asked for, and what the page says. Without WebGPU it is
opened as it is."""


@pytest.fixture(scope="module", params=PAGES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def window(address: str, engine: str) -> Iterator[Browser]:
    if absent := missing():
        pytest.skip(
            f"{' and '.join(absent)} not installed: apt-get install chromium chromium-driver"
        )
    flags, query, said = PAGES[engine]
    with browser((1280, 800), (*flags, "--js-flags=--expose-gc")) as made:
        start = time.perf_counter()
        made.open(address + query)
        ready, found = made.wait(READY)
        print(f"{found}; ready {time.perf_counter() - start:.1f} s after it was opened")
        assert ready == "yes", found
        assert found.startswith(said)
        made.run(web.PREPARE)
        yield made


@pytest.fixture(scope="module")
def encoder(model: Path) -> Any:
    from demo.encoder import Encoder

    return Encoder.of(model)


def test_nothing_is_asked_of_other_machines(window: Browser, address: str) -> None:
    asked = [r for r in window.requests() if r.startswith(("http:", "https:"))]
    assert asked
    assert all(r.startswith(address) for r in asked)
    assert [e for e in window.log("browser") if "No available adapters" not in e["message"]] == []


def test_questions_rank_what_the_cpu_ranks(window: Browser, encoder: Any) -> None:
    texts = [t for t in CORPUS.read_text("utf-8").splitlines() if t.strip()]
    index = encoder.vectors(texts)
    for question in BUILT_IN:
        found = window.wait(RANKED, question)
        scores = index @ encoder.vectors([question])[0]
        rows = [row for row, _ in found]
        assert rows == list(np.argsort(-scores, kind="stable"))
        # Six layers in f32, whose sums are in another order than the cpu's.
        np.testing.assert_allclose([s for _, s in found], scores[rows], atol=1e-5)


def test_an_answer_is_shown(window: Browser) -> None:
    window.click("#examples button")
    window.wait(
        "while (!document.getElementById('took').textContent.includes('ms'))"
        " await new Promise((done) => setTimeout(done, 20));"
    )
    shown = window.run("return [...document.querySelectorAll('#answers li')].map(e => e.innerText)")
    found = window.wait("return (await ranked(given[0])).slice(0, 3)", BUILT_IN[0])
    assert shown == [f"{f['score']:.2f}\n{f['sentence']}" for f in found]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(window: Browser, theme: str) -> None:
    window.run("document.documentElement.style.colorScheme = arguments[0]", theme)
    assert window.run(WIDER) == []
    assert window.run(AGAINST) == []
    if kept := os.environ.get("RLX_PICTURES"):
        window.picture(Path(kept) / f"search-{theme}.png")


def test_tokens_are_those_of_the_model(window: Browser, encoder: Any) -> None:
    texts = [*CORPUS.read_text("utf-8").splitlines(), *BUILT_IN, *ODD]
    padding = encoder.tokenizer.padding
    encoder.tokenizer.no_padding()
    want = [e.ids for e in encoder.tokenizer.encode_batch(texts)]
    encoder.tokenizer.enable_padding(**padding)
    assert window.run("return arguments[0].map((t) => state.tokenizer.encode(t))", texts) == want


def test_memory_does_not_grow(window: Browser) -> None:
    """Of the GPU and of WebAssembly exactly, of the script's heap by less than what a call would
    leave behind if it kept its result."""
    ask = f"for (let i = 0; i < {CALLS}; i++) await ranked('night train');"
    heap = "gc(); gc(); return performance.memory.usedJSHeapSize"
    held = "return [counts, state.model.runtime.memory?.buffer.byteLength]"
    window.wait("await ranked('night train')")
    live, before = window.run(held), window.wait(heap)
    window.wait(ask)
    assert window.run(held) == live
    grown = window.wait(heap) - before
    print(f"{CALLS} calls: {grown:,} bytes of heap more")
    assert grown < CALLS * 384 * 4


def test_the_page_survives_a_lost_device(window: Browser, engine: str) -> None:
    if engine == "wasm":
        pytest.skip("WebAssembly has no device")
    question = BUILT_IN[1]
    before = window.wait(RANKED, question)
    said = window.wait(
        "const call = ranked(given[0]); state.model.runtime.gpu.device.destroy();"
        "return call.then(() => '', (e) => e.message)",
        question,
    )
    assert "device was lost" in said
    assert window.wait(RANKED, question) == before


def test_a_dropped_model_is_timed(window: Browser, folder: Path) -> None:
    """By the engine that is the best here, whatever the page was asked for."""
    names = sorted(f.name for f in (folder / "another").iterdir())
    found = window.wait(
        "const { reported } = await import('/times.js');"
        "const files = new Map();"
        "for (const n of given[0]) files.set(n, await (await fetch('/another/' + n)).blob());"
        "return reported(files)",
        names,
    )
    assert found["name"] == "layers"
    assert found["median"] > 0
    assert found["engine"].startswith("WebAssembly (128-bit relaxed SIMD, one thread)")
    said = window.wait(
        "const { reported } = await import('/times.js');"
        "return reported(new Map()).then(() => '', (e) => e.message)"
    )
    assert "no model.json" in said
