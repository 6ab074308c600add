"""The rocm backend without a device: what it compiles for, and what it says is missing."""

from __future__ import annotations

from typing import Any

import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.device import Devices
from rlx.backends.registry import find_backend
from rlx.backends.rocm import backend as module
from rlx.backends.rocm.backend import RocmBackend
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from tests.backend.rocm.fake import EmulatedDevice, FakeHip


def graph() -> Graph:
    made = Graph("small")
    x = made.input("x", Shape((32, 64), DType.F16))
    w = made.param("w", Shape((64, 32), DType.F16))
    made.set_outputs([ops.softmax(ops.matmul(x, w), axis=-1)])
    return made


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""

    def none(number: int) -> Any:
        raise rlx.UnsupportedError(f"there is no ROCm device {number}; none here.")

    monkeypatch.setattr(module, "_DEVICES", Devices(none))


def test_it_is_found_by_name() -> None:
    assert isinstance(find_backend("rocm"), RocmBackend)


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_code_is_generated_for_an_architecture(name: str) -> None:
    backend = RocmBackend().configured(name, None)
    assert backend.architecture == name
    assert backend.identity.startswith(f"rocm {name} ")
    assert backend.machine.warp == (64 if name.startswith("gfx9") else 32)
    lir = CompilePipeline(backend.target()).compile(graph()).lir
    artefact = backend.build(backend.program(lir))
    assert artefact.codes
    assert all(c.binary.startswith(b"\x7fELF") and c.shared_bytes == 0 for c in artefact.codes)
    with pytest.raises(rlx.Error, match=f"'rocm:{name}' is an architecture: "):
        backend.load(artefact)


def test_without_a_device_the_default_architecture_is_compiled_for() -> None:
    backend = RocmBackend()
    assert backend.architecture == "gfx942"
    lir = CompilePipeline(backend.target()).compile(graph()).lir
    tasks = [t for facts in backend.description(lir).values() for t in facts.tasks]
    assert any("on matrix instructions" in t for t in tasks)


def test_what_is_missing_is_said() -> None:
    missing = RocmBackend().missing()
    assert missing is not None
    assert missing.reason == (
        "there is no ROCm device 0; none here. It has never been run on an AMD GPU."
    )
    assert "never been run on an AMD GPU" in RocmBackend.summary


def test_without_llvm_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    missing = RocmBackend().missing()
    assert missing is not None
    assert (missing.reason, missing.command) == (
        "llvmlite is not installed",
        "pip install 'rlx[rocm]'",
    )
    with pytest.raises(rlx.UnsupportedError, match=r"llvmlite is not installed; pip install"):
        RocmBackend("gfx942").assemble([])


def test_a_device_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(FakeHip(architecture="gfx1201"))
    monkeypatch.setattr(module, "_DEVICES", Devices(lambda number: device))
    backend = RocmBackend()
    assert backend.missing() is None
    assert (backend.architecture, backend.machine.processors) == ("gfx1201", 5)


def test_wrong_options_are_errors() -> None:
    with pytest.raises(rlx.Error, match="threads is 4; target 'rocm' runs on the device"):
        RocmBackend().configured("", 4)
    with pytest.raises(rlx.UnsupportedError, match="no code for the architecture gfx803"):
        RocmBackend().configured("gfx803", None)
