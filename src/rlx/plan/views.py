"""View analysis: values that alias another's buffer through a strided layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlx.core.dim import product
from rlx.core.layout import Layout
from rlx.ir.lir import Phase, View
from rlx.ir.mir import Node, users_of
from rlx.ir.states import state_of
from rlx.plan.phases import is_view_kind

if TYPE_CHECKING:
    from rlx.cost.target import Target


def location(views: Mapping[Node, View], node: Node) -> View:
    """The buffer and layout of a value: contiguous in its own buffer, unless it is a view."""
    return views.get(node) or View(node, Layout.contiguous(node.shape.dims))


def is_whole(view: View) -> bool:
    """Is it all of its root, in order?"""
    layout = view.layout
    same_count = product(layout.dims) == view.root.shape.num_elements
    return layout.offset == 0 and same_count and layout.is_contiguous


def resolve_views(
    nodes: Sequence[Node],
    outputs: Sequence[Node],
    phases: Mapping[Node, Phase],
    target: Target,
    copied: frozenset[Node] = frozenset(),
) -> dict[Node, View]:
    """Every node that can stay in place, with its root and layout; those `copied` do not.
    All versions of a state are views of the state.

    A contiguous result is a view on every target; a strided one only for ops whose strided result
    the target's kernels read in place. The rest are copies.
    """
    views: dict[Node, View] = {}
    taken = set(outputs)
    for node in nodes:
        state = state_of(node) if node.decl.is_update else None
        if state is not None:
            views[node] = View(state, Layout.contiguous(state.shape.dims))
            continue
        view = None if node in copied else _view(node, views, target)
        if view is None:
            continue
        if node not in taken:
            views[node] = view
        elif _may_lend(view, phases) and view.root not in taken:
            views[node] = view
            taken.add(view.root)
    return views


def _view(node: Node, views: Mapping[Node, View], target: Target) -> View | None:
    """The operand's bytes through another layout; an item has its own, and most ops compute."""
    if node.op == "item" or not is_view_kind(node):
        return None
    base = location(views, node.inputs[0])
    layout = target.view(node, base.layout)
    return None if layout is None else View(base.root, layout)


def _may_lend(view: View, phases: Mapping[Node, Phase]) -> bool:
    """May the root's kernel write an output by writing its own result?

    An output is contiguous memory of the caller's, so the root must be computed per call and
    hold exactly the output's elements.
    """
    return phases[view.root] is not Phase.PROLOGUE and is_whole(view)


def place_in_concats(
    nodes: Sequence[Node],
    free: Sequence[Node],
    outputs: Sequence[Node],
    phases: Mapping[Node, Phase],
    views: Mapping[Node, View],
    alignment: int,
) -> tuple[dict[Node, View], set[Node]]:
    """Let producers write directly into their slice of a concat that is `free` for it.

    Gives the views with those of the operands added, and the concats that are done once their
    operands are. Outer concats come first, so that an inner one's operands reach the outer buffer.
    """
    users = users_of(nodes)
    added, done = dict(views), set[Node]()
    kept = set(outputs)
    for concat in reversed(free):
        if concat.op != "concat" or concat in views or len(set(concat.inputs)) < len(concat.inputs):
            continue
        is_ready = all(
            not p.is_leaf
            and p not in views
            and p not in kept
            and len(users[p]) == 1
            and phases[p] is phases[concat]
            for p in concat.inputs
        )
        slices = _slices(concat, location(added, concat), alignment) if is_ready else None
        if slices is not None:
            added |= slices
            done.add(concat)
    return added, done


def _slices(concat: Node, place: View, alignment: int) -> dict[Node, View] | None:
    """Operand → its slice, where each is contiguous and aligned.

    Where a slice starts must be known before its kernel runs, so no operand before it may have a
    measured size.
    """
    if concat.shape.is_measured:
        return None
    axis, start = concat.attrs["axis"], 0
    slices: dict[Node, View] = {}
    for operand in concat.inputs:
        length = operand.shape.dims[axis]
        layout = place.layout.sliced(axis, start, length)
        is_aligned = layout.offset * operand.shape.dtype.itemsize % alignment == 0
        if not layout.is_contiguous or not is_aligned:
            return None
        slices[operand] = View(place.root, layout)
        start = start + length
    return slices
