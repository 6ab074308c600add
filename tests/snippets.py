"""Code that documents show: whole programs, which tests run and type-check.

A block of the README is a program by itself; those of a page below docs/ are one program, in their
order. Blocks of shell are run in a folder with a `model.onnx`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)


def programs() -> Mapping[str, str]:
    """Python, by where it stands: `README.md:3`, `docs/quickstart.md`."""
    readme = enumerate(blocks((ROOT / "README.md").read_text(), "python"))
    found = {f"README.md:{number}": code for number, code in readme}
    for page in PAGES:
        if parts := blocks(page.read_text(), "python"):
            found[f"docs/{page.name}"] = "\n\n".join(parts)
    return found


def commands() -> Mapping[str, str]:
    """Shell, by where it stands."""
    found = {f"docs/{p.name}": "".join(blocks(p.read_text(), "sh")) for p in PAGES}
    return {where: script for where, script in found.items() if script}
