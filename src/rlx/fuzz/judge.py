"""Is every pipeline's result of one graph right?

The optimised graph must mean what the graph as built means: whole numbers, truth values and moved
values bit for bit, floats within the running error bound. The plan, executed in its poisoned arena,
must give what the optimised graph gives, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.reference import backend
from rlx.cost.target import FusionTarget
from rlx.dtype import DType
from rlx.errors import UnsupportedError
from rlx.fuzz.bound import Shadow, shadows
from rlx.fuzz.grow import Grown
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, MirModule
from rlx.op import Array
from rlx.pipeline import CompilePipeline
from rlx.runtime.executable import Executable
from rlx.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A result that is wrong: which pipeline, which output, and how."""

    target: str
    output: str
    message: str


def judge(
    grown: Grown,
    targets: Sequence[FusionTarget] = tuple(FusionTarget),
    backends: Sequence[str] = (),
) -> list[Mismatch]:
    """Everything wrong with what the targets' pipelines make of one graph, and with what the
    backends' own code computes. A backend that refuses the graph raises its UnsupportedError."""
    graph, values = grown.graph, grown.values
    plain = evaluate(graph, values)
    expected = shadows(graph, values)
    found = compare("reference", graph, plain, plain, expected)
    for target in targets:
        found += _judge_target(target, graph, values, plain, expected)
    for name in backends:
        found += _judge_backend(name, graph, values, plain, expected)
    return found


def _judge_backend(
    name: str,
    graph: Graph,
    values: Mapping[str, Array],
    plain: Sequence[Array],
    expected: Sequence[Shadow],
) -> list[Mismatch]:
    params = {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}
    exe = Session(name, cache=False).compile(graph, params=params)
    made = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    run = [made] if len(graph.outputs) == 1 else list(made)
    return compare(name, graph, run, plain, expected)


def _judge_target(
    target: FusionTarget,
    graph: Graph,
    values: Mapping[str, Array],
    plain: Sequence[Array],
    expected: Sequence[Shadow],
) -> list[Mismatch]:
    try:
        result = CompilePipeline(target).compile_mir(MirModule(graph))
    except UnsupportedError:
        return []  # the target refuses an op or dtype and says why: that is an answer
    optimised = evaluate(result.lir.mir.graph, values)
    found = compare(target.value, graph, optimised, plain, expected)
    params = {n.attrs["name"]: values[n.attrs["name"]] for n in graph.params}
    exe = Executable(result, backend.load(result.lir), params)
    made = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    run = [made] if len(graph.outputs) == 1 else list(made)
    for name, a, b in zip(graph.output_names, run, optimised, strict=True):
        if not _same_bits(a, b):
            found.append(Mismatch(f"{target.value} plan", name, _first_difference(a, b)))
    return found


def compare(
    target: str,
    graph: Graph,
    made: Sequence[Array],
    plain: Sequence[Array],
    expected: Sequence[Shadow],
) -> list[Mismatch]:
    found: list[Mismatch] = []
    for name, got, want, shadow in zip(graph.output_names, made, plain, expected, strict=True):
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
    """Where finite numbers are not within the bound, or what is not finite is not so alike; of
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
        alike = (got == value) | (np.isnan(got) & np.isnan(value))
    return close | alike


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
