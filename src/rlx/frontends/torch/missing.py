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
            f"@rlx.torch.handler({op!r}){_host_run(op)}."
        )
        self.op, self.where, self.why = op, where, why


def missing(node: Any, error: Error) -> Error:
    """The error that names an op and its place. One of a decomposition says what was decomposed,
    and where that is."""
    target = _called_op(node)
    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else f"higher_order::{target.__name__}"
    if not isinstance(error, MissingOp):
        return MissingOp(name, f" at {place_of(node)}", str(error).rstrip("."))
    if source_line(node) and not error.where.startswith(" of "):
        if error.op == name:
            return MissingOp(name, f" at {place_of(node)}", error.why)
        return MissingOp(error.op, f" of {name} at {place_of(node)}", error.why)
    return error


def _called_op(node: Any) -> Any:
    """The op of a node, of one that AOTAutograd wrapped since it changes its operands too."""
    is_wrapped = getattr(node.target, "__name__", "").startswith("auto_functionalized")
    return node.args[0] if is_wrapped and node.args else node.target


def _host_run(op: str) -> str:
    """An op of another library may stay with torch."""
    return "" if _is_own(op) else f", or have torch run it with rlx.torch.host_op({op!r})"


def _is_own(op: str) -> bool:
    """Is it an op of torch's?"""
    return op.partition("::")[0] in ("aten", "prims", "higher_order")


def _nearest(qualified: str) -> str:
    if not _is_own(qualified):
        return ""
    bare = qualified.partition("::")[2] or qualified
    near = difflib.get_close_matches(bare, registered(), 1)
    return f" The nearest op that rlx imports is {near[0]}." if near and near[0] != bare else ""
