"""Connections that no request is under way on: how many there are, and how long they stay.

uvicorn answers requests, and waits for their headers for ever. Here a connection has so long to
send the headers of a request, one that is refused is read on until its client has the answer, and
where there are too many, the one that has waited longest makes room: so clients that send nothing
take no connection from those that do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S, IDLE_S, LINGER_S = 10.0, 30.0, 2.0
"""For the headers of a request; between two requests; for a client to read that it was refused."""
MAX_CONNECTIONS, MAX_PER_ADDRESS = 4096, 512
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the ones before them are counted."""
SPARE_FILES = 6 * ACCEPTED_AT_ONCE
LOGGED, LOGGED_WITHIN_S = 10, 10.0
UNREAD = (h11.SEND_BODY, h11.ERROR)
"""States of a client that may be sending still."""


def max_connections() -> int:
    """As many as the process may have open files for, beside those that it has."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = limit - len(os.listdir("/dev/fd")) - SPARE_FILES
    except (ImportError, OSError, ValueError):
        return MAX_CONNECTIONS
    is_unlimited = limit == resource.RLIM_INFINITY
    return MAX_CONNECTIONS if is_unlimited else max(8, min(MAX_CONNECTIONS, spare))


@dataclass(slots=True)
class Connections:
    """The connections of a server, by address, and those that wait for a request, oldest first."""

    most: int = field(default_factory=max_connections)
    header_s: float = HEADER_S
    by_address: Counter[str] = field(default_factory=Counter[str])
    waiting: dict[Connection, None] = field(default_factory=dict["Connection", None])

    @property
    def most_per_address(self) -> int:
        return min(MAX_PER_ADDRESS, max(4, self.most * 3 // 4))

    def add(self, new: Connection) -> bool:
        """Count a connection, closing another where there are too many. None may make room."""
        self.by_address[new.address] += 1
        if self.by_address[new.address] > self.most_per_address:
            return self._make_room(new.address)
        if self.by_address.total() > self.most:
            return self._make_room(self.by_address.most_common(1)[0][0]) or self._make_room(None)
        return True

    def remove(self, old: Connection) -> None:
        self.waiting.pop(old, None)
        self.by_address[old.address] -= 1
        if self.by_address[old.address] <= 0:
            del self.by_address[old.address]

    def _make_room(self, address: str | None) -> bool:
        """Close the connection that has waited longest, of this address or of any."""
        of_address = (c for c in self.waiting if address is None or c.address == address)
        oldest = next(of_address, None)
        if oldest is None:
            return False
        self.waiting.pop(oldest)
        oldest.abort()
        return True


class Connection(H11Protocol):
    """uvicorn's, with a deadline for headers, and counted."""

    def __init__(self, *args: Any, connections: Connections, **how: Any) -> None:
        super().__init__(*args, **how)
        self._open, self._is_counted = connections, False
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Lingering(transport, self))  # pyright: ignore[reportArgumentType]
        self.address = self.client[0] if self.client else ""
        self._is_counted = True
        if self._open.add(self):
            self._await_request()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        if self._is_counted:
            self._is_counted = False
            self._open.remove(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def abort(self) -> None:
        """Close without waiting for the client."""
        self.transport.abort()

    def _await_request(self) -> None:
        """The deadline is that of all headers together: bytes that trickle in do not move it."""
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request
        is_busy = cycle is not None and not cycle.response_complete
        is_between = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        if is_busy:
            self._open.waiting.pop(self, None)
        else:
            self._open.waiting.setdefault(self)
        if is_busy or is_between:
            self._set_deadline(None)
        elif self._deadline is None:
            self._set_deadline(self._open.header_s)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        later = asyncio.get_running_loop().call_later
        self._deadline = None if seconds is None else later(seconds, self.abort)


class Lingering:
    """A transport that is closed once the client has had time to read the answer: closing while it
    sends would reset the connection, and the answer would be lost."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport, self._connection, self._is_closing = transport, connection, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self._transport.is_closing() or self._connection.conn.their_state not in UNREAD:
            self._transport.close()
        elif not self._is_closing:
            self._is_closing = True
            self._transport.resume_reading()
            with suppress(OSError, NotImplementedError):
                self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)


class RateLimit(logging.Filter):
    """So many records of one message in a time; how many were left out is said with the next."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = str(record.msg)[:80], time.monotonic()
        began, count = self._since.get(key, (now, 0))
        if now - began >= LOGGED_WITHIN_S:
            if count > LOGGED:
                record.msg = f"{record.msg} ({count - LOGGED} more like it were left out)"
            began, count = now, 0
        if len(self._since) > 1000:
            self._since.clear()
        self._since[key] = began, count + 1
        return count < LOGGED


class RateLimited:
    """The loggers of a server, on which clients can make it write."""

    NAMES = ("uvicorn.error", "asyncio", "rlx.serve")

    def __init__(self) -> None:
        self._limit = RateLimit()

    def __enter__(self) -> None:
        for name in self.NAMES:
            logging.getLogger(name).addFilter(self._limit)

    def __exit__(self, *error: object) -> None:
        for name in self.NAMES:
            logging.getLogger(name).removeFilter(self._limit)
