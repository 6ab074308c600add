"""What the documents say is run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_the_readme_has_code() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(code: str, tmp_path: Path) -> None:
    path = tmp_path / "readme.py"
    path.write_text(code)
    runpy.run_path(str(path))


def test_the_tour_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "tour.py"))
    assert "That was the compiler" in capsys.readouterr().out


def test_the_op_page_is_up_to_date() -> None:
    from rlx.ops.__main__ import page

    assert (ROOT / "docs" / "ops.md").read_text() == page(), "run `make docs`"
