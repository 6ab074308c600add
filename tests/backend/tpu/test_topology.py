"""TPUs that are not here: their names, their machines, and what compiling for them says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.code_facts import CodeFacts
from rlx.backends.tpu import topology
from rlx.backends.tpu.backend import backend
from rlx.backends.tpu.topology import GENERATIONS, Topology
from rlx.core.dtype import DType
from rlx.ir.mir import Graph

HAS_LIBTPU = find_spec("jax") is not None and find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(
    not HAS_LIBTPU, reason="libtpu is not installed, which is 700 MB: pip install 'jax[tpu]'"
)


def mlp() -> Graph:
    """Of sizes that are multiples of a TPU's tiles, 8 by 128, so that nothing is padded."""
    g = Graph("mlp")
    x = g.input("x", rlx.Shape([16, 128]))
    x = g.relu(g.matmul(x, g.param("w1", rlx.Shape([128, 256]))))
    g.set_outputs([g.matmul(x, g.param("w2", rlx.Shape([256, 128])))])
    return g


WEIGHT = 4 * 128 * 256
"""Bytes of each."""


@pytest.mark.parametrize(
    ("variant", "devices", "name"),
    [
        ("v5e", 1, "v5e:1x1"), ("v5e", 4, "v5e:2x2"), ("v5e", 5, "v5e:2x4"),
        ("v5e", 16, "v5e:4x4"), ("v5p", 4, "v5p:2x2x1"), ("v5p", 8, "v5p:2x2x2"),
        ("v4", 2, "v4:1x1x1"), ("v4", 8, "v4:2x2x1"), ("v6e:2x4", 1, "v6e:2x4"),
    ],
)  # fmt: skip
def test_a_grid_that_is_not_given_is_the_smallest_that_has_the_devices(
    variant: str, devices: int, name: str
) -> None:
    found = Topology.of(variant, devices)
    assert str(found) == name
    assert found.num_devices >= devices


@pytest.mark.parametrize("variant", ["v3", "v5e:", "v5e:2", "v5e:2x2x2", "v5p:2x2", "v5e:0x2", "x"])
def test_a_topology_that_is_none_is_an_error_that_shows_one(variant: str) -> None:
    with pytest.raises(rlx.Error, match=r"tpu:v5[ep]"):
        backend.configured(variant, None)


@pytest.mark.parametrize("name", GENERATIONS)
def test_a_generation_is_in_the_machine_of_its_target(name: str) -> None:
    machine = backend.configured(name, None).target().machine
    usual = backend.target().machine
    assert machine.gflops(DType.BF16) == pytest.approx(6 * machine.gflops(DType.F32))
    assert machine.gate.memory_gb_s > usual.gate.memory_gb_s


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is here, so that nothing is missing")
def test_without_libtpu_one_error_says_how_to_get_it() -> None:
    pytest.importorskip("jax", reason="without jax, that is what is missing")
    with pytest.raises(rlx.UnsupportedError) as caught:
        rlx.compile(mlp(), "tpu:v5e")
    assert topology.INSTALL in str(caught.value)


def test_facts_of_two_functions_are_those_of_a_call() -> None:
    one = CodeFacts("TPU v5 lite", 2, 1, 100, 1e3, 50, 10, 20, 7, 5, 10**9, 1e3, {"all-reduce": 1})
    both = one + one
    assert (both.functions, both.code_bytes, both.temporary_bytes) == (2, 200, 7)
    assert both.collectives == {"all-reduce": 2}
    assert both.optimal_ns == 2e3
    assert both.total_bytes == 200 + 20 + 40 + 7 - 10
    assert CodeFacts.from_dict(both.to_dict()) == both
    assert "2 all-reduce" in str(both)


@needs_libtpu
@pytest.mark.parametrize("variant", ["v4", "v5e", "v5p", "v6e"])
def test_every_generation_compiles(variant: str) -> None:
    facts = rlx.compile(mlp(), f"tpu:{variant}").code_facts()
    assert facts is not None
    products = 2 * 2 * 16 * 128 * 256
    assert facts.flops >= products
    assert facts.code_bytes > 0
    assert facts.argument_bytes == 4 * 16 * 128 + 2 * WEIGHT
    assert facts.output_bytes == 4 * 16 * 128
    assert facts.total_bytes < facts.memory_bytes


@needs_libtpu
def test_a_mesh_halves_weights_and_adds_one_all_reduce() -> None:
    one = rlx.compile(mlp(), "tpu:v5e").code_facts()
    two = rlx.compile(mlp(), "tpu:v5e", mesh={"model": 2}).code_facts()
    assert one is not None
    assert two is not None
    assert one.argument_bytes - two.argument_bytes == WEIGHT
    assert two.collectives == {"all-reduce": 1}
    assert (one.devices, two.devices) == (1, 2)


@needs_libtpu
def test_products_in_bf16_read_half_the_weights_and_sum_in_f32() -> None:
    exe: Any = rlx.compile(mlp(), "tpu:v5e", precision="bf16")
    whole = rlx.compile(mlp(), "tpu:v5e").code_facts()
    half = exe.code_facts()
    assert whole is not None
    assert whole.argument_bytes - half.argument_bytes == WEIGHT
    assert half.optimal_ns < whole.optimal_ns
    text = hlo(exe)
    products = re.findall(r"= (\S+) convolution\(%(\S+), %(\S+)\)", text)
    assert len(products) == 2
    assert all(made.startswith("f32[") for made, *_ in products)
    for name in (n for _, *names in products for n in names):
        assert re.search(rf"%{re.escape(name)} = bf16\[", text), name


def hlo(exe: Any) -> str:
    """What XLA made of a program's one function."""
    program = exe.loaded.program
    (function,) = (f for s in program.steps.call for f in program.functions.made(s))
    return program.engine.executable(function.call).as_text()


@needs_libtpu
def test_what_is_compiled_for_others_cannot_be_called() -> None:
    exe = rlx.compile(mlp(), "tpu:v5e:2x2")
    exe.set_params({n: np.zeros(s.static_dims, np.float32) for n, s in exe.params.items()})
    with pytest.raises(rlx.UnsupportedError, match="target='tpu' runs it"):
        exe(np.zeros((16, 128), np.float32))
    report = exe.explain()
    assert report.code is not None
    assert report.code["device"] == "TPU v5 lite"
    assert "compiled for 1 × TPU v5 lite" in str(report)


@needs_libtpu
def test_a_mesh_larger_than_the_grid_is_an_error() -> None:
    with pytest.raises(rlx.Error, match="has 8 devices, and there are 4"):
        rlx.compile(mlp(), "tpu:v5e:2x2", mesh={"data": 8})


@needs_libtpu
def test_a_file_of_what_is_compiled_for_others_runs_here(tmp_path: Path) -> None:
    weights = {n: np.ones(s.static_dims, np.float32) for n, s in rlx_params().items()}
    rlx.compile(mlp(), "tpu:v5e", params=weights, cache=False).save(tmp_path / "mlp.rlx")
    opened: Any = rlx.load(tmp_path / "mlp.rlx")
    made = opened(np.ones((16, 128), np.float32))
    assert np.array_equal(made, np.full((16, 128), 128 * 256, np.float32))


def rlx_params() -> dict[str, rlx.Shape]:
    return {n.attrs["name"]: n.shape for n in mlp().params}
