"""Dims as native code: formulas over the sizes of named dims."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound
from rlx.core.atoms import Atom, Monomial, Symbol
from rlx.core.dim import Dim, DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.extent import is_measured

LONG = 8
"""Terms from which on a sum is made of another one."""


class Formulas:
    """Values of dims in a function that has the address of the sizes.

    What is measured while a program runs is read anew each time; the rest is computed once.
    """

    def __init__(self, code: Code, numbers: Mapping[str, int], sizes: str) -> None:
        self._code, self._numbers, self._sizes = code, numbers, sizes
        self._known: dict[DimLike | Monomial, Bound] = {}
        self._sum: Dim | None = None

    def __call__(self, dim: DimLike) -> Bound:
        if not isinstance(dim, Dim):
            return int(dim)
        if is_measured(dim):
            return self._value(dim)
        if dim not in self._known:
            self._known[dim] = self._value(dim) if len(dim.terms) < LONG else self._summed(dim)
        return self._known[dim]

    def _summed(self, dim: Dim) -> Bound:
        """A long sum, by the one before where it differs in little: where the parts of a join begin
        are sums of which each has one term more."""
        before, self._sum = self._sum, dim
        rest = dim if before is None else dim - before
        if before is None or (isinstance(rest, Dim) and 2 * len(rest.terms) > len(dim.terms)):
            return self._value(dim)
        return self._code.i64("add", self._known[before], self(rest))

    def copy(self) -> Formulas:
        """What is known here; what becomes known there is not known here."""
        made = Formulas(self._code, self._numbers, self._sizes)
        made._known = dict(self._known)
        return made

    def address(self, name: str) -> str:
        """Where the size of a named dim is."""
        return self._code.advanced(self._sizes, self._numbers[name], DType.I64)

    def _value(self, dim: Dim) -> Bound:
        code = self._code
        total: Bound = 0
        for monomial, factor in dim.terms:
            part = code.i64("mul", self._product(monomial), factor)
            total = code.i64("add", total, part)
        return total

    def _product(self, monomial: Monomial) -> Bound:
        """All but the last atom is often met again."""
        if not monomial:
            return 1
        if monomial in self._known:
            return self._known[monomial]
        *first, last = monomial
        made = self._code.i64("mul", self._product(tuple(first)), self._atom(last))
        if not any(atom.is_measured for atom in monomial):
            self._known[monomial] = made
        return made

    def _atom(self, atom: Atom) -> Bound:
        if isinstance(atom, Symbol):
            return self._code.load_scalar(self.address(atom.name), DType.I64)
        a, b = map(self, atom.args)
        match atom.fn:
            case "max":
                return self._code.most(a, b)
            case "min":
                return self._code.least(a, b)
            case _ if provably_le(0, atom.args[0]) and provably_le(1, atom.args[1]):
                return self._code.let(f"{'udiv' if atom.fn == '//' else 'urem'} i64 {a}, {b}")
            case _:
                return self._divided(atom.fn, a, b)

    def _divided(self, fn: str, a: Bound, b: Bound) -> Bound:
        """Rounded down, as the remainder has the divisor's sign; by nothing it is nothing."""
        code = self._code
        divisor = self._divisor(b)
        rest = code.integer("rem", a, divisor)
        is_off = code.compare("lt", code.integer("xor", rest, divisor), 0)
        is_part = code.compare("ne", rest, 0)
        is_below = code.both(is_off, is_part)
        if fn == "%":
            more = code.choose(is_below, divisor, 0)
            made = code.i64("add", rest, more)
        else:
            less = code.converted(is_below, DType.BOOL, DType.I64)
            made = code.i64("sub", code.integer("div", a, divisor), less)
        if isinstance(b, int):
            return made if b else 0
        return code.choose(code.compare("eq", b, 0), 0, made)

    def _divisor(self, b: Bound) -> Bound:
        if isinstance(b, int):
            return b or 1
        return self._code.choose(self._code.compare("eq", b, 0), 1, b)
