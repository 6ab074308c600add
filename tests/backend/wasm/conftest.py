"""One process of node for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.wasm.engine import Engine, why_not


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    if missing := why_not():
        pytest.skip(missing)
    made = Engine()
    yield made
    made.close()
