"""The container format of rlx files: a JSON manifest and checksummed, named sections.

    8 bytes   "rlxfile" and the number of the format
    8         the length of the file
    8         the length of the manifest
    16        BLAKE2b of the two lengths and the manifest
    …         the manifest, then the sections, each on a multiple of 64 bytes

The manifest holds where each section is among them and its own hash, checked when the section is
asked for: opening a file reads no more than what is used. Nothing in a file is believed before its
length has been compared with the file's.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from rlx.core.errors import Error
from rlx.core.files import HeldFile, opened

MAGIC = b"rlxfile\x01"
_LENGTHS = struct.Struct("<QQ")
_DIGEST = 16
_HEAD = len(MAGIC) + _LENGTHS.size + _DIGEST
_ALIGNMENT = 64
_HELD = 1 << 20
"""Files from this size on stay open and are read by section; a smaller one is read at once."""

Bytes: TypeAlias = bytes | memoryview
T = TypeVar("T")


def packed(head: Mapping[str, Any], sections: Mapping[str, Bytes]) -> Iterator[Bytes]:
    """The parts of a file, to be written one after the other."""
    ends = [0, *itertools.accumulate(map(len, sections.values()), lambda a, n: _aligned(a) + n)]
    entries = {
        name: (_aligned(before), len(section), _hash([section]))
        for before, (name, section) in zip(ends, sections.items())
    }
    manifest = json.dumps({"head": head, "sections": entries}, separators=(",", ":")).encode()
    base = _aligned(_HEAD + len(manifest))
    lengths = _LENGTHS.pack(base + ends[-1], len(manifest))
    yield MAGIC + lengths + bytes.fromhex(_hash([lengths, manifest])) + manifest
    at = _HEAD + len(manifest) - base
    for (start, size, _), section in zip(entries.values(), sections.values()):
        yield bytes(start - at)
        yield section
        at = start + size
    if not sections:
        yield bytes(-at)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _hash(parts: Iterable[Bytes]) -> str:
    h = blake2b(digest_size=_DIGEST)
    for part in parts:
        h.update(part)
    return h.hexdigest()


@dataclass(frozen=True, slots=True)
class Sections:
    """A file that was opened: its head has been checked, its sections are when they are read."""

    name: str
    head: dict[str, Any]
    entries: dict[str, Any]
    """Section → its place among the sections, its size and its hash."""
    data: memoryview | HeldFile
    """The whole file."""
    base: int = 0
    """Where the sections begin."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Sections:
        """The file at `path`, which must be a regular one."""
        return cls.read(opened(path))

    @classmethod
    def read(cls, file: HeldFile) -> Sections:
        """A file that is open already."""
        return cls.of(file.name, file if len(file) >= _HELD else file[:])

    @classmethod
    def of(cls, name: str, data: memoryview | HeldFile) -> Sections:
        """The bytes of a file; `name` is what errors call it."""
        size = len(data)
        if size < _HEAD or bytes(data[: len(MAGIC)]) != MAGIC:
            raise Error(f"{name} is no file of rlx, or of another version of its format.")
        lengths = data[len(MAGIC) : len(MAGIC) + _LENGTHS.size]
        end, manifest_bytes = _LENGTHS.unpack(lengths)
        if end != size or manifest_bytes > size - _HEAD:
            raise _broken(name, f"it has {size:,} bytes and says {end:,}")
        manifest = data[_HEAD : _HEAD + manifest_bytes]
        if _hash([lengths, manifest]) != bytes(data[_HEAD - _DIGEST : _HEAD]).hex():
            raise _broken(name, "its checksum is wrong")
        head, entries = _parsed(name, bytes(manifest))
        return cls(name, head, entries, data, _aligned(_HEAD + manifest_bytes))

    def under(self, prefix: str) -> Sections:
        """The sections whose names begin so, by the rest of their names."""
        inside = {k[len(prefix) :]: v for k, v in self.entries.items() if k.startswith(prefix)}
        return replace(self, entries=inside)

    def __contains__(self, section: str) -> bool:
        return section in self.entries

    def section(self, name: str) -> memoryview:
        """The bytes of a section, which are those that were written."""
        whole = len(self.data) - self.base
        match self.entries.get(name):
            case [int(at), int(size), str(digest)] if at >= 0 and 0 <= size <= whole - at:
                found = self.data[self.base + at : self.base + at + size]
            case _:
                raise _broken(self.name, f"it has no section {name!r}")
        if _hash([found]) != digest:
            raise _broken(self.name, f"the checksum of its section {name!r} is wrong")
        return found

    def decoded(self, decode: Callable[[], T]) -> T:
        """What a function reads of the program in the file. Whatever is wrong with it is an
        Error."""
        try:
            return decode()
        except Error:
            raise
        except Exception as error:
            raise Error(
                f"{self.name} holds no program that can be read ({error!r:.80}). Make it again."
            ) from None


def _parsed(name: str, manifest: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        match json.loads(manifest):
            case {"head": dict(head), "sections": dict(entries)}:
                return head, entries
            case _:
                raise _broken(name, "its manifest lacks a part")
    except (ValueError, RecursionError):
        raise _broken(name, "its manifest is not JSON") from None


def _broken(name: str, why: str) -> Error:
    return Error(f"{name} is damaged: {why}. Make it again.")
