"""Progress bars on a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with how many steps are done, of how many, and what comes next."""


@contextmanager
def progress(title: str) -> Generator[Progress]:
    """A bar on stderr that is removed at the end; it only pulses until it is given how many
    steps there are."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(title), total=None)

        def report(done: int, total: int, what: str) -> None:
            text = f"{title}: {what}" if what else title
            bar.update(task, completed=done, total=total, description=escape(text[:100]))

        yield report
