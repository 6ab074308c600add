"""The fields of a configuration file, which record that they are read: one that no code reads is
known to be neutral, or is an error. What a model computes never depends on a field in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, final

from rlx.core.errors import Error, UnsupportedError


@dataclass(frozen=True, slots=True)
class AnyValue:
    """A field that changes no result, whatever it is."""


ANY = AnyValue()
Neutral: TypeAlias = "Mapping[str, AnyValue | tuple[Any, ...]]"
"""By field, or a pattern of fields (`general.license.*`): the values that change no result. Fields
of an object inside are `object.field`. Null, which is no value, never does."""


@final
class TrackedFields(Mapping[str, Any]):
    """The fields of a file, and which of them were read. Asking whether there is one is no
    reading."""

    def __init__(self, values: Mapping[str, Any], where: str, path: str = "") -> None:
        self.where, self._values, self._path = where, values, path
        self._read: set[str] = set()
        self._objects: dict[str, TrackedFields] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self._read.add(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def inner(self, key: str) -> TrackedFields:
        """The fields of an object inside, none where it is absent or null."""
        if key not in self._objects:
            value = self.get(key)
            if not isinstance(value, Mapping | None):
                raise Error(f"{self.where}: {self._path}{key} is {value!r:.60}, not an object.")
            self._objects[key] = TrackedFields(value or {}, self.where, f"{self._path}{key}.")
        return self._objects[key]

    def read(self, *keys: str) -> None:
        """Fields that change nothing here."""
        self._read.update(keys)

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Fields that nothing read, those of objects inside among them."""
        for key, value in self._values.items():
            if key in self._objects:
                yield from self._objects[key].unread()
            elif key not in self._read:
                yield f"{self._path}{key}", value

    def deny_unread(self, neutral: Sequence[Neutral], next_step: str) -> None:
        """An error for a field that nothing read and that may matter, with `next_step`, where
        `{key}` is its name."""
        for key, value in self.unread():
            if value is not None and not any(_is_neutral(table, key, value) for table in neutral):
                raise UnsupportedError(
                    f"{self.where}: {key} is {value!r:.60}, which rlx does not read"
                    f"{_instead(neutral, key)}. It may change results. {next_step.format(key=key)}"
                )


def _is_neutral(neutral: Neutral, key: str, value: Any) -> bool:
    allowed = _allowed(neutral, key)
    if isinstance(allowed, AnyValue):
        return True
    return any(isinstance(value, bool) is isinstance(v, bool) and value == v for v in allowed)


def _allowed(neutral: Neutral, key: str) -> AnyValue | tuple[Any, ...]:
    if key in neutral:
        return neutral[key]
    return next((v for name, v in neutral.items() if fnmatchcase(key, name)), ())


def _instead(neutral: Sequence[Neutral], key: str) -> str:
    """The values that would be neutral."""
    values = [v for table in neutral if isinstance(a := _allowed(table, key), tuple) for v in a]
    return f" ({' or '.join(map(repr, values))} would change nothing)" if values else ""
