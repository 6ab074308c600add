"""The runtimes that are timed, each optional: what must be installed, and what it cannot do."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

from bench.workload import Array, Workload

OURS = ("rlx", "rlx-out")
"""The rows that are rlx's own; all others are peers."""


@dataclass(frozen=True, slots=True)
class Launches:
    """What one call asks of a GPU: distinct kernels, dispatches, and submissions to its queue."""

    kernels: int
    dispatches: int
    submits: int


@dataclass(frozen=True, slots=True)
class Runner:
    """A prepared workload: `call` is what is timed, `arrays` reads what it returned. `launches`
    makes a call and counts."""

    call: Callable[[], Any]
    arrays: Callable[[Any], list[Array]]
    launches: Callable[[], Launches] | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A row of the tables. `home` has prepare(workload, threads, **options) -> Runner; `cannot`
    says of workloads, by how their names begin, why they are not run."""

    name: str
    home: str
    distribution: str
    modules: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cannot: Mapping[str, str] = field(default_factory=dict[str, str])
    needs_onnx: bool = False
    precisions: tuple[str, ...] = ()
    """What it can carry products out in beside single precision."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str = "cpu"
    """Of rlx, beside which it is timed."""

    def missing(self) -> list[str]:
        return [m for m in self.modules if importlib.util.find_spec(m) is None]

    def excuse(self, workload: str, precision: str = "") -> str:
        """Why it has no time for this workload; nothing if it can be timed."""
        if precision and precision.partition(":")[0] not in self.precisions:
            return f"has no {precision} here"
        if missing := self.missing():
            return f"absent: {', '.join(missing)} not installed"
        return next((why for n, why in self.cannot.items() if workload.startswith(n)), "")

    def version(self) -> str:
        return metadata.version(self.distribution)

    def prepare(self, workload: Workload, threads: int, **more: Any) -> Runner:
        home = import_module(f"bench.peers.{self.home}")
        return home.prepare(workload, threads, **self.options, **more)


NO_SPECTRA = {"F": "has no Fourier transform of this form"}
_COLD = {"RLX_CACHE": "off"}
_ONNX = ("onnx", "torch", "onnxscript")

PEERS = {
    p.name: p
    for p in (
        Peer("rlx", "ours", "rlx", ("rlx",), {"reuses_outputs": False}, environment=_COLD,
             precisions=("bf16", "int8")),
        Peer("rlx-out", "ours", "rlx", ("rlx",), {"reuses_outputs": True}, environment=_COLD,
             precisions=("bf16", "int8")),
        Peer("onnxruntime", "onnxruntime_peer", "onnxruntime", ("onnxruntime", *_ONNX),
             cannot=NO_SPECTRA, needs_onnx=True, precisions=("int8",)),
        Peer("openvino", "openvino_peer", "openvino", ("openvino", *_ONNX), cannot=NO_SPECTRA,
             needs_onnx=True, precisions=("bf16", "int8")),
        Peer("torch", "torch_peer", "torch", ("torch",), {"compiles": False},
             precisions=("bf16",)),
        Peer("inductor", "torch_peer", "torch", ("torch",), {"compiles": True},
             environment={"TORCHINDUCTOR_COMPILE_THREADS": "1"}, precisions=("bf16",)),
        Peer("jax", "jax_peer", "jax", ("jax",)),
        Peer("iree", "iree_peer", "iree-base-compiler", ("iree", "jax"), cannot=NO_SPECTRA),
        Peer("tinygrad", "tinygrad_peer", "tinygrad", ("tinygrad",),
             cannot={**NO_SPECTRA, "C_32": "left out: takes seconds per call"},
             environment={"DEV": "CPU" if shutil.which("clang") else "CPU:X86"}),
        Peer("tinygrad-webgpu", "tinygrad_peer", "tinygrad", ("tinygrad", "pydawn"),
             cannot={"F_welch": "has no Fourier transform"}, target="wgpu",
             environment={"DEV": "WEBGPU", "WEBGPU_BACKEND": "WGPUBackendType_Vulkan"}),
    )
}  # fmt: skip


def listed(results: Any) -> list[Any]:
    """Results as a list, whether there is one or several."""
    return list(results) if isinstance(results, tuple | list) else [results]


@contextmanager
def noted(owner: Any, name: str, key: Callable[..., object]) -> Generator[list[object]]:
    """The key of each call of a function of a class or module, while this is entered."""
    real, seen = getattr(owner, name), list[object]()

    def call(*args: Any, **options: Any) -> Any:
        seen.append(key(*args))
        return real(*args, **options)

    setattr(owner, name, call)
    try:
        yield seen
    finally:
        setattr(owner, name, real)
