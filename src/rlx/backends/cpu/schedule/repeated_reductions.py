"""Reductions that a loop nest would repeat: such a kernel is no single nest.

A reduction is computed where all axes that it varies with are open, outside of any loop it does not
vary with. Where a loop over an axis that it reduces is open by then, as with reductions along both
axes of a result, it would be computed anew at each point of that loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rlx.backends.cpu.schedule.index_set_splitting import Cuts
from rlx.backends.cpu.schedule.loop_schedule import Schedule
from rlx.kernel.expr import Axis, Choose, Expr, Inside, Kernel, Reduce, postorder


def repeated_reduction(kernel: Kernel, schedule: Schedule) -> Reduce | None:
    """A reduction that would be computed at each point of an axis that it reduces."""
    reduced = [n.axis for n in kernel.nodes if isinstance(n, Reduce)]
    if len(reduced) < 2 and not {*reduced}.intersection(kernel.axes):
        return None
    return _Nest(kernel, schedule).found()


def used_once(kernel: Kernel) -> set[Expr]:
    """Values with one use, which are not stored."""
    users: dict[Expr, int] = {}
    for node in kernel.nodes:
        for arg in node.args:
            users[arg] = users.get(arg, 0) + 1
    stored = {s.value for s in kernel.stores}
    return {n for n, count in users.items() if count == 1 and n not in stored}


def chain_of(r: Reduce, once: set[Expr]) -> tuple[tuple[Axis, ...], Reduce]:
    """Nested reductions by one operation are one over several axes: those, and the innermost."""
    axes, inner = [r.axis], r
    while True:
        body = inner.args[0]
        if not (isinstance(body, Reduce) and body.fold == r.fold and body in once):
            return tuple(axes), inner
        if r.axis not in body.free:
            return tuple(axes), inner
        axes.append(body.axis)
        inner = body


class _Nest:
    """The loops of a schedule, opened one after the other."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self.kernel, self.schedule, self.cuts = kernel, schedule, Cuts(kernel, schedule)
        self.once = used_once(kernel)
        self.decided: dict[Axis, set[Inside]] = {}

    def found(self) -> Reduce | None:
        for values, axes in self._nests():
            made = set[Expr](self.schedule.row_accumulators)
            if (found := self._within(values, frozenset(), axes, made)) is not None:
                return found
        return None

    def _nests(self) -> Iterator[tuple[list[Expr], tuple[Axis, ...]]]:
        """Values that are stored by one nest, and its loops."""
        order = self.schedule.order
        shared: list[Expr] = []
        axes = frozenset[Axis]()
        for store in self.kernel.stores:
            if self.kernel.results[store.result].num_elements == 0:
                continue
            own = store.at.axes
            if own and frozenset(order[: len(own)]) == own:
                shared.append(store.value)
                axes |= own
            else:
                yield [store.value], tuple(a for a in order if a in own)
        yield shared, tuple(a for a in order if a in axes)

    def _within(
        self, roots: Sequence[Expr], outer: frozenset[Axis], loops: Sequence[Axis], made: set[Expr]
    ) -> Reduce | None:
        """The same inside of loops that are open, with more to be opened."""
        open_ = outer
        for count in range(len(loops) + 1):
            open_ = outer.union(loops[:count])
            while ready := self._ready(roots, open_, made):
                for r in ready:
                    if (found := self._reduced(r, open_, made)) is not None:
                        return found
                    made.add(r)
        left = self._live(roots, None, made)
        late = [n for n in postorder(roots) if isinstance(n, Reduce) and n in left - made]
        return next((r for r in late if r.free <= open_ and self._repeats(r, open_)), None)

    def _ready(
        self, roots: Sequence[Expr], open_: frozenset[Axis], made: set[Expr]
    ) -> list[Reduce]:
        """What is computed here: all that it varies with is open, and what it needs is there."""
        live = self._live(roots, open_, made)
        waiting = [
            n
            for n in postorder(roots)
            if isinstance(n, Reduce) and n in live and n.free <= open_ and n not in made
        ]
        return [r for r in waiting if not self._needs(r, waiting, open_, made)]

    def _needs(
        self, r: Reduce, waiting: list[Reduce], open_: frozenset[Axis], made: set[Expr]
    ) -> bool:
        below = self._live(chain_of(r, self.once)[1].args, open_, made)
        return any(n in below for n in waiting)

    def _reduced(self, r: Reduce, open_: frozenset[Axis], made: set[Expr]) -> Reduce | None:
        if self._repeats(r, open_):
            return r
        axes, inner = chain_of(r, self.once)
        return self._within(inner.args, open_.union(axes), (), set(made))

    def _repeats(self, r: Reduce, open_: frozenset[Axis]) -> bool:
        return not open_.isdisjoint(chain_of(r, self.once)[0])

    def _live(
        self, roots: Iterable[Expr], open_: frozenset[Axis] | None, made: set[Expr]
    ) -> set[Expr]:
        """What the roots need here: not the sides of selects whose guard is decided further in,
        unless all loops are open, nor the bodies of reductions that are made."""
        decided = frozenset[Expr]().union(*(self._decided_by(a) for a in open_ or ()))
        found: set[Expr] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found.add(node)
            if isinstance(node, Reduce) and node in made:
                continue
            is_later = isinstance(node, Choose) and node.args[0] not in decided
            stack += node.args[:1] if is_later and open_ is not None else node.args
        return found

    def _decided_by(self, axis: Axis) -> set[Inside]:
        """The guards that are decided in each piece of a loop."""
        if axis not in self.decided:
            self.decided[axis] = {g for p in self.cuts.pieces(axis) for g in p.decided}
        return self.decided[axis]
