"""Inputs of a model: arrays from files, or random."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli.options import pairs, reading, sizes_of
from rlx.core.dim import Dim, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import InputError
from rlx.core.printable import one_line
from rlx.core.shape import Shape
from rlx.frontends.made_up_inputs import inputs_for
from rlx.frontends.made_up_inputs import ran as called
from rlx.ops.op import Array
from rlx.runtime.fitting_inputs import MadeUp
from rlx.runtime.fitting_inputs import Wanted as Given


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model is to be run on: files by name, and the sizes and seed of what is made up."""

    files: Mapping[str, str]
    params: Mapping[str, str]
    sizes: Mapping[str, int]
    seed: int

    @classmethod
    def of(
        cls,
        files: list[str] | None,
        params: list[str] | None,
        sizes: list[str] | None,
        seed: int,
    ) -> Wanted:
        """As the options of a verb say."""
        return cls(pairs(files, "--input"), pairs(params, "--param"), sizes_of(sizes), seed)

    @property
    def has_sizes(self) -> bool:
        """Is any named dim stated, by itself or by an array? Else the program for usual sizes is
        meant, which every verb shares."""
        return bool(self.sizes) or any(_number(text) is None for text in self.files.values())

    def given(self, declared: Mapping[str, Shape | None]) -> Given:
        """The same with files read, for a model of these inputs."""
        for name in self.files:
            if name not in declared:
                raise InputError(f"there is no input {name!r}. It has: {', '.join(declared)}.")
        _check_names(self.sizes, declared)
        values = {n: v for n, text in self.files.items() if (v := _number(text)) is not None}
        arrays = {name: loaded(path) for name, path in self.files.items() if name not in values}
        sizes = {**sizes_in(arrays, declared), **self.sizes}
        return Given(arrays, sizes, values, seed=self.seed)


def inputs_of(exe: Any, wanted: Wanted) -> MadeUp:
    """An array for each input of what was compiled, in order."""
    return inputs_for(exe, wanted.given(exe.inputs))


def ran(exe: Any, wanted: Wanted) -> tuple[MadeUp, dict[str, Array]]:
    """The inputs of a call, and what it gives."""
    given = wanted.given(exe.inputs)
    with reading_inputs(wanted):
        return called(exe, given)


def reading_inputs(wanted: Wanted) -> AbstractContextManager[None]:
    """Inputs that do not fit the model are the caller's to mend, where they came from files."""
    return reading() if wanted.files else nullcontext()


def print_made_up(made: MadeUp | None, *, is_json: bool = False) -> None:
    """Which inputs nobody gave, and how to give others."""
    if made is not None and made.names:
        where = sys.stderr if is_json else sys.stdout
        print(f"made up: {one_line(str(made))} (--dim and --input give others)", file=where)


def made_up_facts(made: MadeUp | None) -> dict[str, Any]:
    return {n: facts_of(made.arrays[n]) for n in made.names} if made is not None else {}


def _number(text: str) -> float | int | None:
    """The number that an input is to be filled with, if it is one and no file is called so."""
    if Path(text).exists():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _check_names(sizes: Mapping[str, int], declared: Mapping[str, Shape | None]) -> None:
    """A size of a dim that no input has is a slip."""
    shapes = [s for s in declared.values() if s is not None]
    known = sorted({d.name for s in shapes for d in symbols_of(s.dims)})
    for name in sizes:
        if name not in known and len(shapes) == len(declared):
            raise InputError(
                f"no input has a dim {name!r}. Named are: {', '.join(known) or 'none'}."
            )


def loaded(path: str) -> Array:
    """The array in a .npy file."""
    try:
        found = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as .npy: {error}") from None
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path} holds several arrays. Save one with np.save.")
    return found


def sizes_in(given: Mapping[str, Array], declared: Mapping[str, Shape | None]) -> dict[str, int]:
    """The named dims that arrays already say."""
    found: dict[str, int] = {}
    for name, array in given.items():
        shape = declared[name]
        if shape is not None and shape.rank == array.ndim:
            named = zip(shape.dims, array.shape)
            symbols = [(d.bound_symbol, n) for d, n in named if isinstance(d, Dim)]
            found |= {symbol.name: n for symbol, n in symbols if symbol}
    return found


def facts_of(array: Array) -> dict[str, Any]:
    """What one can say of an array without showing it."""
    facts: dict[str, Any] = {"dtype": str(DType.of(array.dtype)), "shape": list(array.shape)}
    if array.size == 0 or array.dtype.kind == "c":
        return facts
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if finite.size:
        ends = (("min", finite.min()), ("max", finite.max()), ("mean", finite.mean()))
        facts |= {name: float(value) for name, value in ends}
    return facts | {"not_finite": int(array.size - finite.size)}


def described(name: str, array: Array) -> str:
    """One line: name, shape, range."""
    facts = facts_of(array)
    text = f"{one_line(name)}: {Shape(array.shape, DType.of(array.dtype))}"
    if array.size == 0:
        return f"{text} empty"
    parts: list[str] = []
    if "mean" in facts:
        parts.append(f"{facts['min']:.6g} to {facts['max']:.6g}, mean {facts['mean']:.6g}")
    if facts.get("not_finite"):
        parts.append(f"{facts['not_finite']} not finite")
    return f"{text} {', '.join(parts)}".rstrip()
