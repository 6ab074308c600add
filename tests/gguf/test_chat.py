"""Conversations on a pipe: what is skipped, and the exit status."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rlx.cli.app import run


def chat(monkeypatch: pytest.MonkeyPatch, path: Path, lines: str, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return run(["chat", str(path), "--max-tokens", "3", *options])


def test_questions_of_a_pipe_are_answered_line_by_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those behind an empty line, too."""
    assert chat(monkeypatch, path, "hello\n\n\nhell\n/stats\n/quit\nzebra\n") == 0
    assert "6 tokens answered" in capsys.readouterr().out
    assert chat(monkeypatch, path, "/help\n") == 0
    assert "empty line" not in capsys.readouterr().out


def test_a_question_of_a_pipe_that_fails_is_the_exit_status(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, path, "hello " * 200 + "\nhello\n/stats\n") == 1
    made = capsys.readouterr()
    assert "the context is 128" in made.err
    assert "3 tokens answered" in made.out


def test_wrong_options_are_known_before_the_model_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, Path("no such.gguf"), "hello\n", "--top-p", "0") == 2
    assert "top_p is 0.0: it must be a number above 0" in capsys.readouterr().err
