"""Pages of reports, and a browser to look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import reports
from tests.browser.driver import Browser, browser, missing


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.page(reports.large(), tmp_path_factory.mktemp("page") / "large.html")


@pytest.fixture(scope="session")
def deep_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = reports.layered(reports.MANY_LAYERS)
    return reports.page(model, tmp_path_factory.mktemp("page") / "deep.html")


@pytest.fixture(scope="session")
def branched_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.page(reports.branched(), tmp_path_factory.mktemp("page") / "branched.html")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.page(reports.layered(), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def reader() -> Iterator[Browser]:
    if absent := missing():
        pytest.skip(
            f"{' and '.join(absent)} not installed: apt-get install chromium chromium-driver"
        )
    with browser((1280, 800)) as made:
        yield made


@pytest.fixture
def opened(reader: Browser, page: Path) -> Callable[..., Browser]:
    """The page, at a view, in a theme, at a size."""

    def opens(
        view: str = "overview", *, theme: str = "light", size: str = "desktop", file: Path = page
    ) -> Browser:
        reader.open("about:blank")
        reader.resize(*reports.SIZES[size])
        reader.log("browser"), reader.requests()
        reader.open(f"{file.as_uri()}#view={view.lower()}&theme={theme}")
        assert reader.run("return document.documentElement.dataset.ready") == "yes"
        return reader

    return opens
