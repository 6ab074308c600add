"""A wgpu adapter by its Vulkan driver, on which modules run, for tests of their text. A process
loads one driver, so each adapter has a process of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.backends.wgpu.wgsl.module import ENTRY, Grid, Module, dispatch
from tests.backend.wgpu.drivers import ICD, file_of, why_not
from tests.backend.wgpu.serve import Work
from tests.patience import PATIENCE_S

Array = np.ndarray[Any, Any]
GAP = 256
"""Bytes in front of each buffer of a binding, so that its first element is not the binding's."""


@dataclass(frozen=True)
class Dispatch:
    """One launch of a module on flat arrays. All buffers of a binding are in one GPU buffer, one
    behind the other."""

    module: Module
    buffers: tuple[Array, ...]
    scalars: tuple[float, ...] = ()
    grid: Grid = (1, 1, 1)
    bindings: tuple[int, ...] | None = None

    @property
    def _bindings(self) -> tuple[int, ...]:
        return self.module.separate if self.bindings is None else self.bindings

    def work(self) -> tuple[Work, list[int]]:
        """What the adapter runs, and the byte of its binding at which each buffer begins."""
        raws = [bytearray() for _ in range(max(self._bindings, default=-1) + 1)]
        starts: list[int] = []
        for array, k in zip(self.buffers, self._bindings, strict=True):
            raws[k] += b"\xa5" * (GAP + -len(raws[k]) % GAP)
            starts.append(len(raws[k]))
            raws[k] += array.tobytes() + b"\xa5" * (-array.nbytes % 16)
        firsts = [start // b.itemsize for start, b in zip(starts, self.buffers)]
        params = self.module.params(firsts, self.scalars, self.grid)
        text, groups = self.module.source(self._bindings), dispatch(self.grid)
        return (text, ENTRY, [bytes(raw) for raw in raws], params, groups), starts

    def read(self, raws: list[bytes], starts: list[int]) -> tuple[Array, ...]:
        """The buffers, out of the bytes of the bindings."""
        return tuple(
            np.frombuffer(raws[k][start : start + array.nbytes], array.dtype)
            for array, k, start in zip(self.buffers, self._bindings, starts, strict=True)
        )


class Adapter:
    """A process that runs modules on one driver."""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        why = why_not(driver)
        if why:
            pytest.skip(why)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("serve.py"))],
            env={**os.environ, ICD: str(file_of(driver))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *dispatches: Dispatch) -> list[tuple[Array, ...]]:
        """The buffers of each after its launch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        works = [d.work() for d in dispatches]
        pickle.dump([work for work, _ in works], self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        assert not isinstance(answer, str), answer
        made = zip(dispatches, answer, works, strict=True)
        return [d.read(raws, starts) for d, raws, (_, starts) in made]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)
