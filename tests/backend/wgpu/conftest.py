"""Adapters, one process each for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.wgpu.adapter import Adapter
from tests.backend.wgpu.drivers import DRIVERS


@pytest.fixture(scope="session", params=list(DRIVERS))
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    made = Adapter(request.param)
    yield made
    made.close()
