"""IR dumps: the graph after each pass, the plan and its kernels, as numbered text files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlx.core.errors import Error
from rlx.core.files import writing
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.plan.lir_text import lir_text


@dataclass(slots=True)
class Dump:
    """A folder, and how many files were written; without one nothing is."""

    folder: Path | None
    count: int = field(default=0, init=False)

    @classmethod
    def of(cls, parent: Path | None, name: str) -> Dump:
        """A folder of the model's name inside of `parent`; a number is added if it is there."""
        if parent is None:
            return cls(None)
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "graph"
        folder, number = parent / stem, 1
        try:
            parent.mkdir(parents=True, exist_ok=True)
            while folder.exists():
                number += 1
                folder = parent / f"{stem}-{number}"
            folder.mkdir()
        except OSError as error:
            raise Error(f"{parent}: the IR cannot be written there: {error}.") from None
        return cls(folder)

    def graph(self, name: str, graph: Graph) -> None:
        """The graph as a pass left it."""
        self._write(f"{name}.ir", lambda: str(graph))

    def plan(self, lir: LirModule) -> None:
        """The planned module."""
        self._write("plan.lir", lambda: lir_text(lir))

    def kernels(self, program: object | None) -> None:
        """The kernels of each step, where some were selected."""
        if program is not None:
            self._write("kernels.txt", lambda: str(program))

    def _write(self, name: str, text: Callable[[], str]) -> None:
        if self.folder is None:
            return
        with writing(self.folder / f"{self.count:02}-{name}") as file:
            file.write(text().encode())
        self.count += 1
