"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlx.core.errors import Error, InternalError, OutOfMemoryError

LOG = logging.getLogger("rlx.serve")
LEFT = 499
"""The status that is counted where the client left; nobody reads it."""
FAULTS = (InternalError, OutOfMemoryError)
"""Errors of the server; all others of rlx are about what was asked for."""
KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    429: "rate_limit_error",
}  # fmt: skip
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"},
}  # fmt: skip


class Refused(Exception):
    """A request that gets an error: its status, what is wrong, and with which field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self._headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, _kind(self.status))
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, path: str = "") -> Response:
        """The answer; KServe's protocol, below /v2, has the text alone."""
        headers = {**HEADERS.get(self.status, {}), **self._headers}
        body = {"error": self.message} if path.startswith("/v2") else self.body
        return JSONResponse(body, self.status, headers)


def _kind(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def refusal(error: Exception) -> Refused:
    """Any error as one that a client is sent."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Error) and not isinstance(error, FAULTS):
        return Refused(400, str(error))
    if isinstance(error, HTTPException):
        return Refused(error.status_code, error.detail, headers=error.headers)
    if isinstance(error, TimeoutError):
        return Refused(504, "the answer took too long.", code="timeout")
    LOG.error("an error of the server", exc_info=error)
    known = str(error) if isinstance(error, Error) else "an internal error"
    return Refused(500, f"{known.rstrip('.')}; the server's log has more.")


async def respond(request: Request, error: Exception) -> Response:
    """The handler of every exception."""
    return refusal(error).response(request.url.path)
