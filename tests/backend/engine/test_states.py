"""Sessions on engines: states are arrays that calls replace, and that jax's calls consume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.program import EngineProgram
from rlx.backends.registry import find_backend
from rlx.fuzz.states import ends_of, grow_states, judge_calls, judge_phases, opened
from rlx.pipeline import CompilePipeline
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.state_session import StateSession, open_session
from tests.backend.engine.numpy_engine import NumpyBackend
from tests.unit.test_states import CALLS, cache_graph, call, check_forks_and_rows

Array = np.ndarray[Any, Any]
SIZES = {"slots": 4, "context": 16}


def session_of(
    graph: rlx.Graph, backend: EngineBackend, history: int = 0
) -> tuple[StateSession, EngineProgram]:
    result = CompilePipeline(backend.target()).compile(graph)
    program = backend.compile(result.lir)
    sizes = SIZES if graph.name == "cache" else {}
    return open_session(LoadedProgram(result, program, backend), sizes, history or None), program


def reference_of(graph: rlx.Graph) -> StateSession:
    sizes = SIZES if graph.name == "cache" else {}
    return rlx.compile(graph, target="reference", cache=False).session(**sizes)


def states_of(session: StateSession) -> dict[str, bytes]:
    return {name: session.state(name).tobytes() for name in session.states}


def results_of(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


def test_calls_replace_states(backend: EngineBackend) -> None:
    session, _ = session_of(cache_graph(), backend)
    wanted = reference_of(cache_graph())
    for given in CALLS:
        made, right = session.run(given), wanted.run(given)
        for name, array in right.items():  # sums of up to 64 numbers below 8, in other orders
            np.testing.assert_allclose(made[name], array, rtol=0, atol=64 * 8 * 2.0**-24)
        assert states_of(session) == states_of(wanted)


def test_forks_rewound_calls_and_files(backend: EngineBackend, tmp_path: Path) -> None:
    session, _ = session_of(cache_graph(), backend, history=1)
    fork = check_forks_and_rows(session)
    session.save(tmp_path / "session")
    fork.load(tmp_path / "session")
    assert states_of(session) == states_of(fork)
    session.reset()
    assert session.state("n") == 3
    assert not session.state("k").any()


@pytest.mark.parametrize("given", [call(3, [14], [0]), call(1, [0], [4])])
def test_what_does_not_fit_is_an_error(backend: EngineBackend, given: dict[str, Any]) -> None:
    """jax has consumed the states by then: what it made of them stays."""
    session, _ = session_of(cache_graph(), backend)
    with pytest.raises(rlx.Error, match=r"fit|out of range"):
        session.run(given)
    assert states_of(session).keys() == {"k", "n"}
    session.reset()
    session.run(CALLS[0])
    assert session.state("n") == 4


def graphs_that_share() -> list[rlx.Graph]:
    """States that are inputs, outputs, each other, or two of one value."""
    made: list[rlx.Graph] = []
    for name in ("input", "returned", "both", "unchanged", "swap"):
        g = rlx.Graph(name)
        x, s, q = g.input("x", [4]), g.state("s", [4], init=1), g.state("q", [4], init=2)
        old = g.add(s, x)
        match name:
            case "input":
                g.assign(s, x)
                g.assign(q, x)
                g.set_outputs([g.add(s, q)])
            case "returned":
                new = g.assign(s, old)
                g.set_outputs([new, g.reshape(new, dims=(2, 2)), q])
            case "both":
                g.assign(s, old)
                g.assign(q, old)
                g.set_outputs([old])
            case "unchanged":
                g.assign(q, old)
                g.set_outputs([s, old])
            case _:
                g.assign(s, q)
                g.assign(q, s)
                g.set_outputs([old])
        made.append(g)
    return made


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("graph", graphs_that_share(), ids=lambda g: g.name)
def test_later_calls_change_nothing_that_the_caller_has(
    backend: EngineBackend, graph: rlx.Graph, is_own: bool
) -> None:
    session, program = session_of(graph, backend)
    wanted = reference_of(graph)
    engine = program.engine
    read = lambda a: np.asarray(engine.numpy(a) if engine.is_own(a) else a)
    held: list[tuple[Any, Array]] = []
    for i in range(3):
        x = np.arange(4, dtype=np.float32) + i
        with engine.scope():
            given = engine.array(x.copy()) if is_own else x
        right = results_of(wanted(x))
        held += [(given, x), *zip(results_of(session(given)), right)]
    for made, right in held:
        assert np.array_equal(read(made), right)
    assert states_of(session) == states_of(wanted)


@pytest.mark.parametrize("number", [1, 18])
def test_random_graphs_with_states(number: int) -> None:
    grown = grow_states(number)
    session = opened(NumpyBackend(), grown, ends_of(grown.graph))
    assert judge_calls("numpy", grown, session) == []
    assert judge_phases("numpy", grown, session) == []


def test_jax_writes_over_the_memory_of_states() -> None:
    pytest.importorskip("jax", reason="jax is not installed: make test-tpu")
    backend = find_backend("tpu")
    assert isinstance(backend, EngineBackend)
    _, program = session_of(cache_graph(), backend)
    leaves = program.interface.states
    held = [program.states.filled(n.shape.bind(SIZES), n.init) for n in leaves]
    before = [state.array for state in held]
    weights = program.prepare({}, None)
    program.run(weights, [*CALLS[0].values(), *held], [None] * 2)
    assert all(array.is_deleted() for array in before)
    assert not any(state.array.is_deleted() for state in held)


def test_meshes_refuse_states_by_name() -> None:
    pytest.importorskip("jax", reason="jax is not installed: make test-tpu")
    backend = find_backend("tpu").meshed({"data": 2})
    assert isinstance(backend, EngineBackend)
    with pytest.raises(rlx.UnsupportedError, match=r"cache: it has states.*Leave mesh out"):
        backend.engine_of(cache_graph())
