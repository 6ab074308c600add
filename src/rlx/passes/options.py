"""Compile options of the passes. Options are values: nothing reads the environment."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from rlx.core.arguments import FLAG, MAPPING, NONE, SEVERAL, TEXT, instance
from rlx.core.dim import Dim
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.frozen import FrozenDict
from rlx.core.public_calls import public_class
from rlx.cost.target import FusionLimits
from rlx.ops.op import lookup

DispatchMode = Literal["prefer_native", "force_common", "force_native"]
Preference = Literal["native", "common", "claim"]


@public_class
@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """Which ops run as the target's own kernel and which as their lowering."""

    mode: DispatchMode = "prefer_native"
    force_common: Collection[str] = frozenset()
    """Ops that run as their lowering, whatever the mode."""
    force_native: Collection[str] = frozenset()
    """Ops that run as the target's kernel, whatever the mode and `force_common` say."""

    def __post_init__(self) -> None:
        TEXT.check("mode", self.mode)
        if self.mode not in get_args(DispatchMode):
            known = ", ".join(get_args(DispatchMode))
            raise Error(f"DispatchPolicy: mode {self.mode!r} is not one of: {known}.")
        object.__setattr__(self, "force_common", _op_names("force_common", self.force_common))
        object.__setattr__(self, "force_native", _op_names("force_native", self.force_native))

    def prefer(self, op: str) -> tuple[Preference, str]:
        """What is asked for `op`, and why; "claim" leaves it to what the target claims."""
        if op in self.force_native:
            return "native", "listed in force_native"
        if op in self.force_common:
            return "common", "listed in force_common"
        if self.mode == "prefer_native":
            return "claim", "prefer native"
        choice: Preference = "common" if self.mode == "force_common" else "native"
        return choice, f"mode {self.mode}"

    def __hash__(self) -> int:
        return hash((self.mode, frozenset(self.force_common), frozenset(self.force_native)))


def _op_names(what: str, given: Collection[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise Error(f"DispatchPolicy: {what} is the string {given!r}. Give a set of op names.")
    SEVERAL.check(f"DispatchPolicy: {what}", given)
    for name in given:
        TEXT.check(f"DispatchPolicy: {what} has an element that", name)
    try:
        return frozenset(lookup(name).name for name in given)
    except GraphError as error:
        raise Error(f"DispatchPolicy: {what}: {error}") from None


@dataclass(frozen=True, slots=True)
class Precision:
    """What products are carried out in: "bf16", or "int8", whose weights are bytes with one scale
    for each output, or with `block`, for each so many of its weights. "int8-activations" rounds
    what is multiplied with the quantised weights of a GGUF file to bytes, 32 to a scale, and
    "int16-activations" to the sum of two such roundings."""

    dtype: Literal["bf16", "int8", "int8-activations", "int16-activations"]
    block: int | None = None

    @classmethod
    def of(cls, text: str) -> Precision:
        """Of "bf16", "int8", "int8:block=32", "int8-activations" or "int16-activations"."""
        name, _, more = text.partition(":")
        key, _, value = more.partition("=")
        if text in ("bf16", "int8", "int8-activations", "int16-activations"):
            return cls(text)
        if name == "int8" and key == "block" and value.isdecimal() and int(value) > 0:
            return cls("int8", int(value))
        raise Error(
            f"precision {text!r} is none that rlx has. Use 'bf16', 'int8', 'int8:block=N' with N "
            "weights to a scale, or 'int8-activations' or 'int16-activations' for quantised "
            "weights of GGUF files; "
            "without it everything is computed in the model's own dtypes."
        )


_KINDS = {
    "skip_fusion": FLAG, "limits": NONE | instance(FusionLimits), "force": MAPPING,
    "dispatch": NONE | instance(DispatchPolicy), "precision": NONE | TEXT, "sizes": MAPPING,
    "f64": NONE | TEXT, "one_of": SEVERAL,
    "at_end": NONE | SEVERAL,
}  # fmt: skip


@public_class
@dataclass(frozen=True, slots=True)
class FusionOptions:
    """How fusion is to go: off, within other limits, dispatched otherwise, with forced verdicts."""

    skip_fusion: bool = False
    limits: FusionLimits | None = None
    """Instead of the target's own."""
    dispatch: DispatchPolicy | None = None
    force: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Decision id → the verdict it gets, instead of the gate's."""
    precision: str | None = None
    """What f32 products are carried out in, as `Precision.of` reads it; None leaves them."""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Named dim → the size at which costs are weighed, instead of a representative one."""
    f64: Literal["f32"] | None = None
    """What the f64 of a model is computed in on a target that has none: "f32", or it is refused.
    Inputs, params and outputs keep their dtype, and are converted on the device; targets that have
    f64 compute in it."""
    one_of: Collection[tuple[str, str]] = ()
    """Pairs of outputs of which one is enough: each is planned without the one and without the
    other, and the cheaper of the two is left, which `force` reverses. An output is in one pair."""
    at_end: Collection[str] | None = None
    """Outputs that `finish` gives, and `step` does not: what only they need is the Epilogue. None:
    those that sampling, top-k or peaks compute with nothing else behind them."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(f"FusionOptions: {name}", getattr(self, name))
        if self.precision is not None:
            Precision.of(self.precision)
        if self.f64 not in (None, "f32"):
            raise Error(f"FusionOptions: f64 is {self.f64!r}. Use 'f32', or None to refuse it.")
        for key, verdict in self.force.items():
            if not isinstance(verdict, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise Error(f"FusionOptions: force[{key!r}] is {verdict!r}. Use True or False.")
        for name, size in self.sizes.items():
            is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0  # pyright: ignore[reportUnnecessaryIsInstance]
            if not is_size:
                raise Error(f"FusionOptions: sizes[{name!r}] is {size!r}. Use a size, such as 64.")
        object.__setattr__(self, "one_of", _pairs(self.one_of))
        object.__setattr__(self, "at_end", _output_names(self.at_end))
        object.__setattr__(self, "force", FrozenDict(self.force))
        object.__setattr__(self, "sizes", FrozenDict(self.sizes))

    @property
    def policy(self) -> DispatchPolicy:
        """The dispatch policy, the default where none was given."""
        return self.dispatch or DispatchPolicy()

    def require_all_outputs(self, name: str, why: str) -> None:
        """Refuse to choose between outputs where the caller gets all that a model states."""
        if self.one_of:
            raise UnsupportedError(
                f"{name}: one_of={list(self.one_of)} would drop an output, but {why}. Leave it "
                "out, or compile a graph: rlx.Graph, rlx.trace."
            )

    def require_dims(self, name: str, dims: Iterable[Dim]) -> None:
        """Refuse sizes of dims that a model does not have, or that its dims cannot take."""
        known = {str(d): d for d in dims}
        for key, size in self.sizes.items():
            dim = known.get(key)
            if dim is None:
                listed = ", ".join(known) or "none"
                raise Error(f"{name}: sizes names no dim {key!r}. It has: {listed}.")
            if size < (dim.min or 0) or (dim.max is not None and size > dim.max):
                most = "any size" if dim.max is None else dim.max
                raise Error(
                    f"{name}: sizes[{key!r}] is {size}. The dim goes from {dim.min or 0} to {most}."
                )

    def with_dims(self, dims: Iterable[str]) -> FusionOptions:
        """The options for a part of a model, or for a call's sizes: which has some of its dims."""
        known = {*dims}
        return replace(self, sizes={k: v for k, v in self.sizes.items() if k in known})

    def text(self) -> str:
        """Every option in one canonical line: what keys and fingerprints hash."""
        policy, limits = self.policy, self.limits
        return " ".join(
            [
                f"skip_fusion={self.skip_fusion}",
                f"limits={limits}",
                f"dispatch={policy.mode}",
                f"common={sorted(policy.force_common)}",
                f"native={sorted(policy.force_native)}",
                f"force={sorted(self.force.items())}",
                f"precision={self.precision}",
                *([f"sizes={sorted(self.sizes.items())}"] if self.sizes else []),
                *([f"f64={self.f64}"] if self.f64 else []),
                *([f"one_of={self.one_of}"] if self.one_of else []),
                *([f"at_end={self.at_end}"] if self.at_end is not None else []),
            ]
        )

    def digest(self) -> str:
        """A hash of every option, the same on every machine."""
        return hashlib.blake2b(self.text().encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return hash(self.text())


def _output_names(at_end: Collection[Any] | None) -> tuple[str, ...] | None:
    """Names in one order; None where the phases follow from the ops."""
    if at_end is None:
        return None
    for name in at_end:
        if not isinstance(name, str):
            raise Error(f"FusionOptions: at_end has {name!r}. Give names of outputs.")
    return tuple(sorted(set(at_end)))


def _pairs(one_of: Collection[Any]) -> tuple[tuple[str, str], ...]:
    """Pairs of names, each name once."""
    pairs: list[Any] = [tuple(p) if isinstance(p, tuple | list) else (p,) for p in one_of]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise Error(f"FusionOptions: one_of has {pair!r}. Give pairs of names of outputs.")
    names = [name for pair in pairs for name in pair]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Error(f"FusionOptions: one_of names {twice[0]!r} twice. An output is in one pair.")
    return tuple(pairs)
