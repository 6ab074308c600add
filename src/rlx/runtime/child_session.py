"""A session whose programs are compiled in child processes.

What goes wrong with a child is logged, and the program compiled here: so errors of a compile are
those of any other session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rlx.core.disk_cache import CacheLike
from rlx.core.errors import Error
from rlx.core.sections import Sections
from rlx.ir.bundle import Bundle
from rlx.ir.mir import Graph, MirModule
from rlx.passes.options import FusionOptions
from rlx.runtime.cache_requests import REQUEST
from rlx.runtime.compile_process import ChildFailure, CompileProcess
from rlx.runtime.compile_record import graph_json, options_json
from rlx.runtime.request_keys import model_name, name_prefix
from rlx.runtime.session import LOG, Made, Session


class ChildSession(Session):
    """A session that never loads the compiler, unless a child fails: its memory is that of one
    that finds its programs in the cache."""

    def __init__(
        self,
        target: str | None = None,
        *,
        threads: int | None = None,
        cache: CacheLike = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """`meanwhile` is called while a child compiles: what is to be done after it anyway."""
        super().__init__(target, threads=threads, cache=cache)
        held = None if self.cache is None else (str(self.cache.folder), self.cache.max_bytes)
        self._asked = {"target": target, "threads": threads, "cache": held}
        self.meanwhile = meanwhile
        self._child: CompileProcess | None = None

    @contextmanager
    def expecting(self, name: str) -> Generator[None]:
        """Begin a child before a model of this name is read, where no program of one is cached."""
        is_new = self.cache is None or not self.cache.has(name_prefix(name))
        if is_new and self.backend.compiler_modules:
            self._child = CompileProcess(self._asked)
        try:
            yield
        finally:
            if self._child is not None:
                self._child.end()

    def _made_anew(self, model: Any, options: FusionOptions) -> Made:
        files, graph = self.backend.serializer(), _graph_of(model)
        if files is not None and graph is not None and self.backend.compiler_modules:
            try:
                return self._made_of(files, self._answer(graph, options))
            except (ChildFailure, Error, KeyError) as why:
                LOG.info("%s: compiled in this process: %s", model_name(model), why)
        return super()._made_anew(model, options)

    def _answer(self, graph: Graph, options: FusionOptions) -> Sections:
        request = {**graph_json(graph), "options": options_json(options)}
        child, self._child = self._child or CompileProcess(self._asked), None
        found = child.answer(request, self.meanwhile)
        if found.head.get(REQUEST) != self._facts(graph, options):
            raise ChildFailure("the child process compiled for another request, rlx or machine")
        return found


def _graph_of(model: Any) -> Graph | None:
    """What is compiled, where it can be sent as text and comes back as the same."""
    held = model.graph if isinstance(model, Bundle | MirModule) else model
    return held if isinstance(held, Graph) else None
