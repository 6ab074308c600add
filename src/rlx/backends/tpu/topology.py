"""TPU topologies that libtpu compiles for, without a TPU: generations, grids, their machines."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from rlx.backends.base import Missing
from rlx.backends.tpu.namespaces import jax, topologies
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.cost.machine import Machine

GB = 10**9
INSTALL = "pip install 'jax[tpu]'"
"""jax with the libtpu that it is released with, which is 700 MB large, so that it is no extra."""
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_LOG_DIR": "disabled", "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
"""What libtpu would ask a metadata server for, or say on stderr that it cannot find; and that
other processes may have it, as no device is used. It reads them once, when it is loaded."""
_LOADING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of TPUs as it is documented, by chip."""

    name: str
    bf16_tflops: float
    hbm_gb_s: float
    hbm_gb: int
    rank: int
    """Of its grids."""
    devices_per_chip: int = 1
    """That programs are compiled for: cores, where two of them are not one device."""

    @property
    def memory_bytes(self) -> int:
        """Of a device."""
        return self.hbm_gb * GB // self.devices_per_chip

    def machine(self, base: Machine) -> Machine:
        """One device. Matrix units multiply bf16; a product of f32 is six of bf16."""
        bf16 = self.bf16_tflops * 1_000 / self.devices_per_chip
        rates = dict.fromkeys((DType.BF16, DType.F16), bf16)
        rates |= dict.fromkeys((DType.F32, DType.C64), bf16 / 6)
        gate = replace(base.gate, memory_gb_s=self.hbm_gb_s / self.devices_per_chip)
        return replace(base, gate=gate, peak_gflops={**base.peak_gflops, **rates})


GENERATIONS: Mapping[str, Generation] = {
    g.name: g
    for g in (
        Generation("v4", 275, 1_228, 32, 3, devices_per_chip=2),
        Generation("v5e", 197, 819, 16, 2),
        Generation("v5p", 459, 2_765, 95, 3),
        Generation("v6e", 918, 1_640, 32, 2),
    )
}


@dataclass(frozen=True, slots=True)
class Topology:
    """A grid of chips of one generation."""

    generation: Generation
    grid: tuple[int, ...]

    @classmethod
    def of(cls, variant: str, devices: int = 1) -> Topology:
        """Of "v5e:2x2"; of "v5e", the smallest grid that has so many devices."""
        name, _, grid = variant.partition(":")
        generation = GENERATIONS.get(name)
        if generation is None:
            known = ", ".join(GENERATIONS)
            raise Error(
                f"target 'tpu' has no variant {variant!r}. Use tpu:cpu for jax's CPU; to compile "
                f"without a TPU, one of {known}, with a grid as in tpu:v5e:2x2."
            )
        if not grid and ":" not in variant:
            return cls(generation, _smallest(generation, devices))
        return cls(generation, _grid(variant, grid, generation))

    def __str__(self) -> str:
        return f"{self.generation.name}:{'x'.join(map(str, self.grid))}"

    @property
    def num_devices(self) -> int:
        return prod(self.grid) * self.generation.devices_per_chip

    def devices(self) -> list[Any]:
        """Devices that programs are compiled for, and that do not exist."""
        chips = {"chips_per_host_bounds": (1, 1, 1)} if prod(self.grid) == 1 else {}
        try:
            with _quiet():
                return list(topologies.get_topology_desc(str(self), "tpu", **chips).devices)
        except Exception as error:  # whatever libtpu raises
            said = " ".join(str(error).split())[:300]
            raise Error(
                f"target 'tpu:{self}': libtpu refuses it: {said}. {self._instead(said)}"
            ) from error

    def _instead(self, said: str) -> str:
        if "lockfile" in said:
            return "Another process of this machine has it: wait for that one to end."
        grid = "x".join(map(str, _smallest(self.generation, 4)))
        return f"Use a grid such as tpu:{self.generation.name}:{grid}."


def devices_here(platform: str | None = None) -> list[Any]:
    """Those of jax. Where the machine has no chip, libtpu would say so at length on stderr."""
    chips = chain(Path("/dev").glob("accel*"), Path("/dev/vfio").glob("[0-9]*"))
    with nullcontext() if any(chips) else _quiet():
        return list(jax.devices(platform))


NO_LIBTPU = Missing("libtpu, which compiles for TPUs that are not here, is not installed", INSTALL)


def missing() -> Missing | None:
    """Why nothing can be compiled for a topology here; None where all is there."""
    return NO_LIBTPU if find_spec("libtpu") is None else None


def _grid(variant: str, text: str, generation: Generation) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise Error(f"target 'tpu:{variant}': {text!r} is no grid. Write it as in tpu:v5e:2x2.")
    found = tuple(map(int, text.split("x")))
    if len(found) != generation.rank:
        shown = "x".join("2" * min(2, generation.rank)) + ("x1" if generation.rank == 3 else "")
        raise Error(
            f"target 'tpu:{variant}': a grid of {generation.name} has {generation.rank} sides, as "
            f"in tpu:{generation.name}:{shown}."
        )
    return found


def _smallest(generation: Generation, devices: int) -> tuple[int, ...]:
    """The smallest grid with so many devices: one chip, or 2×2 and its doubles."""
    chips = -(-devices // generation.devices_per_chip)
    if chips == 1:
        return (1,) * generation.rank
    sides = [2, 2, *[1] * (generation.rank - 2)]
    while prod(sides) < chips:
        least = min(range(len(sides)), key=lambda i: (sides[i], -i))
        sides[least] *= 2
    return tuple(sides)


@contextmanager
def _quiet() -> Generator[None]:
    """libtpu loaded without questions to a metadata server, log files, or lines on stderr; the
    environment is as it was afterwards."""
    with _LOADING:
        before = {k: os.environ.get(k) for k in _QUIET}
        os.environ.update({k: v for k, v in _QUIET.items() if before[k] is None})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
