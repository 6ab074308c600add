"""Liveness in a piece of a loop nest, and loop-invariant code motion."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.backends.cpu.codegen.loop.expressions import Expressions
from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.kernel.expr import Apply, Expr, Load, Reduce


class Liveness:
    """Which values the current scope still needs."""

    def __init__(self, context: LoopContext, expressions: Expressions) -> None:
        self.context, self.expressions = context, expressions

    def live(self, roots: Iterable[Expr]) -> list[Expr]:
        """What this piece needs for the roots, arguments first; not the sides of undecided selects,
        nor the bodies of computed reductions."""
        seen: dict[Expr, None] = {}
        stack = [(r, False) for r in roots]
        visited: set[Expr] = set()
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                seen[node] = None
            elif node not in visited:
                visited.add(node)
                is_open = isinstance(node, Reduce) and not self.context.is_made(node)
                below = node.args if is_open else self.expressions.needs(node)
                stack += [(node, True), *((a, False) for a in below)]
        return list(seen)

    def live_outside(self, roots: Iterable[Expr]) -> list[Expr]:
        """As `live`, without the bodies of reductions."""
        found: dict[Expr, None] = {}
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = None
                stack += self.expressions.needs(node)
        return list(reversed(found))

    def hoist(self, roots: Iterable[Expr]) -> None:
        """Hoist every value that is invariant in the next loop."""
        outer = self.context.at.index.keys()
        for node in self.live_outside(roots):
            if isinstance(node, Apply | Load) and node.free <= outer:
                for copy in range(self.context.copies_of(node)):
                    self.expressions.value(node, copy)
