"""What every request passes before its route: host, token, kind of body; and what is counted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlx.serve.errors import Refused
from rlx.serve.metrics import Metrics
from rlx.serve.settings import Settings

OPEN_PATHS = ("/", "/health", "/v2/health/live", "/v2/health/ready")
"""Paths that need no token; so do the files of the page."""
BODIES = ("application/json", "application/octet-stream")


class Guard:
    """An ASGI application around another. It handles no body and no stream, so that those of the
    inner one see their client leave."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, route, status = time.monotonic(), _route(scope), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._passed(scope)(scope, receive, noted)
        finally:
            self._metrics.answered(route, status, time.monotonic() - start)

    def _passed(self, scope: Scope) -> Any:
        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
        except Refused as refused:
            return refused.response(scope["path"])
        return self._app

    def _check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """A page of another site can make a browser send requests here: by a name that it lets
        point to this machine (Host), or as a form (the kind of body)."""
        if "content-length" in headers and "transfer-encoding" in headers:
            why = "a body has a Content-Length or a Transfer-Encoding, not both."
            raise Refused(400, why, headers={"Connection": "close"})
        hosts = self._settings.hosts
        if hosts is not None and _host(headers.get("host", "")) not in hosts:
            raise Refused(403, "the header Host names another machine than this server's.")
        if self._settings.token is not None and not _is_open(method, path):
            _check_token(headers.get("authorization", ""), self._settings.token)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind not in BODIES:
            raise Refused(415, f"the body's Content-Type must be application/json, not {kind!r}.")


def _is_open(method: str, path: str) -> bool:
    return method == "OPTIONS" or path in OPEN_PATHS or path.startswith("/page/")


def _check_token(header: str, token: str) -> None:
    kind, _, given = header.partition(" ")
    is_right = secrets.compare_digest(given.strip().encode(), token.encode())
    if kind.lower() != "bearer" or not is_right:
        raise Refused(401, "the bearer token is missing or wrong.", code="invalid_api_key")


def _host(header: str) -> str:
    """The name without the port."""
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()


def _route(scope: Scope) -> str:
    """The template of the route that a path matches: of paths there may be any number."""
    routes = (r for r in scope["app"].routes if isinstance(r, Route | Mount))
    return next((r.path for r in routes if r.matches(scope)[0] is not Match.NONE), "other")
