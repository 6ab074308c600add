"""The report of a large model in a browser: `make test-browser`.

Set RLX_PICTURES to a folder to keep pictures of every view in both themes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.explain.html import page_of
from tests.browser.driver import Browser, browser, missing

NODES = 1500
VIEWS = ("Overview", "Graph", "Memory", "Decisions", "Roofline", "Trace")
HERE = Path(__file__).parent
AGAINST, WIDER = ((HERE / f"{name}.js").read_text() for name in ("contrast", "wider"))


def large() -> tuple[rlx.Executable, dict[str, Any]]:
    """Products, norms and elementwise work, of as many nodes as a large model has."""
    g = rlx.Graph("a model of 1,500 nodes <script>alert(1)</script>")
    x = g.input("x", rlx.Shape([8, 32]))
    given = {"x": np.ones((8, 32), np.float32)}
    layer = 0
    while len(g.nodes) < NODES:
        w = g.constant(np.full((32, 32), 0.01 * (1 + layer % 7), np.float32))
        gate = g.sigmoid(g.matmul(x, w))
        x = g.softmax(x + gate * g.tanh(x), axis=-1)
        layer += 1
    g.set_outputs([x])
    return rlx.compile(g, "cpu"), given


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exe, given = large()
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(exe.explain(), exe.trace(given)), "utf-8")
    return path


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if absent := missing():
        pytest.skip(
            f"{' and '.join(absent)} not installed: apt-get install chromium chromium-driver"
        )
    with browser((1280, 800)) as made:
        yield made


@pytest.fixture
def opened(window: Browser, page: Path) -> Browser:
    window.open("about:blank")
    window.log("browser"), window.requests()
    window.open(page.as_uri() + "#light")
    return window


def test_the_page_is_one_small_file(page: Path) -> None:
    assert page.stat().st_size < 5_000_000


def test_it_opens_without_an_error_or_a_request(opened: Browser, page: Path) -> None:
    assert opened.run("return document.documentElement.dataset.ready") == "yes"
    for name in VIEWS:
        opened.run("open(arguments[0])", name)
    took = opened.run("return performance.getEntriesByType('navigation')[0].domInteractive")
    print(f"interactive after {took:.0f} ms")
    assert opened.log("browser") == []
    asked = [r for r in opened.requests() if not r.startswith("data:")]
    assert asked == [page.as_uri() + "#light"] or asked == [page.as_uri()]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_fit_and_can_be_read(opened: Browser, theme: str, name: str) -> None:
    opened.run("document.documentElement.dataset.theme = arguments[0]", theme)
    opened.run("open(arguments[0]); if (arguments[0] === 'Graph') choose(3)", name)
    assert opened.run(WIDER) == []
    assert opened.run(AGAINST) == []
    if folder := os.environ.get("RLX_PICTURES"):
        opened.picture(Path(folder) / f"{name.lower()}-{theme}.png")


def test_keys_lead_to_every_view_and_to_kernels(opened: Browser) -> None:
    for i, name in enumerate(VIEWS):
        opened.press(str(i + 1))
        selected = opened.run("return document.querySelector('[aria-selected=true]').textContent")
        assert selected.startswith(name)
    opened.press("/")
    assert opened.run("return document.activeElement.id") == "search"
    opened.press(*"softmax", "\ue007")
    assert "softmax" in opened.run("return document.querySelector('.side').textContent")


def test_a_kernel_shows_its_code_and_decisions_are_sifted(opened: Browser) -> None:
    opened.run("open('Graph')")
    opened.click(".node")
    assert "=" in opened.run("return document.querySelector('.side pre').textContent")
    opened.run("open('Decisions')")
    said = "return document.querySelector('section:not([hidden]) [role=status]').textContent"
    everything = opened.run(said)
    opened.run(
        "const e = document.querySelector('select[aria-label=Verdict]'); e.value = 'no';"
        "e.dispatchEvent(new Event('change'))"
    )
    assert opened.run(said) != everything
    assert opened.run("return document.querySelectorAll('tbody .yes').length") == 0
    assert opened.run("return document.querySelectorAll('tbody .no').length") > 0


def test_the_theme_changes(opened: Browser) -> None:
    opened.click("#theme")
    assert opened.run("return document.documentElement.dataset.theme") == "dark"
