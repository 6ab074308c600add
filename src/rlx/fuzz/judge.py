"""The oracle of the fuzzer: is every pipeline's result of one graph within its error bound?

The optimised graph must mean what the graph as built means: whole numbers, truth values and moved
values bit for bit, floats within the running error bound. The plan, executed in its poisoned arena,
must give what the optimised graph gives, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.reference import backend
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.cost.target import FusionTarget
from rlx.fuzz.error_bound import Shadow, rounding, shadows
from rlx.fuzz.generate import Grown
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, MirModule
from rlx.ops.op import Array
from rlx.pipeline import CompilePipeline
from rlx.runtime.executable import Executable
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A result that is wrong: which pipeline, which output, and how."""

    target: str
    output: str
    message: str


@dataclass(frozen=True)
class Expected:
    """What a graph means for some values.

    The error bound costs more than a compile, so it is computed only where a result differs from
    the reference by more than one rounding, which every bound allows.
    """

    graph: Graph
    values: Mapping[str, Array]

    @functools.cached_property
    def plain(self) -> list[Array]:
        """The reference's values."""
        return evaluate(self.graph, self.values)

    @functools.cached_property
    def shadows(self) -> list[Shadow]:
        """The values in f64, each with its bound."""
        return shadows(self.graph, self.values)


def judge(
    grown: Grown,
    targets: Sequence[FusionTarget] = tuple(FusionTarget),
    backends: Sequence[str] = (),
) -> list[Mismatch]:
    """Everything wrong with what the targets' pipelines make of one graph, and with what the
    backends' own code computes. A backend that refuses the graph raises its UnsupportedError."""
    expected = Expected(grown.graph, grown.values)
    found = _outside_bounds("reference", expected, expected.plain) if targets else []
    for target in targets:
        found += _judge_target(target, expected)
    for name in backends:
        found += _judge_backend(name, expected)
    return found


def _judge_backend(name: str, expected: Expected) -> list[Mismatch]:
    graph, values = expected.graph, expected.values
    params = {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}
    exe = Session(name, cache=False).compile(graph, params=params)
    made = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    run = [made] if len(graph.outputs) == 1 else list(made)
    return compare(name, expected, run)


def _judge_target(target: FusionTarget, expected: Expected) -> list[Mismatch]:
    graph, values = expected.graph, expected.values
    try:
        result = CompilePipeline(target).compile_mir(MirModule(graph))
    except UnsupportedError:
        return []  # the target refuses an op or dtype and says why: that is an answer
    optimised = evaluate(result.lir.mir.graph, values)
    found = compare(target.value, expected, optimised)
    params = {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}
    exe = Executable(LoadedProgram(result, backend.compile(result.lir), backend, params))
    made = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    run = [made] if len(graph.outputs) == 1 else list(made)
    for name, a, b in zip(graph.output_names, run, optimised, strict=True):
        if not _same_bits(a, b):
            found.append(Mismatch(f"{target.value} plan", name, _first_difference(a, b)))
    return found


def compare(target: str, expected: Expected, made: Sequence[Array]) -> list[Mismatch]:
    """What is wrong with the results of one program."""
    if all(map(_is_one_rounding, made, expected.plain)):
        return []
    return _outside_bounds(target, expected, made)


def _is_one_rounding(got: Array, want: Array) -> bool:
    """Is every number the reference's, or its neighbour?"""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if _same_bits(got, want):
        return True
    dtype = DType.of(want.dtype)
    if not dtype.is_float:
        return False
    with np.errstate(all="ignore"):  # a signalling NaN is a NaN
        a, b = got.astype(np.float64), want.astype(np.float64)
        return bool(np.all(_is_close(a, b, np.abs(b) * rounding(dtype))))


def _outside_bounds(target: str, expected: Expected, made: Sequence[Array]) -> list[Mismatch]:
    found: list[Mismatch] = []
    names = expected.graph.output_names
    for name, got, want, shadow in zip(names, made, expected.plain, expected.shadows, strict=True):
        dtype = DType.of(want.dtype)
        if got.shape != want.shape or got.dtype != want.dtype:
            found.append(
                Mismatch(target, name, f"{got.dtype}{got.shape} for {want.dtype}{want.shape}")
            )
        elif not (dtype.is_float or dtype.is_complex):
            if not np.array_equal(got, want):
                found.append(Mismatch(target, name, _first_difference(got, want)))
        elif not shadow.is_lost and np.any(outside := _outside(got, shadow)):
            found.append(Mismatch(target, name, _first_outside(got, shadow, outside)))
    return found


def _outside(got: Array, shadow: Shadow) -> Array:
    """Where finite numbers are not within the bound, or non-finite values differ; of
    complex numbers either part may be the one."""
    with np.errstate(all="ignore"):  # a signalling NaN is a NaN
        wide = got.astype(shadow.value.dtype)
    unknown = ~np.isfinite(shadow.error)
    if not np.iscomplexobj(wide):
        return ~(_is_close(wide, shadow.value, shadow.error) | unknown)
    pairs = [(part(wide), part(shadow.value)) for part in (np.real, np.imag)]
    close = [_is_close(a, b, shadow.error) | (unknown & np.isfinite(b)) for a, b in pairs]
    return ~np.all(close, axis=0)


def _is_close(got: Array, value: Array, error: Array) -> Array:
    with np.errstate(all="ignore"):
        close = np.abs(got - value) <= error
        equal = (got == value) | (np.isnan(got) & np.isnan(value))
    return close | equal


def _same_bits(a: Array, b: Array) -> bool:
    """Equal bytes, but that any NaN is a NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    with np.errstate(all="ignore"):
        return bool(np.all((a == b) | ((a != a) & (b != b))))


def _first_difference(a: Array, b: Array) -> str:
    with np.errstate(all="ignore"):
        where = np.argwhere(~((a == b) | ((a != a) & (b != b))))
    index = tuple(int(i) for i in where[0])
    return f"{len(where)} of {a.size} differ; at {list(index)}: {a[index]!r}, expected {b[index]!r}"


def _first_outside(got: Array, shadow: Shadow, outside: Array) -> str:
    where = np.argwhere(outside)
    index = tuple(int(i) for i in where[0])
    return (
        f"{len(where)} of {got.size} differ; at {list(index)}: {got[index]!r}, "
        f"expected {shadow.value[index]!r} ± {shadow.error[index]!r}"
    )
