"""Fields of a JSON body, each checked where it is read. null is as if a field were not there."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from starlette.requests import Request

from rlx.serve.errors import Refused

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request, limit_bytes: int, timeout_s: float) -> bytes:
    """The bytes of a body, as long as they are few and come in time."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                data += part
                if len(data) > limit_bytes:
                    raise too_large(limit_bytes)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {timeout_s:.0f} s.") from None
    return bytes(data)


def too_large(limit_bytes: int) -> Refused:
    return Refused(413, f"the body has more than {limit_bytes:,} bytes.")


def parsed(data: bytes) -> Any:
    """JSON, without what JSON has not."""
    try:
        found = json.loads(data, parse_constant=_no_number)
        if SURROGATE.search(data):
            json.dumps(found, ensure_ascii=False).encode()  # half of a pair is no character
        return found
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class Fields:
    """A JSON object whose fields are read by name."""

    def __init__(self, data: Any, where: str = "the body") -> None:
        if not isinstance(data, dict):
            raise Refused(400, f"{where} is not a JSON object.")
        self._data: Mapping[str, Any] = {k: v for k, v in data.items() if v is not None}

    def only(self, known: Collection[str]) -> None:
        """Refuse what is not known: it may be misspelt."""
        for name in self._data:
            if name not in known:
                raise Refused(400, f"{name[:80]!r} is not a known field.", param=name[:80])

    def has(self, name: str) -> bool:
        return name in self._data

    def raw(self, name: str) -> Any:
        return self._data.get(name)

    def number(self, name: str, default: float) -> float:
        value = self._data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise _wrong(name, "a number")
        return float(value)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        value = self._data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(name, f"an integer from {least:,} to {most:,}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._data.get(name, default)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._data.get(name, default)
        if not isinstance(value, str):
            raise _wrong(name, "a string")
        return value

    def texts(self, name: str, most: int) -> list[str]:
        """One string, or a list of them."""
        value = self._data.get(name, [])
        found = [value] if isinstance(value, str) else value
        is_list = isinstance(found, list) and all(isinstance(t, str) for t in found)
        if not is_list or len(found) > most:
            raise _wrong(name, f"a string or at most {most} of them")
        return found

    def items(self, name: str) -> list[Any]:
        value = self._data.get(name, [])
        if not isinstance(value, list):
            raise _wrong(name, "a list")
        return value

    def fields(self, name: str) -> Fields:
        return Fields(self._data.get(name, {}), f"{name!r}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _wrong(name: str, wanted: str) -> Refused:
    return Refused(400, f"{name!r} must be {wanted}.", param=name)
