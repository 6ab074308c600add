"""The adapters that wgpu finds here, in an order that stays: GPUs first, software last."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from rlx.backends.base import Missing
from rlx.core.errors import UnsupportedError

KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
APIS = ("Vulkan", "Metal", "D3D12", "OpenGL", "OpenGLES")
"""As wgpu names what an adapter is driven by; the last ones are slower and have fewer limits."""
RUNTIME_DIR = "XDG_RUNTIME_DIR"
NO_PACKAGE = Missing("the package wgpu is not installed", "pip install 'rlx[wgpu]'")
NO_ADAPTER = Missing(
    "wgpu finds no adapter: neither a GPU with a driver of Vulkan, Metal or Direct3D 12, nor a "
    "driver in software",
    "apt install mesa-vulkan-drivers" if sys.platform == "linux" else "",
)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter: a GPU, or a driver in software, by one API."""

    number: int
    name: str
    api: str
    driver: str
    is_software: bool
    features: frozenset[str]
    limits: Mapping[str, int]
    handle: Any

    def __str__(self) -> str:
        kind = ", in software" if self.is_software else ""
        driver = f", {self.driver}" if self.driver else ""
        return f"wgpu:{self.number} {self.name}, {self.api}{kind}{driver}"


def adapters() -> tuple[Adapter, ...]:
    """All of them; an error says why there are none."""
    if find_spec("wgpu") is None:
        raise UnsupportedError(f"{NO_PACKAGE.reason}: {NO_PACKAGE.command}.")
    found = _enumerated()
    if not found:
        hint = f": {NO_ADAPTER.command}" if NO_ADAPTER.command else ""
        raise UnsupportedError(f"{NO_ADAPTER.reason}{hint}. Or use target='cpu'.")
    return found


def adapter(number: int) -> Adapter:
    """The one of a number."""
    found = adapters()
    if not 0 <= number < len(found):
        here = "; ".join(map(str, found))
        raise UnsupportedError(f"there is no wgpu adapter {number}; here: {here}.")
    return found[number]


@cache
def _enumerated() -> tuple[Adapter, ...]:
    """Which drivers there are is fixed for a process; nothing is opened."""
    import wgpu

    gpu: Any = wgpu.gpu
    try:
        with _without_wayland():
            every = gpu.enumerate_adapters_sync()
        handles = sorted(filter(_computes, every), key=_order)
    except RuntimeError as error:
        raise UnsupportedError(f"wgpu cannot be started: {error}. Use target='cpu'.") from None
    return tuple(map(_adapter, range(len(handles)), handles))


@contextmanager
def _without_wayland() -> Generator[None]:
    """Drivers look for a Wayland display beside the GPU, and complain on stderr where the system
    names no folder of its socket: one in which there is none is named for as long."""
    if os.environ.get(RUNTIME_DIR):
        yield
        return
    before = os.environ.get(RUNTIME_DIR)
    os.environ[RUNTIME_DIR] = os.devnull
    try:
        yield
    finally:
        os.environ.pop(RUNTIME_DIR)
        os.environ.update({} if before is None else {RUNTIME_DIR: before})


def _order(handle: Any) -> tuple[int, int]:
    info = handle.info
    return _index(KINDS, info["adapter_type"]), _index(APIS, info["backend_type"])


def _index(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _computes(handle: Any) -> bool:
    """Has it compute shaders at all? Old OpenGL drivers have none."""
    return handle.limits.get("max-compute-invocations-per-workgroup", 0) > 0


def _adapter(number: int, handle: Any) -> Adapter:
    info = handle.info
    return Adapter(
        number,
        info["device"] or info["vendor"] or "unnamed",
        info["backend_type"],
        info["description"],
        info["adapter_type"] == "CPU",
        frozenset(handle.features),
        dict(handle.limits),
        handle,
    )
