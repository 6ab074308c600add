"""rlx doctor: what is here, what is missing, and one line on what to do about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.tpu import backend as tpu
from rlx.cost import calibrate
from rlx.cost.target import FusionTarget
from rlx.runtime import doctor
from rlx.runtime.doctor import examine


def test_every_target_and_package_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu, "find_spec", lambda _: None)
    found = examine(tmp_path / "cache")
    assert [t.name for t in found.targets] == ["reference", *(t.value for t in FusionTarget)]
    by_name = {t.name: t for t in found.targets}
    assert by_name["reference"].is_here
    assert not by_name["tpu"].is_here
    assert "jax is not installed" in by_name["tpu"].detail
    assert next(p for p in found.packages if p.name == "numpy").version
    assert found.calibration is None
    assert any("rlx calibrate" in line for line in found.to_do)
    for line in (t.name for t in found.targets):
        assert line in str(found)
    json.dumps(found.as_dict())


def test_a_missing_package_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, sys.modules[CpuBackend.__module__]):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    found = examine(False)
    assert "native code: target cpu: pip install 'rlx[cpu]'" in found.to_do
    assert not next(t for t in found.targets if t.name == "cpu").is_here


def test_devices_are_those_that_backends_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(doctor, "NVIDIA", str(tmp_path / "nvidia0"))
    monkeypatch.setattr(doctor, "AMD", str(tmp_path / "none"))
    assert "an NVIDIA GPU" in examine(False).devices
    line = "cuda:0 NVIDIA H200, capability 9.0, 140 GiB, driver 13.0"
    monkeypatch.setattr(CpuBackend, "devices", lambda self: (line,))
    found = examine(False)
    assert line in found.devices
    assert "an NVIDIA GPU" not in found.devices
    assert f"devices: {line}" in str(found)


def test_the_cache_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(tmp_path / "cache").cache
    assert found.is_on
    assert found.folder == str(tmp_path / "cache")
    assert (found.entries, found.size_bytes) == (0, 0)
    assert not examine(False).cache.is_on
    monkeypatch.setenv("RLX_CACHE", "on")
    monkeypatch.setenv("RLX_CACHE_BYTES", "lots")
    assert "RLX_CACHE_BYTES" in examine().cache.problem


def test_processors_of_one_name_are_told_apart_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"model name": "AMD EPYC", "cpu family": "26", "model": "2", "stepping": "1"}
    monkeypatch.setattr(calibrate, "_cpuinfo", lambda: facts)
    calibrate._processor.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        assert calibrate.machine()["processor"] == "AMD EPYC (family 26, model 2, stepping 1)"
    finally:
        calibrate._processor.cache_clear()  # pyright: ignore[reportPrivateUsage]
