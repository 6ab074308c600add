"""A server in a thread, with a tiny model of random weights, and its metrics."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rlx
from tests.gguf import files, vocabularies

MODEL, CONTEXT = "tiny", 1024


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    address: str
    lm: Any
    server: Any

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def metric(self, name: str) -> float:
        """A number of /metrics, summed over labels."""
        with urllib.request.urlopen(f"{self.address}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M)
        assert found, f"{name} is no metric of\n{text}"
        return sum(map(float, found))


def skip_without_packages() -> None:
    for name in ("starlette", "uvicorn", "prometheus_client", "llguidance"):
        pytest.importorskip(name, reason=f"the package {name} is not installed")


def written_model(folder: Path) -> Path:
    words = len(vocabularies.pieces()[0])
    path = folder / f"{MODEL}.gguf"
    how: dict[str, Any] = {"words": words, "context": CONTEXT}
    return files.write(path, "llama", vocabulary=vocabularies.add_pieces, **how)


def tiny_model(folder: Path, **how: Any) -> rlx.lm.LanguageModel:
    return rlx.lm.load(written_model(folder), **how)


@contextmanager
def serving(
    lm: rlx.lm.LanguageModel, *, header_s: float = 10.0, **settings: Any
) -> Generator[Running]:
    from rlx.serve import Settings, language_model_app
    from rlx.serve.server import hosts_of

    app = language_model_app(lm, Settings(name=MODEL, hosts=hosts_of("127.0.0.1"), **settings))
    with running(app, header_s) as (address, server):
        yield Running(address, lm, server)


@contextmanager
def running(app: Any, header_s: float = 10.0) -> Generator[tuple[str, Any]]:
    """An application on a free port, until the block ends."""
    from rlx.serve.server import Server, address_of, bound

    listening = bound("127.0.0.1", 0)
    server = Server(app, grace_s=5, header_s=header_s)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield address_of(listening), server
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
