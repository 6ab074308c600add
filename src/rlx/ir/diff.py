"""Diff of two graphs: the nodes that a pass removed, added and changed, under shared names.

    # simplify: 9 nodes, 7 before; 1 added, 3 removed, 1 changed
      %2 = exp(%0) : f32[8]
    - %old3 = mul(%2, %old1) : f32[8]
    - %4 = add(%old3, %2) : f32[8]
    + %4 = add(%2, %2) : f32[8]

A node of both graphs has the number that it has in the later one, a node that is gone has its own
old one. Nodes are matched in time linear in the nodes: from the leaves on, by op, attributes, shape
and matched operands; then from the results back, as operands of what is matched; then in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlx.core.attrs import key
from rlx.ir.mir import Graph, Node
from rlx.ir.text import statement

CONTEXT_LINES = 2
MAX_COLUMNS = 160
"""Longer lines, such as those of constants, are shown as far as that."""


def diff(before: Graph, after: Graph, title: str) -> str:
    """What became of `before`, line by line; one line if it is the same."""
    matched = _matched(before, after)
    lines = list(_lines(before, after, matched))
    marks = [mark for mark, _ in lines]
    changed = sum(mark == "!" for mark in marks)
    counts = f"{marks.count('+')} added, {marks.count('-')} removed, {changed} changed"
    head = f"# {title}: {len(after.order())} nodes, {len(before.order())} before"
    if not changed and not {"+", "-"} & set(marks):
        return f"{head}; nothing changed\n"
    return "\n".join([f"{head}; {counts}", *_hunks(lines)]) + "\n"


Signature = tuple[object, ...]


def _signature(node: Node) -> Signature:
    attrs = tuple(key(value) for value in node.attrs.values())
    return (node.op, attrs, tuple(map(str, node.shapes)))


def _matched(before: Graph, after: Graph) -> dict[Node, Node]:
    """Node of the later graph → its match in the earlier one."""
    signatures = {n: _signature(n) for graph in (before, after) for n in graph.order()}
    matched = _of_matched_operands(before, after, signatures)
    taken = set(matched.values())

    def match(node: Node, other: Node) -> None:
        if node not in matched and other not in taken and signatures[node] == signatures[other]:
            matched[node] = other
            taken.add(other)

    for pair in zip(after.results, before.results):
        match(*pair)
    for node in reversed(after.order()):
        for pair in zip(node.inputs, matched[node].inputs if node in matched else ()):
            match(*pair)
    rest: dict[Signature, list[Node]] = {}
    for node in reversed(before.order()):
        if node not in taken:
            rest.setdefault(signatures[node], []).append(node)
    for node in after.order():
        if node not in matched and rest.get(signatures[node]):
            match(node, rest[signatures[node]].pop())
    return matched


def _of_matched_operands(
    before: Graph, after: Graph, signatures: Mapping[Node, Signature]
) -> dict[Node, Node]:
    """The nodes that are the same as far as they depend on leaves."""
    known = {(signatures[n], *map(id, n.inputs)): n for n in before.order()}
    matched: dict[Node, Node] = {}
    for node in after.order():
        operands = [id(matched[i]) if i in matched else 0 for i in node.inputs]
        found = known.get((signatures[node], *operands))
        if found is not None:
            matched[node] = found
    return matched


Line = tuple[str, Sequence[str]]
"""A mark, and the text of a node: " " it stayed, "+" it is new, "-" it is gone, "!" it changed; its
old text comes before its new one."""


def _lines(before: Graph, after: Graph, matched: Mapping[Node, Node]) -> Iterator[Line]:
    """Nodes of both in the later one's order; those that are gone before what followed them."""
    number = {node: str(i) for i, node in enumerate(after.order())}
    old = {matched[n]: number[n] for n in after.order() if n in matched}
    old = {n: old.get(n, f"old{i}") for i, n in enumerate(before.order())}
    gone = _gone(before, set(matched.values()))
    for node in after.order():
        match = matched.get(node)
        for each in () if match is None else gone.get(match, ()):
            yield "-", [statement(each, old)]
        new = statement(node, number)
        was = new if match is None else statement(match, old)
        yield ("+" if match is None else " ", [new]) if was == new else ("!", [was, new])
    for each in gone[None]:
        yield "-", [statement(each, old)]
    was, new = (
        f"return {', '.join(f'%{n[o]}' for o in g.results)}"
        for g, n in ((before, old), (after, number))
    )
    yield (" ", [new]) if was == new else ("!", [was, new])


def _gone(before: Graph, stayed: set[Node]) -> dict[Node | None, list[Node]]:
    """Node that stayed → those that are gone and came before it; None for the last ones."""
    gone: dict[Node | None, list[Node]] = {}
    pending: list[Node] = []
    for node in before.order():
        if node not in stayed:
            pending.append(node)
        elif pending:
            gone[node], pending = pending, []
    return {**gone, None: pending}


def _hunks(lines: Sequence[Line]) -> Iterator[str]:
    """Changed lines and those around them."""
    at = [i for i, (mark, _) in enumerate(lines) if mark != " "]
    shown = {j for i in at for j in range(i - CONTEXT_LINES, i + CONTEXT_LINES + 1)}
    last = -1
    for i in sorted(shown & set(range(len(lines)))):
        if i > last + 1:
            yield "  …"
        last = i
        mark, texts = lines[i]
        for sign, text in zip("-+" if mark == "!" else mark, texts, strict=True):
            yield from (_cut(f"{sign} {line}") for line in text.splitlines())
    if last < len(lines) - 1:
        yield "  …"


def _cut(line: str) -> str:
    return line if len(line) <= MAX_COLUMNS else f"{line[: MAX_COLUMNS - 1]}…"
