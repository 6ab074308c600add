"""What verbs that run a model share: its inputs from files, or made up, and how to ask for them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlx.dim import Dim, evaluate, symbols_of
from rlx.dtype import DType
from rlx.errors import Error
from rlx.op import Array
from rlx.representative import TYPICAL, representative
from rlx.shape import Shape

MOST = 1 << 27
"""Elements of a random input."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        type=_pair,
        help="an input as a .npy file; those not given are random",
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        type=_size,
        help="the size of a named dim of random inputs",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (0)")


def _pair(text: str) -> tuple[str, str]:
    name, has_value, value = text.rpartition("=")
    if not has_value or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _size(text: str) -> tuple[str, int]:
    name, value = _pair(text)
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE")
    return name, int(value)


def inputs_of(exe: Any, args: argparse.Namespace) -> dict[str, Array]:
    """An array for each input, in order."""
    declared: Mapping[str, Shape | None] = exe.inputs
    files: dict[str, str] = dict(args.input)
    for name in files:
        if name not in declared:
            raise Error(f"there is no input {name!r}. It has: {', '.join(declared)}.")
    given = {name: _loaded(path) for name, path in files.items()}
    sizes = {**_sizes_of(given, declared), **dict(args.dim)}
    wanted = {name: shape for name, shape in declared.items() if name not in given}
    made = {**random_inputs(wanted, sizes, args.seed), **given}
    return {name: made[name] for name in declared}


def random_inputs(
    declared: Mapping[str, Shape | None],
    sizes: Mapping[str, int],
    seed: int,
    *,
    typical: int = TYPICAL,
) -> dict[str, Array]:
    """An array for each input, of these sizes of named dims; `typical` is that of others."""
    rng = np.random.default_rng(seed)
    return {n: _random(n, shape, sizes, typical, rng) for n, shape in declared.items()}


def _loaded(path: str) -> Array:
    try:
        found = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Error(f"{path} cannot be read as .npy: {error}") from None
    if not isinstance(found, np.ndarray):
        raise Error(f"{path} holds several arrays. Save one with np.save.")
    return found


def _sizes_of(given: Mapping[str, Array], declared: Mapping[str, Shape | None]) -> dict[str, int]:
    """The named dims that files already say."""
    found: dict[str, int] = {}
    for name, array in given.items():
        shape = declared[name]
        if shape is not None and shape.rank == array.ndim:
            named = zip(shape.dims, array.shape)
            found |= {d.name: n for d, n in named if isinstance(d, Dim) and d.symbol}
    return found


def _random(
    name: str,
    shape: Shape | None,
    sizes: Mapping[str, int],
    typical: int,
    rng: np.random.Generator,
) -> Array:
    """Numbers of a normal distribution; whole ones are 0 or 1, which are in range for most."""
    if shape is None:
        raise Error(f"input {name!r} has no shape in the model. Give it: --input {name}=FILE.npy")
    usual = representative(symbols_of(shape.dims)).items()
    usual_sizes = {n: typical if size == TYPICAL else size for n, size in usual}
    known = {**usual_sizes, **_batch(shape), **sizes}
    dims = [evaluate(d, known) for d in shape.dims]
    if math.prod(dims) > MOST:
        raise Error(f"input {name!r} is {shape}: too large to make up. Give it as a file.")
    dtype = shape.dtype.numpy
    if shape.dtype.is_float or shape.dtype.is_complex:
        return rng.standard_normal(dims).astype(dtype)
    return rng.integers(0, 2, dims).astype(dtype)


def _batch(shape: Shape) -> dict[str, int]:
    """The first dim mostly counts samples, of which one will do."""
    first = shape.dims[0] if shape.dims else 1
    if not isinstance(first, Dim) or first.symbol is None:
        return {}
    return {first.name: max(1, first.bounds[0] or 0)}


def described(name: str, array: Array) -> str:
    """One line: name, shape, range."""
    text = f"{name}: {Shape(array.shape, DType.of(array.dtype))}"
    if array.size == 0:
        return f"{text} empty"
    if array.dtype.kind == "c":
        return text
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    parts = [f"{finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}"] * bool(
        finite.size
    )
    odd = array.size - finite.size
    return f"{text} {', '.join([*parts, *([f'{odd} not finite'] if odd else [])])}"
