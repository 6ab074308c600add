"""Views and in-place ops as values.

Torch's graphs change tensors in place, also through views. Here every tensor that shares memory
with one that is written to is a storage and a chain of views: a read applies the chain to what the
storage holds now, a write carries the new values back through the chain, from the last view to the
base. What nothing writes to is a plain node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlx.frontends.torch.namespaces import torch
from rlx.ir.mir import Node

MAY_COPY = frozenset({
    "reshape", "contiguous", "to", "flatten", "unflatten", "view_as", "reshape_as", "type_as",
    "resolve_conj", "resolve_neg", "ravel", "expand_as", "_reshape_alias", "atleast_1d",
    "atleast_2d", "atleast_3d", "squeeze", "broadcast_to", "movedim", "narrow", "float",
})  # fmt: skip
"""Ops that give a view of their operand, or a copy where its strides or dtype ask for one."""
READS_STORAGE = frozenset({"as_strided", "as_strided_copy"})
"""Ops that show a tensor's memory, not its elements."""


@dataclass(slots=True)
class Storage:
    """What the memory of some tensors holds now."""

    value: Node
    version: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One view: what it shows of its base, and the base with other values there."""

    show: Callable[[Node], Node]
    put: Callable[[Node, Node], Node]


@dataclass(slots=True)
class Tensor:
    """A tensor in a storage that is written to: a chain of views on it."""

    storage: Storage
    steps: tuple[Step, ...] = ()
    _seen: tuple[int, Node] | None = field(default=None)

    def read(self) -> Node:
        """Its values now."""
        if self._seen is None or self._seen[0] != self.storage.version:
            self._seen = self.storage.version, self._shown(len(self.steps))
        return self._seen[1]

    def write(self, value: Node) -> None:
        """Change its values, and with them those of all that share its memory."""
        made = value
        for i in reversed(range(len(self.steps))):
            made = self.steps[i].put(self._shown(i), made)
        self.storage.value, self.storage.version = made, self.storage.version + 1

    def viewed(self, step: Step) -> Tensor:
        return Tensor(self.storage, (*self.steps, step))

    def _shown(self, count: int) -> Node:
        value = self.storage.value
        for step in self.steps[:count]:
            value = step.show(value)
        return value


# -- which nodes share memory ---------------------------------------------------------------------


def written_arguments(target: Any) -> Iterator[tuple[int, str]]:
    """The arguments that an op changes, by position and name."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield i, argument.name


STATISTICS = {
    "batch_norm": "training", "native_batch_norm": "training", "cudnn_batch_norm": "training",
    "miopen_batch_norm": "training", "_batch_norm_impl_index": "training",
    "instance_norm": "use_input_stats", "batch_norm_update_stats": None,
    "batch_norm_gather_stats": None, "batch_norm_gather_stats_with_counts": None,
}  # fmt: skip
"""Ops that change a running mean and variance, of which their schemas say nothing → the argument
that says whether they do."""


def updated_statistics(node: Any) -> list[Any]:
    """The running mean and variance that a norm in training changes."""
    name = getattr(node.target, "_opname", "")
    if name not in STATISTICS:
        return []
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs
    flag = STATISTICS[name]
    updates = flag is None or given.get(flag)
    return [given.get("running_mean"), given.get("running_var")] if updates else []


def written_nodes(node: Any) -> list[Any]:
    """The nodes of tensors that this one changes."""
    names = list(written_arguments(node.target))
    given = [node.args[i] if i < len(node.args) else node.kwargs.get(n) for i, n in names]
    given += updated_statistics(node)
    flat = [v for g in given for v in (g if isinstance(g, list | tuple) else [g])]
    return [g for g in flat if isinstance(g, torch.fx.Node)]


def is_view(node: Any) -> bool:
    """Does the result share the memory of the first operand?"""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not node.args:
        return False
    if not any(r.alias_info is not None for r in schema.returns):
        return False
    first = schema.arguments[0].alias_info
    if first is None or not isinstance(node.args[0], torch.fx.Node):
        return False
    return node.target._opname not in MAY_COPY or _shares(node)


def _shares(node: Any) -> bool:
    """Whether an op that may copy does not, by the strides that torch states."""
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if before.dtype != after.dtype:
        return False
    if node.target._opname == "to":
        return not node.kwargs.get("copy", False) and before.stride() == after.stride()
    if node.target._opname == "contiguous":
        return before.is_contiguous()
    try:
        return before.view(after.shape).stride() == after.stride()
    except (RuntimeError, ValueError):
        return node.target._opname in ("expand_as", "broadcast_to", "movedim", "narrow", "squeeze")


def base_of(node: Any) -> Any:
    """The node whose memory a node's result is in."""
    while True:
        if node.op != "call_function":
            return node
        if is_view(node) or _is_item(node):
            node = node.args[0]
        elif (written := written_nodes(node)) and returns_written(node.target):
            node = written[0]
        else:
            return node


def owner_of(node: Any) -> Any:
    """As `base_of`, with the results of an op that makes several distinguished."""
    base = base_of(node)
    while node is not base:
        if _is_item(node) and _items_of(node) is base:
            return node if base.op == "call_function" else base
        node = node.args[0] if is_view(node) or _is_item(node) else written_nodes(node)[0]
    return base


def arguments_of(node: Any) -> tuple[Any, ...]:
    """A node's operands by position. What reads memory by strides reads that of the tensor that
    owns it, whichever view of it the operand is."""
    if getattr(node.target, "_opname", "") not in READS_STORAGE:
        return tuple(node.args)
    first, size, stride, *offset = node.args
    begin = offset[0] if offset and offset[0] is not None else first.meta["val"].storage_offset()
    return owner_of(first), size, stride, begin


def _items_of(node: Any) -> Any:
    """The op that made an item, of a list of results as well."""
    while _is_item(node):
        node = node.args[0]
    return node


def _is_item(node: Any) -> bool:
    import operator

    return node.target is operator.getitem


def returns_written(target: Any) -> bool:
    """Does an in-place op give the tensor that it changed?"""
    returns = target._schema.returns if hasattr(target, "_schema") else ()
    return len(returns) == 1 and returns[0].alias_info is not None


def written_bases(graph: Any) -> set[Any]:
    """The nodes whose memory is written to while the graph runs."""
    return {base_of(w) for node in graph.nodes for w in written_nodes(node)}
