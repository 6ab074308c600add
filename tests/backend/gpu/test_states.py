"""Sessions on a GPU that is simulated: states in memory of the device, which kernels write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.arrays.device_array import DeviceArray
from rlx.backends.gpu.backend import GpuBackend
from rlx.backends.gpu.runtime.lay_out import launches_of
from rlx.backends.gpu.runtime.serialize import opened as read_program
from rlx.backends.gpu.runtime.serialize import packed as packed_program
from rlx.backends.gpu.runtime.states import DeviceStates
from rlx.backends.state_memory import StateMemory
from rlx.core.sections import Sections, packed
from rlx.fuzz.states import ends_of, grow_states, judge_calls, judge_phases, opened
from rlx.pipeline import CompilePipeline
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.state_session import StateSession, open_session
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs
from tests.unit.test_states import CALLS, cache_graph, call, check_forks_and_rows

SIZES = {"slots": 4, "context": 16}
BACKENDS = {
    "all": SimulatedBackend(),
    "small": SimulatedBackend(laws.SMALL),
    "webgpu": SimulatedBackend(laws.WEBGPU),
}


def session_of(graph: rlx.Graph, backend: GpuBackend, history: int = 0) -> StateSession:
    result = CompilePipeline(backend.target()).compile(graph)
    loaded = LoadedProgram(result, backend.compile(result.lir), backend)
    return open_session(loaded, SIZES if graph.name == "cache" else {}, history or None)


def states_of(session: StateSession) -> dict[str, bytes]:
    return {name: session.state(name).tobytes() for name in session.states}


def close(made: Any, wanted: Any) -> bool:
    """Sums of up to 64 numbers below 8, each addition rounded to 2^-24 of what it gives."""
    return all(np.allclose(made[k], wanted[k], rtol=0, atol=64 * 8 * 2.0**-24) for k in wanted)


@pytest.mark.parametrize("name", BACKENDS)
def test_calls_update_states_of_the_device(name: str) -> None:
    session = session_of(cache_graph(), BACKENDS[name])
    wanted = rlx.compile(cache_graph(), target="reference", cache=False).session(**SIZES)
    for given in CALLS * 2:  # the third call of equal sizes replays what the second recorded
        assert close(session.run(given), wanted.run(given))
        assert states_of(session) == states_of(wanted)


def test_append_writes_its_rows_and_reads_no_state() -> None:
    """A kernel of as many threads as the rows have elements, which is given no old version."""
    backend = BACKENDS["all"]
    lir = CompilePipeline(backend.target()).compile(cache_graph()).lir
    (launch,) = (la for la in launches_of(backend.program(lir)) if la.name.endswith("rows0"))
    assert [b.kind for b in launch.buffers] == ["operand"] * 3 + ["result"]
    assert 0 not in [b.index for b in launch.buffers if b.kind == "operand"]
    assert "context" not in str(launch.program().grid)


def test_the_last_entry_of_a_slot_wins() -> None:
    """Rows of one slot overlap: what a later entry of the batch writes stays."""
    session = session_of(cache_graph(), BACKENDS["all"])
    given = call(3, [0, 2, 1], [1, 1, 1])
    session.run(given)
    expected = np.zeros((16, 4), np.float32)
    for at, rows in zip(given["at"], given["x"]):
        expected[at : at + 3] = 2 * rows
    assert np.array_equal(session.state("k")[1], expected)
    assert not session.state("k")[[0, 2, 3]].any()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (call(3, [14], [0]), "rows do not fit at their position"),
        (call(1, [-1], [0]), "rows do not fit at their position"),
        (call(1, [0], [4]), "a slot is out of range"),
    ],
)
def test_what_does_not_fit_is_an_error(given: dict[str, Any], why: str) -> None:
    session = session_of(cache_graph(), BACKENDS["all"])
    with pytest.raises(rlx.Error, match=why):
        session.run(given)
    assert not session.state("k").any()
    session.run(CALLS[0])  # and the next call finds no failure of the one before


def test_inputs_are_checked_when_others_were_right() -> None:
    """What follows from shapes is remembered by shapes and dtypes."""
    session = session_of(cache_graph(), BACKENDS["all"])
    for _ in range(2):
        session.run(CALLS[0])
    for name, wrong in (("at", np.zeros(2, np.float32)), ("x", np.zeros((2, 3, 5), np.float32))):
        with pytest.raises(rlx.Error, match=f"'{name}'"):
            session.run({**CALLS[0], name: wrong})
    session.run(CALLS[0])


def test_forks_rows_and_files() -> None:
    session = session_of(cache_graph(), BACKENDS["all"], history=1)
    assert session.fork().memory.is_shared
    check_forks_and_rows(session)
    session.reset()
    assert session.state("n") == 3
    assert not session.state("k").any()


@pytest.mark.parametrize("name", BACKENDS)
def test_calls_are_undone_by_their_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No state is read as a whole for rows of one entry."""
    session, held = session_of(cache_graph(), BACKENDS[name], history=3), list[dict[str, bytes]]()
    for given in CALLS:
        held.append(states_of(session))
        with monkeypatch.context() as patch:
            patch.delattr(StateMemory, "part")
            session.run(given)
    monkeypatch.delattr(StateMemory, "set_part")
    for before in reversed(held):
        session.rewind()
        assert states_of(session) == before


def test_a_file_of_a_session_is_that_of_any_target(tmp_path: Path) -> None:
    session = session_of(cache_graph(), BACKENDS["all"])
    session.run(CALLS[0])
    session.save(tmp_path / "session")
    other = rlx.compile(cache_graph(), target="cpu", cache=False).session(**SIZES)
    other.load(tmp_path / "session")
    assert states_of(other) == states_of(session)


def test_a_saved_program_has_its_states(tmp_path: Path) -> None:
    backend = BACKENDS["all"]
    result = CompilePipeline(backend.target()).compile(cache_graph())
    program = backend.load(backend.build(backend.program(result.lir)))
    head, sections = packed_program(program.artefact, has_spans=True)
    path = tmp_path / "program"
    path.write_bytes(b"".join(packed(head, sections)))
    file = Sections.open(path)
    again = backend.load(read_program(file.head, file))
    session = open_session(LoadedProgram(result, again, backend), SIZES, None)
    wanted = session_of(cache_graph(), backend)
    for given in CALLS:
        assert close(session.run(given), wanted.run(given))
    assert states_of(session) == states_of(wanted)


def test_results_of_inputs_on_the_device_stay_there() -> None:
    """The next call is in order behind the one that wrote the states."""
    g = rlx.Graph("sums")
    x, total = g.input("x", [4]), g.state("total", [4], init=1)
    new = g.assign(total, g.add(total, x))
    g.set_outputs([g.mul(new, 2.0)])
    backend = BACKENDS["all"]
    session = session_of(g, backend)
    held = DeviceStates(backend.device()).filled(rlx.Shape([4]), 3.0)
    made = session(held), session(held)
    assert all(isinstance(m, DeviceArray) for m in made)
    assert np.array_equal(made[1].numpy(), np.full(4, 14, np.float32))
    assert np.array_equal(session.state("total"), np.full(4, 7, np.float32))


@pytest.mark.parametrize("number", [0, 1, 6])
def test_random_graphs_with_states(number: int) -> None:
    grown = grow_states(number)
    session = opened(BACKENDS["all"], grown, ends_of(grown.graph))
    assert judge_calls("gpu", grown, session) == []
    assert judge_phases("gpu", grown, session) == []


def test_a_call_of_a_session_is_timed_on_a_copy() -> None:
    session = session_of(cache_graph(), BACKENDS["all"])
    session.run(CALLS[0])
    before = states_of(session)
    times = session.profile(CALLS[0], seconds=0.01)
    assert any("append" in str(k) for k in times.kernels)
    assert states_of(session) == before


# -- attention over caches -------------------------------------------------------------------------


def attended(
    arrays: dict[str, Any], backend: GpuBackend, **attrs: Any
) -> tuple[Any, list[str], rlx.Graph]:
    """What the kernel of cached_attention gives, what is wrong with it, and the graph."""
    g = rlx.Graph("attend")
    nodes = [g.input(n, rlx.Shape(a.shape, rlx.DType.of(a.dtype))) for n, a in arrays.items()]
    g.set_outputs([g.cached_attention(*nodes, **attrs)])
    (got,) = outputs(g, arrays, backend)
    return got, differences(g, arrays, [got]), g


def operands(
    batch: int, capacity: int, depth: int, values: int, queries: int = 2, heads: int = 4
) -> dict[str, Any]:
    """Of queries of heads, which share 2 heads of keys and values; slots are chosen."""
    rng = np.random.default_rng(7)
    draw = lambda *dims: rng.standard_normal(dims).astype(np.float32)
    made: dict[str, Any] = {"q": draw(3, queries, heads * depth)[:batch]}
    keys, held = draw(3, 300, 2 * depth), draw(3, 300, 2 * values)
    made |= {"keys": keys[:, :capacity].copy(), "values": held[:, :capacity].copy()}
    at = [41, 0, capacity - queries]
    return made | {"at": np.array(at[:batch]), "slots": np.array([2, 0, 2][:batch])}


SHAPES = [(96, 8, 8, 2, 4), (96, 3, 40, 2, 4), (96, 4, 300, 1, 4), (300, 8, 8, 2, 6),
          (300, 40, 16, 17, 4), (300, 16, 3, 19, 20)]  # fmt: skip
"""Capacity, depths of keys and values, queries, heads: one chunk and several, columns that threads
divide and more than there are threads, chunks of their own and blocks that go through all of them,
and more heads to a kv head than a block has rows."""


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_reads_what_is_cached(name: str, shape: tuple[int, ...]) -> None:
    """What is behind the queries may be anything."""
    capacity, depth, values, queries, heads = shape
    given = operands(3, capacity, depth, values, queries, heads)
    for how in ({}, {"window": 50, "softcap": 3.0}):
        attrs = {"num_heads": heads, "kv_heads": 2, **how}
        right, found, _ = attended(given, BACKENDS[name], **attrs)
        assert found == []
        hidden = {k: given[k].copy() for k in ("keys", "values")}
        for slot in set(given["slots"]):
            at = [a for a, s in zip(given["at"], given["slots"]) if s == slot]
            for array in hidden.values():
                array[slot, max(at) + queries :] = np.nan
        again, _, _ = attended({**given, **hidden}, BACKENDS[name], **attrs)
        assert again.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("capacity", "queries", "kernels"),
    [(96, 2, ["attend0"]), (300, 2, ["split0", "merge1"]), (300, 17, ["attend0"])],
)
def test_bits_of_attention_follow_from_the_row_alone(
    capacity: int, queries: int, kernels: list[str]
) -> None:
    """Neither the capacity nor other rows count."""
    backend, attrs = BACKENDS["all"], {"num_heads": 4, "kv_heads": 2}
    small = operands(3, capacity, 8, 8, queries)
    whole, _, _ = attended(small, backend, **attrs)
    less = 60 if capacity < 128 else 200
    alone = {k: v[:1] if k in ("q", "at", "slots") else v[:, :less] for k, v in small.items()}
    one, _, graph = attended({k: v.copy() for k, v in alone.items()}, backend, **attrs)
    assert one.tobytes() == whole[:1].tobytes()
    lir = CompilePipeline(backend.target()).compile(graph).lir
    assert [la.name for la in launches_of(backend.program(lir))] == [f"f0_{k}" for k in kernels]


@pytest.mark.parametrize("name", BACKENDS)
def test_attention_dequantises_caches(name: str) -> None:
    rng = np.random.default_rng(9)
    given: dict[str, Any] = {"q": rng.standard_normal((2, 1, 4 * 64)).astype(np.float32)}
    for what, blocks in (("keys", 4), ("values", 2)):
        given[what] = rng.integers(-127, 128, (3, 150, 32 * blocks)).astype(np.int8)
    given |= {"at": np.array([133, 5]), "slots": np.array([1, 2])}
    for what, blocks in (("keys", 4), ("values", 2)):
        given[f"{what}_scales"] = rng.uniform(0.001, 0.01, (3, 150, blocks)).astype(np.float16)
    _, found, _ = attended(given, BACKENDS[name], num_heads=4, kv_heads=2)
    assert found == []
