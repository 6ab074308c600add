"""Frozen containers: a dict that nobody can change, for the fields of frozen data.

A `MappingProxyType` is a view of a dict that somebody else may change, and cannot be pickled.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from rlx.core.errors import Error

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict whose entries stay as they are: pickled, copied and compared like any other."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise Error(
            "this dict is frozen: others count on its entries. Copy it, {**entries, key: value}, "
            "and build what holds it anew with dataclasses.replace."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse  # pyright: ignore[reportAssignmentType]
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
