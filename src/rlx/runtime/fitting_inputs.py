"""Made-up inputs that fit a model: a search over sizes of named dims and values of scalars.

A file rarely states how its inputs are related: that a state has the batch of the signal, that a
rate is 8000 or 16000. Sizes and values that nobody gave are chosen, tried, and chosen anew where
the model refuses them: a breadth-first search, in which a choice that fails in a new way is a step.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlx.core.dim import Dim, symbols_of
from rlx.core.errors import (
    Error,
    InternalError,
    MisfitError,
    OutOfMemoryError,
    UnsupportedError,
)
from rlx.core.shape import Shape
from rlx.ops.op import Array
from rlx.runtime.random_inputs import dims_for, filled, random_inputs, usual_sizes

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 224, 256, 320, 512, 576, 640, 1024, 2048, 4096, 8000, 16000)
"""Tried last: signals and images of common sizes."""
MAX_TRIALS, MAX_SECONDS = 400, 60.0
"""Seconds of this process: what a search finds does not depend on what else the machine does."""
Trial = Callable[[Mapping[str, Array]], Error | None]
"""What is wrong with inputs, if anything is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks of inputs: arrays, sizes of named dims and values of whole inputs by name;
    `hints` are values that a model compares a scalar input with."""

    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    hints: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MadeUp:
    """An array for each input, in order, and which of them nobody gave."""

    arrays: dict[str, Array]
    names: tuple[str, ...]
    sizes: Mapping[str, int]
    """Of named dims, as they were chosen."""

    def __str__(self) -> str:
        return ", ".join(_shown(n, self.arrays[n]) for n in self.names)


@dataclass(frozen=True, slots=True)
class _Choice:
    sizes: Mapping[str, int]
    values: Mapping[str, float]


def fitting_inputs(
    declared: Mapping[str, Shape | None], wanted: Wanted, trial: Trial | None = None
) -> MadeUp:
    """Inputs that a model takes; without a `trial` the first choice stands."""
    search = _Search(declared, wanted)
    first = search.first()
    arrays = search.arrays(first)
    error = trial(arrays) if trial else None
    if error is not None and trial is not None:
        _require_searchable(error, search)
        first, arrays = search.found(first, error, trial)
    return MadeUp(arrays, search.made_up, first.sizes)


def _require_searchable(error: Error, search: _Search) -> None:
    """Other inputs mend neither a bug, nor what rlx lacks, nor what memory does."""
    others = InternalError | UnsupportedError | OutOfMemoryError | MisfitError
    if isinstance(error, others) or not (search.made_up or search.dims):
        raise error


class _Search:
    """The sizes and values that are free, and the choices of them."""

    def __init__(self, declared: Mapping[str, Shape | None], wanted: Wanted) -> None:
        self.declared, self.wanted = declared, wanted
        self.made = tuple(n for n in declared if n not in wanted.arrays)
        shapes = [s for n in self.made if (s := declared[n]) is not None]
        symbols = {d.name: d for s in shapes for d in symbols_of(s.dims)}
        self.dims: dict[str, Dim] = {n: d for n, d in symbols.items() if n not in wanted.sizes}
        self.switches = [n for n in self.made if n not in wanted.values and _is_switch(declared[n])]

    @property
    def made_up(self) -> tuple[str, ...]:
        """What nobody gave, as an array or as the value that fills it."""
        return tuple(n for n in self.made if n not in self.wanted.values)

    def first(self) -> _Choice:
        shapes = [s for s in self.declared.values() if s is not None]
        known = usual_sizes(shapes) | dict(self.wanted.sizes)
        hinted = {n: h[0] for n in self.switches if (h := self.wanted.hints.get(n))}
        return _Choice({n: known[n] for n in self.dims}, hinted)

    def arrays(self, choice: _Choice) -> dict[str, Array]:
        wanted = self.wanted
        rest = {n: self.declared[n] for n in self.made}
        drawn = random_inputs(rest, {**choice.sizes, **wanted.sizes}, wanted.seed)
        for name, value in {**choice.values, **wanted.values}.items():
            drawn[name] = filled(name, value, drawn[name])
        return {n: wanted.arrays[n] if n in wanted.arrays else drawn[n] for n in self.declared}

    def found(self, first: _Choice, error: Error, trial: Trial) -> tuple[_Choice, dict[str, Array]]:
        """The first choice that fits. Choices that fail alike lead nowhere new: one of them is
        pursued."""
        seen, pursued = {_kind(error)}, deque([(first, error)])
        end, left = time.process_time() + MAX_SECONDS, MAX_TRIALS
        tried = {_key(first)}
        while pursued:
            base, why = pursued.popleft()
            for choice in self.near(base, str(why)):
                if _key(choice) in tried:
                    continue
                tried.add(_key(choice))
                if left == 0 or time.process_time() > end:
                    raise self._none_fits(first, error)
                left -= 1
                arrays = self.arrays(choice)
                new = trial(arrays)
                if new is None:
                    return choice, arrays
                if _kind(new) not in seen and not isinstance(new, OutOfMemoryError):
                    seen.add(_kind(new))
                    pursued.append((choice, new))
        raise self._none_fits(first, error)

    def near(self, base: _Choice, why: str) -> Iterator[_Choice]:
        """Choices that differ in one size or value, the likely ones first: sizes that the error
        names, those of other dims, values that the model compares with, then common ones; of each
        the small ones first."""
        told = [int(t) for t in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", why)]
        others = [*base.sizes.values(), *self._static_sizes()]
        for sizes in (told, others, SIZES):
            changed = [
                replace(base, sizes={**base.sizes, name: size})
                for name, dim in self.dims.items()
                for size in _ranged(sizes, dim)
            ]
            yield from sorted(changed, key=self._elements)
            for name in self.switches:
                values = (*self.wanted.hints.get(name, ()), *sizes, 0, 1)
                for value in dict.fromkeys(values):
                    yield replace(base, values={**base.values, name: value})

    def _elements(self, choice: _Choice) -> int:
        """Of all inputs: of choices that are as likely, the small one runs sooner."""
        sizes = {**choice.sizes, **self.wanted.sizes}
        shapes = [s for n in self.made if (s := self.declared[n]) is not None]
        return sum(math.prod(dims_for(s, sizes)) for s in shapes)

    def _static_sizes(self) -> list[int]:
        shapes = [s for s in self.declared.values() if s is not None]
        return [d for s in shapes for d in s.dims if not isinstance(d, Dim)]

    def _none_fits(self, first: _Choice, error: Error) -> MisfitError:
        made = MadeUp(self.arrays(first), self.made_up, first.sizes)
        flags = [
            *(f"--dim {n}=SIZE" for n in self.dims),
            *(f"--input {n}=NUMBER" for n in self.switches),
            *(f"--input {n}=FILE.npy" for n in self.made if n not in self.switches),
        ]
        return MisfitError(
            f"no inputs were made up that fit the model, which may run on others. With {made}: "
            f"{str(error).rstrip('.')}. Give what fits: {', '.join(flags)}"
        )


def _is_switch(shape: Shape | None) -> bool:
    """Is an input a number, such as a rate, or one for each row, such as a length?"""
    is_whole = shape is not None and not (shape.dtype.is_float or shape.dtype.is_complex)
    return is_whole and shape is not None and shape.rank <= 1


def _ranged(sizes: Sequence[int], dim: Dim) -> Iterator[int]:
    low, high = dim.bounds
    for size in dict.fromkeys(sizes):
        if size >= max(1, low or 0) and (high is None or size <= high):
            yield size


def _kind(error: Error) -> str:
    """The error without its numbers: how a choice failed."""
    return re.sub(r"\d+", "#", str(error))


def _key(choice: _Choice) -> tuple[tuple[str, float], ...]:
    return (*sorted(choice.sizes.items()), *sorted(choice.values.items()))


def _shown(name: str, array: Array) -> str:
    """A number itself, of others the shape."""
    from rlx.core.dtype import DType

    if array.size == 1 and array.ndim <= 1 and array.dtype.kind in "iub":
        return f"{name} = {array.reshape(-1)[0]}"
    return f"{name}: {Shape(array.shape, DType.of(array.dtype))}"
