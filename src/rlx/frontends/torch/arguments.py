"""Arguments of ATen calls by the names of their schema, and handlers called with them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from rlx.frontends.torch.handlers import Handler
from rlx.frontends.torch.node_call import Call, Refused

WITHOUT_MEANING = frozenset({
    "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit", "dtype",
    "requires_grad", "check_errors", "cudnn_enable", "cudnn_enabled", "benchmark", "deterministic",
    "allow_tf32", "sparse", "scale_grad_by_freq", "path", "driver", "use_separate_indices",
})  # fmt: skip
"""Arguments that change no value: where memory is, how fast it is computed, or the dtype of the
result, which torch's fake value states."""


def bound(schema: Any, given: Any) -> dict[str, Any]:
    """Arguments by name, with the schema's defaults; by position where there is no schema."""
    args, kwargs = given
    if schema is None:
        return {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    names = [a.name for a in schema.arguments]
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    found = {**defaults, **dict(zip(names, args)), **kwargs}
    return {name: found[name] for name in names if name in found}


@functools.cache
def _parameters(handler: Handler) -> tuple[tuple[str, ...], bool, bool]:
    """The names that a handler takes after the call, and whether it takes all arguments by position
    or by name."""
    found = list(inspect.signature(handler).parameters.values())[1:]
    in_order = any(p.kind is p.VAR_POSITIONAL for p in found)
    by_name = any(p.kind is p.VAR_KEYWORD for p in found)
    named = (p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return tuple(named), in_order, by_name


def called(handler: Handler, call: Call) -> Any:
    """The handler's results. The first argument goes by position, the others by name; one that the
    handler does not know must have the schema's default, or no bearing on values."""
    names, in_order, by_name = _parameters(handler)
    if in_order or getattr(call.target, "_schema", None) is None:
        return handler(call, *call.args.values())
    given = list(call.args.items())
    first = [given[0][1]] if given and names else []
    rest = dict(given[len(first) :])
    for name in [n for n in rest if n not in names and not by_name]:
        if name not in WITHOUT_MEANING and not _is_default(call, name):
            raise Refused(f"its handler does not take {name}={rest[name]!r}")
        del rest[name]
    return handler(call, *first, **rest)


def _is_default(call: Call, name: str) -> bool:
    for argument in call.target._schema.arguments:
        if argument.name == name:
            value = call.args[name]
            if not argument.has_default_value():
                return value is None
            return _same(value, argument.default_value)
    return False


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
