"""Random operands and attributes for any op, from its signature: for property tests and fuzzing.

Where a signature alone does not say what is valid (reshape, gather, einsum), the op's page
declares a sample: `f(draw) -> (operand specs, attributes)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import numpy as np

from rlx.core.attrs import Axes, Axis, hints_of
from rlx.core.dtype import DType
from rlx.core.sig import CLASSES, Operand
from rlx.ops.op import Array, Op

CORNERS_FLOAT = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 65504.0, 88.7)
SIZES = (0, 1, 1, 2, 3, 4, 5, 7)
HIGH_RANK_SIZES = (1, 2, 2, 3)
"""Of four axes and more."""
LARGE_SIZES = (0, 1, 3, 8, 16, 17, 33, 45)
LARGE_HIGH_RANK_SIZES = (1, 2, 5, 17)
"""Sizes that fill vectors and tiles, and leave a rest."""


@dataclass(frozen=True, slots=True)
class Spec:
    """An operand to draw: dims, dtype, and which values.

    `domain` is `any` (ordinary and corner values), `plain` (ordinary finite values),
    `own` (plain, and no other value may stand in for them), `positive`,
    `unit` (0 to 1), or `index:N` (whole numbers below N); or of matrices, its last two axes,
    `regular` ones (whose inverse is of ordinary size) or `definite` ones (Hermitian, positive);
    or `child:N`: how far up to N two neighbours further on in a table are, 0 for none.
    """

    dims: tuple[int, ...]
    dtype: DType
    domain: str = "any"


@dataclass(frozen=True, slots=True)
class Case:
    """One application of an op, drawn."""

    op: Op
    specs: tuple[Spec, ...]
    attrs: dict[str, Any]


class Draw:
    """A source of random sizes, dtypes, attributes and arrays; the same seed, the same draws."""

    def __init__(
        self,
        seed: int | Sequence[int],
        without: frozenset[DType] = frozenset(),
        *,
        is_large: bool = False,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.without = without
        self.sizes, self.high_rank_sizes = (
            (LARGE_SIZES, LARGE_HIGH_RANK_SIZES) if is_large else (SIZES, HIGH_RANK_SIZES)
        )

    def coin(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def integer(self, low: int, high: int) -> int:
        """low ≤ n ≤ high."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self, least: int = 0) -> int:
        """One dim: zero, one and odd sizes among them."""
        return max(least, int(self.choice(self.sizes)))

    def dims(self, least: int = 0, most: int = 5, smallest: int = 0) -> tuple[int, ...]:
        """Dims of rank `least` to `most`, few elements in all."""
        rank = self.integer(least, most)
        sizes = self.sizes if rank < 4 else self.high_rank_sizes
        return tuple(max(smallest, int(self.choice(sizes))) for _ in range(rank))

    def dtype(self, letter: str) -> DType:
        """A dtype of the signature letter's class."""
        allowed = CLASSES[letter] - self.without or CLASSES[letter]
        return self.choice(sorted(allowed, key=lambda d: d.value))

    def case(self, op: Op) -> Case:
        """A valid application of `op`."""
        if op.cases is not None:
            specs, attrs = op.cases(self)
            named = {"extent": "found"} if op.measures else {}
            return Case(op, tuple(specs), {**named, **attrs})
        specs = self._operands(op)
        return Case(op, specs, self._attrs(op, len(specs[0].dims) if specs else 0))

    def arrays(self, case: Case) -> list[Array]:
        return [self.array(s) for s in case.specs]

    def array(self, spec: Spec) -> Array:
        """Values of `spec`, contiguous or not."""
        values = self.values(spec)
        return _strided(values, self) if self.coin(0.3) else values

    def values(self, spec: Spec) -> Array:
        dtype, dims = spec.dtype, spec.dims
        kind, _, bound = spec.domain.partition(":")
        if kind == "index":
            return self.rng.integers(0, max(1, int(bound)), dims).astype(dtype.numpy)
        if kind == "child":
            return self._children(dims[0], int(bound)).astype(dtype.numpy)
        if dtype is DType.BOOL:
            return self.rng.integers(0, 2, dims).astype(bool)
        if dtype.is_integer:
            return self._integers(dtype, dims, kind)
        if kind in ("regular", "definite"):
            return self._matrices(dtype, dims, kind)
        if dtype.is_complex:
            parts = [self.values(Spec(dims, dtype.real, kind)) for _ in range(2)]
            made = np.empty(dims, dtype.numpy)
            made.real, made.imag = parts
            return made
        return self._floats(dtype, dims, kind)

    def _children(self, count: int, span: int) -> Array:
        """Distances to a node whose neighbour is in the table, too."""
        made = self.rng.integers(0, span + 1, count)
        return np.where(np.arange(count) + made + 1 < count, made, 0)

    def _integers(self, dtype: DType, dims: tuple[int, ...], kind: str) -> Array:
        info = np.iinfo(dtype.numpy)
        low = 0 if kind in ("positive", "unit") else max(-9, int(info.min))
        values = self.rng.integers(low + (kind == "positive"), 10, dims).astype(dtype.numpy)
        if kind != "any" or not self.coin():
            return values
        corners = np.array([0, 1, info.min, info.max, info.max - 1], dtype=dtype.numpy)
        mask = self.rng.random(dims) < 0.3
        return np.where(mask, self.rng.choice(corners, dims), values)

    def _floats(self, dtype: DType, dims: tuple[int, ...], kind: str) -> Array:
        if kind == "unit":
            return self.rng.random(dims).astype(dtype.numpy)
        if kind == "positive":
            return self.rng.uniform(0.1, 3.0, dims).astype(dtype.numpy)
        values = self.rng.normal(size=dims) * (10.0 if self.coin(0.2) else 1.0)
        if kind == "any" and self.coin():
            corners = self.rng.choice(np.array(CORNERS_FLOAT), dims)
            values = np.where(self.rng.random(dims) < 0.3, corners, values)
        with np.errstate(all="ignore"):
            return values.astype(dtype.numpy)

    def _matrices(self, dtype: DType, dims: tuple[int, ...], kind: str) -> Array:
        """A quarter of random entries beside ±2 on the diagonal, or 1 + x · xᴴ."""
        values = self.rng.normal(size=dims)
        if dtype.is_complex:
            values = values + 1j * self.rng.normal(size=dims)
        if kind == "definite":
            made = np.eye(dims[-1]) + values @ np.conjugate(np.swapaxes(values, -2, -1))
        else:
            made = values / 4 + np.diag(self.rng.choice([-2.0, 2.0], dims[-1]))
        return made.astype(dtype.numpy)

    def _operands(self, op: Op) -> tuple[Spec, ...]:
        """Specs that the signature admits: shared names get shared sizes."""
        sizes: dict[str, Any] = {}
        dtypes: dict[str, DType] = {}
        wanted = list(op.signature.operands)
        while wanted and wanted[-1].is_optional and self.coin():
            wanted.pop()
        if wanted and wanted[-1].is_variadic:
            wanted += [wanted[-1]] * self.integer(0, 2)
        return tuple(self._operand(op, o, sizes, dtypes) for o in wanted)

    def _operand(
        self, op: Op, operand: Operand, sizes: dict[str, Any], dtypes: dict[str, DType]
    ) -> Spec:
        dims: list[int] = []
        for token in operand.dims:
            if token[0] in "*~.":
                run = sizes.setdefault(token, self.dims(0, 5 - len(operand.dims) + 1))
                dims += self._broadcastable(run) if token[0] == "~" else run
            elif token.isdigit():
                dims.append(int(token))
            else:
                dims.append(sizes.setdefault(token, self.size()))
        letter = operand.letter
        if letter is None:
            dtype = DType.F32 if operand.dtype == "_" else DType.of(operand.dtype)
        else:
            dtype = dtypes.setdefault(letter, self.dtype(letter))
        return Spec(tuple(dims), dtype, op.draw if isinstance(op.draw, str) else "any")

    def _broadcastable(self, run: tuple[int, ...]) -> tuple[int, ...]:
        """`run`, or what broadcasts to it: fewer dims, some of them 1."""
        if self.coin(0.6):
            return run
        kept = run[self.integer(0, len(run)) :]
        return tuple(1 if self.coin(0.4) else d for d in kept)

    def _attrs(self, op: Op, rank: int) -> dict[str, Any]:
        hints = hints_of(op.reference)
        drawn: dict[str, Any] = {}
        for name, (_, default) in op.attr_specs.items():
            hint = hints.get(name, hints.get(name + "_"))
            if hint is Axis and rank:
                drawn[name] = self.integer(-rank, rank - 1)
            elif hint is Axes:
                drawn[name] = self.axes(rank)
            elif hint is bool:
                drawn[name] = self.coin()
            elif hint is DType:
                drawn[name] = self.dtype("a")
            elif get_origin(hint) is Literal:
                drawn[name] = self.choice(get_args(hint))
            elif default is inspect.Parameter.empty:
                raise TypeError(f"op {op.name}: attribute {name} needs a sample on its page")
        return drawn

    def axes(self, rank: int) -> tuple[int, ...] | None:
        """Some axes of `rank`, or None for all."""
        if self.coin(0.2):
            return None
        return tuple(a - rank if self.coin(0.3) else a for a in range(rank) if self.coin())


def _strided(values: Array, draw: Draw) -> Array:
    """The same values in memory of another order."""
    if values.ndim == 0 or values.size == 0:
        return values
    if draw.coin():
        return np.asfortranarray(values)
    wide = np.empty((*values.shape[:-1], values.shape[-1] * 2), values.dtype)
    wide[..., ::2] = values
    return wide[..., ::2]
