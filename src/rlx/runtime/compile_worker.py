"""The child of a compile (`compile_process.py`): one program, compiled as anywhere else."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from rlx.core.disk_cache import Cache
from rlx.core.gc_paused import gc_paused
from rlx.core.sections import Bytes, packed
from rlx.runtime.artefact_file import parts
from rlx.runtime.cache_requests import REQUEST
from rlx.runtime.compile_process import GREETING
from rlx.runtime.compile_record import read_graph, read_options
from rlx.runtime.session import Session


class _Worker(Session):
    """A session that gives the file of a program, which it neither looks for in the cache nor
    puts there. The cache has what else a compile reads, such as a calibration."""

    def preload(self) -> None:
        """Import what a compile will need."""
        for module in self.backend.compiler_modules:
            import_module(module)

    def file(self, request: Mapping[str, Any]) -> Iterator[Bytes]:
        """The parts of the program's file, and what it was compiled for."""
        files = self.backend.serializer()
        assert files is not None  # or nobody would have asked
        graph, options = read_graph(request), read_options(request["options"])
        made = self._made_anew(graph, options)
        program, name = made.program, self.backend.name
        head, sections = parts(files.kept(program), name, program, made.record)
        return packed({**head, REQUEST: self._facts(graph, options)}, sections)


def main(asked: str) -> None:
    """Answer the request of the parent, which is asked to end it where it was interrupted. What
    else is printed is not part of the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer.write(GREETING)
    answer.flush()
    with gc_paused():
        worker = _worker(**json.loads(asked))
        worker.preload()
        request = sys.stdin.buffer.readline()
        if request:
            Thread(target=_end_with_parent, daemon=True).start()
            answer.writelines(worker.file(json.loads(request)))
            answer.close()
        os._exit(0)  # nothing is left to be put in order


def _worker(target: str | None, threads: int | None, cache: tuple[str, int] | None) -> _Worker:
    held = False if cache is None else Cache(Path(cache[0]), cache[1])
    return _Worker(target, threads=threads, cache=held)


def _end_with_parent() -> None:
    """Nothing more comes but the end."""
    os.read(0, 1)
    os._exit(1)
