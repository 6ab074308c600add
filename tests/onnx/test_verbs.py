"""The command that runs every verb on every model: what it calls right, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.onnx.verbs import VERBS, Subject, Wrong, by_hand, called, main


def test_a_graph_by_hand_is_right_and_a_file_that_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", "^by_hand$", "--verbs", "^check$"]) == 0
    assert "1 of 1 calls are right, on 1 models" in capsys.readouterr().out
    (tmp_path / "no.onnx").write_bytes(b"no model")
    _, fault = called("check", Subject(str(tmp_path / "no.onnx"), (), tmp_path))
    assert "exit 2: rlx check: " in fault


@pytest.mark.parametrize(
    ("verb", "out"),
    [
        ("compile", "no JSON"),
        ("check", '{"runs": false}'),
        ("bench", '{"times": {"rlx": {"median_ms": 0}}}'),
        ("explain", "nothing"),
        ("explain --json", '{"schema": 1}'),
        ("explain --why", "nothing"),
        ("diff", '{"is_same": false}'),
        ("cache", '{"count": 1, "bytes": 1, "damaged": {"a": "cut short"}}'),
    ],
)
def test_what_is_not_as_it_should_be_is_noticed(verb: str, out: str, tmp_path: Path) -> None:
    with pytest.raises(Wrong):
        VERBS[verb].judge(by_hand(tmp_path), out)


@pytest.mark.parametrize(
    "page", ['<script src="https://a.b/c.js"></script></html>', "<html>", "x" * 6_000_000]
)
def test_a_page_that_asks_for_more_is_noticed(page: str, tmp_path: Path) -> None:
    subject = by_hand(tmp_path)
    (tmp_path / "report.html").write_text(page)
    with pytest.raises(Wrong):
        VERBS["explain --html"].judge(subject, "")
    (tmp_path / "report.html").write_text("<html><a href='#a'>a</a></html>")
    VERBS["explain --html"].judge(subject, "")


def test_a_trace_without_kernels_is_noticed(tmp_path: Path) -> None:
    subject, path = by_hand(tmp_path), tmp_path / "trace.json"
    event = {"cat": "pass", "ph": "X", "dur": 1}
    path.write_text(json.dumps({"traceEvents": [event]}))
    facts = {"file": str(path), "events": 1, "passes": 1, "units": 0, "threads": 0}
    with pytest.raises(Wrong, match="without call, codegen, kernel"):
        VERBS["trace"].judge(subject, json.dumps(facts))
