"""The mesh that a user gives: names and sizes of its axes, or a jax Mesh."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from rlx.backends.tpu.mesh.shard import DATA, MODEL
from rlx.core.errors import Error

EXAMPLE = "{'data': 2, 'model': 2}"


def axes_of(mesh: Any) -> dict[str, int]:
    """Name → devices along it, checked."""
    given: Any = getattr(mesh, "shape", mesh)
    if not isinstance(given, Mapping):
        raise Error(f"mesh is {mesh!r}. Give a jax Mesh, or axes and sizes such as {EXAMPLE}.")
    found: dict[str, int] = {}
    for name, size in given.items():  # pyright: ignore[reportUnknownVariableType]
        if name not in (DATA, MODEL):
            raise Error(
                f"mesh has an axis {name!r}. Its axes are 'data', which splits the batch, and "
                f"'model', which splits weights: {EXAMPLE}."
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise Error(f"mesh[{name!r}] is {size!r}. Give a number of devices, as in {EXAMPLE}.")
        found[name] = size
    return found


def jax_mesh(axes: Mapping[str, int], devices: list[Any]) -> Any:
    """A mesh of the first devices, the last axis over neighbours."""
    import numpy as np

    from rlx.backends.tpu.namespaces import jax

    count = prod(axes.values())
    if len(devices) < count:
        shown = " × ".join(f"{k}={v}" for k, v in axes.items())
        raise Error(
            f"mesh {shown} has {count} devices, and there are {len(devices)}. Give a smaller one; "
            "on its processor jax has as many as "
            "XLA_FLAGS=--xla_force_host_platform_device_count=4 says before it starts."
        )
    # An object array: NumPy would look inside of devices that are sequences.
    held = np.empty(count, object)
    held[:] = devices[:count]
    return jax.sharding.Mesh(held.reshape(tuple(axes.values()) or (1,)), tuple(axes) or (DATA,))
