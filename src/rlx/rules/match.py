"""Pattern matching on the graph, with commutativity and bound variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.core import attrs as attributes
from rlx.ir.mir import Node
from rlx.ops.op import Op, Pattern, Var

Env: TypeAlias = dict[str, Any]
Patterns: TypeAlias = tuple[Pattern | Op | Var, ...]
ANYTHING = Var("_")
_UNIFORM_THROUGH = ("expand", "reshape", "transpose", "squeeze", "expand_dims")


class At(Pattern):
    """A pattern whose matched node has a name."""

    __slots__ = ("name",)

    def __init__(self, name: str, inner: Pattern) -> None:
        super().__init__(inner.op, (inner,), {})
        self.name = name


class Either(Pattern):
    """Alternatives."""

    __slots__ = ()

    def __init__(self, *options: Pattern) -> None:
        super().__init__(options[0].op, options, {})


def at(name: str, pattern: Pattern) -> At:
    """`pattern`, with the node it matches given to the rule as `name`."""
    return At(name, pattern)


def either(*options: Pattern) -> Either:
    """Any of `options`, tried in order."""
    return Either(*options)


def matches(pattern: Any, node: Node, env: Env) -> Iterator[Env]:
    """Every way in which `pattern` fits `node`, given what is bound already."""
    if isinstance(pattern, Var):
        yield from _bound(env, pattern.name, node)
    elif isinstance(pattern, Either):
        for option in pattern.args:
            yield from matches(option, node, env)
    elif isinstance(pattern, At):
        for inner in matches(pattern.args[0], node, env):
            yield from _bound(inner, pattern.name, node)
    elif isinstance(pattern, Pattern):
        yield from _match_op(pattern, node, env)
    elif isinstance(pattern, Op):
        if node.decl is pattern:
            yield env
    elif is_literal(node, pattern):
        yield env


def _bound(env: Env, name: str, value: Any) -> Iterator[Env]:
    if name not in env:
        yield {**env, name: value}
    elif env[name] is value:
        yield env


def _match_op(pattern: Pattern, node: Node, env: Env) -> Iterator[Env]:
    args = pattern.args
    if node.decl is not pattern.op or len(node.inputs) != len(args):
        return
    with_attrs = _match_attrs(pattern.attrs, node.attrs, env)
    if with_attrs is None:
        return
    yield from _match_all(args, node.inputs, with_attrs)
    if node.decl.is_commutative and len(args) == 2 and node.inputs[0] is not node.inputs[1]:
        yield from _match_all(args, node.inputs[::-1], with_attrs)


def _match_all(args: Sequence[Any], nodes: Sequence[Node], env: Env) -> Iterator[Env]:
    if not args:
        yield env
        return
    for first in matches(args[0], nodes[0], env):
        yield from _match_all(args[1:], nodes[1:], first)


def _match_attrs(wanted: Mapping[str, Any], given: Mapping[str, Any], env: Env) -> Env | None:
    """Attributes that are not mentioned match anything."""
    for name, want in wanted.items():
        value = given[name.removesuffix("_")]
        expected = env.get(want.name, value) if isinstance(want, Var) else want
        if attributes.key(expected) != attributes.key(value):
            return None
        if isinstance(want, Var):
            env = {**env, want.name: value}
    return env


def scalar_of(node: Node) -> Any:
    """The one value that every element of a constant has, as a NumPy scalar, or None.

    Seen through what only repeats or moves elements, so that a large constant can stay small.
    """
    while node.op in _UNIFORM_THROUGH:
        node = node.inputs[0]
    if node.op != "constant":
        return None
    flat = node.attrs["value"].array.reshape(-1)
    if flat.size == 0 or (flat.size > 1 and flat[0].tobytes() != flat[-1].tobytes()):
        return None
    if flat.size == 1:
        return flat[0]
    as_bytes = flat.view(np.dtype((np.void, flat.itemsize)))
    return flat[0] if bool((as_bytes == as_bytes[0]).all()) else None


def is_literal(node: Node, literal: Any) -> bool:
    """Is `node` a constant whose every element is `literal`, the sign of zero included?"""
    value = scalar_of(node)
    if value is None or isinstance(literal, bool) != (value.dtype == np.bool_):
        return False
    is_negative_zero = literal == 0 and bool(np.signbit(float(literal)))
    if np.iscomplexobj(value):
        return complex(value) == literal != 0
    if np.issubdtype(value.dtype, np.integer):
        return int(value) == literal and not is_negative_zero
    same_sign = literal != 0 or bool(np.signbit(float(value))) == is_negative_zero
    return float(value) == literal and same_sign


# -- by ops alone ----------------------------------------------------------------------------------

Guard: TypeAlias = tuple[frozenset[str] | None, ...] | None
"""The ops that each operand may have; None is any op, or any operands."""


def guard_of(pattern: Any) -> Guard:
    if not isinstance(pattern, Pattern) or isinstance(pattern, At | Either):
        return None
    return tuple(_possible_ops(a) for a in pattern.args)


def _possible_ops(pattern: Any) -> frozenset[str] | None:
    if isinstance(pattern, Var):
        return None
    if isinstance(pattern, Pattern):
        return frozenset(roots_of(pattern))
    return frozenset(("constant", *_UNIFORM_THROUGH))


def passes(guard: Guard, node: Node) -> bool:
    """Could the operands match, going by their ops alone?"""
    if guard is None:
        return True
    ops = [i.op for i in node.inputs]
    if len(ops) != len(guard):
        return False
    if all(g is None or op in g for g, op in zip(guard, ops)):
        return True
    return node.decl.is_commutative and all(
        g is None or op in g for g, op in zip(guard, reversed(ops))
    )


def roots_of(pattern: Any) -> list[str]:
    if isinstance(pattern, Var):
        return []
    if isinstance(pattern, Op):
        return [pattern.name]
    if isinstance(pattern, Either | At):
        return [name for option in pattern.args for name in roots_of(option)]
    return [pattern.op.name]
