"""Damaged files, a few of the many that `python -m rlx.fuzz.onnx` tries."""

from __future__ import annotations

from collections import Counter

import pytest

from rlx.fuzz import onnx as fuzz
from rlx.fuzz.mutate import mutated
from tests.effort import tries


def test_damaged_files_give_results_or_errors(capsys: pytest.CaptureFixture[str]) -> None:
    files = str(tries(800, 2000))
    assert fuzz.main(["--files", files, "--run", "40", "--corpus", "stored"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{files} files: ")
    for word in ("read", "Error", "GraphError", "ran"):
        assert f" {word}" in told


def test_a_seed_gives_the_same_file() -> None:
    corpus = [b"one two three " * 9, b"four five six"]
    made = [mutated(seed, corpus) for seed in range(50)]
    assert made == [mutated(seed, corpus) for seed in range(50)]
    assert len(set(made)) > 15


def test_findings_fail_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.summary(Counter({"read": 3, "KeyError": 1, "findings": 1})) == 1
    assert "4 files: 3 read, 1 KeyError; 1 findings" in capsys.readouterr().out


def test_an_error_nobody_thought_of_is_a_finding_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rlx.frontends.onnx.reader import guarded

    def trips(data: bytes, job: fuzz.Job) -> str:
        with guarded("it"):
            raise KeyError("no such thing")

    monkeypatch.setattr(fuzz, "_tried", trips)
    monkeypatch.setattr(fuzz, "corpus", lambda folder: (b"x",))
    monkeypatch.setattr(fuzz, "_limit_memory", lambda: None)
    assert fuzz.outcome(fuzz.Job(0, False, "")).finding == ""
    assert "KeyError" in fuzz.outcome(fuzz.Job(0, False, "", is_strict=True)).finding
