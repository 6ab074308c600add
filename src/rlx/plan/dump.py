"""IR dumps: every level of a compile, what each pass changed, the fusion report, the plan and its
kernels, as numbered text files.

    00-hir.ir           of a module of blocks; each .ir and .lir file loads
    01-source.ir        the graph that the passes take
    01-source.diff      what became of the one before it; only where something changed
    02-weigh_outputs.ir …
    15-plan.lir         the planned module
    15-plan.txt         its slots as a table
    16-fusion.txt       what was fused, and what was not and why
    17-kernels.txt      where a backend selects kernels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlx.core.errors import Error
from rlx.core.files import writing
from rlx.ir.diff import diff
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.plan.lir_text import lir_text

Text = Callable[[], str]


@dataclass(slots=True)
class Dump:
    """A folder, and how many files were written; without one nothing is."""

    folder: Path | None
    count: int = field(default=0, init=False)
    last: Graph | None = field(default=None, init=False)
    """What was written last: the next graph is compared with it."""

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

    def hir(self, module: HirModule) -> None:
        """The module of blocks that is lowered."""
        self._write("hir", {".ir": lambda: str(module)})
        self.last = module.graph

    def graph(self, name: str, graph: Graph) -> None:
        """The graph as a pass left it, and what the pass changed."""
        before, self.last = self.last, graph
        texts: dict[str, Text] = {".ir": lambda: str(graph)}
        if before is not None and before is not graph and before != graph:
            texts[".diff"] = lambda: diff(before, graph, name)
        self._write(name, texts)

    def plan(self, lir: LirModule) -> None:
        """The planned module, and its slots as a table."""
        head = f"{lir!r}\noptions: {lir.options}\n"
        self._write(
            "plan", {".lir": lambda: lir_text(lir), ".txt": lambda: f"{head}{lir.plan.report()}"}
        )

    def fusion(self, report: object) -> None:
        """What was fused, and what was not and why."""
        self._write("fusion", {".txt": lambda: f"{report}\n"})

    def kernels(self, program: object | None) -> None:
        """The kernels of each step, where some were selected."""
        if program is not None:
            self._write("kernels", {".txt": lambda: str(program)})

    def _write(self, name: str, texts: Mapping[str, Text]) -> None:
        """Files of one number, by how their names end."""
        if self.folder is None:
            return
        for ending, text in texts.items():
            with writing(self.folder / f"{self.count:02}-{name}{ending}") as file:
                file.write(text().encode())
        self.count += 1
