"""The golden file: where the seven targets' plans differ, and why."""

from __future__ import annotations

from tests.e2e.golden.make import PATH, text


def test_targets_differ_as_the_golden_file_says() -> None:
    assert text() == PATH.read_text(encoding="utf-8"), (
        "plans changed; if that is meant: python -m tests.e2e.golden.make"
    )


def test_the_golden_file_shows_differences() -> None:
    sections = PATH.read_text(encoding="utf-8").split("== ")[1:]
    bodies = {s.split("\n", 1)[1] for s in sections if s.startswith("transformer")}
    assert len(bodies) >= 4
