"""Which backends there are, and how one is found.

Built-in backends and third parties' are found alike, by name: an installed distribution lists a
`Backend` object under its name in the entry point group `rlx.backends`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rlx._version import __version__
from rlx.backends.base import Backend
from rlx.core.errors import Error, UnsupportedError
from rlx.cost.target import FusionTarget, Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlx.backends"
BUILT_IN = {
    "reference": "rlx.backends.reference",
    "cpu": "rlx.backends.cpu.backend",
    "cuda": "rlx.backends.cuda.backend",
    "rocm": "rlx.backends.rocm.backend",
    "metal": "rlx.backends.metal.backend",
    "wgpu": "rlx.backends.wgpu.backend",
    "mlx": "rlx.backends.mlx.backend",
    "tpu": "rlx.backends.tpu.backend",
}


def find_backend(name: str) -> Backend:
    """The backend called `name`, or an error that says how to get it."""
    if name in BUILT_IN:
        return import_module(BUILT_IN[name]).backend
    for entry in _entries(name):
        return _loaded(entry)
    if name in _documented():
        raise UnsupportedError(
            f"target {name!r}: no backend of that name is installed; rlx {__version__} brings "
            f"{' and '.join(BUILT_IN)}. With a release that has it: pip install 'rlx[{name}]'. "
            "Its plan runs on NumPy meanwhile: "
            f"rlx.compile(model, target='reference', like='{name}')."
        )
    raise Error(f"there is no target {name!r}. Use one of: {', '.join(backend_names())}.")


def has_backend(name: str) -> bool:
    """Is a backend of that name installed?"""
    return name in BUILT_IN or bool(_entries(name))


def backend_names() -> tuple[str, ...]:
    """Targets that come with rlx, documented ones, and those that other distributions bring."""
    brought = sorted(e.name for e in _entries())
    return tuple(dict.fromkeys(["reference", *_documented(), *brought]))


def distribution_of(name: str) -> str:
    """The distribution that brings a backend; "" for those of rlx."""
    entries = () if name in BUILT_IN else _entries(name)
    return next((_distribution(e) for e in entries), "")


def _entries(name: str = "") -> tuple[EntryPoint, ...]:
    """What installed distributions list, under one name if that is given. Their metadata takes 30
    ms to import, and rlx's own backends need none."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP, name=name) if name else entry_points(group=GROUP)
    return tuple(found)


def device_variant(backend: Backend, variant: str, device: int | None) -> str:
    """The variant of a target that runs on a device by number."""
    if device is None:
        return variant
    if not backend.has_devices:
        raise Error(f"device is {device}; target {backend.name!r} has none. Leave it out.")
    if variant or device < 0:
        named = f"target '{backend.name}:{variant}' names one" if variant else "the first is 0"
        raise Error(f"device is {device}; {named}. Use target={backend.name!r} and device=0.")
    return str(device)


def target_of(name: str) -> Target:
    """The target of that name as its backend has it here; the documented one where no backend is
    installed."""
    try:
        backend = find_backend(name)
    except UnsupportedError:
        return Target.of(name)
    return Target.of(name) if backend.runs_any_plan else backend.target()


def _documented() -> tuple[str, ...]:
    return tuple(t.value for t in FusionTarget)


def _loaded(entry: EntryPoint) -> Backend:
    """What an entry point names; a broken distribution is named in the error."""
    brought = f"target {entry.name!r} is brought by {_distribution(entry)}"
    try:
        found = entry.load()
    except Exception as error:  # whatever a foreign module raises when it is imported
        raise Error(
            f"{brought}, which cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Backend):
        raise Error(f"{brought}, but {entry.value} is no rlx.backends.base.Backend.")
    if found.name != entry.name:
        raise Error(f"{brought}, but {entry.value} is called {found.name!r}.")
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value
