"""Control flow inside of a compiled function: the engine's own, or a scan of few steps unrolled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.engine.calls import Check, Failure
from rlx.ir.mir import Graph, Node

if TYPE_CHECKING:
    from rlx.backends.engine.trace import Evaluation

Arrays = Sequence[Any]


def traced(
    evaluation: Evaluation, node: Node, operands: Arrays, attrs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of a branch or loop, whose bodies have all sizes bound."""
    makers = {"if": _branch, "while": _loop, "scan": _scan}
    return tuple(makers[node.op](evaluation, node, operands, attrs))


class _Bodies:
    """Graphs as functions that give one result more: the code of what failed inside."""

    def __init__(self, outer: Evaluation) -> None:
        self.outer, self.failures = outer, list[Failure]()
        self._seen: dict[int, int] = {}

    def run(self, graph: Graph, arrays: Arrays) -> tuple[list[Any], Any]:
        """Outputs and code. An engine may trace a body more than once: failures are counted by
        graph, once."""
        inner = type(self.outer)(self.outer.engine, self.outer.sizes)
        made = inner.graph(graph, arrays)
        base = self._seen.setdefault(id(graph), len(self.failures))
        if base == len(self.failures):
            self.failures += [f for c in inner.checks for f in c.failures]
        return made, self._code(inner.checks, base)

    def _code(self, checks: Sequence[Check], base: int) -> Any:
        """The first failure of all, counted from `base`."""
        code, end = self.zero, base + sum(len(c.failures) for c in checks)
        for check in reversed(checks):
            end -= len(check.failures)
            code = self.where(check.code != 0, check.code + end, code)
        return code

    @property
    def zero(self) -> Any:
        return self.outer.engine.constant(np.zeros((), np.int32))

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        engine = self.outer.engine
        from rlx.core.dtype import DType

        return engine.cast(engine.namespace.where(condition, one, other), DType.I32)

    def first(self, earlier: Any, later: Any) -> Any:
        """Of two codes."""
        return self.where(earlier != 0, earlier, later)

    def note(self, code: Any) -> None:
        if self.failures:
            self.outer.checks.append(Check(tuple(self.failures), code))


def _branch(ev: Evaluation, node: Node, operands: Arrays, attrs: Mapping[str, Any]) -> Arrays:
    bodies = _Bodies(ev)

    def side(graph: Graph) -> Any:
        def run(*arrays: Any) -> list[Any]:
            made, code = bodies.run(graph, arrays)
            return [*made, code]

        return run

    predicate = operands[0].reshape(())
    *made, code = ev.engine.branch(
        predicate, side(attrs["then"]), side(attrs["else"]), operands[1:]
    )
    bodies.note(code)
    return made


def _loop(ev: Evaluation, node: Node, operands: Arrays, attrs: Mapping[str, Any]) -> Arrays:
    """Whether to go on is a carry, so that what fails in `cond` is known, too."""
    bodies, count = _Bodies(ev), len(operands) - attrs["num_bcasts"]
    whole, most = operands[count:], attrs["max_iterations"]

    def goes_on(values: Arrays, step: Any) -> tuple[Any, Any]:
        (go,), code = bodies.run(attrs["cond"], [*values, *whole])
        go = go.reshape(())
        if most is None:
            return go, code
        return go & (step < most), bodies.where(step < most, code, bodies.zero)

    def body(*carries: Any) -> list[Any]:
        _, code, step, *values = carries
        made, inside = bodies.run(attrs["body"], [*values, *whole])
        go, after = goes_on(made, step + 1)
        return [go, bodies.first(bodies.first(code, inside), after), step + 1, *made]

    start = ev.engine.constant(np.zeros((), np.int64))
    go, code = goes_on(operands[:count], start)
    carries = [go, code, start, *operands[:count]]
    _, code, _, *made = ev.engine.loop(lambda *c: c[0], body, carries)
    bodies.note(code)
    return made


def _scan(ev: Evaluation, node: Node, operands: Arrays, attrs: Mapping[str, Any]) -> Arrays:
    carries, rest = operands[: attrs["num_carries"]], operands[attrs["num_carries"] :]
    whole, slices = rest[: attrs["num_bcasts"]], rest[attrs["num_bcasts"] :]
    length, is_reverse = int(attrs["length"]), attrs["reverse"]
    if "scan" not in ev.engine.own_control or length == 0:
        return _unrolled(ev, node, attrs["body"], carries, whole, slices, length, is_reverse)
    bodies = _Bodies(ev)

    def step(state: Arrays, row: Arrays) -> tuple[Arrays, Arrays]:
        code, *values = state
        made, inside = bodies.run(attrs["body"], [*values, *whole, *row])
        ahead = made[: len(carries)]
        return [bodies.first(code, inside), *ahead], made[len(carries) :]

    (code, *last), rows = ev.engine.scan(
        step, [bodies.zero, *carries], slices, length, reverse=is_reverse
    )
    bodies.note(code)
    return [*last, *rows]


def _unrolled(
    ev: Evaluation,
    node: Node,
    body: Graph,
    carries: Arrays,
    whole: Arrays,
    slices: Arrays,
    length: int,
    is_reverse: bool,
) -> Arrays:
    """Every step in turn."""
    rows: dict[int, list[Any]] = {}
    for t in reversed(range(length)) if is_reverse else range(length):
        made = ev.graph(body, [*carries, *whole, *(x[t] for x in slices)])
        carries, rows[t] = made[: len(carries)], made[len(carries) :]
    if length == 0:
        shapes = [s.bind(ev.sizes) for s in node.shapes[len(carries) :]]
        empty = [np.empty(s.static_dims, s.dtype.numpy) for s in shapes]
        return [*carries, *map(ev.engine.constant, empty)]
    columns = zip(*(rows[t] for t in range(length)))
    return [*carries, *(ev.engine.stack(list(c)) for c in columns)]
