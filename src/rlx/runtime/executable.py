"""Executables: compiled models that run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.base import Program
from rlx.cost.decision import Decision
from rlx.cost.gate import GraphIoProfile
from rlx.dim import Dim
from rlx.errors import Error
from rlx.ir.interpret import mismatch
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node
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
        bound = self.lir.plan.bind(sizes)
        return MemoryNeed(bound.arena_bytes, bound.weight_bytes)

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
        self._check_names("param", params, declared)
        with self._lock:
            given = {**self._given, **{k: _frozen(declared[k], v) for k, v in params.items()}}
            missing = [k for k in declared if k not in given]
            if not missing:
                self._weights = self._program.prepare(given, self._weights)
            self._given = given

    def _ready(self) -> Any:
        if self._weights is None:
            missing = [n for n in self.params if n not in self._given]
            raise self._error(f"params have no value yet: {_listed(missing)}. Call set_params.")
        return self._weights

    # -- calls ---------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on positional inputs: the output, or a tuple of them.

        `out` is an array for the output, or a list with an array or None for each: contiguous,
        and sharing no memory with the inputs or one another.
        """
        names = list(self.inputs)
        if len(arrays) != len(names):
            raise self._error(f"takes {len(names)} inputs ({_listed(names)}), got {len(arrays)}.")
        results = self._run(dict(zip(names, arrays)), self._targets(out))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name: outputs by name."""
        names = list(self.inputs)
        self._check_names("input", inputs, names)
        missing = [n for n in names if n not in inputs]
        if missing:
            raise self._error(f"no value for {_listed(missing)}. Inputs: {_listed(names)}.")
        results = self._run(inputs, self._targets(None))
        return dict(zip(self._graph.output_names, results))

    def _run(self, inputs: Mapping[str, Any], out: Sequence[Array | None]) -> list[Array]:
        arrays = [as_array(inputs[name], f"input {name!r}") for name in self.inputs]
        return self._program.run(self._ready(), arrays, out)

    def _targets(self, out: Any) -> list[Array | None]:
        count = len(self._graph.outputs)
        if out is None:
            return [None] * count
        given: Any = [out] if isinstance(out, np.ndarray) else out
        if not isinstance(given, list | tuple) or not all(
            a is None or isinstance(a, np.ndarray) for a in given
        ):
            raise self._error(f"out is {out!r}, expected an array, or a list of arrays or None.")
        if len(given) != count:
            raise self._error(f"out has {len(given)} arrays for {count} outputs.")
        return list(given)

    def _check_names(self, kind: str, given: Any, known: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            raise self._error(f"{kind}s are given by name, as a dict, not {given!r}.")
        for name in given:
            if name not in known:
                raise self._error(f"there is no {kind} {name!r}. It has: {_listed(known)}.")

    def _error(self, text: str) -> Error:
        return Error(f"{self.lir.name}: {text}")


def as_array(value: Any, what: str) -> Array:
    """`value` as a NumPy array, without a copy where it offers DLPack."""
    try:
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        return np.from_dlpack(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise Error(f"{what} cannot be read as an array: {error}") from None


def _listed(names: Collection[str], most: int = 8) -> str:
    """The names, or the first of many."""
    shown = ", ".join(list(names)[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _frozen(leaf: Node, value: Any) -> Array:
    """The weight as given, checked; later changes to the caller's array do not count."""
    array = as_array(value, f"param {leaf.attrs['name']!r}")
    fits = array.ndim == leaf.shape.rank and all(
        isinstance(d, Dim) or d == size for d, size in zip(leaf.shape.dims, array.shape)
    )
    if array.dtype != leaf.shape.dtype.numpy or not fits:
        raise mismatch(leaf, array)
    copy = np.array(array, order="C", copy=True)
    copy.setflags(write=False)
    return copy
