"""Atoms of symbolic sizes: symbols, non-polynomial calls, and monomials of both.

Sizes are added and compared a great many times in a compile, so all that is asked of a part again
and again is found out once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from rlx.core.intervals import Interval, interval_call, interval_product

if TYPE_CHECKING:
    from rlx.core.dim import Dim, DimLike


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named size between `min` and `max`; no `max` means it is not bounded.

    A measured one is found out while a graph runs; its `max` may be a formula over other sizes,
    none of them measured.
    """

    name: str
    min: int = 0
    max: int | Dim | None = None
    is_measured: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    depth: ClassVar[int] = 0

    def __post_init__(self) -> None:
        made = hash((self.name, self.min, self.max, self.is_measured))
        object.__setattr__(self, "_hash", made)

    def __hash__(self) -> int:
        return self._hash

    @property
    def weight(self) -> int:
        return 1 + weight_of(self.max)

    @property
    def has_least(self) -> bool:
        return self.min > 0

    @property
    def interval(self) -> Interval:
        return self.min, None if self.max is None else interval_of(self.max)[1]

    def key(self) -> tuple[str, ...]:
        return ("", self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def exact(self) -> str:
        """The name with its range: a symbol of another range is another size."""
        most = "" if self.max is None else exact_text(self.max)
        return f"{self.name}{'?' if self.is_measured else ''}[{self.min}..{most}]"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of dims that is no polynomial: `//`, `%`, `max` or `min`."""

    fn: str
    args: tuple[DimLike, ...]
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def weight(self) -> int:
        return 1 + sum(map(weight_of, self.args))

    @property
    def depth(self) -> int:
        return 1 + max((0 if isinstance(a, int) else a.depth for a in self.args), default=0)

    @property
    def is_measured(self) -> bool:
        return any(not isinstance(a, int) and a.is_measured for a in self.args)

    @property
    def has_least(self) -> bool:
        dims = (a for a in self.args if not isinstance(a, int))
        return any(facts_of(m).has_least for dim in dims for m, _ in dim.terms)

    @property
    def interval(self) -> Interval:
        return interval_call(self.fn, *map(interval_of, self.args))

    def key(self) -> tuple[str, ...]:
        return (self.fn, *map(str, self.args))

    def __str__(self) -> str:
        if self.fn in ("max", "min"):
            return f"{self.fn}({', '.join(map(str, self.args))})"
        left, right = (str(a) if isinstance(a, int) else f"({a})" for a in self.args)
        return f"({left}{self.fn}{right})"

    @property
    def exact(self) -> str:
        return f"{self.fn}({','.join(map(exact_text, self.args))})"


def exact_text(dim: DimLike) -> str:
    """A dim with the ranges of its symbols: equal exactly for equal dims."""
    if isinstance(dim, int):
        return str(dim)
    return "+".join(f"{c}{_exact_monomial(m)}" for m, c in dim.terms)


def weight_of(dim: DimLike | None) -> int:
    return 0 if dim is None or isinstance(dim, int) else dim.weight


def interval_of(dim: DimLike) -> Interval:
    return (dim, dim) if isinstance(dim, int) else dim.bounds


Atom: TypeAlias = "Symbol | Call"
Monomial: TypeAlias = tuple[Atom, ...]
"""A product of atoms, in the order of their keys."""


class Facts(NamedTuple):
    """What is known of a monomial."""

    key: tuple[int, tuple[tuple[str, ...], ...]]
    """Its place in a sum: the longest first, a number last."""
    weight: int
    depth: int
    is_measured: bool
    has_least: bool
    """Is a size in it that is never 0?"""
    interval: Interval


@lru_cache(1 << 16)
def facts_of(monomial: Monomial) -> Facts:
    return Facts(
        (-len(monomial), tuple(atom.key() for atom in monomial)),
        1 + sum(atom.weight for atom in monomial),
        max((atom.depth for atom in monomial), default=0),
        any(atom.is_measured for atom in monomial),
        any(atom.has_least for atom in monomial),
        interval_product(atom.interval for atom in monomial),
    )


@lru_cache(1 << 16)
def times(a: Monomial, b: Monomial) -> Monomial:
    """The product of two."""
    return tuple(sorted(a + b, key=lambda atom: atom.key())) if a and b else a or b


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by a factor of it; None where it is none."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


@lru_cache(1 << 16)
def _exact_monomial(monomial: Monomial) -> str:
    return "".join(f"*{atom.exact}" for atom in monomial)


def term_text(monomial: Monomial, coefficient: int) -> str:
    atoms = [str(atom) for atom in monomial]
    if coefficient == 1 and atoms:
        return "*".join(atoms)
    return "*".join([str(coefficient), *atoms])
