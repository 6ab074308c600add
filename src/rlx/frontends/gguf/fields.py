"""Typed access to a file's metadata."""

from __future__ import annotations

import numpy as np

from rlx.core.errors import Error
from rlx.frontends.gguf.reader import GgufFile, Value
from rlx.ops.op import Array


class Fields:
    """Typed values of a file's metadata: one that is missing or of another kind is an error."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self._file, self._prefix = file, prefix
        self.where = file.name

    def count(self, key: str, default: int | None = None, *, most: int = 1 << 24) -> int:
        """A whole number, at least 1."""
        found = self._found(key, default)
        if type(found) is not int or not 1 <= found <= most:
            raise self._wrong(key, found, f"a whole number from 1 to {most:,}")
        return found

    def real(self, key: str, default: float | None = None) -> float:
        found = self._found(key, default)
        if type(found) not in (int, float) or not np.isfinite(found):
            raise self._wrong(key, found, "a number")
        return float(found)  # type: ignore[arg-type]

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        found = self.real(key, default)
        if found <= 0:
            raise self._wrong(key, found, "a number above 0")
        return found

    def text(self, key: str, default: str | None = None) -> str:
        found = self._found(key, default)
        if not isinstance(found, str):
            raise self._wrong(key, found, "a text")
        return found

    def numbers(self, key: str, count: int, kinds: str) -> Array:
        """An array of so many numbers of NumPy's `kinds`."""
        found = self._found(key, None)
        if (
            not isinstance(found, np.ndarray)
            or len(found) != count
            or found.dtype.kind not in kinds
        ):
            raise self._wrong(key, found, f"an array of {count:,} numbers")
        return found

    def has(self, key: str) -> bool:
        return self.name(key) in self._file.metadata

    def raw(self, key: str) -> Value | None:
        return self._file.metadata.get(self.name(key))

    def name(self, key: str) -> str:
        """Of a key, in the file."""
        return f"{self._prefix}.{key}" if self._prefix else key

    def _found(self, key: str, default: Value | None) -> Value:
        found: Value | None = self._file.metadata.get(self.name(key), default)
        if found is None:
            raise Error(f"{self._file.name} has no {self.name(key)}, which its model needs.")
        return found

    def _wrong(self, key: str, found: object, wanted: str) -> Error:
        return Error(f"{self._file.name}: {self.name(key)} is {found!r:.80}, not {wanted}.")
