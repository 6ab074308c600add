"""How calls of a torch model map to its graph: arguments, state, results, and what is written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlx.core.dim import Dim, evaluate
from rlx.frontends.torch.aliasing import is_view, written_nodes
from rlx.frontends.torch.namespaces import pytree, torch


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that calls give: its place among the flat arguments. The graph's input has its axes
    in an order, if there is one."""

    name: str
    place: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A buffer or parameter that the model changes: it is read anew by each call."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class RandomState:
    """Where the random numbers of a call begin."""

    name: str


Source = Argument | State | RandomState


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the graph, in an order of axes, that several results show."""

    place: int
    perm: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Views:
    """Ops of torch's that make a result of a tensor that calls give, or of one that another result
    shows too, without computing."""

    source: Source | Output
    steps: tuple[tuple[Any, tuple[Any, ...], Mapping[str, Any]], ...]

    def shown(self, tensor: Any, sizes: Mapping[str, int]) -> Any:
        """The view of this tensor, where named dims have these sizes."""
        for target, args, kwargs in self.steps:
            given = pytree.tree_map(
                lambda v: _sized(v, sizes), (args, dict(kwargs)), is_leaf=_is_dim
            )
            made = target(tensor, *given[0], **given[1])
            tensor = made
        return tensor


@dataclass(frozen=True, slots=True)
class Result:
    """One flat result: an output of the graph in an order of axes, or a value that is known. One
    that shares memory with what the call gave, or with another result, is a view of it, for callers
    with tensors."""

    output: int | None
    perm: tuple[int, ...] | None = None
    constant: Any = None
    views: Views | None = None
    is_copy: bool = False
    """Does another result, with the same values, have the memory of the output?"""

    @property
    def is_shown(self) -> bool:
        """Has it no output with its own values?"""
        return self.views is not None and (
            self.output is None or isinstance(self.views.source, Output)
        )

    @property
    def outputs(self) -> tuple[int, ...]:
        """The outputs of the graph that it reads."""
        source = None if self.views is None else self.views.source
        shown = source.place if isinstance(source, Output) else None
        return tuple(o for o in (self.output, shown) if o is not None)

    def renumbered(self, number: Mapping[int, int]) -> Result:
        """The same with outputs of other numbers."""
        views = self.views
        if views is not None and isinstance(views.source, Output):
            views = replace(views, source=replace(views.source, place=number[views.source.place]))
        output = None if self.output is None else number[self.output]
        return replace(self, output=output, views=views)


@dataclass(frozen=True, slots=True)
class Write:
    """What a call leaves in a tensor that it was given, or in the model's state."""

    source: Source
    output: int


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs of the graph in order, flat results, what is written back, and what is written in
    place."""

    inputs: tuple[Source, ...]
    results: tuple[Result, ...]
    writes: tuple[Write, ...]
    in_spec: Any
    out_spec: Any
    num_arguments: int
    states: tuple[Source, ...] = ()
    """States of the graph in order: calls give their memory behind the inputs."""

    @property
    def given(self) -> tuple[Source, ...]:
        """All that a call gives: inputs, then states."""
        return (*self.inputs, *self.states)


def _is_dim(value: Any) -> bool:
    return isinstance(value, Dim)


def _sized(value: Any, sizes: Mapping[str, int]) -> Any:
    return evaluate(value, sizes) if isinstance(value, Dim) else value


def views_of(
    node: Any, owner: Any, source: Source | Output | None, size_of: Callable[[Any], Any]
) -> Views | None:
    """The views that lead to a result from the tensor whose memory it is in; None where that is no
    source."""
    if source is None:
        return None
    steps: list[Any] = []
    while node is not owner:
        if is_view(node) or node.target is operator.getitem:
            steps.append((node.target, *_resolved(node, size_of)))
            node = node.args[0]
        else:
            node = written_nodes(node)[0]
    return Views(source, tuple(reversed(steps)))


def _resolved(node: Any, size_of: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    def found(leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return _size(leaf.meta["val"], size_of)
        return _size(leaf, size_of)

    is_leaf = lambda v: isinstance(v, torch.fx.Node | torch.SymInt)
    args, kwargs = pytree.tree_map(found, (node.args[1:], dict(node.kwargs)), is_leaf=is_leaf)
    return tuple(args), kwargs


def _size(value: Any, size_of: Any) -> Any:
    return size_of(value) if isinstance(value, torch.SymInt) else value


def stride_order(fake: Any) -> tuple[int, ...] | None:
    """The axes from the one with the longest stride, where that is not their order in a dense
    tensor: the layout that torch's result has in memory."""
    steps = {a: h for a, s in enumerate(fake.stride()) if (h := size_hint(s)) is not None}
    sizes = {a: h for a, s in enumerate(fake.shape) if (h := size_hint(s)) is not None}
    axes = range(fake.dim())
    if len(axes) < 2 or len(steps) < len(axes) or len(sizes) < len(axes):
        return None
    order = sorted(axes, key=lambda a: (-steps[a], a))
    if _is_dense(axes, sizes, steps) or not _is_dense(order, sizes, steps):
        return None
    return tuple(order) if order != list(axes) else None


def _is_dense(order: Sequence[int], sizes: Mapping[int, int], steps: Mapping[int, int]) -> bool:
    """Are the elements one beside the other, with the axes in this order?"""
    step = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and steps[axis] != step:
            return 0 in sizes.values()
        step *= sizes[axis]
    return True


def is_expanded(fake: Any) -> bool:
    """Is an element at more than one place?"""
    sizes = zip(fake.shape, fake.stride())
    return any(size_hint(step) == 0 and size_hint(size) != 1 for size, step in sizes)


def size_hint(size: Any) -> int | None:
    """The size that torch traced with; None where it has none."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)
