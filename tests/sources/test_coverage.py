"""Every op of the table names what its meaning is compared with."""

from __future__ import annotations

import importlib
from pathlib import Path

from rlx.ops.op import table

HERE = Path(__file__).resolve()


def sources() -> dict[str, dict[str, str]]:
    """By op, and then by page of this folder, the source that the page names."""
    found: dict[str, dict[str, str]] = {}
    pages = sorted(page.stem for page in HERE.parent.glob("test_*.py") if page != HERE)
    for page in pages:
        module = importlib.import_module(f"tests.sources.{page}")
        for name, source in module.SOURCES.items():
            found.setdefault(name, {})[page] = source
    return found


def test_every_op_names_a_source() -> None:
    found, ops = sources(), table()
    missing = [name for name in ops if name not in found]
    assert not missing, f"{len(missing)} ops name no source: {', '.join(missing)}"
    strangers = [name for name in found if name not in ops]
    assert not strangers, f"sources of what is no op: {', '.join(strangers)}"


def test_every_source_says_something() -> None:
    empty = [
        f"{page}: {name}"
        for name, pages in sources().items()
        for page, source in pages.items()
        if not source.strip()
    ]
    assert not empty, empty
