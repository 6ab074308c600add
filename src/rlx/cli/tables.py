"""Reports on a terminal: the tables of the text form, drawn with rich. Elsewhere, the text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlx.core.printable import below, one_line, printable

if TYPE_CHECKING:
    from rich.table import Table

    from rlx.explain.report import Report
    from rlx.explain.text_table import Section

SHARES = {"where": 2, "why": 3, "kernel": 2, "what to do": 1, "identity": 1}
"""Columns that share what room the others leave."""
STYLES = {"taken": "green", "refused": "yellow", "confirmed": "green", "refuted": "red"}


def show(report: Report, most: int | None) -> None:
    """Print a report; tables of at most so many rows."""
    from rlx.explain.text import head, report_text, sections

    if not sys.stdout.isatty():
        print(report_text(report, most), end="")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=below(sys.stdout))
    console.print(Text(printable(head(report))))
    for section in sections(report, most):
        console.print(_table(section))
        if section.note:
            hint = " (--all lists them)" if section.note.startswith("and ") else ""
            console.print(Text(printable(f"{section.note}{hint}\n"), style="dim"))


def _table(section: Section) -> Table:
    """Numbers to the right; long texts fold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from rlx.explain.text_table import is_figure

    made = Table(
        title=section.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1, 0, 0), expand=True,
    )  # fmt: skip
    for i, name in enumerate(section.columns):
        is_right = is_figure(row[i] for row in section.rows)
        share = SHARES.get(name)
        made.add_column(
            name, justify="right" if is_right else "left", ratio=share, no_wrap=share is None,
            overflow="fold",
        )  # fmt: skip
    for row in section.rows:
        made.add_row(*(Text(one_line(cell), style=STYLES.get(cell, "")) for cell in row))
    return made
