"""What a device's kernels cost: the kernels are right, and the simulated device has numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.runtime import probes
from rlx.backends.gpu.runtime.calibration import Effort, measure
from rlx.backends.gpu.simulated import SIMULATED, SimulatedDevice
from rlx.core.dtype import DType
from rlx.cost.machine import DOCUMENTED
from tests.backend.gpu.kernels import run

SMALL = Effort(1, 1, 2, 1 << 15, 1 << 12, 1, 1)
ONE = replace(SIMULATED, processors=1, tiles=frozenset({"mma"}))


def test_copies() -> None:
    x = np.random.default_rng(0).standard_normal(2 * probes.CHUNK).astype(np.float32)
    got = run(probes.copying(GpuMachine()), x=x, y=np.zeros_like(x), n=2)
    np.testing.assert_array_equal(got["y"], x)


def test_transposed_copies() -> None:
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    got = run(probes.transposing(), x=x, y=np.zeros_like(x), r=64, c=96)
    np.testing.assert_array_equal(got["y"].reshape(96, 64), x.T)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_multiply_adds(dtype: DType) -> None:
    y = np.zeros(probes.BLOCK, dtype.numpy)
    got = run(probes.multiply_adding(dtype), y=y, blocks=1, steps=3)["y"]
    want = sum(i / 8 + 1.75 for i in range(probes.CHAINS))
    np.testing.assert_array_equal(got, np.full_like(y, want))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_products(dtype: DType) -> None:
    y = np.zeros(probes.BLOCK, np.float32)
    got = run(probes.multiplying(dtype), y=y, blocks=1, steps=2)["y"]
    want = sum(i + 32 for i in range(probes.PRODUCTS))
    np.testing.assert_array_equal(got, np.full_like(y, want))


def test_products_of_warpgroups() -> None:
    y, x = np.zeros(2 * probes.WARPGROUP, np.float32), probes.factors(DType.BF16)
    got = run(probes.warpgroup_multiplying(DType.BF16), x=x, y=y, blocks=1, steps=2)["y"]
    whole = 2 * x[:128].astype(float) @ x.astype(float).T  # in whole 64ths: exact
    assert got[0] == whole[0, 0]
    assert got[probes.WARPGROUP] == whole[64, 0]
    assert set(got.tolist()) <= set(whole.ravel().tolist())


def test_numbers_of_a_device() -> None:
    told: list[tuple[int, int, str]] = []
    device: Any = SimulatedDevice(ONE)
    (found,) = measure(device, lambda *args: told.append(args), SMALL)
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert {total for _, total, _ in told} == {len(told)}
    assert min(found.dispatch_ns, found.roundtrip_ns, found.memory_gb_s, found.readback_gb_s) > 0
    assert found.gflops.keys() == DOCUMENTED["cuda"].peak_gflops.keys()
    assert found.applied(DOCUMENTED["cuda"]).gate.memory_gb_s == found.memory_gb_s
    assert not device._arrays  # all memory was given back
