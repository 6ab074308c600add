"""An application on a socket, until a signal ends it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette

from rlx.core.errors import Error
from rlx.serve.connections import (
    ACCEPTED_AT_ONCE,
    HEADER_S,
    IDLE_S,
    Connection,
    Connections,
    RateLimited,
)
from rlx.serve.settings import STALL_S

LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
BACKLOG = 2048


def bound(host: str, port: int, stall_s: float = STALL_S) -> socket.socket:
    """A socket that listens; port 0 is any that is free. Where the system can, it drops connections
    whose client has read nothing for so long, which closing them would wait for."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted sockets inherit it
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * stall_s))
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Error(
            f"{host}:{port} cannot be listened on: {error.strerror}. Use another --port (0: any "
            "that is free), or another --host."
        ) from None
    return made


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def hosts_of(host: str) -> frozenset[str] | None:
    """Names that requests may be for: those of this machine, if nobody else can reach it."""
    return LOOPBACK if host in ("127.0.0.1", "::1", "localhost") else None


class Server(uvicorn.Server):
    """A server whose application refuses what comes while answers under way are finished."""

    def __init__(self, app: Starlette, grace_s: float, header_s: float = HEADER_S) -> None:
        protocol: Any = partial(Connection, connections=Connections(header_s=header_s))
        config = uvicorn.Config(
            app,
            http=protocol,
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(grace_s)),
            timeout_keep_alive=round(IDLE_S),
            backlog=ACCEPTED_AT_ONCE,
        )
        super().__init__(config)
        self._app = app

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with RateLimited():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio listens anew, for as many as it accepts at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.drain()
        await super().shutdown(sockets)


def run(
    app: Starlette,
    host: str,
    port: int,
    *,
    grace_s: float = 30.0,
    say: Callable[[str], Any] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Serve until SIGINT or SIGTERM; answers under way may be finished for `grace_s`."""
    listening = bound(host, port)
    say(f"listening on {address_of(listening)}")
    try:
        Server(app, grace_s).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
