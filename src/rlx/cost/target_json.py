"""Targets as JSON, and back: every field, so that one that no registry knows is read as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.cost.gate import IoFusionGate
from rlx.cost.machine import CacheLevel, Machine
from rlx.cost.target import (
    ConvolutionPrices,
    FusionLimits,
    FusionTarget,
    ImplicitGemm,
    KernelLimit,
    Target,
)
from rlx.cost.targets import CallLimit
from rlx.ops.cost import OpClass
from rlx.ops.op import Kind


def machine_json(machine: Machine) -> dict[str, Any]:
    """Every field of a machine."""
    return _plain(machine)


def target_json(target: Target) -> dict[str, Any]:
    """Every field of a target."""
    return {f.name: _plain(getattr(target, f.name)) for f in fields(target)}


def _plain(value: Any) -> Any:
    """Sets sorted, enumerations by value, data classes by field."""
    match value:
        case Enum():
            return value.value
        case frozenset():
            return sorted(map(_plain, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case tuple():
            return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        case IoFusionGate() | FusionLimits() | CacheLevel() | ConvolutionPrices():
            return asdict(value)
        case KernelLimit() | Machine() | ImplicitGemm():
            return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        case Mapping():
            return {_plain(k): _plain(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def read_target(held: Mapping[str, Any]) -> Target:
    """The target that was written; fields of a wrong type are an error."""
    given = dict(held)
    names = {f.name for f in fields(Target)}
    if given.keys() != names:
        raise Error(f"a target has {', '.join(sorted(names))}, and nothing else")
    for name in ("views", "syncs", "regions", "loops", "native"):
        given[name] = _texts(given[name])
    if given["claimed"] is not None:
        given["claimed"] = _texts(given["claimed"])
    given["machine"] = read_machine(given["machine"])
    if given["convolutions"] is not None:
        given["convolutions"] = _convolutions(given["convolutions"])
    given["limits"] = FusionLimits(**given["limits"])
    given["native_kinds"] = frozenset(map(Kind, given["native_kinds"]))
    given["kernel_limits"] = {_text(k): _limit(v) for k, v in given["kernel_limits"].items()}
    given["mesh"] = {_text(k): int(_number(v)) for k, v in given["mesh"].items()}
    given["refusals"] = {_text(k): _text(v) for k, v in given["refusals"].items()}
    given["missing_dtypes"] = {DType(k): _text(v) for k, v in given["missing_dtypes"].items()}
    return Target(**given)


def read_machine(held: Mapping[str, Any]) -> Machine:
    """The machine that was written."""
    given = dict(held)
    names = {f.name for f in fields(Machine)}
    if given.keys() != names:
        raise Error(f"a machine has {', '.join(sorted(names))}, and nothing else")
    given["gate"] = IoFusionGate(**given["gate"])
    given["instructions"] = {OpClass(k): _number(v) for k, v in given["instructions"].items()}
    given["peak_gflops"] = {DType(k): _number(v) for k, v in given["peak_gflops"].items()}
    given["caches"] = tuple(CacheLevel(_number(c["bytes"]), c["gb_s"]) for c in given["caches"])  # pyright: ignore[reportArgumentType]
    return Machine(**given)


def _convolutions(held: Mapping[str, Any]) -> ConvolutionPrices | ImplicitGemm:
    if set(held) == {"dtypes"}:
        return ImplicitGemm(frozenset(map(DType, held["dtypes"])))
    return ConvolutionPrices(**held)


def _limit(held: Mapping[str, Any]) -> KernelLimit:
    dtypes = held["dtypes"]
    known = None if dtypes is None else frozenset(map(DType, dtypes))
    most = {_text(k): _number(v) for k, v in held["max_attrs"].items()}
    given = known, most, held["max_row"], _text(held["why_row"])
    if "op" not in held:
        return KernelLimit(*given)  # pyright: ignore[reportArgumentType]
    target = FusionTarget(_text(held["target"])).value
    return CallLimit(*given, target, _text(held["op"]))  # pyright: ignore[reportArgumentType]


def _texts(values: Any) -> frozenset[str]:
    return frozenset(map(_text, values))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Error(f"expected text, found {value!r:.40}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Error(f"expected a number, found {value!r:.40}")
    return value
