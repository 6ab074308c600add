"""The chat page of a server in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.driver import Browser
from tests.serve import serving
from tests.serve.serving import Running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    serving.skip_without_packages()
    with serving.serving(serving.tiny_model(tmp_path_factory.mktemp("chat"))) as made:
        yield made


READY = """
const root = document.documentElement;
while (root.dataset.ready !== "yes") await new Promise((r) => setTimeout(r, 10));
"""
DONE = """
const send = document.getElementById("send");
while (send.textContent !== "Send") await new Promise((r) => setTimeout(r, 10));
"""


def asked(page: Browser, question: str, **settings: float) -> None:
    for name, value in settings.items():
        page.run(f"document.getElementById({name!r}).value = {value}")
    page.run("document.getElementById('question').value = arguments[0]", question)
    page.click("#send")


@pytest.fixture
def page(reader: Browser, server: Running) -> Browser:
    reader.open("about:blank")
    reader.log("browser")
    reader.requests()
    reader.open(f"{server.address}/")
    reader.wait(READY)
    return reader


def test_a_conversation(page: Browser, server: Running) -> None:
    assert page.each("#model") == ["tiny"]
    asked(page, "hello", temperature=0, most=20)
    page.wait(DONE)
    messages = [{"role": "user", "content": "hello"}]
    expected = server.lm.complete(server.lm.prompt_of(messages), max_tokens=20).text
    assert page.each("#messages article", "[e.className, e.textContent]") == [
        ["user", "hello"],
        ["assistant", expected],
    ]
    assert "+ 20 tokens" in page.each("#state")[0]
    asked(page, "zebra")
    page.wait(DONE)
    assert len(page.each("#messages article")) == 4
    page.click("#anew")
    assert page.each("#messages article") == []
    assert all(a.startswith((server.address, "data:")) for a in page.requests())
    assert not [m for m in page.log("browser") if m["level"] == "SEVERE"]


def test_an_answer_is_stopped(page: Browser, server: Running) -> None:
    page.run("fetch = ((f) => (u, h) => f(u, {...h, body: h?.body && JSON.stringify("
             "{...JSON.parse(h.body), ignore_eos: true})}))(fetch)")  # fmt: skip
    asked(page, "hello", temperature=0, most=900)
    page.wait("while (!document.querySelector('.assistant')?.textContent) "
              "await new Promise((r) => setTimeout(r, 10));")  # fmt: skip
    page.click("#send")
    page.wait(DONE)
    page.wait("while ((await (await fetch('health')).json()).running) "
              "await new Promise((r) => setTimeout(r, 10));")  # fmt: skip
    assert server.lm.engine.load.running == 0


def test_errors_are_shown(page: Browser) -> None:
    asked(page, "hello " * 2000)
    page.wait(DONE)
    assert "context" in page.each("article.error")[0]


def test_it_fits_a_phone(page: Browser) -> None:
    page.resize(360, 640)
    try:
        asked(page, "x" * 300, most=5)
        page.wait(DONE)
        assert page.run("return document.documentElement.scrollWidth") <= 360
    finally:
        page.resize(1280, 800)
