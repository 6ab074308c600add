"""Operator handlers, by family.

A handler takes a Call and gives a value, or a tuple of them for several results (shorter where the
last are not made). It is registered for a range of opsets: the latest version not after the
model's serves.

    @handles("Softmax", since=13)
    def softmax(call): return ops.softmax(call.node(0), axis=call.attr("axis", -1))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.onnx.node_call import Call

Handler = Callable[[Call], Any]
Key = tuple[str, str]
"""Domain and operator."""
MICROSOFT = "com.microsoft"
_registered: dict[Key, dict[int, Handler]] = {}
_of_codes: set[Handler] = set()


def handles(*names: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a handler of operators, from an opset on."""

    def register(handler: Handler) -> Handler:
        for name in names:
            versions = _registered.setdefault((domain, name), {})
            if since in versions:
                raise AssertionError(f"{name} has two handlers since opset {since}")
            versions[since] = handler
        return handler

    return register


def codes(handler: Handler) -> Handler:
    """Mark a handler that takes tensors of codes: strings, and numbers rlx has no dtype for."""
    _of_codes.add(handler)
    return handler


def takes_codes(handler: Handler) -> bool:
    return handler in _of_codes


def in_floats(handler: Handler) -> Handler:
    """A function of real numbers takes whole numbers, too: as floats, and what it gives becomes of
    their dtype, as the operator's type says, by truncation."""

    @functools.wraps(handler)
    def made(call: Call) -> Any:
        dtype = call.shape(0).dtype
        if dtype.is_float or dtype.is_complex:
            return handler(call)
        wide = ops.cast(call.node(0), to=DType.F64)
        return ops.cast(handler(replace(call, inputs=(wide, *call.inputs[1:]))), to=dtype)

    return made


@functools.cache
def registered() -> Mapping[Key, Mapping[int, Handler]]:
    """All of them: every page of this folder is read."""
    for page in walk_packages(__path__, f"{__name__}."):
        import_module(page.name)
    return _registered


def handler_of(domain: str, name: str, version: int) -> Handler | None:
    """The handler of an operator under an opset; None where there is none."""
    versions = registered().get((domain, name), {})
    fitting = [v for v in versions if v <= version]
    return versions[max(fitting)] if fitting else None
