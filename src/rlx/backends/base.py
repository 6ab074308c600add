"""What a backend is, and how one is found.

A backend turns a plan into a program. Built-in ones and third parties' are found alike, through
the entry point group `rlx.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlx._version import __version__
from rlx.core.errors import Error, UnsupportedError
from rlx.cost.decision import Decision
from rlx.cost.target import FusionTarget, Target
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node
from rlx.ops.op import Array

if TYPE_CHECKING:
    from rlx.core.disk_cache import Cache
    from rlx.core.sections import Bytes, Sections

GROUP = "rlx.backends"
BUILT_IN = {"reference": "rlx.backends.reference", "cpu": "rlx.backends.cpu"}


class Program(Protocol):
    """A loaded plan. It holds no state of a call: calls may run side by side."""

    interface: Interface

    def prepare(self, params: Mapping[str, Array], old: Any | None) -> Any:
        """A weight set of these params; what does not depend on changed ones comes from `old`."""
        ...

    def run(
        self, weights: Any, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        """One call: the outputs, written into the given arrays where there are any."""
        ...

    def quick(self, weights: Any) -> Callable[..., Any] | None:
        """A function of the inputs in order that gives what `run` gives, the output or a tuple of
        them, at less cost; None where there is none."""
        ...


@runtime_checkable
class Stepper(Protocol):
    """A program whose phases can be run apart."""

    def step(self, weights: Any, inputs: Sequence[Array]) -> tuple[list[Array | None], Any]:
        """SteadyState: the outputs that it makes, None for those of the Epilogue, and the state
        that the Epilogue begins with."""
        ...

    def finish(self, state: Any) -> list[Array | None]:
        """The Epilogue on a state, which it leaves as it is: its outputs, None for the others."""
        ...


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a backend says of a step: how it runs, and why."""

    way: str
    tasks: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()


Steps = Mapping[Node, StepFacts]
"""By step of a plan."""


class Backend(Protocol):
    """What a target must provide to run plans."""

    name: str

    def target(self) -> Target:
        """What the target runs natively, and what its work costs."""
        ...

    def configured(self, variant: str, threads: int | None, cache: Cache | None = None) -> Backend:
        """The backend for a variant of its target, such as an instruction set, and for a number
        of threads; "" and None are its own choice. It may keep what it makes in `cache`."""
        ...

    def load(self, lir: LirModule) -> Program:
        """One object that runs the whole plan."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A backend whose programs can be kept in files, and opened without compiling."""

    @property
    def identity(self) -> str:
        """All that the code depends on beside the plan: the instruction set, options."""
        ...

    def stored(self, program: Any) -> tuple[dict[str, Any], dict[str, Bytes]]:
        """A program as what JSON can hold, and sections of bytes."""
        ...

    def opened(self, head: dict[str, Any], file: Sections) -> Program:
        """The program that was stored; an Error where it cannot run here."""
        ...


def find_backend(name: str) -> Backend:
    """The backend called `name`, or an error that says how to get it."""
    if name in BUILT_IN:
        return import_module(BUILT_IN[name]).backend
    for entry in metadata.entry_points(group=GROUP, name=name):
        return entry.load()
    if name in {t.value for t in FusionTarget}:
        raise UnsupportedError(
            f"target {name!r}: no backend of that name is installed; rlx {__version__} brings "
            f"{' and '.join(BUILT_IN)}. With a release that has it: pip install 'rlx[{name}]'. "
            "Its plan runs on NumPy meanwhile: "
            f"rlx.compile(model, target='reference', like='{name}')."
        )
    known = ", ".join(["reference", *(t.value for t in FusionTarget)])
    raise Error(f"there is no target {name!r}. Use one of: {known}.")
