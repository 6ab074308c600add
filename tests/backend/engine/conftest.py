"""What tests of engines share."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rlx.backends.engine.backend import EngineBackend
from rlx.backends.registry import find_backend
from tests.backend.engine.numpy_engine import NumpyBackend

PACKAGES = {"mlx": "mlx", "tpu": "jax"}


@pytest.fixture(params=["numpy", *PACKAGES])
def backend(request: pytest.FixtureRequest) -> EngineBackend:
    """Each engine that is installed; NumPy's always is."""
    if request.param == "numpy":
        return NumpyBackend()
    if find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"{PACKAGES[request.param]} is not installed: make test-{request.param}")
    found = find_backend(request.param)
    assert isinstance(found, EngineBackend)
    return found
