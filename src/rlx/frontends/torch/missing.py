"""Errors of ops that cannot be imported: what, where, why, and what to do."""

from __future__ import annotations

import difflib
from typing import Any

from rlx.core.errors import Error, UnsupportedError
from rlx.frontends.torch.handlers import registered
from rlx.frontends.torch.provenance import place_of, source_line


class MissingOp(UnsupportedError):
    """An op of torch's that rlx does not import. `op` is its name with its namespace."""

    def __init__(self, op: str, where: str, why: str) -> None:
        super().__init__(
            f"torch op {op}{where}: {why}.{_nearest(op)} Register a handler with "
            f"@rlx.torch.handler({op!r})."
        )
        self.op, self.where, self.why = op, where, why


def missing(node: Any, error: Error) -> Error:
    """The error that names an op and its place. One of a decomposition says what was decomposed,
    and where that is."""
    target = node.target
    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else f"higher_order::{target.__name__}"
    if not isinstance(error, MissingOp):
        return MissingOp(name, f" at {place_of(node)}", str(error).rstrip("."))
    if source_line(node) and not error.where.startswith(" of "):
        return MissingOp(error.op, f" of {name} at {place_of(node)}", error.why)
    return error


def _nearest(qualified: str) -> str:
    bare = qualified.partition("::")[2] or qualified
    near = difflib.get_close_matches(bare, registered(), 1)
    return f" The nearest op that rlx imports is {near[0]}." if near and near[0] != bare else ""
