"""Strings as integers: inside a program a string tensor is an i64 tensor of ids.

A table gives every distinct string one id, so that two strings are equal where their ids are: what
moves, compares or looks up strings is arithmetic on integers. Strings of the model have ids that
are known when it is compiled; those that a call brings get the next ones, for that call only. Id 0
is the empty string, what tensors of strings are padded with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.errors import Error

if TYPE_CHECKING:
    from collections.abc import Generator

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """The element type of string tensors."""

    name: str = "string"
    storage: DType = DType.I64


TEXT = Text()


@dataclass(slots=True)
class Strings:
    """An interning table. One made `over` another adds to it and leaves it as it is."""

    over: Strings | None = None
    _texts: list[str] = field(default_factory=list[str])
    _ids: dict[str, int] = field(default_factory=dict[str, int])
    _array: Array | None = None

    def __post_init__(self) -> None:
        if self.over is None:
            self.intern("")

    def __len__(self) -> int:
        return self._start + len(self._texts)

    @property
    def _start(self) -> int:
        return 0 if self.over is None else len(self.over)

    def intern(self, text: str) -> int:
        """The id of a string, new where it has none."""
        found = self.find(text)
        if found is None:
            found = self._ids[text] = len(self)
            self._texts.append(text)
            self._array = None
        return found

    def find(self, text: str) -> int | None:
        found = None if self.over is None else self.over.find(text)
        return self._ids.get(text) if found is None else found

    def ids(self, texts: Iterable[str]) -> list[int]:
        return [self.intern(t) for t in texts]

    def encode(self, array: Array, what: str) -> Array:
        """A tensor of strings as their ids."""
        flat = array.reshape(-1).tolist()
        if not all(isinstance(t, str) for t in flat):
            flat = [_text(t, array.dtype, what) for t in flat]
        return np.array(self.ids(flat), np.int64).reshape(array.shape)

    def decode(self, ids: Array) -> Array:
        """Ids as an array of Python strings."""
        if self.over is not None and (ids.size == 0 or int(ids.max()) < len(self.over)):
            return self.over.decode(ids)
        return self._all()[ids.reshape(-1)].reshape(ids.shape)

    def _all(self) -> Array:
        if self._array is None:
            own = objects(self._texts)
            self._array = own if self.over is None else np.concatenate([self.over._all(), own])
        return self._array


def _text(value: Any, dtype: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise Error(
                f"{what} holds {value[:40]!r}, which is not UTF-8 ({error.reason})."
            ) from None
    raise Error(
        f"{what} is {dtype} and holds {str(value)[:40]} ({type(value).__name__}), expected strings."
    )


def objects(values: Sequence[Any]) -> Array:
    """A row of Python objects."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


_current: ContextVar[Strings] = ContextVar("strings")


@contextmanager
def strings_of_call(table: Strings) -> Generator[None]:
    """Host steps inside loops and branches of a program use this table."""
    token = _current.set(table)
    try:
        yield
    finally:
        _current.reset(token)


def current_strings() -> Strings:
    found = _current.get(None)
    if found is None:
        raise Error(
            "a program that makes strings runs only by the executable that rlx.compile gave"
        )
    return found
