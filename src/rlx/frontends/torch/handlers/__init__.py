"""Handlers of ATen ops, by family.

A handler takes a Call, the op's first operand by position and its other arguments under the names
of the op's schema; it gives a node, or a list of them for several results. It is registered under
the op's name for all overloads. What it does not take must have the schema's default: a call that
says otherwise is refused, never computed without it. Results are converted to the dtype that torch
states, and must have its dims.

    @handles("rsub")
    def rsub(call, x, other, alpha=1): ...

`name_` is served by the handler of `name`, and `name_copy` too. Elementwise ops whose names and
meanings agree with the op table's need none: `derived_handler` makes it of the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from rlx.core.errors import Error
from rlx.core.public_calls import public

Handler = Callable[..., Any]
_registered: dict[str, Handler] = {}
_of_users: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler of ops of torch's own."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in _registered:
                raise AssertionError(f"{name} has two handlers")
            _registered[name] = handler
        return handler

    return register


@public
def handler(name: str) -> Callable[[Handler], Handler]:
    """Register a handler of an op, `@rlx.torch.handler("my::op")`: a function of a Call, the
    operands as nodes, and the other arguments by the names of the op's schema. It gives a node, or
    a list of them. One that is registered for an op that rlx knows takes its place."""
    if "::" not in name:
        raise Error(f"{name!r} names no op. Write its namespace too: 'my::op'.")

    def register(function: Handler) -> Handler:
        _of_users[name.partition(".")[0]] = function
        return function

    return register


@functools.cache
def registered() -> Mapping[str, Handler]:
    """All of torch's own ops: every page of this folder is read."""
    for page in walk_packages(__path__, f"{__name__}."):
        import_module(page.name)
    return _registered


def handler_of(namespace: str, name: str) -> Handler | None:
    """The handler of an op; None where there is none."""
    qualified = f"{namespace}::{name}"
    if qualified in _of_users:
        return _of_users[qualified]
    if namespace not in ("aten", "prims", "higher_order"):
        return registered().get(qualified)
    found = registered()
    for candidate in (name, name.removesuffix("_copy"), _functional(name)):
        if candidate in found:
            return found[candidate]
    from rlx.frontends.torch.handlers.math.derived import derived_handler

    return derived_handler(_functional(name))


def _functional(name: str) -> str:
    """The op that an in-place op is the in-place variant of."""
    return name if name.startswith("__") else name.removesuffix("_")
