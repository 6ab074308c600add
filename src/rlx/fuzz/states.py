"""Random graphs with states, called several times: `python -m rlx.fuzz.states --graphs 2000`.

Each call of a session is judged alone: outputs and new states are compared with those of the graph
as a function of the inputs and of the states that the session held before. Forks, rewound calls and
files must give the same bits.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx import ops
from rlx.backends.base import Backend
from rlx.core.dtype import DType
from rlx.core.errors import Error, UnsupportedError
from rlx.core.shape import Shape
from rlx.fuzz.generate import MOTIFS, WIDE, Grower, Grown, shuffled
from rlx.fuzz.judge import Expected, Mismatch, compare
from rlx.ir.mir import Graph, Node
from rlx.ir.states import state_of
from rlx.ops import op as table
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.session import Session
from rlx.runtime.state_session import StateSession, open_session

TARGETS = ("reference", "cpu")
CALLS = 3
Adjust = Callable[[Array, Array], Array]
"""A result, and what it is compared with, to what may be compared."""


class StatefulGrower(Grower):
    """A grower of graphs with states. A version of a state is in the pool if it may be read."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.olds: list[Node] = []
        """Versions that are read although the next one is written."""

    def state(self, spec: Spec) -> Node:
        name = f"s{len(self.values)}"
        self.values[name] = self.draw.values(spec)
        return self.graph.state(name, Shape(spec.dims, spec.dtype))

    def updated(self, spec: Spec) -> None:
        """A state, its update, and what is read of the two: the old one, the new one, or the old
        one by what the update is computed from. One state may be computed from others."""
        old = self.state(spec)
        reads_old = self.draw.coin()
        others = [n for n in self.olds if self._can_fit(n, spec, must_be_exact=False)]
        if others and self.draw.coin(0.7):
            value = self._fit(self.draw.choice(others), spec)
        else:
            value = self.supply(spec, False)
        if reads_old and self.draw.coin():
            value = ops.add(old, value)
        appends = self.draw.coin(0.6) and bool(spec.dims) and 0 not in spec.dims
        new = self._appended(old, value) if appends else ops.assign(old, value)
        self.olds += [old] if reads_old else []
        self.keep(old if reads_old else new)

    def _appended(self, old: Node, value: Node) -> Node:
        """Rows of a value at a position, or at one for each entry of the first axis."""
        dims = old.shape.dims
        is_ragged = len(dims) > 1 and self.draw.coin()
        axis = self.draw.integer(1 if is_ragged else 0, len(dims) - 1)
        count = self.draw.integer(1, dims[axis])
        rows = ops.narrow(value, axis=axis, start=0, length=count)
        at = (dims[0],) if is_ragged else ()
        index = f"index:{dims[axis] - count + 1}"
        position = self.leaf(Spec(at, DType.I64, index))
        if not is_ragged or self.draw.coin():
            return ops.append(old, rows, position, axis=axis)
        slots = self.graph.constant(self.draw.rng.permutation(dims[0]))
        return ops.append(old, rows, position, slots, axis=axis)

    def finish(self) -> Grown:
        """No version of a state is returned as it is."""
        read = {i for n in self.graph.nodes for i in n.inputs}
        ends = [
            n
            for n in self.graph.nodes
            if n not in read and not n.has_items and not n.is_leaf and state_of(n) is None
        ]
        self.graph.set_outputs(ends or [self.graph.constant(0.0)])
        return Grown(self.graph, self.values)


def grow_states(seed: int, steps: int = 6) -> Grown:
    """The graph of `seed`, with at least one state that is updated."""
    missing = frozenset[DType]() if seed % 4 == 0 else WIDE
    grower = StatefulGrower(Draw([0x57A7E, seed], missing))
    deck = [o for o in table.table().values() if not o.why_no_cases]
    for i in range(seed * steps, (seed + 1) * steps):
        grower.add(deck[shuffled(len(deck), i // len(deck))[i % len(deck)]])
        if grower.draw.coin() or i == seed * steps:
            dtype = grower.draw.dtype("n")
            grower.updated(Spec(grower.draw.dims(0, 3, 1), dtype, "plain"))
        if grower.draw.coin(0.25):
            grower.draw.choice(MOTIFS)(grower)
    return grower.finish()


def as_function(graph: Graph) -> Graph:
    """The graph with states as inputs, and their last versions as outputs behind its own."""
    made = Graph(graph.name)
    made.traces_lines = False
    mapped: dict[Node, Node] = {}
    for node in graph.order():
        if node.op == "state":
            mapped[node] = made.input(node.attrs["name"], node.shape)
        else:
            mapped[node] = made.copy(node, tuple(mapped[i] for i in node.inputs))
    made.set_outputs([mapped[o] for o in graph.results])
    return made


def judge_states(grown: Grown, targets: Sequence[str] = TARGETS) -> list[Mismatch]:
    """What is wrong with calls of sessions, target by target."""
    return [m for target in targets for m in _judge(target, grown)]


def _judge(target: str, grown: Grown) -> list[Mismatch]:
    options = FusionOptions(at_end=ends_of(grown.graph))
    exe = Session(target, cache=False).compile(grown.graph, params=_params(grown), options=options)
    session = exe.session(history=1)
    return judge_calls(target, grown, session) + judge_phases(target, grown, session)


def ends_of(graph: Graph) -> tuple[str, ...] | None:
    """What is asked for at the end: every second output, from the first or the second on, or
    whatever the ops say."""
    start = len(graph) % 3
    return None if start == 2 else graph.output_names[start::2]


def opened(backend: Backend, grown: Grown, at_end: Collection[str] | None = None) -> StateSession:
    """A session of the graph on a backend, whatever targets there are."""
    options = FusionOptions(at_end=at_end)
    result = CompilePipeline(backend.target(), options=options).compile(grown.graph)
    program = backend.compile(result.lir)
    return open_session(LoadedProgram(result, program, backend, _params(grown)), {}, 1)


def _params(grown: Grown) -> dict[str, Array]:
    return {n.attrs["name"]: grown.values[n.attrs["name"]] for n in grown.graph.params}


def judge_calls(
    target: str, grown: Grown, session: StateSession, adjust: Adjust | None = None
) -> list[Mismatch]:
    """What is wrong with calls of a session that keeps what the last one replaced."""
    graph, values = grown.graph, grown.values
    function, names = as_function(graph), list(session.states)
    updated = [state.attrs["name"] for u in graph.updates if (state := state_of(u)) is not None]
    for name in names:
        session.set_state(name, values[name])
    inputs: list[Any] = [values[n.attrs["name"]] for n in graph.inputs]
    found: list[Mismatch] = []
    for _ in range(CALLS):
        before = {name: np.array(session.state(name)) for name in names}
        made = session(*inputs)
        outputs = [made] if len(graph.outputs) == 1 else list(made)
        after = [np.array(session.state(name)) for name in updated]
        expected, results = Expected(function, {**values, **before}), [*outputs, *after]
        if adjust is not None:
            results = [adjust(got, want) for got, want in zip(results, expected.plain)]
        found += compare(target, expected, results)
    changed = _changed_by_copies(session, inputs)
    return found + [Mismatch(target, name, why) for name, why in changed]


def judge_phases(target: str, grown: Grown, session: StateSession) -> list[Mismatch]:
    """What is wrong with steps and their end: outputs and states must have the bits of whole calls,
    whatever the caller writes into inputs and results meanwhile."""
    values = grown.values
    whole = session.fork()
    for each in (session, whole):
        each.reset()
        for name in each.states:
            each.set_state(name, values[name])
    inputs = [np.array(values[n.attrs["name"]]) for n in grown.graph.inputs]
    found: list[tuple[str, str]] = []
    expected: dict[str, Array] = {}
    for _ in range(CALLS):
        expected = dict(zip(session.outputs, _listed(whole(*inputs))))
        given = [a.copy() for a in inputs]
        made = dict(zip(session.step_outputs, _listed(session.step(*given))))
        found += _other_bits(expected, made, "a step gives other bits than a call")
        for array in (*given, *made.values()):
            _spoil(array)
        found += _differing(_bits(whole), _bits(session), "a step has left other bits")
    for turn in ("first", "second"):
        ends = dict(zip(session.finish_outputs, _listed(session.finish())))
        found += _other_bits(expected, ends, f"the {turn} end gives other bits than a call")
        for array in ends.values():
            _spoil(array)
    found += _differing(_bits(whole), _bits(session), "the end has changed it")
    if {*session.step_outputs, *session.finish_outputs} != set(session.outputs):
        found.append((grown.graph.name, "an output is in neither phase"))
    return [Mismatch(target, name, why) for name, why in found]


def _listed(made: Any) -> list[Array]:
    return list(made) if isinstance(made, tuple) else [made]


def _other_bits(
    expected: Mapping[str, Array], made: Mapping[str, Array], why: str
) -> list[tuple[str, str]]:
    return [(n, why) for n, a in made.items() if a.tobytes() != expected[n].tobytes()]


def _spoil(array: Any) -> None:
    """Write another value into an array of the host."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array[...] = np.zeros((), array.dtype)


def _changed_by_copies(session: StateSession, inputs: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """States whose bits are not what they were, where a session is forked, rewound or saved."""
    before, fork = _bits(session), session.fork()
    fork(*inputs)
    yield from _differing(before, _bits(session), "a call of a fork has changed it")
    session(*inputs)
    yield from _differing(_bits(session), _bits(fork), "a fork's call gives other bits")
    session.rewind()
    yield from _differing(before, _bits(session), "a rewound call has changed it")
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "session")
        fork.load(Path(folder) / "session")
    yield from _differing(_bits(session), _bits(fork), "a file gives other bits")


def _bits(session: StateSession) -> dict[str, bytes]:
    return {name: session.state(name).tobytes() for name in session.states}


def _differing(a: dict[str, bytes], b: dict[str, bytes], why: str) -> list[tuple[str, str]]:
    return [(name, why) for name in a if a[name] != b[name]]


def _reported(seed: int) -> list[str]:
    """Any error is a finding, but for a target that says what it cannot do."""
    try:
        found = judge_states(grow_states(seed))
    except UnsupportedError:
        return []
    except Error as error:
        return [str(error)]
    return [f"{m.target}: {m.output}: {m.message}" for m in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    wrong = 0
    for seed in range(args.first, args.first + args.graphs):
        for found in _reported(seed):
            wrong += 1
            print(f"graph {seed}: {found}", flush=True)
    print(f"{args.graphs} graphs with states, {wrong} results wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
