"""Calls in turns: so many at once, and so many that wait."""

from __future__ import annotations

import asyncio

from rlx.serve.errors import Refused


class Turns:
    """A semaphore whose queue is limited."""

    def __init__(self, count: int, queue: int) -> None:
        self._free, self._queue = asyncio.Semaphore(count), queue
        self.waiting = 0

    async def acquire(self) -> None:
        """Wait for a turn, or refuse where too many wait."""
        if self._free.locked() and self.waiting >= self._queue:
            raise Refused(
                429, f"{self.waiting:,} calls wait already; try again.", code="queue_full"
            )
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def release(self) -> None:
        self._free.release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *raised: object) -> None:
        self.release()
