"""Samples of the long suites: `python -m tests.torch.opinfo`, `tests.torch.compile_models`."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.torch import compile_models, opinfo
from tests.torch.architectures import ARCHITECTURES

ENTRIES = {
    torch.float16: ("addcmul", "linspace", "div/floor_rounding", "softmax"),
    torch.bfloat16: ("add", "lerp", "nn.functional.layer_norm", "cumsum"),
    torch.int64: ("nn.functional.avg_pool2d", "nn.functional.conv_transpose2d", "remainder", "sum",
                  "unique_consecutive"),
    torch.bool: ("where", "any", "sort", "masked_fill"),
    torch.complex64: ("ldexp", "pow", "linalg.eigh", "fft.fft"),
    torch.float32: (
        "nn.functional.pad/circular", "linalg.qr", "linalg.svd", "linalg.eig", "index_put", "cdist",
        "histogramdd",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "name"), [(d, n) for d, names in ENTRIES.items() for n in names], ids=str
)
def test_entries_of_the_op_database(dtype: torch.dtype, name: str) -> None:
    entry = next(e for e in opinfo.op_db if opinfo.name_of(e) == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = opinfo.run(entry, dtype, ["reference", "cpu"], opinfo.Drawn(2, seed=3))
    assert {t: (f.verdict, f.why) for t, f in found.items()} == dict.fromkeys(found, ("right", ""))


@pytest.mark.parametrize("name", ["LSTM tagger", "ResNet"])
def test_architectures_through_torch_compile(name: str) -> None:
    found = next(a for a in ARCHITECTURES if a.name == name)
    worst, graphs, breaks = compile_models.run(found, "cpu")
    assert worst <= compile_models.TOLERANCE
    assert graphs > 0
    assert breaks == 0
