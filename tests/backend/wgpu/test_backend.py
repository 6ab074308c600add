"""The wgpu backend: what it says is missing, what it compiles for, and programs that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.base import Missing
from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.device import Code, Devices
from rlx.backends.registry import find_backend
from rlx.backends.wgpu import adapters
from rlx.backends.wgpu import backend as module
from rlx.backends.wgpu.backend import WgpuBackend
from rlx.backends.wgpu.errors import LostDeviceError
from rlx.backends.wgpu.machine import Architecture, named_architecture
from rlx.backends.wgpu.wgsl.module import Module
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from tests.backend.wgpu.devices import required
from tests.patience import PATIENCE_S

Array = np.ndarray[Any, Any]
WIDTH = 24
CLOSE = 1e-5
"""Sums of some dozen products of numbers near 1, added in another order."""


SILENT = """
import os
from rlx.backends.wgpu.adapters import adapters
adapters()
print(os.environ.get("XDG_RUNTIME_DIR"))
"""


@pytest.mark.parametrize("folder", [None, "", "/run"])
def test_looking_for_adapters_says_nothing_and_leaves_the_environment(folder: str | None) -> None:
    required()
    env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
    env |= {} if folder is None else {"XDG_RUNTIME_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", SILENT], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout == f"{folder}\n"


def graph() -> Graph:
    made = Graph("small")
    x = made.input("x", Shape((rlx.Dim("n", 1, 64), WIDTH)))
    w = made.param("w", Shape((WIDTH, 7)))
    made.set_outputs([ops.softmax(ops.matmul(x, w), axis=-1), ops.sum(x, axes=-1)])
    return made


def arrays(rows: int) -> tuple[Array, dict[str, Array]]:
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(d).astype(np.float32) for d in ((rows, WIDTH), (WIDTH, 7)))
    return x, {"w": w}


def expected(x: Array, params: dict[str, Array]) -> list[Array]:
    made = np.exp(x @ params["w"])
    return [made / made.sum(-1, keepdims=True), x.sum(-1)]


def check(got: Any, x: Array, params: dict[str, Array]) -> None:
    for made, wanted in zip(got, expected(x, params), strict=True):
        np.testing.assert_allclose(np.asarray(made), wanted, rtol=CLOSE, atol=CLOSE)


# -- what is missing ------------------------------------------------------------------------------


def test_it_is_found_by_name() -> None:
    assert isinstance(find_backend("wgpu"), WgpuBackend)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (module, adapters):
        monkeypatch.setattr(place, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "_DEVICES", Devices(module._opened))
    missing = WgpuBackend().missing()
    command = "pip install 'rlx[wgpu]'"
    assert missing == Missing("the package wgpu is not installed", command)
    with pytest.raises(rlx.UnsupportedError, match=r"pip install 'rlx\[wgpu\]'"):
        rlx.compile(graph(), target="wgpu", cache=False)


def test_without_an_adapter_it_says_which_driver_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wgpu", reason="the package wgpu is not installed")
    monkeypatch.setattr(adapters, "_enumerated", lambda: ())
    monkeypatch.setattr(module, "_DEVICES", Devices(module._opened))
    missing = WgpuBackend().missing()
    assert missing is not None
    assert "neither a GPU" in missing.reason
    assert missing.command == "apt install mesa-vulkan-drivers" or sys.platform != "linux"
    with pytest.raises(rlx.UnsupportedError, match="wgpu finds no adapter"):
        rlx.compile(graph(), target="wgpu", cache=False)


def test_an_adapter_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    name = required().name
    with pytest.raises(rlx.UnsupportedError, match=r"there is no wgpu adapter 77; here: wgpu:0 "):
        rlx.compile(graph(), target="wgpu:77", cache=False)
    (first, *_) = WgpuBackend().devices()
    assert first.startswith(f"wgpu:0 {name}, ")
    with pytest.raises(rlx.UnsupportedError, match="'wgpu:web' for what every browser has"):
        rlx.compile(graph(), target="wgpu:sm_80", cache=False)


# -- architectures --------------------------------------------------------------------------------


def test_an_architecture_is_named_by_all_that_code_depends_on() -> None:
    for made in (Architecture(), Architecture(True, True, 1024, 32768, 32)):
        assert named_architecture(made.name) == made
        assert made.machine.warp == 1
        assert made.target.has_f16 == made.has_f16
    small, large = Architecture(), Architecture(True, False, 1024, 32768, 32)
    assert large.runs(small)
    assert not small.runs(large)
    assert named_architecture("web") == small


def test_code_for_browsers_is_printed_without_a_device() -> None:
    backend = WgpuBackend().configured("web", None)
    lir = CompilePipeline(backend.target()).compile(graph()).lir
    artefact = backend.build(backend.program(lir))
    assert artefact.architecture == Architecture().name
    texts = [Module.of_bytes(c.binary).source() for c in artefact.codes]
    assert all("@compute @workgroup_size(" in t for t in texts)
    with pytest.raises(rlx.Error, match="'wgpu:web' is an architecture: "):
        backend.load(artefact)


def test_drivers_in_software_have_prices_of_their_own() -> None:
    """A launch is a synchronisation of host threads, memory and arithmetic are the host's."""
    gpu, software = (
        WgpuBackend(f"wgsl{kind}-256x16384-8b").target().machine for kind in ("", "-software")
    )
    assert gpu == Target.of("wgpu").machine
    assert software.gate.dispatch_ns > gpu.gate.dispatch_ns
    assert software.gate.memory_gb_s < gpu.gate.memory_gb_s
    assert software.gflops(DType.F32) < gpu.gflops(DType.F32)


def test_there_is_no_f64() -> None:
    made = Graph("wide")
    made.set_outputs([ops.exp(made.input("x", Shape([4], DType.F64)))])
    with pytest.raises(rlx.UnsupportedError, match=r"x.*WGSL has no 64-bit floats. Use f32"):
        rlx.compile(made, target="wgpu", cache=False)


@pytest.mark.parametrize("op", ["exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sigmoid"])
def test_nan_stays_nan_in_fast_functions(op: str) -> None:
    """Half floats are computed by WGSL's own functions."""
    required()
    made = Graph("nan")
    made.set_outputs([getattr(ops, op)(made.input("x", Shape([2], DType.F16)))])
    exe = rlx.compile(made, target="wgpu", cache=False, tune="off")
    found = exe(np.array([np.nan, 1.0], np.float16))
    assert np.isnan(found).tolist() == [True, False]


# -- programs -------------------------------------------------------------------------------------


def test_calls_of_all_kinds_agree() -> None:
    required()
    x, params = arrays(5)
    exe = rlx.compile(graph(), target="wgpu", params=params, cache=False, tune="off")
    for rows in (5, 5, 5, 3, 64, 3, 3):
        given, _ = arrays(rows)
        check(exe(given), given, params)
    check(exe.submit(x).result(), x, params)
    bound = exe.bind(x)
    for _ in range(3):
        bound()
    check(bound.outputs, x, params)
    on_device = bound.inputs[0]
    assert isinstance(on_device, DeviceArray)
    results = exe(on_device)
    assert all(isinstance(r, DeviceArray) for r in results)
    check([r.numpy() for r in results], x, params)
    with pytest.raises(rlx.Error, match="no addresses that other libraries could use"):
        np.from_dlpack(results[0])


def test_executables_of_several_threads_run_beside_each_other() -> None:
    required()
    _, params = arrays(5)
    exe = rlx.compile(graph(), target="wgpu", params=params, cache=False, tune="off")
    failed = list[str]()

    def work(rows: int) -> None:
        x, _ = arrays(rows)
        try:
            for _ in range(6):
                check(exe(x), x, params)
        except BaseException as error:
            failed.append(f"{rows}: {error}")

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 17, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert not any(t.is_alive() for t in threads)


def test_a_value_larger_than_a_binding_names_the_limit_and_the_node() -> None:
    device = required()
    limit = device.limits.max_bytes
    if limit > 1 << 28:
        pytest.skip(f"a binding of {device.name} has {limit:,} bytes: too much for a test")
    made = Graph("large")
    made.set_outputs([ops.sum(made.input("x", Shape([limit // 4 + 64])), axes=0)])
    exe = rlx.compile(made, target="wgpu", cache=False, tune="off")
    with pytest.raises(rlx.UnsupportedError, match=r"sum.*maxStorageBufferBindingSize"):
        exe(np.zeros(limit // 4 + 64, np.float32))


def test_a_lost_device_ends_its_executables_and_no_others() -> None:
    required()
    x, params = arrays(5)
    exe = rlx.compile(graph(), target="wgpu", params=params, tune="off", cache=False)
    check(exe(x), x, params)
    module._DEVICES[0].stream.device.destroy()
    for _ in range(2):
        with pytest.raises(LostDeviceError, match="compile or load the model again"):
            exe(x)
    again = rlx.compile(graph(), target="wgpu", params=params, tune="off", cache=False)
    check(again(x), x, params)


LOADED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llvmlite" or name == "rlx.backends.wgpu.wgsl.printer":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import numpy as np, rlx
exe = rlx.load(sys.argv[1])
np.savez(sys.argv[3], *exe(np.load(sys.argv[2])))
"""


def test_a_saved_program_runs_without_a_compiler(tmp_path: Path) -> None:
    required()
    x, params = arrays(9)
    exe = rlx.compile(graph(), target="wgpu", params=params, cache=False, tune="off")
    saved, given, made = (tmp_path / n for n in ("small.rlx", "x.npy", "y.npz"))
    exe.save(saved)
    np.save(given, x)
    subprocess.run(
        [sys.executable, "-c", LOADED, saved, given, made], check=True, timeout=PATIENCE_S
    )
    with np.load(made) as found:
        check([found[k] for k in found], x, params)


def test_codes_are_cached_on_disk(tmp_path: Path) -> None:
    required()
    x, params = arrays(4)
    given = {"target": "wgpu", "params": params, "cache": tmp_path, "tune": "off"}
    first = rlx.compile(graph(), **given)
    second = rlx.compile(graph(), **given)
    assert first.loaded.program.codegen_spans
    assert not second.loaded.program.codegen_spans, "nothing was printed"
    check(second(x), x, params)


def test_the_device_times_steps() -> None:
    required()
    x, params = arrays(32)
    exe = rlx.compile(graph(), target="wgpu", params=params, cache=False, tune="off")
    found = exe.profile([x])
    assert found.kernels
    assert all(k.median_ns >= 0 for k in found.kernels)
    assert found.call_ns > 0


def test_kernels_are_compiled_when_a_program_is_loaded() -> None:
    """One pipeline for those that differ in their names alone."""
    required()
    made, sides = Graph("twice"), Shape((WIDTH, WIDTH))
    x, y = made.input("x", sides), made.input("y", sides)
    made.set_outputs([ops.exp(x), ops.matmul(ops.exp(ops.neg(x)), y)])
    backend = find_backend("wgpu")
    assert isinstance(backend, WgpuBackend)
    artefact = backend.build(backend.program(CompilePipeline(backend.target()).compile(made).lir))
    others = tuple(_renamed(c) for c in artefact.codes)
    device = backend.device()
    kernels = [device.load(c) for c in (*artefact.codes, *others)]
    assert not any(k.handle.pipelines for k in kernels)
    device.ready(kernels)
    shaders = [k.handle for k in kernels]
    found = [s.pipelines[s.module.separate] for s in shaders]
    assert found[: len(others)] == found[len(others) :]
    program = backend.load(artefact)
    assert all(k.handle.pipelines for k in program._loaded.kernels)


def _renamed(code: Code) -> Code:
    module = replace(Module.of_bytes(code.binary), name="another")
    return replace(code, name="another", binary=module.to_bytes())
