"""Decision trees of ONNX as the tables of `tree_ensemble`.

Every test becomes x ≤ t, or a search among several of them; nodes are numbered breadth first within
their tree, the two that follow a node next to each other. A node that several lead to gets a row of
the table for each of them, and all of these the same children.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.core.errors import GraphError, UnsupportedError

Array = np.ndarray[Any, Any]
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
"""Tests, by the numbers of TreeEnsemble."""
MODES = {
    "BRANCH_LEQ": LEQ, "BRANCH_LT": LT, "BRANCH_GTE": GTE, "BRANCH_GT": GT, "BRANCH_EQ": EQ,
    "BRANCH_NEQ": NEQ, "BRANCH_MEMBER": MEMBER, "LEAF": LEAF,
}  # fmt: skip
MAX_WEIGHTS, MAX_DEPTH = 1 << 31, 1 << 16


@dataclass(frozen=True, slots=True)
class Nodes:
    """Trees as lists: a node's test, and the numbers of the nodes that follow it."""

    mode: Array
    feature: Array
    value: Array
    """In the dtype that x has."""
    true: Array
    false: Array
    missing: Array
    """Does NaN pass the test?"""
    root: Array

    def checked(self) -> Nodes:
        """The same, if every number is one of a node."""
        count = len(self.mode)
        is_inner = self.mode != LEAF
        for each in (self.true[is_inner], self.false[is_inner], self.root):
            if ((each < 0) | (each >= count)).any():
                raise GraphError("a node or root that it names does not exist")
        if ((self.mode < 0) | (self.mode > LEAF)).any():
            raise GraphError("a node has a mode that ONNX does not")
        return self


@dataclass(frozen=True, slots=True)
class Weights:
    """What leaves give: to a target, so much. A leaf may come several times."""

    leaf: Array
    """The number of the node."""
    target: Array
    weight: Array
    n_targets: int
    neutral: float
    """What a target gets that a leaf does not name."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The operands of `tree_ensemble` after x."""

    threshold: Array
    feature: Array
    child: Array
    missing: Array
    root: Array
    weight: Array
    target: Array | None

    @property
    def span(self) -> int:
        return int(self.child.max(initial=0))


def tables_of(nodes: Nodes, weights: Weights) -> Tables:
    """Tables that mean the same as the lists."""
    nodes = _only_leq(nodes.checked())
    order = _Order.of(nodes)
    leaves, weight, target = _leaf_table(nodes, weights)
    slots = order.slots()
    child = np.where(order.pair[slots] < 0, 0, order.pair[slots] - np.arange(len(slots)))
    feature = np.where(nodes.mode == LEAF, leaves, nodes.feature)[slots]
    return Tables(
        nodes.value[slots], feature.astype(np.int32), child.astype(np.int32),
        nodes.missing[slots], order.root.astype(np.int32), weight, target,
    )  # fmt: skip


def below(value: Array) -> Array:
    """The greatest number that is less: x < t is x ≤ below(t). Of -∞ it is NaN, for nothing is."""
    made = np.nextafter(value, value.dtype.type(-np.inf))
    return np.where(np.isneginf(value), value.dtype.type(np.nan), made)


def rounded_down(value: Array, dtype: Any) -> Array:
    """The greatest number of a dtype that is not above: for x of that dtype, x ≤ t stays so."""
    near = value.astype(dtype)
    return np.where(near.astype(value.dtype) > value, np.nextafter(near, dtype(-np.inf)), near)


# -- tests ----------------------------------------------------------------------------------------


def _only_leq(nodes: Nodes) -> Nodes:
    """The same trees with no test but ≤, whose first child is where a row goes that passes."""
    mode, is_strict = nodes.mode, np.isin(nodes.mode, (LT, GTE))
    is_swapped = np.isin(mode, (GT, GTE))
    made = replace(
        nodes,
        mode=np.where(mode == LEAF, LEAF, LEQ),
        value=np.where(is_strict, below(nodes.value), nodes.value),
        true=np.where(is_swapped, nodes.false, nodes.true),
        false=np.where(is_swapped, nodes.true, nodes.false),
        missing=nodes.missing ^ is_swapped,
    )
    equal = np.flatnonzero((mode == EQ) | (mode == NEQ))
    return _equal(made, equal, mode[equal] == NEQ) if equal.size else made


def _equal(nodes: Nodes, at: Array, is_not: Array) -> Nodes:
    """x = t: x ≤ t, and then not x ≤ the number before t. NaN differs from all numbers."""
    yes = np.where(is_not, nodes.false[at], nodes.true[at])
    no = np.where(is_not, nodes.true[at], nodes.false[at])
    second = len(nodes.mode) + np.arange(len(at))
    missing, true, false = nodes.missing.copy(), nodes.true.copy(), nodes.false.copy()
    missing[at], true[at], false[at] = missing[at] & ~is_not, second, no
    return Nodes(
        np.concatenate([nodes.mode, np.full(len(at), LEQ)]),
        np.concatenate([nodes.feature, nodes.feature[at]]),
        np.concatenate([nodes.value, below(nodes.value[at])]),
        np.concatenate([true, no]),
        np.concatenate([false, yes]),
        np.concatenate([missing, np.zeros(len(at), bool)]),
        nodes.root,
    )


def without_members(nodes: Nodes, sets: list[Array]) -> Nodes:
    """The same trees with tests of membership as searches: the members split the numbers into
    intervals, which are alternately in the set and not."""
    at = np.flatnonzero(nodes.mode == MEMBER)
    if len(at) != len(sets):
        raise GraphError(f"{len(at)} nodes test membership, of {len(sets)} sets")
    rows: list[tuple[int, float, int, int, bool]] = []
    heads = [_search(rows, len(nodes.mode), nodes, int(i), members) for i, members in zip(at, sets)]
    if not rows:
        return nodes
    feature, value, true, false, missing = (np.array(v) for v in zip(*rows))
    grown = Nodes(
        np.concatenate([nodes.mode, np.full(len(rows), LEQ)]),
        np.concatenate([nodes.feature, feature]),
        np.concatenate([nodes.value, value.astype(nodes.value.dtype)]),
        np.concatenate([nodes.true, true]),
        np.concatenate([nodes.false, false]),
        np.concatenate([nodes.missing, missing]),
        nodes.root,
    )
    return _moved(grown, at, np.array(heads))


def _search(rows: list[Any], base: int, nodes: Nodes, at: int, members: Array) -> int:
    """A balanced search among the ends of the intervals; the number of its first node. NaN goes
    first all the way down to the first interval, or from there to the second."""
    yes, no, missing = int(nodes.true[at]), int(nodes.false[at]), bool(nodes.missing[at])
    members = np.unique(members)
    ends, counts = np.unique(np.concatenate([below(members), members]), return_counts=True)
    ends = ends[(counts == 1) & ~np.isnan(ends)]
    parity = bool(np.isneginf(members).any())
    if not ends.size:
        rows.append((int(nodes.feature[at]), np.nan, yes, no, missing))
        return base + len(rows) - 1

    def made(low: int, high: int) -> int:
        """Among intervals low to high; interval i ends at ends[i]."""
        if low == high:
            return yes if (low + parity) % 2 else no
        middle = (low + high) // 2
        number = len(rows)
        rows.append(())
        first, second = made(low, middle), made(middle + 1, high)
        is_flipped = middle == 0 and missing != parity
        rows[number] = (
            int(nodes.feature[at]), float(ends[middle]), first, second, low == 0 and not is_flipped
        )  # fmt: skip
        return base + number

    return made(0, len(ends))


def _moved(nodes: Nodes, old: Array, new: Array) -> Nodes:
    """What led to some nodes leads to others."""
    to = np.arange(len(nodes.mode))
    to[old] = new
    is_inner = nodes.mode != LEAF
    return replace(
        nodes,
        mode=np.where(nodes.mode == MEMBER, LEQ, nodes.mode),
        true=np.where(is_inner, to[np.where(is_inner, nodes.true, 0)], nodes.true),
        false=np.where(is_inner, to[np.where(is_inner, nodes.false, 0)], nodes.false),
        root=to[nodes.root],
    )


# -- order ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Order:
    """Where nodes are in the table: a root, then pairs of nodes that follow one."""

    nodes: Nodes
    pair: Array
    """Of a node, where the first of those that follow it is; -1 of a leaf."""
    root: Array
    count: int

    @classmethod
    def of(cls, nodes: Nodes) -> _Order:
        level, tree = _levels(nodes)
        inner = np.flatnonzero((level >= 0) & (nodes.mode != LEAF))
        inner = inner[np.lexsort((level[inner], tree[inner]))]
        roots, which = np.unique(nodes.root, return_inverse=True)
        of_root = tree[roots]
        place = np.arange(len(roots)) + 2 * np.searchsorted(tree[inner], of_root)
        pair = np.full(len(nodes.mode), -1, np.int64)
        heads = np.searchsorted(of_root, tree[inner], "right")
        pair[inner] = heads + 2 * np.arange(len(inner))
        return cls(nodes, pair, place[which], len(roots) + 2 * len(inner))

    def slots(self) -> Array:
        """The node of each row of the table."""
        made = np.empty(self.count, np.int64)
        made[self.root] = self.nodes.root
        inner = np.flatnonzero(self.pair >= 0)
        made[self.pair[inner]] = self.nodes.true[inner]
        made[self.pair[inner] + 1] = self.nodes.false[inner]
        return made


def _levels(nodes: Nodes) -> tuple[Array, Array]:
    """How far nodes are from their root at most, -1 where no root leads to them; and the number of
    their tree: of all trees the same where trees share nodes."""
    level, tree = (np.full(len(nodes.mode), -1, np.int64) for _ in range(2))
    front = np.unique(nodes.root)
    level[front], tree[front] = 0, np.arange(len(front))
    is_apart = True
    for depth in range(1, min(len(nodes.mode), MAX_DEPTH) + 1):
        inner = front[nodes.mode[front] != LEAF]
        if not inner.size:
            return level, tree if is_apart else np.where(tree < 0, tree, 0)
        after = np.concatenate([nodes.true[inner], nodes.false[inner]])
        own = np.concatenate([tree[inner], tree[inner]])
        is_apart &= bool(((tree[after] < 0) | (tree[after] == own)).all())
        level[after], tree[after] = depth, own
        is_apart &= bool((tree[after] == own).all())
        front = np.flatnonzero(level == depth) if len(after) > len(level) // 8 else np.unique(after)
    raise GraphError(f"a node leads back to itself, or a tree is deeper than {MAX_DEPTH}")


# -- leaves ---------------------------------------------------------------------------------------


def _leaf_table(nodes: Nodes, given: Weights) -> tuple[Array, Array, Array | None]:
    """The number of each leaf, by node; weights by leaf; and their targets where each leaf has one
    of several."""
    is_leaf = nodes.mode == LEAF
    number = np.where(is_leaf, np.cumsum(is_leaf) - 1, 0)
    count, k = int(is_leaf.sum()), given.n_targets
    if ((given.target < 0) | (given.target >= k)).any():
        raise GraphError(f"a leaf has a weight for none of the {k} targets")
    own = is_leaf[given.leaf]
    leaf, target, weight = number[given.leaf[own]], given.target[own], given.weight[own]
    each = np.bincount(leaf, minlength=count)
    if k > 1 and each.max(initial=0) <= 1:
        made, to = np.full((count, 1), given.neutral, weight.dtype), np.zeros(count, np.int32)
        made[leaf, 0], to[leaf] = weight, target
        return number, made, to
    if count * k > MAX_WEIGHTS:
        raise UnsupportedError(f"{count} leaves of {k} targets have too many weights")
    return number, _dense(leaf * k + target, weight, count * k, given).reshape(count, k), None


def _dense(place: Array, weight: Array, count: int, given: Weights) -> Array:
    """All weights of a leaf for a target together: their sum, least or greatest."""
    if given.neutral == 0.0:
        return np.bincount(place, weight.astype(np.float64), count).astype(weight.dtype)
    made = np.full(count, given.neutral, weight.dtype)
    (np.minimum if given.neutral > 0 else np.maximum).at(made, place, weight)
    return made
