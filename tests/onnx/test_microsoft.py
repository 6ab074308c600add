"""onnxruntime's own operators give what onnxruntime gives: microsoft.npz is what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from rlx.onnx_backend import Backend

GOLDEN = dict(np.load(Path(__file__).parent / "microsoft.npz"))
NAMES = sorted({key.partition("/")[0] for key in GOLDEN})


def arrays(name: str, kind: str) -> list[Any]:
    count = sum(key.startswith(f"{name}/{kind}") for key in GOLDEN)
    return [GOLDEN[f"{name}/{kind}{i}"] for i in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_as_onnxruntime(name: str) -> None:
    """Whole numbers are equal; floats differ by the rounding of some sums in f32, or of tanh and
    exp where onnxruntime has approximations of its own."""
    model = ModelProto.FromString(GOLDEN[f"{name}/model"].tobytes())
    made, wanted = Backend.prepare(model).run(arrays(name, "in")), arrays(name, "out")
    assert len(made) == len(wanted) > 0
    for m, w in zip(made, wanted):
        assert (m.dtype, m.shape) == (w.dtype, w.shape)
        if m.dtype.kind == "f":
            np.testing.assert_allclose(m, w, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(m, w)
