"""Real and complex numbers of factorisations: one per lane, or one broadcast to all lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.values import Vec

Factor = Vec | float


@dataclass(frozen=True, eq=False, slots=True)
class Number:
    """A real part, and for a complex number an imaginary one."""

    parts: tuple[Vec, ...]

    @property
    def real(self) -> Vec:
        return self.parts[0]

    @property
    def imag(self) -> Vec:
        """The imaginary part, 0 of a real number."""
        return self.parts[1] if len(self.parts) == 2 else self.real.like(0.0)

    def in_parts(self, count: int) -> Number:
        """This number, as a complex one where it takes two parts."""
        return self if len(self.parts) == count else Number((self.real, self.imag))

    def of_real(self, real: Vec) -> Number:
        """A real number, in as many parts as this one."""
        return Number((real, *(real.like(0.0) for _ in self.parts[1:])))

    def __add__(self, other: Number) -> Number:
        return self._each(other, lambda x, y: x + y)

    def __sub__(self, other: Number) -> Number:
        return self._each(other, lambda x, y: x - y)

    def __neg__(self) -> Number:
        return Number(tuple(-p for p in self.parts))

    def __mul__(self, other: Number | Factor) -> Number:
        if not isinstance(other, Number):
            return Number(tuple(p * other for p in self.parts))
        return self.of_real(self.real.like(0.0)).plus(self, other)

    def plus(self, x: Number, y: Number) -> Number:
        """This + x · y."""
        if len(self.parts) == 1:
            return Number((multiply_add(x.real, y.real, self.real),))
        (a, b), (c, d) = x.parts, y.parts
        real = multiply_add(-b, d, multiply_add(a, c, self.parts[0]))
        return Number((real, multiply_add(b, c, multiply_add(a, d, self.parts[1]))))

    def conj(self) -> Number:
        return Number((self.real, *(-p for p in self.parts[1:])))

    def __truediv__(self, other: Number) -> Number:
        """Complex ones by Smith's method, which does not overflow where the quotient does not."""
        if len(self.parts) == 1:
            return Number((self.real / other.real,))
        (a, b), (c, d) = self.parts, other.parts
        is_wide = c.abs() >= d.abs()
        big, small = c.where(is_wide, d), d.where(is_wide, c)
        ratio = (small / big).where(big.differs(0.0), 0.0)
        over = big + small * ratio
        first, second = a.where(is_wide, b), b.where(is_wide, a)
        real, imag = first + second * ratio, second - first * ratio
        return Number((real / over, imag.where(is_wide, -imag) / over))

    def over(self, factor: Vec) -> Number:
        return Number(tuple(p / factor for p in self.parts))

    def size1(self) -> Vec:
        """|re| + |im|."""
        total = self.real.abs()
        return total if len(self.parts) == 1 else total + self.parts[1].abs()

    def greatest_part(self) -> Vec:
        """max(|re|, |im|)."""
        total = self.real.abs()
        return total if len(self.parts) == 1 else arith.maximum(total, self.parts[1].abs())

    def abs(self) -> Vec:
        return self.real.abs() if len(self.parts) == 1 else hypot(*self.parts)

    def where(self, mask: Vec, other: Number) -> Number:
        return self._each(other, lambda x, y: x.where(mask, y))

    def sqrt(self) -> Number:
        """The root in the right half plane, of a complex number."""
        size = self.abs()
        root = ((size + self.real.abs()) * 0.5).sqrt()
        other = (self.imag.abs() / (root * 2.0)).where(root > 0.0, 0.0)
        is_right = self.real >= 0.0
        return Number(
            (root.where(is_right, other), other.where(is_right, root).copysign(self.imag))
        )

    def is_zero(self) -> Vec:
        return self.size1().equals(0.0)

    def phase(self) -> Number:
        """x / |x|, and 1 for 0."""
        size = self.abs()
        return self.over(size).where(size > 0.0, self.of_real(size.like(1.0)))

    def _each(self, other: Number, combine: Callable[[Vec, Vec], Vec]) -> Number:
        return Number(tuple(combine(x, y) for x, y in zip(self.parts, other.parts, strict=True)))


def hypot(x: Vec, y: Vec) -> Vec:
    """√(x² + y²) that overflows only where it must."""
    a, b = x.abs(), y.abs()
    most, least = arith.maximum(a, b), arith.minimum(a, b)
    ratio = (least / most).where(most > 0.0, 0.0)
    return most * multiply_add(ratio, ratio, 1.0).sqrt()


def givens(f: Vec, g: Vec) -> tuple[Vec, Vec, Vec]:
    """The rotation (c, s) that takes (f, g) to (r, 0), and r; none for zeros."""
    r = hypot(f, g)
    is_any = r > 0.0
    return (f / r).where(is_any, 1.0), (g / r).where(is_any, 0.0), r


def lane_sum(value: Vec) -> Vec:
    """The sum of all lanes, in every lane: a butterfly, the same order on every call."""
    return _across(value, lambda x, y: x + y)


def lane_max(value: Vec) -> Vec:
    """The greatest of all lanes, in every lane."""
    return _across(value, arith.maximum)


def _across(value: Vec, fold: Callable[[Vec, Vec], Vec]) -> Vec:
    distance = value.code.lanes // 2
    while distance:
        picks = [n ^ distance for n in range(value.code.lanes)]
        value, distance = fold(value, value.shuffled(picks)), distance // 2
    return value


class Cell:
    """A mutable number of a function: a loop's accumulator, or what a branch sets."""

    def __init__(self, code: Code, value: Number) -> None:
        self._code, self._like = code, value
        self._slots = [code.slot(p.type) for p in value.parts]
        self.set(value)

    def get(self) -> Number:
        pairs = zip(self._like.parts, self._slots)
        return Number(tuple(p.made(f"load {p.type}, ptr {s}") for p, s in pairs))

    def set(self, value: Number) -> None:
        for part, slot in zip(value.parts, self._slots, strict=True):
            self._code.do(f"store {part.type} {part.text}, ptr {slot}")


class RealCell:
    """A mutable real number of a function."""

    def __init__(self, code: Code, value: Vec) -> None:
        self._cell = Cell(code, Number((value,)))

    def get(self) -> Vec:
        return self._cell.get().real

    def set(self, value: Vec) -> None:
        self._cell.set(Number((value,)))
