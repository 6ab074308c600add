"""Answers that end when their client leaves: server-sent events, and whole ones."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rlx.serve.errors import refusal

LOG = logging.getLogger("rlx.serve")
T = TypeVar("T")
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def left(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; it is cancelled if the client leaves first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _ended(task, gone)


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Server-sent events. A client that leaves, or reads nothing for too long, ends the events'
    generator, and so does time."""

    def __init__(
        self, events: AsyncGenerator[Mapping[str, Any], None], timeout_s: float, stall_s: float
    ) -> None:
        super().__init__()
        self._events, self._timeout_s, self._stall_s = events, timeout_s, stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        work = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await _ended(work, gone)
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            async with asyncio.timeout(self._timeout_s):
                async for event in self._events:
                    await self._write(send, _event(json.dumps(event, ensure_ascii=False)))
        except _Stalled:
            LOG.warning("a client that reads nothing is cut off")
            return  # an unfinished answer: the connection is closed
        except Exception as error:
            await self._write(send, _event(json.dumps(refusal(error).body)))
        await self._write(send, _event("[DONE]"))
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise _Stalled from None


class _Stalled(Exception):
    """A client that does not read."""


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()
