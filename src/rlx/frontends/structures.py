"""Nested dicts, lists and tuples of arrays, as a list of arrays and a description to rebuild them.

What is no array inside of a structure is a Python value: part of the description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.errors import GraphError

IsLeaf = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of an array."""


@dataclass(frozen=True, slots=True)
class Static:
    """A Python value. `key` distinguishes what Python calls equal: 1, 1.0 and True."""

    value: Any
    key: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Branch:
    """A dict, list or tuple, by its class and keys."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Structure, ...]


Structure = Leaf | Static | Branch


def has_leaf(value: Any, is_leaf: IsLeaf) -> bool:
    """Is an array in it, at any depth?"""
    return is_leaf(value) or any(has_leaf(v, is_leaf) for _, v in _entries(value))


def flattened(
    value: Any, name: str, is_leaf: IsLeaf, leaves: dict[str, Any], *, has_values: bool = True
) -> Structure:
    """The description of a value; its arrays are added to `leaves` by their paths. Without
    `has_values` there is to be nothing but arrays in it."""
    if is_leaf(value):
        leaves[_free(name, leaves)] = value
        return Leaf()
    entries = _entries(value)
    if not entries and not isinstance(value, dict | list | tuple):
        if not has_values:
            raise GraphError(
                f"{name} is {value!r}, which is no array. "
                "Give arrays, or lists, tuples and dicts of them"
            )
        return Static(value, distinct(value))
    parts = tuple(
        flattened(v, f"{name}.{k}" if name else str(k), is_leaf, leaves, has_values=has_values)
        for k, v in entries
    )
    return Branch(type(value), tuple(k for k, _ in entries), parts)


def rebuilt(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The value, with these in place of its arrays."""
    if isinstance(structure, Leaf):
        return next(leaves)
    if isinstance(structure, Static):
        return structure.value
    parts = [rebuilt(p, leaves) for p in structure.parts]
    if issubclass(structure.kind, Mapping):
        return dict(zip(structure.keys, parts))
    if issubclass(structure.kind, list):
        return parts
    is_named = hasattr(structure.kind, "_fields")
    return structure.kind(*parts) if is_named else tuple(parts)


def distinct(value: Any) -> Any:
    """A key that distinguishes what Python calls equal: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(distinct(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
    return type(value), value.hex() if isinstance(value, float) else value


def _entries(value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))  # pyright: ignore
    return list(enumerate(value)) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or one with a number where it is taken."""
    if name not in taken:
        return name
    return next(n for i in range(2, len(taken) + 3) if (n := f"{name}_{i}") not in taken)
