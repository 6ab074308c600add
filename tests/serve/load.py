"""`python -m tests.serve.load`: many clients of one server for a minute, then clients that leave.

Every answer to the same prompt and seed must be the same text, every stream must come to its end,
memory must not grow, and slots of clients that left must become free. Exit 1 where one of these
does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serve.serving import MODEL, written_model

PROMPTS = [f"hello {w}" for w in ("zebra", "quick brown fox", "hell", "a b c d e f g h", "one")]
GROWTH = 1.05
"""Memory at the end, to that after a third of the time: allocators settle, nothing accumulates."""


@dataclass
class Found:
    """What clients saw."""

    answers: int = 0
    tokens: int = 0
    lost: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    texts: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    first_s: list[float] = field(default_factory=list[float])
    memory: list[int] = field(default_factory=list[int])


class Client:
    """One connection, used for one request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, body: dict[str, Any]) -> int:
        """Send a request: its status."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        assert self._reader is not None
        status = await self._reader.readline()
        while (await self._reader.readline()).strip():
            pass
        return int(status.split()[1]) if status else 0

    async def events(self) -> AsyncIterator[Any]:
        """What a stream brings, up to its end; the end of the connection ends it, too."""
        assert self._reader is not None
        while size := int((await self._reader.readline()).strip() or b"0", 16):
            data = await self._reader.readexactly(size + 2)
            for line in data.split(b"\n\n"):
                if line.startswith(b"data: "):
                    yield line[6:]
        await self._reader.readline()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def body(prompt: str, tokens: int) -> dict[str, Any]:
    how = {"temperature": 0.8, "seed": 7, "ignore_eos": True, "stream": True}
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, **how}


async def ask(client: Client, prompt: str, tokens: int, found: Found) -> None:
    start = time.monotonic()
    status = await client.send(body(prompt, tokens))
    if status != 200:
        found.errors[f"status {status}"] += 1
        client.close()
        return
    text, is_whole, is_first = "", False, True
    async for data in client.events():
        if is_first:
            found.first_s.append(time.monotonic() - start)
            is_first = False
        if data == b"[DONE]":
            is_whole = True
            continue
        event = json.loads(data)
        if "error" in event:
            found.errors[event["error"]["message"]] += 1
            return
        text += "".join(c["text"] for c in event["choices"])
    found.lost += not is_whole
    found.answers += is_whole
    found.tokens += tokens * is_whole
    found.texts.setdefault(prompt, set()).add(text)


async def visit(port: int, number: int, until: float, tokens: int, found: Found) -> None:
    client = Client(port)
    while time.monotonic() < until:
        try:
            await ask(client, PROMPTS[number % len(PROMPTS)], tokens, found)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            found.errors[type(error).__name__] += 1
            client.close()
        number += 1
    client.close()


async def watch(pid: int, until: float, found: Found) -> None:
    while time.monotonic() < until:
        found.memory.append(resident(pid))
        await asyncio.sleep(0.5)


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def get(port: int, path: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    return json.loads(data.partition(b"\r\n\r\n")[2])


async def leave(port: int, count: int) -> dict[str, Any]:
    """Clients that begin a long answer and are gone after its first piece."""
    clients = [Client(port) for _ in range(count)]

    async def begun(client: Client, number: int) -> None:
        await client.send(body(f"hello {number}", 900))
        async for _ in client.events():
            break
        client.close()

    waiting = [asyncio.ensure_future(begun(c, i)) for i, c in enumerate(clients)]
    await asyncio.wait(waiting, timeout=60)
    for client in clients:
        client.close()
    until = time.monotonic() + 60
    state = await get(port, "/health")
    while (state["running"] or state["waiting"]) and time.monotonic() < until:
        await asyncio.sleep(0.05)
        state = await get(port, "/health")
    return state


@asynccontextmanager
async def server(model: Path, slots: int) -> AsyncGenerator[tuple[int, int]]:
    """`rlx serve` as a process: its port and its id."""
    command = [sys.executable, "-m", "rlx", "serve", str(model), "--port", "0", "--name", MODEL]
    process = subprocess.Popen([*command, "--slots", str(slots)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        if "listening" not in line:
            raise SystemExit(f"the server did not start: {line}")
        yield int(line.strip().rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait()


async def load(model: Path, clients: int, seconds: float, tokens: int, slots: int) -> int:
    found = Found()
    async with server(model, slots) as (port, pid):
        until = time.monotonic() + seconds
        visits = [visit(port, n, until, tokens, found) for n in range(clients)]
        await asyncio.gather(watch(pid, until, found), *visits)
        state = await leave(port, 50)
    return report(found, state, clients, seconds)


def report(found: Found, state: dict[str, Any], clients: int, seconds: float) -> int:
    early, late = found.memory[len(found.memory) // 3], found.memory[-1]
    first = sorted(found.first_s) or [0.0]
    rate, middle = found.tokens / seconds, first[len(first) // 2]
    print(f"{clients} clients for {seconds:.0f} s: {found.answers} answers, {rate:.0f} tokens/s")
    print(f"first piece: {middle:.2f} s in the middle, {first[-1]:.2f} s at most")
    print(f"errors: {dict(found.errors) or 0}, lost streams: {found.lost}")
    print(f"texts per prompt: {sorted(len(t) for t in found.texts.values())}")
    sampled = ", ".join(f"{b / 1e6:.1f}" for b in found.memory[:: max(1, len(found.memory) // 8)])
    print(f"memory: {early / 1e6:.1f} MB after a third, {late / 1e6:.1f} MB at the end ({sampled})")
    print(f"after 50 clients left: {state}")
    is_same = all(len(texts) == 1 for texts in found.texts.values())
    is_free = not state["running"] and not state["waiting"]
    holds = found.answers and not found.errors and not found.lost and is_same and is_free
    return 0 if holds and late <= GROWTH * early else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a .gguf file, instead of a tiny random one")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--slots", type=int, default=8)
    how = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        model = how.pop("model") or written_model(Path(folder))
        return asyncio.run(load(model, **how))


if __name__ == "__main__":
    sys.exit(main())
