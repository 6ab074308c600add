"""ONNX's own cases: a few of every operator, and the list of all that pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.onnx.conformance import KINDS, PASSING, passing

ROOT = Path(__file__).parents[2]
LEAST = 2016
"""The list has grown to at least this."""


def test_a_few_cases_of_every_operator_pass() -> None:
    """In a process of its own: the cases are made in memory, and children are started from it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.onnx.conformance", "--fast"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "pass" in done.stdout.splitlines()[-1]


def test_the_list_is_sorted_and_only_grows() -> None:
    listed = passing()
    assert listed == sorted(set(listed))
    assert all(name.partition("/")[0] in KINDS for name in listed)
    assert len(listed) >= LEAST, f"{PASSING.name} may only grow"
