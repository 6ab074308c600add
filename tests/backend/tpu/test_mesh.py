"""Programs on a mesh: four processors of jax's, which give what NumPy does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.backend.tpu.mesh_runs import CASES, LLAMA, MINILM
from tests.patience import PATIENCE_S

pytest.importorskip("jax", reason="programs on a mesh run by jax: pip install 'rlx[tpu]'")

ERROR = 2e-6
"""Sums of parts are added in another order: a few roundings of f32 over four layers."""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """In a process of its own, as jax counts its devices once, when it starts."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "RLX_CACHE": "off"}
    made = subprocess.run(
        [sys.executable, "-m", "tests.backend.tpu.mesh_runs"],
        capture_output=True, text=True, env={**os.environ, **flags}, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    return json.loads(made.stdout)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: "-".join(map(str, CASES[i])))
def test_a_mesh_agrees_with_numpy(found: list[dict[str, Any]], case: int) -> None:
    assert found[case]["error"] < ERROR
    assert found[case]["opened"] < ERROR


def test_a_layer_has_two_all_reduces_and_nothing_else(found: list[dict[str, Any]]) -> None:
    """After the rows of attention's output, and after those of the MLP's. Where the batch is split,
    one more: whether all indices are in range."""
    layers = [LLAMA.layers if name in ("prefill", "decode") else MINILM.layers for name, _ in CASES]
    checks = ["data" in mesh for _, mesh in CASES]
    expected = [{"all-reduce": 2 * n + check} for n, check in zip(layers, checks)]
    assert [f["collectives"] for f in found] == expected
