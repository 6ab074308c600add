"""Executables: compiled models that run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.base import Program
from rlx.cost.decision import Decision
from rlx.cost.gate import GraphIoProfile
from rlx.errors import Error, GraphError
from rlx.ir.lir import LirModule
from rlx.op import Array
from rlx.shape import Shape

if TYPE_CHECKING:
    from rlx.passes.report import FusionReport
    from rlx.pipeline import CompileResult


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes an executable needs before it runs: per running call, and once for the weights."""

    arena_bytes: int
    weight_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + self.weight_bytes


class Executable:
    """A compiled model. Calls may run side by side; `set_params` swaps weights between calls."""

    def __init__(
        self, result: CompileResult, program: Program, params: Mapping[str, Any] | None = None
    ) -> None:
        self._result, self._program = result, program
        self._graph = result.lir.mir.graph
        self._lock = threading.Lock()
        self._given: dict[str, Array] = {}
        self._weights: Any | None = None
        if params or not self._graph.params:
            self.set_params(params or {})

    # -- what it is ----------------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, Shape]:
        """Name → shape, in the order of positional arguments."""
        return {n.attrs["name"]: n.shape for n in self._graph.inputs}

    @property
    def outputs(self) -> dict[str, Shape]:
        """Name → shape, in order."""
        return {n: o.shape for n, o in zip(self._graph.output_names, self._graph.outputs)}

    @property
    def params(self) -> dict[str, Shape]:
        """Name → shape of every weight."""
        return {n.attrs["name"]: n.shape for n in self._graph.params}

    @property
    def lir(self) -> LirModule:
        return self._result.lir

    @property
    def fusion(self) -> FusionReport:
        return self._result.fusion

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self._result.decisions

    @property
    def profile(self) -> GraphIoProfile:
        """What one call costs in launches, syncs and bytes, as the target counts them."""
        from rlx.cost.profile import profile_graph_io

        return profile_graph_io(self.lir, target=self.lir.target)

    def memory(self, **sizes: int) -> MemoryNeed:
        """The bytes needed, known before running. Named dims need their sizes."""
        plan = self.lir.plan
        if not plan.dynamic_symbols:
            return MemoryNeed(plan.arena_bytes, plan.weight_bytes)
        from rlx.dim import evaluate
        from rlx.shape import DimBinding

        checked = DimBinding(sizes).checked(plan.dynamic_symbols)  # pyright: ignore[reportArgumentType]
        return MemoryNeed(evaluate(plan.arena_formula, checked), plan.weight_bytes)

    def explain(self) -> str:
        """Every decision: what, where, verdict, why, and the predicted saving."""
        from rlx.explain.text import explain

        return explain(self._result)

    def __repr__(self) -> str:
        given = ", ".join(f"{k}: {v}" for k, v in self.inputs.items())
        made = ", ".join(f"{k}: {v}" for k, v in self.outputs.items())
        return f"<Executable {self.lir.name!r} ({given}) -> ({made})>"

    # -- weights -------------------------------------------------------------------------------

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Give weights by name. A subset replaces those and re-runs only what depends on them.

        The new set is built first and swapped in at once: calls in flight keep the old one.
        """
        declared = {n.attrs["name"]: n for n in self._graph.params}
        unknown = sorted(params.keys() - declared.keys())
        if unknown:
            known = ", ".join(declared) or "none"
            raise Error(f"there is no param {unknown[0]!r}. Params: {known}.")
        with self._lock:
            given = {**self._given, **{k: _frozen(declared[k], v) for k, v in params.items()}}
            missing = [k for k in declared if k not in given]
            if not missing:
                self._weights = self._program.prepare(given, self._weights)
            self._given = given

    def _ready(self) -> Any:
        if self._weights is None:
            missing = [n for n in self.params if n not in self._given]
            raise Error(f"params have no value yet: {', '.join(missing)}. Call set_params.")
        return self._weights

    # -- calls ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on positional inputs: the output, or a tuple of them."""
        names = list(self.inputs)
        if len(arrays) != len(names):
            raise Error(f"takes {len(names)} inputs ({', '.join(names)}), got {len(arrays)}.")
        results = self._run([as_array(a) for a in arrays], out)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name: outputs by name."""
        names = list(self.inputs)
        wrong = sorted(set(names) ^ set(inputs))
        if wrong:
            problem = "is not an input" if wrong[0] not in names else "has no value"
            raise Error(f"{wrong[0]!r} {problem}. Inputs: {', '.join(names)}.")
        results = self._run([as_array(inputs[n]) for n in names], None)
        return dict(zip(self._graph.output_names, results))

    def _run(self, arrays: Sequence[Array], out: Any) -> list[Array]:
        given = [out] if isinstance(out, np.ndarray) else out
        targets: list[Array | None] = list(given or [None] * len(self._graph.outputs))
        if len(targets) != len(self._graph.outputs):
            raise Error(f"out has {len(targets)} arrays for {len(self._graph.outputs)} outputs.")
        return self._program.run(self._ready(), arrays, targets)


def as_array(value: Any) -> Array:
    """`value` as a NumPy array, without a copy where it offers DLPack."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def _frozen(leaf: Any, value: Any) -> Array:
    """The weight as given, checked; later changes to the caller's array do not count."""
    array = as_array(value)
    shape: Shape = leaf.shape
    if array.dtype != shape.dtype.numpy or (shape.is_static and array.shape != shape.dims):
        raise GraphError(
            f"param {leaf.attrs['name']!r} is {shape}, got {array.dtype.name}{list(array.shape)}. "
            "Cast or reshape it first."
        )
    copy = np.array(array, order="C", copy=True)
    copy.setflags(write=False)
    return copy
