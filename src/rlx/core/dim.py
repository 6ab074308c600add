"""Symbolic dimensions: ints, or polynomials over named sizes that are bound at run time.

A `Dim` is kept as a polynomial in canonical form, so that two ways of computing the same size
compare equal: `(seq * 4 + 8) // 4 == seq + 2`. Whatever is constant is a plain int again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

from rlx.core.atoms import Atom, Call, Monomial, Symbol, facts_of, term_text, times
from rlx.core.errors import GraphError
from rlx.core.intervals import Interval, interval_scale, interval_sum, safe_div, safe_mod, whole
from rlx.core.polynomials import quotient
from rlx.core.public_calls import public_class
from rlx.core.size_operators import as_data, numpy_function, refuse_operators, size_operator

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
MAX_WEIGHT, MAX_DEPTH, MAX_COEFFICIENT = 8000, 32, 2**127
"""Bounds no model meets, so that a hostile one cannot make sizes that take forever to compute."""


@public_class
class Dim:
    """A symbolic dimension. `Dim("seq", 1, 4096)` names one; arithmetic makes others."""

    __slots__ = ("_bounds", "_hash", "_text", "depth", "is_measured", "terms", "weight")
    terms: Terms
    weight: int
    """How many symbols and calls it is written with."""
    depth: int
    """How deep calls stand inside calls."""
    is_measured: bool
    """Is a size in it that only a running graph finds out?"""

    def __init__(self, name: str, min: int = 0, max: int | None = None) -> None:  # noqa: A002
        if not isinstance(name, str) or not NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"{name!r} is not a dim name: letters, digits, '_' and '.' only.")
        low, high = whole(min), None if max is None else whole(max)
        if low is None or low < 0 or (max is not None and (high is None or high < low)):
            raise GraphError(f"dim {name}: the range {min}..{max} is empty, negative or not whole.")
        self._set((((Symbol(name, low, high),), 1),))

    def _set(self, terms: Terms) -> None:
        known = [facts_of(m) for m, _ in terms]
        self._give(
            terms,
            sum(f.weight for f in known),
            max((f.depth for f in known), default=0),
            any(f.is_measured for f in known),
        )

    def _give(self, terms: Terms, weight: int, depth: int, is_measured: bool) -> None:
        self.terms, self.weight, self.depth, self.is_measured = terms, weight, depth, is_measured
        self._hash: int | None = None
        self._bounds: Interval | None = None
        self._text: str | None = None

    @property
    def symbol(self) -> Symbol | None:
        """The symbol, if this is a single one."""
        match self.terms:
            case (((Symbol() as only,), 1),):
                return only
            case _:
                return None

    @property
    def bound_symbol(self) -> Symbol | None:
        """The symbol that has the size of this dim: s itself, or s of a multiple, k*(s//k)."""
        match self.terms:
            case (((Call("//", (Dim() as rounded, int(k))),), factor),) if k == factor > 0:
                return rounded.symbol
            case _:
                return self.symbol

    @property
    def name(self) -> str:
        """The symbol's name; the expression's text where it is more than one symbol."""
        return self.symbol.name if self.symbol else str(self)

    @property
    def bounds(self) -> Interval:
        """Least and greatest value over the symbols' ranges; None where there is none."""
        if self._bounds is None:
            from rlx.core.proofs import proved_bounds

            self._bounds = self.interval if len(self.terms) == 1 else proved_bounds(self)
        return self._bounds

    @property
    def interval(self) -> Interval:
        """The bounds term by term: n - min(n, 5) reaches below 0 here, though not in truth."""
        return interval_sum(interval_scale(facts_of(m).interval, c) for m, c in self.terms)

    @property
    def min(self) -> int | None:
        """The least size; None where it is not known."""
        return self.bounds[0]

    @property
    def max(self) -> int | None:
        """The largest size; None where it is not known."""
        return self.bounds[1]

    def addends(self) -> list[DimLike]:
        """The terms, each as a dim."""
        return [_from_terms({m: c}) for m, c in self.terms]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dim):
            return NotImplemented
        return self is other or self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    @size_operator("+")
    def __add__(self, other: DimLike) -> DimLike:
        if isinstance(other, Dim):
            return _sum([(self, 1), (other, 1)])
        return _raised(self, other)

    @size_operator("-")
    def __sub__(self, other: DimLike) -> DimLike:
        if isinstance(other, Dim):
            return _sum([(self, 1), (other, -1)])
        return _raised(self, -other)

    @size_operator("+", is_reflected=True)
    def __radd__(self, other: int) -> DimLike:
        return _raised(self, other)

    @size_operator("-", is_reflected=True)
    def __rsub__(self, other: int) -> DimLike:
        return _raised(_scaled(self, -1), other)

    def __neg__(self) -> DimLike:
        return _scaled(self, -1)

    @size_operator("*")
    def __mul__(self, other: DimLike) -> DimLike:
        if not isinstance(other, Dim):
            return _scaled(self, other)
        if len(self.terms) * len(other.terms) > MAX_WEIGHT:
            raise GraphError("a size is too large an expression to multiply. Use fewer named dims.")
        product: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = times(m1, m2)
                product[m] = product.get(m, 0) + c1 * c2
        return _from_terms(product)

    @size_operator("*", is_reflected=True)
    def __rmul__(self, other: int) -> DimLike:
        return _scaled(self, other)

    @size_operator("//")
    def __floordiv__(self, other: DimLike) -> DimLike:
        return _floordiv(self, other)

    @size_operator("//", is_reflected=True)
    def __rfloordiv__(self, other: int) -> DimLike:
        return _floordiv(other, self)

    @size_operator("%")
    def __mod__(self, other: DimLike) -> DimLike:
        return _mod(self, other)

    @size_operator("%", is_reflected=True)
    def __rmod__(self, other: int) -> DimLike:
        return _mod(other, self)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **_: Any) -> Any:
        """`np.int64(3) * n` is `3 * n`."""
        return numpy_function(self, ufunc, operands)

    def __bool__(self) -> bool:
        raise GraphError(
            f"the size {self} is not known yet, so it has no truth value. "
            "Compare sizes in the graph, or give the dim a range."
        )

    def __index__(self) -> int:
        raise GraphError(f"the size {self} is not known yet. {as_data(self)}")

    def __str__(self) -> str:
        if self._text is None:
            text = " + ".join(term_text(m, c) for m, c in self.terms)
            self._text = text.replace("+ -", "- ")
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"


refuse_operators(Dim)

DimLike: TypeAlias = int | Dim
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]


def is_static(dim: DimLike) -> TypeGuard[int]:
    return not isinstance(dim, Dim)


def symbols_of(dims: Iterable[DimLike]) -> tuple[Dim, ...]:
    """Every symbol that occurs in `dims`, by name."""
    found: dict[str, Symbol] = {}
    todo = [d for d in dims if isinstance(d, Dim)]
    while todo:
        for atom in (a for monomial, _ in todo.pop().terms for a in monomial):
            if isinstance(atom, Symbol):
                found[atom.name] = atom
            else:
                todo += [a for a in atom.args if isinstance(a, Dim)]
    return tuple(_of_symbol(s) for _, s in sorted(found.items()))


def _of_symbol(symbol: Symbol) -> Dim:
    dim = Dim.__new__(Dim)
    dim._set((((symbol,), 1),))  # pyright: ignore[reportPrivateUsage]
    return dim


def dim_max(a: DimLike, b: DimLike) -> DimLike:
    """The greater of two dims."""
    if provably_le(a, b):
        return b
    return a if provably_le(b, a) else _from_terms({(ordered_call("max", a, b),): 1})


def dim_min(a: DimLike, b: DimLike) -> DimLike:
    """The lesser of two dims."""
    if provably_le(a, b):
        return a
    return b if provably_le(b, a) else _from_terms({(ordered_call("min", a, b),): 1})


def round_up(dim: DimLike, to: int = 64) -> DimLike:
    """Up to a multiple, so that what follows is aligned."""
    return (dim + (to - 1)) // to * to


def provably_le(a: DimLike, b: DimLike) -> bool:
    """Is a ≤ b for every size the symbols can take? False also where it is not known, as where a
    proof would be too large: that is no reason to refuse sizes which are not."""
    from rlx.core.proofs import is_never_negative

    try:
        return is_never_negative(b - a)
    except GraphError:
        return False


def lower_bound(dim: DimLike) -> int:
    """The least value of `dim`, at least 0: sizes are not negative."""
    return max(0, (dim.min or 0) if isinstance(dim, Dim) else dim)


def upper_bound(dim: DimLike) -> int | None:
    """The greatest value of `dim`, or None where it is not bounded."""
    return dim.max if isinstance(dim, Dim) else dim


def exact_div(a: DimLike, b: DimLike) -> DimLike | None:
    """a / b where that is a polynomial of whole coefficients, else None."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    found = quotient(_terms(a), _terms(b), MAX_WEIGHT)
    return None if found is None else _from_terms(found)


def product(dims: Iterable[DimLike]) -> DimLike:
    """The product of `dims`; 1 of none."""
    result: DimLike = 1
    for d in dims:
        result = result * d
    return result


def evaluate(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The value of `dim` where every symbol has a size."""
    if not isinstance(dim, Dim):
        return dim
    try:
        return _value(dim, sizes)
    except KeyError:
        missing = ", ".join(s.name for s in symbols_of([substitute(dim, sizes)]))
        raise GraphError(f"the size {dim} needs a value for: {missing}.") from None


def _value(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value, in plain numbers: calls of programs evaluate many."""
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                factor *= sizes[atom.name]
            else:
                args = [_value(a, sizes) if isinstance(a, Dim) else a for a in atom.args]
                factor *= _NUMBERS[atom.fn](*args)
        total += factor
    return total


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "//": safe_div, "%": safe_mod, "max": max, "min": min,
}  # fmt: skip


def substitute(dim: DimLike, sizes: Mapping[str, DimLike]) -> DimLike:
    """`dim` with the named symbols replaced."""
    if not isinstance(dim, Dim) or not sizes:
        return dim
    total: DimLike = 0
    for monomial, coefficient in dim.terms:
        total = total + coefficient * product(_replaced(atom, sizes) for atom in monomial)
    return total


_FUNCTIONS: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "//": lambda a, b: _floordiv(a, b),
    "%": lambda a, b: _mod(a, b),
    "max": dim_max,
    "min": dim_min,
}


def _replaced(atom: Atom, sizes: Mapping[str, DimLike]) -> DimLike:
    if isinstance(atom, Symbol):
        return sizes[atom.name] if atom.name in sizes else _of_symbol(_with_bound(atom, sizes))
    return _FUNCTIONS[atom.fn](*(substitute(a, sizes) for a in atom.args))


def _with_bound(symbol: Symbol, sizes: Mapping[str, DimLike]) -> Symbol:
    """The symbol with sizes put into its bound."""
    if not isinstance(symbol.max, Dim):
        return symbol
    return replace(symbol, max=dim_max(0, substitute(symbol.max, sizes)))


def _terms(dim: DimLike) -> Terms:
    return dim.terms if isinstance(dim, Dim) else (((), dim),)


def _from_terms(terms: Mapping[Monomial, int]) -> DimLike:
    """The canonical dim of a sum of monomials; an int if nothing symbolic is left."""
    if any(map(case_of, terms)):
        from rlx.core.translation import normal

        terms = normal(terms)
    kept = [(facts_of(term[0]), term) for term in terms.items() if term[1]]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=lambda known: known[0].key)
    elif kept[0][1][0] == ():
        return kept[0][1][1]
    weight, depth, is_measured = 0, 0, False
    for facts, _ in kept:
        weight += facts.weight
        depth = max(depth, facts.depth)
        is_measured |= facts.is_measured
    dim = Dim.__new__(Dim)
    dim._give(tuple([term for _, term in kept]), weight, depth, is_measured)  # pyright: ignore[reportPrivateUsage]
    return _bounded(dim)


def _scaled(dim: Dim, factor: int) -> DimLike:
    """The dim times a number: the same monomials in the same order."""
    if factor == 0:
        return 0
    terms = tuple((m, c * factor) for m, c in dim.terms)
    return dim if factor == 1 else _with_same_monomials(dim, terms)


def _raised(dim: DimLike, by: int) -> DimLike:
    """The dim and a number: only the last term, which is the number's place, is another."""
    if by == 0:
        return dim
    if not isinstance(dim, Dim):
        return dim + by
    if any(case_of(m) for m, _ in dim.terms):
        return _sum([(dim, 1), (by, 1)])
    head, last = dim.terms, 0
    if head[-1][0] == ():
        head, last = head[:-1], head[-1][1]
    return _with_same_monomials(dim, (*head, ((), last + by)) if last + by else head)


def _with_same_monomials(dim: Dim, terms: Terms) -> Dim:
    """A dim of the same monomials, but for a number that is added."""
    made = Dim.__new__(Dim)
    weight = dim.weight + len(terms) - len(dim.terms)
    made._give(terms, weight, dim.depth, dim.is_measured)  # pyright: ignore[reportPrivateUsage]
    return _bounded(made)


def _bounded(dim: Dim) -> Dim:
    if dim.weight > MAX_WEIGHT or dim.depth > MAX_DEPTH:
        raise GraphError("a size is too large an expression. Use fewer named dims.")
    for _, c in dim.terms:
        if not -MAX_COEFFICIENT <= c <= MAX_COEFFICIENT:
            raise GraphError("a size is past 2^63 however small its dims are.")
    return dim


def _sum(parts: Iterable[tuple[DimLike, int]]) -> DimLike:
    total: dict[Monomial, int] = {}
    for dim, factor in parts:
        for m, c in _terms(dim):
            total[m] = total.get(m, 0) + c * factor
    return _from_terms(total)


def _call(fn: str, a: DimLike, b: DimLike) -> DimLike:
    return _from_terms({(Call(fn, (a, b)),): 1})


def _floordiv(a: DimLike, b: DimLike) -> DimLike:
    """a // b; by zero it is 0, as everywhere in rlx. (k·A + B) // k = A + B // k."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return safe_div(a, b)
    if a == 0:
        return 0
    if isinstance(b, Dim):
        exact = exact_div(a, b) if lower_bound(b) >= 1 else None
        return _call("//", a, b) if exact is None else exact
    if b == 0:
        return 0
    left = {m: _residue(m, c, b) for m, c in _terms(a)}
    whole, rest = {m: (c - left[m]) // b for m, c in _terms(a)}, _from_terms(left)
    tail = _call("//", rest, b) if isinstance(rest, Dim) else rest // b
    if isinstance(rest, Dim) and rest.min is not None and rest.max is not None:
        low, high = rest.min // b, rest.max // b
        tail = low if low == high else tail
    return _from_terms(whole) + tail


def _residue(monomial: Monomial, c: int, b: int) -> int:
    """What a whole multiple of b leaves of a coefficient: 0 to b - 1; of a max or a min the one
    nearest to 0, so that n - min(n, 2) over 3 stays a quotient of what is not negative."""
    left = c % b
    is_nearer = 2 * left > abs(b) and any(map(has_cases, monomial))
    return left - b if is_nearer else left


def has_cases(atom: Atom) -> TypeGuard[Call]:
    return isinstance(atom, Call) and atom.fn in ("max", "min")


@lru_cache(1 << 16)
def case_of(monomial: Monomial) -> Call | None:
    """The one maximum or minimum of a product."""
    found = [atom for atom in monomial if has_cases(atom)]
    return found[0] if len(found) == 1 else None


def ordered_call(fn: str, a: DimLike, b: DimLike) -> Call:
    """Of two arguments whose order does not matter."""
    return Call(fn, (a, b) if str(a) <= str(b) else (b, a))


def _mod(a: DimLike, b: DimLike) -> DimLike:
    """a % b = a - (a // b)·b; of -a it is a up to the next multiple, (a + b - 1) // b · b - a."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return safe_mod(a, b)
    if a == 0 or b == 0:
        return 0
    if isinstance(b, Dim):
        return 0 if exact_div(a, b) is not None and lower_bound(b) >= 1 else _call("%", a, b)
    rest = _from_terms({m: _residue(m, c, b) for m, c in _terms(a)})
    if not isinstance(rest, Dim):
        return rest % b
    if rest.min is not None and rest.min >= 0 and rest.max is not None and rest.max < b:
        return rest
    first, c = rest.terms[0]
    if 2 * c > b > 0 or (2 * c == b and dict(_terms(a))[first] < 0):
        return rest + _floordiv(-rest + (b - 1), b) * b
    return rest - _floordiv(rest, b) * b
