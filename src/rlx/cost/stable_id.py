"""Stable decision ids: structural hashes, independent of node numbers and pass order.

An id hashes the nodes concerned (ops, attributes, shapes, how they are wired), the names of the
leaves they read, which leaves each other operand depends on, and the names of blocks and front-end
nodes they come from. None of these changes when an unrelated decision is taken otherwise. Equal
twins are numbered.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b

from rlx.core.attrs import Data, key
from rlx.ir.mir import NAMED_LEAVES, Node

_CONE_BITS = 1024
"""Bits of the leaf set of a cone: leaves are hashed modulo this."""
_MAX_SHAPE_LETTERS = 1024
"""A longer shape, as of an op of thousands of results, is hashed: each of them reads it."""
_NOT_NAMES = frozenset({"rule", "pass", "line", "phase", "value"})
"""Origins that are no names of the user's: a source line moves when the file above it changes."""


class Identities:
    """Gives each proposal its id; the same nodes get the same one."""

    def __init__(self) -> None:
        self._records: dict[Node, str] = {}
        self._cones: dict[Node, int] = {}
        self._outside: dict[Node, str] = {}
        self._given: dict[tuple[str, tuple[Node, ...]], str] = {}
        self._twins: dict[str, list[str]] = {}
        self._next: dict[tuple[str, int], int] = {}
        """Of each structure in each graph, the first twin that is not looked at yet."""

    def id_of(self, what: str, nodes: Sequence[Node], is_refused: Callable[[str], bool]) -> str:
        """`what` and a hash of the structure; `#2`, `#3` … where equal structures are proposed.

        A later graph proposes again what was refused: the k-th twin there is the k-th refused.
        """
        asked = (what, tuple(nodes))
        if asked not in self._given:
            base = f"{what}:{self._structure(asked[1])}"
            self._given[asked] = self._numbered(base, asked[1], is_refused)
        return self._given[asked]

    def _numbered(
        self, base: str, nodes: tuple[Node, ...], is_refused: Callable[[str], bool]
    ) -> str:
        """The next twin that was refused, or a new one: what was taken stays taken, so a twin that
        was passed over once need not be looked at again."""
        twins = self._twins.setdefault(base, [])
        place = base, id(nodes[0].graph) if nodes else 0
        at = self._next.get(place, 0)
        while at < len(twins) and not is_refused(twins[at]):
            at += 1
        if at == len(twins):
            twins.append(base if not twins else f"{base}#{len(twins) + 1}")
        self._next[place] = at + 1
        return twins[at]

    def _structure(self, nodes: tuple[Node, ...]) -> str:
        """A hash of `nodes` that their order in the tuple does not change."""
        inner: dict[Node, str] = {}
        for node in sorted(dict.fromkeys(nodes), key=lambda n: n.index):
            operands = [inner[i] if i in inner else self._outer(i) for i in node.inputs]
            inner[node] = _hash(self._record(node), *operands)
        names = {str(o) for n in inner for o in n.origins if o.kind not in _NOT_NAMES}
        return _hash(*sorted(inner.values()), "from", *sorted(names))[:10]

    def _outer(self, node: Node) -> str:
        """A value from outside: a leaf by what it is, any other by what it depends on."""
        if node.is_leaf:
            return self._record(node)
        if node not in self._outside:
            shape = str(node.shape)
            short = shape if len(shape) <= _MAX_SHAPE_LETTERS else _hash(shape)
            self._outside[node] = f"{short}<{self._cone(node):x}>"
        return self._outside[node]

    def _record(self, node: Node) -> str:
        found = self._records.get(node)
        if found is None:
            attrs = [f"{k}={_plain(key(v))}" for k, v in node.attrs.items()]
            found = self._records[node] = _hash(node.op, *attrs, str(node.shape))
        return found

    def _cone(self, node: Node) -> int:
        """The inputs and params that `node` depends on, as bits."""
        known, stack = self._cones, [node]
        while stack:
            top = stack[-1]
            missing = [i for i in top.inputs if i not in known]
            if missing and top not in known:
                stack += missing
                continue
            bits = _leaf_bit(top)
            for i in top.inputs:
                bits |= known[i]
            known[top] = bits
            stack.pop()
        return known[node]


def _leaf_bit(node: Node) -> int:
    name = node.attrs["name"] if node.op in NAMED_LEAVES else None
    return 0 if name is None else 1 << zlib.crc32(name.encode()) % _CONE_BITS


def _hash(*parts: str) -> str:
    h = blake2b(digest_size=16)
    for part in parts:
        h.update(part.encode())
        h.update(b"\0")
    return h.hexdigest()


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_plain, value))})"
    return value.digest if isinstance(value, Data) else str(value)
