"""What is here and what is missing: targets, packages, devices, prices, the cache."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlx._version import __version__
from rlx.backends.registry import backend_names, distribution_of, find_backend
from rlx.core.disk_cache import Cache, CacheLike
from rlx.core.errors import Error, UnsupportedError
from rlx.cost.calibrate import Calibration, cached_calibration, machine

PACKAGES = (
    ("numpy", "arrays, and target reference", "rlx"),
    ("ml_dtypes", "bf16 and other small floats", "rlx"),
    ("llvmlite", "native code: target cpu", "rlx[cpu]"),
    ("wgpu", "GPUs by WebGPU: target wgpu", "rlx[wgpu]"),
    ("mlx", "Apple silicon: target mlx", "rlx[mlx]"),
    ("jax", "TPUs: target tpu", "rlx[tpu]"),
    ("onnx", "models in .onnx files", "rlx[onnx]"),
    ("typer", "the command line", "rlx[cli]"),
    ("rich", "tables and progress on a terminal", "rlx[cli]"),
)
"""Package, what it is for, and what brings it."""
NVIDIA, AMD = "/dev/nvidia0", "/dev/kfd"


@dataclass(frozen=True, slots=True)
class TargetState:
    """Can a target run here? If not, `missing` says what to install, where that helps."""

    name: str
    is_here: bool
    detail: str
    missing: str = ""


@dataclass(frozen=True, slots=True)
class PackageState:
    """A package that rlx uses, and its version here."""

    name: str
    use: str
    version: str | None
    install: str


@dataclass(frozen=True, slots=True)
class CacheState:
    """Where compiled programs are cached."""

    is_on: bool
    folder: str = ""
    entries: int = 0
    size_bytes: int = 0
    max_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """The state of an installation."""

    version: str
    python: str
    system: str
    machine: Mapping[str, str]
    targets: tuple[TargetState, ...]
    packages: tuple[PackageState, ...]
    devices: tuple[str, ...]
    calibration: Calibration | None
    """Of the processor."""
    cache: CacheState
    measured: Mapping[str, Calibration | None] = field(
        default_factory=dict[str, "Calibration | None"]
    )
    """Of the other targets that run here and have prices of their own."""
    threads: tuple[int, str] = (1, "")
    """How many a call uses where none are asked for, and why."""

    @property
    def to_do(self) -> tuple[str, ...]:
        """One line for each thing that is missing, with what to do."""
        packages = [p for p in self.packages if p.version is None]
        installs = {p.install for p in packages}
        lines = [f"{p.use}: {p.install}" for p in packages]
        lines += [
            f"target {t.name}: {t.missing}"
            for t in self.targets
            if t.missing and t.missing not in installs
        ]
        if self.calibration is None and self.cache.is_on and not self.cache.problem:
            lines.append("prices of this machine, for the gate: rlx calibrate")
        if self.cache.is_on and not self.cache.problem:
            missing = [name for name, found in self.measured.items() if found is None]
            lines += [f"prices of {n}, for the gate: rlx calibrate --target {n}" for n in missing]
        if self.cache.problem:
            lines.append(f"the cache: {self.cache.problem}")
        return tuple(dict.fromkeys(lines))

    def as_dict(self) -> dict[str, Any]:
        held = {**asdict(self), "calibration": _prices(self.calibration)}
        measured = {name: _prices(found) for name, found in self.measured.items()}
        return {**held, "measured": measured, "to_do": list(self.to_do)}

    def __str__(self) -> str:
        return "\n".join([
            f"rlx {self.version}, Python {self.python}, {self.system}",
            f"processor: {self.machine['processor']}, {self.machine['cores']} cores, "
            f"code for {self.machine['code'] or 'none'}",
            f"threads: {self.threads[0]}, {self.threads[1]}",
            "targets:", *(_target_line(t) for t in self.targets),
            "packages:", *(_package_line(p) for p in self.packages),
            f"devices: {'; '.join(self.devices) or 'the processor alone'}",
            f"prices: {self.calibration or 'as documented; none were measured here'}",
            *(f"prices of {n}: {c or 'as documented'}" for n, c in self.measured.items()),
            f"cache: {_cache_text(self.cache)}",
            *(["to do:", *(f"  {line}" for line in self.to_do)] if self.to_do else []),
        ])  # fmt: skip


def examine(cache: CacheLike = None) -> Doctor:
    """Look at what is installed. Nothing is compiled, nothing is changed."""
    found, problem = _cache(cache)
    detail = _code_name()
    return Doctor(
        __version__,
        platform.python_version(),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        machine(detail),
        tuple(map(_target, backend_names())),
        tuple(_package(*p) for p in PACKAGES),
        tuple(_devices()),
        cached_calibration("cpu", detail, found),
        _cache_state(found, problem),
        {n: c for n in backend_names() if n != "cpu" for c in _measured(n, found)},
        _threads(),
    )


def _threads() -> tuple[int, str]:
    from rlx.backends.cpu.runtime.thread_count import usual_threads

    try:
        return usual_threads(os.environ)
    except Error as error:
        return 1, str(error)


def _measured(name: str, cache: Cache | None) -> tuple[Calibration | None, ...]:
    """The prices of a target that has some, if it runs here; nothing of any other."""
    try:
        backend = find_backend(name)
        has_prices = backend.missing() is None and bool(backend.architecture)
        return (cached_calibration(name, backend.hardware, cache),) if has_prices else ()
    except Error:
        return ()


def _prices(found: Calibration | None) -> list[dict[str, Any]] | None:
    return found and [n.as_dict() for n in found.numbers]


def _target(name: str) -> TargetState:
    try:
        backend = find_backend(name)
    except UnsupportedError:
        detail = f"rlx {__version__} has no backend for it; NumPy runs its plans: like={name!r}"
        return TargetState(name, False, detail)
    except Error as error:  # a distribution that is broken
        return TargetState(name, False, str(error))
    missing = backend.missing()
    if missing is not None:
        return TargetState(name, False, missing.reason, missing.command)
    brought = distribution_of(name)
    origin = f"from {brought}" if brought else ""
    said = backend.summary, origin, backend.call_path()
    return TargetState(name, True, ", ".join(t for t in said if t))


def _package(name: str, use: str, brings: str) -> PackageState:
    version = None
    if find_spec(name) is not None:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "of unknown version"
    return PackageState(name, use, version, f"pip install '{brings}'")


def _devices() -> list[str]:
    """What backends find, and what the system shows where they find nothing."""
    found = [line for name in backend_names() for line in _found_by(name)]
    shown = [
        ("cuda", "an NVIDIA GPU", Path(NVIDIA).exists()),
        ("rocm", "an AMD GPU", Path(AMD).exists()),
    ]
    shown.append(("metal", "an Apple GPU", _has_apple_gpu()))
    is_told = {line.split(":")[0] for line in found}
    return found + [text for name, text, is_here in shown if is_here and name not in is_told]


def _found_by(name: str) -> tuple[str, ...]:
    try:
        return find_backend(name).devices()
    except Error:
        return ()


def _has_apple_gpu() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _code_name() -> str:
    """The instruction set that native code is made for here."""
    try:
        return find_backend("cpu").architecture
    except Error:
        return ""


def _cache(given: CacheLike) -> tuple[Cache | None, str]:
    try:
        return Cache.of(given, os.environ), ""
    except Error as error:
        return None, str(error)


def _cache_state(cache: Cache | None, problem: str) -> CacheState:
    if cache is None:
        return CacheState(False, problem=problem)
    folder = cache.folder
    if folder.exists() and not os.access(folder, os.W_OK):
        problem = f"{folder} is not writable. Set RLX_CACHE_DIR to a folder of your own."
    return CacheState(True, str(folder), len(cache), cache.size_bytes, cache.max_bytes, problem)


def _target_line(t: TargetState) -> str:
    return f"  {t.name:10} {'runs' if t.is_here else '-':5} {t.detail}"


def _package_line(p: PackageState) -> str:
    return f"  {p.name:12} {p.version or '-':10} {p.use}"


def _cache_text(c: CacheState) -> str:
    if not c.is_on:
        return c.problem or "off"
    size = f"{c.size_bytes / 2**20:,.1f} of {c.max_bytes / 2**20:,.0f} MiB"
    return f"{c.folder}, {c.entries} entries, {size}{f'; {c.problem}' if c.problem else ''}"
