"""Local decomposition: an op without a handler, traced by torch into simpler ones.

The op alone is traced, on the fake values of its node, so that everything around it stays whole.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dim import Dim
from rlx.core.errors import Error
from rlx.frontends.torch.aliasing import written_arguments
from rlx.frontends.torch.handlers import handler_of
from rlx.frontends.torch.namespaces import pytree, torch
from rlx.frontends.torch.node_call import Call, Refused
from rlx.ir.mir import Node

MAX_DEPTH = 8
"""Decompositions inside of decompositions."""
_LOGS = ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The graph of an op in simpler ones, whose placeholders are its tensors in order."""

    module: Any
    ops: tuple[str, ...]

    @property
    def graph(self) -> Any:
        return self.module.graph

    @property
    def placeholders(self) -> list[Any]:
        return [n for n in self.graph.nodes if n.op == "placeholder"]

    def attribute(self, name: str) -> Any:
        return getattr(self.module, name)

    def operands(self, call: Call) -> list[Any]:
        """The values of the call's tensors."""
        is_value = lambda v: isinstance(v, Node | Dim)
        flat = pytree.tree_leaves(dict(call.args), is_leaf=is_value)
        fakes = pytree.tree_leaves(dict(call.fakes))
        return [v for v, f in zip(flat, fakes, strict=True) if isinstance(f, torch.Tensor)]


def decomposed(call: Call, error: Error | None) -> Decomposed:
    """What torch makes of this op; a refusal where it makes nothing simpler of it."""
    why = error or Refused("rlx has no handler for it, and torch no decomposition")
    if not isinstance(call.target, torch._ops.OpOverload) or _is_opaque(call.target):
        raise why
    try:
        module = _traced(call)
    except Exception as failed:
        text = str(failed).strip().partition("\n")[0][:200]
        reason = text if error is None else str(error)
        raise Refused(f"{reason} (its decomposition cannot be traced)") from None
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    if any(_same(n.target, call.target) for n in calls):
        raise why
    return Decomposed(module, tuple(str(n.target) for n in calls))


def _is_opaque(target: Any) -> bool:
    """Torch cannot take apart what an op of another library does to its operands."""
    return target.namespace not in ("aten", "prims") and target._schema.is_mutable


def _same(one: Any, other: Any) -> bool:
    """The same op, whatever its overload and whether it is in place."""
    return getattr(one, "_opname", one) == getattr(other, "_opname", "").removesuffix("_")


def _traced(call: Call) -> Any:
    flat, spec = pytree.tree_flatten(dict(call.fakes))
    places = [i for i, f in enumerate(flat) if isinstance(f, torch.Tensor)]
    function = _function(call, flat, spec, places)
    return traced_function(function, [flat[i] for i in places], decompositions(call.target))


def traced_function(
    function: Callable[..., Any], fakes: Sequence[Any], table: Mapping[Any, Any] | None = None
) -> Any:
    """The functional graph of what a function does with tensors like these. Nothing may depend on
    what sizes torch traced with: that would be true of others no more."""
    from torch.fx.experimental.proxy_tensor import make_fx  # pyright: ignore[reportMissingImports]

    inside = next((f.fake_mode for f in fakes if hasattr(f, "fake_mode")), None) or _fake_mode()
    with inside, torch.no_grad(), warnings.catch_warnings(), _without_records(), _unguarded(inside):
        warnings.simplefilter("ignore")
        functional = torch.func.functionalize(function, remove="mutations_and_views")
        return make_fx(functional, decomposition_table=table, tracing_mode="real")(*fakes)


def _fake_mode() -> Any:
    """What traces an op without tensors, which would run otherwise."""
    from torch._subclasses.fake_tensor import (  # pyright: ignore[reportMissingImports]
        FakeTensorMode,
    )

    return FakeTensorMode(allow_fallback_kernels=False)


def _unguarded(mode: Any) -> contextlib.AbstractContextManager[None]:
    """Refuses what torch would guard, in the record of sizes that it shares with its program."""
    return (
        contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.error_on_new_guards()
    )


@contextlib.contextmanager
def _without_records() -> Generator[None]:
    """Torch logs the stack of what a decomposition cannot trace, which is a refusal here."""
    logs = [logging.getLogger(f"torch.{name}") for name in _LOGS]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before):
            log.setLevel(level)


def _function(
    call: Call, flat: Sequence[Any], spec: Any, places: Sequence[int]
) -> Callable[..., Any]:
    """The op as a function of its tensors. One that changes some of them gives these."""
    written = [name for _, name in written_arguments(call.target)]
    is_whole = len(call.args) == len(call.target._schema.arguments)
    target = call.target if is_whole else call.target.overloadpacket

    def function(*tensors: Any) -> Any:
        given = list(flat)
        for i, tensor in zip(places, tensors):
            given[i] = tensor
        named = pytree.tree_unflatten(given, spec)
        named = {k: v.clone() if k in written else v for k, v in named.items()}
        args, kwargs = _in_order(call.target, named)
        return target(*args, **kwargs)

    return function


def _in_order(target: Any, named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as the schema has them; tensors for results may be left out."""
    schema = [a for a in target._schema.arguments if a.name in named or not a.is_out]
    args = [named[a.name] for a in schema if not a.kwarg_only]
    return args, {a.name: named[a.name] for a in schema if a.kwarg_only}


@functools.cache
def every_decomposition() -> Mapping[Any, Any]:
    """Torch's, op by op."""
    from torch._decomp import (  # pyright: ignore[reportMissingImports]
        core_aten_decompositions,
        decomposition_table,
    )

    known = {**decomposition_table, **dict(core_aten_decompositions())}
    return {op: how for op, how in known.items() if isinstance(op, torch._ops.OpOverload)}


@functools.cache
def _without_handlers() -> Mapping[Any, Any]:
    known = every_decomposition().items()
    return {op: how for op, how in known if handler_of("aten", op._opname) is None}


def decompositions(target: Any) -> Mapping[Any, Any]:
    """Those of ops without a handler, and of the op whose handler refused this call."""
    own = every_decomposition().get(target)
    return _without_handlers() if own is None else {**_without_handlers(), target: own}
