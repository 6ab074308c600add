"""Fields of a JSON body, each checked where it is read. null is as if a field were not there."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np
from starlette.requests import ClientDisconnect, Request

from rlx.serve.errors import LEFT, Refused

MAX_NUMBER = float(np.finfo(np.float32).max)
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
    except ClientDisconnect:
        raise Refused(LEFT, "the client left before its body was there.") from None
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
    """A JSON object whose fields are read by name; errors say the path to a field."""

    def __init__(self, data: Any, where: str = "the body", path: str = "") -> None:
        if not isinstance(data, dict):
            raise Refused(400, f"{where} is not a JSON object.", param=path[:-1] or None)
        self._data: Mapping[str, Any] = {k: v for k, v in data.items() if v is not None}
        self._path = path

    @property
    def names(self) -> Collection[str]:
        return self._data.keys()

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
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        if abs(value) > MAX_NUMBER:
            raise self._wrong(name, "a number that single precision has")
        return float(value)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        value = self._data.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, f"an integer from {least:,} to {most:,}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._data.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._data.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def texts(self, name: str, most: int) -> list[str]:
        """One string, or a list of them."""
        value = self._data.get(name, [])
        found = [value] if isinstance(value, str) else value
        is_list = isinstance(found, list) and all(isinstance(t, str) for t in found)
        if not is_list or len(found) > most:
            raise self._wrong(name, f"a string or at most {most} of them")
        return found

    def items(self, name: str) -> list[Any]:
        value = self._data.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def fields(self, name: str) -> Fields:
        where = f"{self._path}{name}"
        return Fields(self._data.get(name, {}), f"{where!r}", f"{where}.")

    def only_as(self, name: str, *values: Any) -> None:
        """Refuse a field but for values that ask for nothing."""
        if self.has(name) and not any(_is_same(self.raw(name), v) for v in values):
            instead = " or ".join(map(json.dumps, values))
            known = f": leave it out, or give {instead}." if values else ": leave it out."
            where = f"{self._path}{name}"
            raise Refused(400, f"{where!r} is not supported{known}", param=where)

    def _wrong(self, name: str, wanted: str) -> Refused:
        where = f"{self._path}{name}"[:80]
        return Refused(400, f"{where!r} must be {wanted}.", param=where)


def _is_same(given: Any, value: Any) -> bool:
    """1 is not true."""
    return type(given) is type(value) and given == value
