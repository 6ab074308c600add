"""Params and constants as one file: aligned entries, in chunks that are streamed and checked one by
one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlx.backends.gpu.device import ALIGN
from rlx.core.files import writing

CHUNK_BYTES = 16 << 20
"""Of the file that a page holds at once while it loads."""
FILE = "weights.bin"


@dataclass(slots=True)
class WeightsFile:
    """Entries of a file that is written at the end; equal bytes are there once."""

    entries: list[bytes] = field(default_factory=list[bytes])
    offsets: dict[bytes, int] = field(default_factory=dict[bytes, int])
    end: int = 0

    def add(self, raw: bytes) -> int:
        """Where the bytes are in the file."""
        key = hashlib.sha256(raw).digest()
        if key not in self.offsets:
            self.offsets[key] = self.end
            padded = raw.ljust(-(-len(raw) // ALIGN) * ALIGN, b"\0")
            self.entries.append(padded)
            self.end += len(padded)
        return self.offsets[key]

    def copy(self) -> WeightsFile:
        """One that others are added to, with the same bytes so far."""
        return WeightsFile(list(self.entries), dict(self.offsets), self.end)

    def write(self, folder: Path) -> dict[str, Any]:
        """The file in a folder, and what a page must know of it."""
        whole, chunks = hashlib.sha256(), list[str]()
        with writing(folder / FILE) as file:
            for chunk in self._chunks():
                whole.update(chunk)
                chunks.append(hashlib.sha256(chunk).hexdigest())
                file.write(chunk)
        return {
            "file": FILE,
            "bytes": self.end,
            "sha256": whole.hexdigest(),
            "chunkBytes": CHUNK_BYTES,
            "chunks": chunks,
        }

    def _chunks(self) -> Iterator[bytes]:
        held = bytearray()
        for entry in self.entries:
            held += entry
            while len(held) >= CHUNK_BYTES:
                yield bytes(held[:CHUNK_BYTES])
                del held[:CHUNK_BYTES]
        if held:
            yield bytes(held)
