"""What a busy machine, a signal and a missing terminal do to measurements."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.cli.progress import EVERY_S, FIRST_S, Lines
from rlx.core import other_load
from rlx.core.disk_cache import Cache
from rlx.explain.measure_journal import Journal


@pytest.mark.parametrize(("others_s", "want"), [(0.0, 0.0), (6.0, 1.5), (-1.0, 0.0)])
def test_the_time_of_others_is_counted(
    others_s: float, want: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 4 s, of which this process computes for 2."""
    seen: Iterator[Any] = iter([(10.0, 100.0, 5.0), (14.0, 102.0 + others_s, 7.0)])
    monkeypatch.setattr(other_load, "_seen", lambda: next(seen))
    cores = other_load.OtherLoad().cores()
    assert cores == want
    assert other_load.is_busy(cores) == (want > 0)
    assert "1.5 of" in other_load.warning(1.5)


def test_systems_without_counters_are_not_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(other_load, "STAT", tmp_path / "missing")
    assert other_load.OtherLoad().cores() == 0.0


def exe() -> rlx.Executable:
    g = rlx.Graph("net")
    x, w, b = g.input("x", [64, 64]), g.param("w", [64, 64]), g.param("b", [64])
    g.set_outputs([g.softmax(g.relu(g.mm(x, w) + b) * 2.0, axis=-1)])
    weights = {"w": np.eye(64, dtype=np.float32), "b": np.ones(64, np.float32)}
    return rlx.compile(g, "cpu", params=weights)


def test_an_interrupted_measurement_has_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.explain import measure_decisions

    monkeypatch.setattr(measure_decisions.OtherLoad, "cores", lambda self: 1.0)
    timed = 0

    def progress(done: int, total: int, what: str) -> None:
        nonlocal timed
        timed = max(timed, done if what.startswith("without") else 0)
        if timed == 1:
            raise KeyboardInterrupt

    report = exe().explain(measure=True, seconds=0.01, progress=progress)
    assert report.timings["interrupted"] > 0
    assert report.timings["busy_cores"] == 1.0
    rows = [d.measured for d in report.decisions if d.measured]
    rows += list(report.timings["rules"].values())
    assert rows
    assert all(r["busy_cores"] == 1.0 for r in rows)


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np, rlx
from rlx.core.disk_cache import Cache
from rlx.explain.measure_journal import Journal
from rlx.explain.with_measurements import measured_report
from tests.unit.test_busy_machine import exe

program, x = exe(), {"x": np.ones((64, 64), np.float32)}
journal = Journal.of(program, program.sizes(x), 0.01, Cache(Path(sys.argv[1])))
print(len(journal.rows), flush=True)

def progress(done, total, what):
    if sys.argv[2] == "killed" and what.startswith("without") and done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

report = measured_report(program, x, seconds=0.01, progress=progress, journal=journal)
print(len([d for d in report.decisions if d.measured]) > 2, report.timings["interrupted"])
"""


def test_a_killed_measurement_leaves_its_rows_to_the_next(tmp_path: Path) -> None:
    """By SIGKILL, which nobody can handle; when all are measured, nothing is left."""
    cache = tmp_path / "cache"
    Cache(cache)
    found = [
        subprocess.run(
            [sys.executable, "-c", KILLED, str(cache), how], capture_output=True, text=True,
            check=False, cwd=Path(__file__).parents[2],
        )
        for how in ("killed", "goes on", "begins anew")
    ]  # fmt: skip
    assert [f.returncode for f in found] == [-signal.SIGKILL, 0, 0], [f.stderr for f in found]
    assert [f.stdout for f in found] == ["0\n", "2\nTrue 0\n", "0\nTrue 0\n"]
    assert not list(cache.glob("measure-*"))


def test_rows_that_are_torn_or_of_another_release_are_not_used(tmp_path: Path) -> None:
    program, cache = exe(), Cache(tmp_path / "cache")
    name = Journal.of(program, {}, 1.0, cache).name
    for text in ("", "[", "[1]", '[{"ids": []}]', '[{"call_ns": 1}]', "null", "{}"):
        assert cache.write_note(name, text)
        assert Journal.of(program, {}, 1.0, cache).rows == {}
    assert Journal.of(program, {}, 2.0, cache).name != name
    assert Journal.of(program, {}, 1.0, None).path == ""


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = Lines("measuring", lambda: now[0])
    for done in range(40):
        lines.report(done, 40, f"step {done}")
        now[0] += 1.0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 + int((39 - FIRST_S) // EVERY_S)
    assert said[0] == "measuring: 5 of 40, step 5 (5 s so far, about 35 s left)"
