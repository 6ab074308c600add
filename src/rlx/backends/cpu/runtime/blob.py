"""Machine code that runs wherever it lies: bytes, and where its functions begin.

A blob asks nothing of the one that loads it: no symbols, no addresses to fill in. So code made
earlier, or elsewhere, runs without LLVM.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rlx.core.errors import Error

_MAGIC = b"rlxblob1"
_HEAD = struct.Struct("<8s16sIQ")
_EXPORT = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class Blob:
    """Code that begins on the boundary of a page."""

    code: bytes
    exports: dict[str, int]
    arch: str
    """The architecture, and the calling convention where it has several: `System.abi`."""

    def to_bytes(self) -> bytes:
        arch = self.arch.encode()
        parts = [_HEAD.pack(_MAGIC, arch, len(self.exports), len(self.code)), self.code]
        for name, offset in sorted(self.exports.items()):
            text = name.encode()
            parts += [_EXPORT.pack(offset, len(text)), text]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Blob:
        try:
            return cls._read(data)
        except (struct.error, UnicodeDecodeError):
            raise _broken() from None

    @classmethod
    def _read(cls, data: bytes) -> Blob:
        magic, arch, count, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or len(data) < _HEAD.size + size:
            raise _broken()
        code = data[_HEAD.size : _HEAD.size + size]
        exports: dict[str, int] = {}
        at = _HEAD.size + size
        for _ in range(count):
            offset, length = _EXPORT.unpack_from(data, at)
            at += _EXPORT.size + length
            exports[data[at - length : at].decode()] = offset
        if at != len(data) or any(o >= size for o in exports.values()):
            raise _broken()
        return cls(code, exports, arch.rstrip(b"\0").decode())


def _broken() -> Error:
    return Error("this is no native code of rlx, or it is cut short. Compile the model again.")
