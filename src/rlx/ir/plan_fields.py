"""Field types of plans, checked as a plan is built: what reads a plan finds numbers where there are
numbers, and nobody changes what was checked."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from rlx.core.dim import Dim, DimLike
from rlx.core.errors import Error
from rlx.core.frozen import FrozenDict
from rlx.core.intervals import whole
from rlx.core.layout import Layout

T = TypeVar("T")


def assign(frozen: object, **parts: Any) -> None:
    """Fields of frozen data, while it is being built."""
    for name, value in parts.items():
        object.__setattr__(frozen, name, value)


def rebuilt(data: Any) -> tuple[Any, ...]:
    """How frozen data is copied and pickled: built anew, without what was computed of it."""
    parts = [getattr(data, f.name) for f in dataclass_fields(data) if f.init]
    return type(data), tuple(parts)


def instance(what: str, value: Any, kind: type[T]) -> T:
    """A value of a type."""
    if not isinstance(value, kind):
        raise _misfit(what, value, _named(kind))
    return value


def size(what: str, value: Any) -> DimLike:
    """A number of bytes or elements: an int or a formula."""
    if isinstance(value, Dim):
        return value
    return count(what, value)


def count(what: str, value: Any) -> int:
    """An int; NumPy's are."""
    number = whole(value)
    if number is None:
        raise _misfit(what, value, "a whole number")
    return number


def layout(what: str, value: Any) -> Layout:
    """A layout with a stride for each dim."""
    found = instance(what, value, Layout)
    dims, strides = (row(f"{what}.{n}", getattr(found, n)) for n in ("dims", "strides"))
    if len(dims) != len(strides):
        raise Error(f"{what} has {len(dims)} dims and {len(strides)} strides. Give one each.")
    exact = tuple(size(what, d) for d in dims), tuple(size(what, s) for s in strides)
    return Layout(*exact, size(what, found.offset))


def row(what: str, value: Any) -> tuple[Any, ...]:
    """A sequence of anything, as a tuple."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise _misfit(what, value, "a list")
    return tuple(value)


def leaves(what: str, value: Any, kind: type[T]) -> tuple[tuple[str, T], ...]:
    """Pairs of a name and a node."""
    pairs = [row(f"an entry of {what}", pair) for pair in row(what, value)]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], kind):
            raise _misfit(f"an entry of {what}", pair, f"a name and a {kind.__name__}")
    return tuple((name, node) for name, node in pairs)


def table(what: str, value: Any, keys: type, values: type) -> FrozenDict[Any, Any]:
    """A dict of these types, frozen."""
    entries: Mapping[Any, Any] = instance(what, value, Mapping)
    for key, held in entries.items():
        instance(f"a key of {what}", key, keys)
        instance(f"{what}[{key!r}]", held, values)
    return entries if isinstance(entries, FrozenDict) else FrozenDict(entries)


def _named(kind: type) -> str:
    return "a dict" if kind is Mapping else f"a {kind.__name__}"


def _misfit(what: str, value: Any, expected: str) -> Error:
    return Error(f"{what} is {reprlib.repr(value)}. Give {expected}.")
