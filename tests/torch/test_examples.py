"""The programs in examples/torch, as a user runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "torch"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run(path: Path) -> None:
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+\.py)` \|", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed) == [path.name for path in EXAMPLES]
