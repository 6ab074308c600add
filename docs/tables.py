"""Pages made from the program's own tables: commands, blocks, ONNX operators, ops, results."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write(folder: Path) -> None:
    """Every page, where it is not yet as it should be."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def pages() -> Mapping[str, str]:
    return {
        "commands": commands(),
        "blocks": blocks(),
        "onnx-operators": onnx_operators(),
        **benchmarks(),
        **{name: _beside_readme(f"{name.upper()}.md") for name in ("contributing", "security")},
    }


RESULTS = {"README.md": "benchmarks"} | {
    f"{name}.md": f"benchmarks-{name}" for name in ("gpu", "lm", "torch", "web", "tpu")
}
"""Files of bench/results, and their pages below docs/generated."""

SITE = {
    "docs/tour.py": "how-it-works.md",
    "docs/design/README.md": "design/README.md",
    "docs/design/where-is.md": "design/where-is.md",
    **{f"bench/results/{file}": f"generated/{page}.md" for file, page in RESULTS.items()},
}
"""Files of the tree that pages link to, and their pages below docs/."""


def site_links(text: str, above: str) -> str:
    """Links to files of the tree as links between pages; `above` leads from a page to the tree."""
    for file, page in SITE.items():
        text = text.replace(f"]({above}{file})", f"]({(above and page) or '../' + page})")
    return text


def _beside_readme(name: str) -> str:
    """A page of the tree's root, as one below docs/generated."""
    return site_links((ROOT / name).read_text(), "")


# -- the command line -----------------------------------------------------------------------------


def commands() -> str:
    """The help of every verb, as the command line prints it."""
    from typer.main import get_command

    from rlx.cli.app import VERBS, app

    verbs = get_command(app()).commands  # type: ignore[attr-defined]
    parts = [
        "# Commands",
        "",
        "`pip install 'rlx[cli]'` brings them. What follows is what `--help` prints.",
    ]
    for name in VERBS:
        context = verbs[name].make_context(f"rlx {name}", [], resilient_parsing=True)
        text = verbs[name].get_help(context)
        parts += ["", f"## {name}", "", "```text", text.rstrip(), "```"]
    return "\n".join(parts) + "\n"


# -- blocks ---------------------------------------------------------------------------------------


def blocks() -> str:
    """What a HirModule has methods for, by page."""
    parts = [
        "# Blocks",
        "",
        "Methods of `rlx.HirModule`: layers, which lower to [ops](../ops.md). Operands are",
        "positional, attributes keyword-only; `?` marks an operand that may be left out.",
    ]
    for page, rows in _by_page():
        parts += ["", f"## {page}", "", "| block | signature | meaning |", "|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _by_page() -> Iterator[tuple[str, list[str]]]:
    from rlx.ir import block

    of_page = operator.attrgetter("page")
    for page, rows in itertools.groupby(block.table().values(), of_page):
        yield page.rpartition(".")[2], [_block_row(one) for one in rows]


def _block_row(one: object) -> str:
    doc = _cell(inspect.cleandoc(one.doc).split("\n\n")[0])  # type: ignore[attr-defined]
    return f"| `{one.name}` | `{_cell(one.signature.text.strip())}` | {doc} |"  # type: ignore[attr-defined]


# -- ONNX -----------------------------------------------------------------------------------------


def onnx_operators() -> str:
    """Each operator that has a handler, and the opsets at which its meaning changed."""
    from rlx.frontends.onnx.handlers import registered

    found: dict[str, dict[str, list[int]]] = {}
    for (domain, name), versions in registered().items():
        found.setdefault(domain or "ai.onnx", {})[name] = sorted(versions)
    parts = [
        "# ONNX operators",
        "",
        "What `rlx.load` reads. An operator that is not here is an error that names the node;",
        "`rlx check model.onnx` lists them for a model. The numbers are the opsets since which a",
        "handler holds; earlier versions of an operator that mean the same share one.",
    ]
    for domain, names in sorted(found.items()):
        parts += ["", f"## {domain}", "", f"{len(names)} operators.", "", "| operator | since |"]
        parts += ["|---|---|"]
        parts += [f"| `{n}` | {', '.join(map(str, v))} |" for n, v in sorted(names.items())]
    return "\n".join(parts) + "\n"


# -- results --------------------------------------------------------------------------------------


def benchmarks() -> Mapping[str, str]:
    """The pages of `bench/results`, which link to each other."""
    made: dict[str, str] = {}
    for file, page in RESULTS.items():
        text = (ROOT / "bench" / "results" / file).read_text()
        for other, target in RESULTS.items():
            text = re.sub(rf"\]\({re.escape(other)}", f"]({target}.md", text)
        made[page] = text
    return made


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
