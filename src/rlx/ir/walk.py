"""Graph traversal: topological orders and users, without recursion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.ir.mir import Node


def topological(roots: Iterable[Node], leaves: Iterable[Node] = ()) -> list[Node]:
    """`leaves`, then all that `roots` need, inputs before users, by structure alone."""
    order: list[Node] = list(leaves)
    seen = set(order)
    stack = [(node, False) for node in reversed(list(roots))]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(i, False) for i in (*node.awaits[::-1], *node.inputs[::-1]) if i not in seen]
    return order


def users_of(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Who reads each node, once per user. Being an output is not being read."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        users.setdefault(node, [])
        for i in dict.fromkeys(node.inputs):
            users.setdefault(i, []).append(node)
    return users
