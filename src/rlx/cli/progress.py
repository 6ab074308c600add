"""How far long work has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Step = Callable[..., None]
"""Called after each step, with what comes next."""


@contextmanager
def progress(title: str, total: int | None = None) -> Generator[Step]:
    """A bar of `total` steps on stderr, or one that only moves, gone when the work is done."""
    if not sys.stderr.isatty():
        yield lambda text="", total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def step(text: str = "", total: int | None = None) -> None:
            told = f"{title}: {text}" if text else title
            bar.update(task, advance=1, description=told, total=total)

        yield step
