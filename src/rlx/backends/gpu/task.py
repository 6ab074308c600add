"""Launches as the program of kernels holds them: a SIMT program, and the buffers that it is given.

A program is written when it is needed, never to learn how a kernel runs. Steps that no kernel of
the device does are the host's: their operands are copied there, and the results back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from rlx.backends.gpu.simt.program import Program
from rlx.core.dim import DimLike
from rlx.kernel.program.forms import AnyKernel
from rlx.kernel.program.schedule import Buffer

FAILURES = "failures"
"""The buffer of a program that holds the greatest code of what went wrong: an i32 of its own."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel on the device."""

    name: str
    write: Callable[[str], Program] = field(compare=False)
    """The program, under the name given. It depends on nothing but `key`."""
    key: Hashable
    """Of all that the program depends on: launches of equal keys share one."""
    names: tuple[str, ...]
    """Of the program's buffers, but for `failures`, in the order of `buffers`."""
    buffers: tuple[Buffer, ...]
    """What they are."""
    failures: tuple[str, ...] = ()
    """What the codes mean that the program notes: 1 is the first."""
    note: str = ""
    """How it runs, in a few words."""
    scratch: DimLike = 0

    def program(self) -> Program:
        """What is launched, under a name that every assembler takes."""
        return self.write(self.name.replace(".", "_"))

    def on(self, buffers: tuple[Buffer, ...]) -> Launch:
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> Launch:
        """A grid is always divided."""
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return f"{self.name}: {self.note}" if self.note else self.name


@dataclass(frozen=True, slots=True)
class HostTask:
    """A kernel that the host runs by its NumPy meaning, as the device has no code for it."""

    name: str
    kernel: AnyKernel
    buffers: tuple[Buffer, ...]
    reason: str
    failures: tuple[str, ...] = ()
    scratch: DimLike = 0

    @property
    def key(self) -> Hashable:
        return self.name

    def on(self, buffers: tuple[Buffer, ...]) -> HostTask:
        return replace(self, buffers=buffers)

    def split(self, is_split: bool) -> HostTask:
        return self

    def text(self, sizes: Mapping[str, int]) -> str:
        return f"{self.name}: {self.kernel.name} on the host ({self.reason})"


GpuTask = Launch | HostTask
