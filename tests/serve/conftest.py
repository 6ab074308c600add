"""One server for most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve import serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Running]:
    serving.skip_without_packages()
    lm = serving.tiny_model(tmp_path_factory.mktemp("serve"), slots=3)
    with serving.serving(lm) as made:
        yield made
