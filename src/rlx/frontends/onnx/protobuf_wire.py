"""Protobuf wire format: a model's file without the bytes of its large tensors, and their offsets.

A protobuf is fields inside fields, each with its number and, where it is bytes or a message, its
length. The long byte fields of tensors are replaced by short tokens before the rest is parsed, so
that weights stay where they are. What is not understood here is left to the parser.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEAST_BYTES = 1024
"""Shorter tensors are parsed with the rest."""
MAX_DEPTH = 90
"""Of messages in messages; parsers stop at 100."""
_NONCE_BYTES = 16

Kind = Mapping[int, Any]
"""Field number → the kind of message in it; None marks a tensor's bytes."""

TENSOR: Kind = {9: None}
SPARSE: Kind = {1: TENSOR, 2: TENSOR}
GRAPH: dict[int, Any] = {5: TENSOR, 15: SPARSE}
ATTRIBUTE: Kind = {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE, 23: SPARSE}
LISTS = frozenset({7, 8, 9})
"""The fields of an attribute that is a list of numbers or texts. It holds no tensor, and may have
millions of them, each a field of its own."""
NODE: Kind = {5: ATTRIBUTE}
GRAPH[1] = NODE
FUNCTION: Kind = {7: NODE, 11: ATTRIBUTE}
MODEL: Kind = {7: GRAPH, 25: FUNCTION}


class _Odd(Exception):
    """Bytes that are no protobuf, or one that only the parser should judge."""


@dataclass(slots=True)
class Bulk:
    """The bytes of a file, and which of them a token stands for.

    Tokens begin with random bytes of this reading, so that no file can hold one.
    """

    data: memoryview
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(_NONCE_BYTES))
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def light(self) -> bytes:
        """The file with tokens in place of long tensors; the file itself where it is odd."""
        try:
            return b"".join(self._message(0, len(self.data), MODEL, 0))
        except _Odd:
            self.ranges.clear()
            return bytes(self.data)

    def found(self, raw: bytes) -> memoryview | None:
        """The bytes that `raw` stands for; None where it is no token."""
        if len(raw) != _NONCE_BYTES + 8 or not raw.startswith(self.nonce):
            return None
        start, end = self.ranges[int.from_bytes(raw[_NONCE_BYTES:], "little")]
        return self.data[start:end]

    def _token(self, start: int, end: int) -> bytes:
        self.ranges.append((start, end))
        return self.nonce + (len(self.ranges) - 1).to_bytes(8, "little")

    def _message(self, at: int, end: int, kind: Kind, depth: int) -> list[Any]:
        """A message in parts, its long tensors as tokens."""
        if depth > MAX_DEPTH:
            raise _Odd
        parts: list[Any] = []
        copied = at
        while at < end:
            key, at = self._varint(at, end)
            wire, number = key & 7, key >> 3
            if kind is ATTRIBUTE and number in LISTS:
                break
            if wire != 2:
                at = self._past(at, end, wire)
                continue
            head = at
            size, at = self._varint(at, end)
            if size > end - at:
                raise _Odd
            if size >= LEAST_BYTES and number in kind:
                inner = kind[number]
                made = (
                    [self._token(at, at + size)]
                    if inner is None
                    else self._message(at, at + size, inner, depth + 1)
                )
                parts += [self.data[copied:head], _encoded(sum(map(len, made))), *made]
                copied = at + size
            at += size
        parts.append(self.data[copied:end])
        return parts

    def _past(self, at: int, end: int, wire: int) -> int:
        """Where a number ends."""
        if wire == 0:
            return self._varint(at, end)[1]
        at += {1: 8, 5: 4}.get(wire, end + 1)
        if at > end:
            raise _Odd
        return at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number of seven bits a byte, the lowest first, and where it ends."""
        value = shift = 0
        while at < end and shift < 70:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise _Odd


def _encoded(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
