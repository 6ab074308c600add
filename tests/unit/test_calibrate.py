"""Calibration: measured prices belong to a machine and a release, and are another target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.cpu.calibration import cache_sizes
from rlx.core.disk_cache import Cache
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.core.shape import Shape
from rlx.cost.calibrate import Calibration, Numbers, cached_calibration, machine
from rlx.cost.machine import CacheLevel
from rlx.cost.target import Target
from rlx.ir.mir import Graph
from rlx.runtime.calibrate import calibrate
from rlx.runtime.request_keys import request_key
from rlx.runtime.session import Session

LEVELS = (CacheLevel(48 << 10, 300.0), CacheLevel(2 << 20, 150.0))
RATES = {DType.F32: 111.0, DType.F64: 55.0}
NUMBERS = tuple(Numbers(n, 9.0, 500.0, 700.0, LEVELS, 33.0, 12.0, 5.0, RATES) for n in (1, 2))


def isa_name() -> str:
    return Session("cpu", cache=False).backend.architecture


def documented() -> Target:
    """What the backend is where nothing was measured."""
    return Session("cpu", cache=False).target


def kept(folder: Path, **changes: object) -> Cache:
    """A cache with the calibration of this machine, or of one that differs."""
    cache = Cache(folder / "cache")
    made = replace(Calibration("cpu", machine(isa_name()), NUMBERS), **changes)  # pyright: ignore
    assert cache.write_note("calibration-cpu.json", made.text())
    return cache


def found(cache: Cache) -> Calibration | None:
    return cached_calibration("cpu", isa_name(), cache)


def test_what_was_kept_is_found_and_is_another_target(tmp_path: Path) -> None:
    cache = kept(tmp_path)
    again = found(cache)
    assert again is not None
    assert again.numbers == NUMBERS
    plain = Session("cpu", threads=2, cache=False).target
    measured = Session("cpu", threads=2, cache=cache).target
    assert plain.gate.dispatch_ns == Target.of("cpu").gate.dispatch_ns
    assert measured.gate.dispatch_ns == 9.0
    assert measured.machine.memory_gb_s(1 << 20) == 150.0
    assert measured.machine.memory_gb_s(1 << 30) == 33.0
    assert measured.machine.gflops(DType.F32) == 111.0
    assert measured.machine.fork_join_ns == NUMBERS[1].fork_join_ns != plain.machine.fork_join_ns
    alone = Session("cpu", threads=1, cache=cache).target
    assert alone.machine.fork_join_ns == plain.machine.fork_join_ns, "one thread has none"
    assert measured.native == plain.native
    graph = chain()
    from rlx.passes.options import FusionOptions

    keys = [request_key(graph, t, FusionOptions()) for t in (plain, measured)]
    assert keys[0] != keys[1]


def test_other_numbers_of_threads_have_the_documented_prices(tmp_path: Path) -> None:
    cache = kept(tmp_path, numbers=NUMBERS[:1])
    assert Session("cpu", threads=1, cache=cache).target.gate.dispatch_ns == 9.0
    assert Session("cpu", threads=2, cache=cache).target == documented()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "0.0.1"},
        {"machine": {**machine(), "processor": "another"}},
        {"machine": {**machine(), "code": "other instructions"}},
        {"target": "cuda"},
    ],
)
def test_one_from_elsewhere_is_none(tmp_path: Path, changes: Mapping[str, object]) -> None:
    cache = kept(tmp_path, **changes)
    assert found(cache) is None
    assert Session("cpu", cache=cache).target == documented()


def test_a_torn_one_is_none(tmp_path: Path) -> None:
    cache = kept(tmp_path)
    path = cache.folder / "calibration-cpu.json"
    whole = path.read_text()
    for text in ("", whole[: len(whole) // 2], whole.replace("9.0", "8.0"), "[]", "null", "\x00"):
        path.write_text(text)
        assert found(cache) is None, text
    path.write_bytes(b"\xff\xfe")
    assert found(cache) is None
    path.write_text(whole)
    assert found(cache) is not None


@pytest.mark.parametrize("bad", [0, -1.0, "much", None, float("inf")])
def test_numbers_that_are_none_are_not_used(tmp_path: Path, bad: object) -> None:
    cache = kept(tmp_path)
    held = json.loads((cache.folder / "calibration-cpu.json").read_text())
    held.pop("hash")
    held["numbers"][0]["memory_gb_s"] = bad
    from rlx.cost.calibrate import _hash  # pyright: ignore[reportPrivateUsage]

    text = json.dumps({**held, "hash": _hash(held)})
    assert Calibration.parsed(text, "cpu", machine(isa_name())) is None


def test_without_a_cache_the_documented_prices_serve() -> None:
    assert documented().machine.caches == Target.of("cpu").machine.caches
    assert documented().gate.memory_gb_s == Target.of("cpu").gate.memory_gb_s


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    cache = kept(tmp_path)
    cache.folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write"):
        assert Cache(cache.folder).note("calibration-cpu.json") is None


def test_a_target_without_a_clock_says_so() -> None:
    with pytest.raises(UnsupportedError, match="reference"):
        calibrate("reference", cache=False)


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    told = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
    for i, (level, kind, size) in enumerate(told):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert cache_sizes(tmp_path) == (48 << 10, 2 << 20)
    assert cache_sizes(tmp_path / "none") == (32 << 10, 1 << 20, 32 << 20)


def test_a_program_compiled_at_measured_prices_tells_its_account(tmp_path: Path) -> None:
    """Opened elsewhere: the account holds the prices that were weighed with."""
    import rlx

    cache = kept(tmp_path)
    made = Session("cpu", threads=2, cache=cache).compile(chain())
    made.save(tmp_path / "chain.rlx")
    again = rlx.load(tmp_path / "chain.rlx")
    assert again.decisions == made.decisions
    assert again.lir.target.gate.dispatch_ns == 9.0
    x = np.ones(8, np.float32)
    assert (again(x) == made(x)).all()


def chain() -> Graph:
    graph = Graph("chain")
    x = graph.input("x", Shape([8]))
    graph.set_outputs([(x + 1.0) * x])
    return graph
