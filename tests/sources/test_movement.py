"""Movement against ONNX's reference, and element by element: where each value comes from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlx import ops
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "reshape": "onnx.reference Reshape; element by element",
    "transpose": "onnx.reference Transpose; element by element",
    "expand": "onnx.reference Expand; element by element",
    "squeeze": "onnx.reference Squeeze",
    "expand_dims": "onnx.reference Unsqueeze",
    "narrow": "onnx.reference Slice; element by element",
    "slice": "onnx.reference Slice; Python's slices of ranges",
    "concat": "onnx.reference Concat; Python's lists",
    "stack": "onnx.reference Concat of Unsqueeze; Python's lists",
    "split": "onnx.reference Split; element by element",
    "pad": "onnx.reference Pad; element by element",
    "tile": "onnx.reference Tile; element by element",
    "flip": "element by element",
}
RNG = np.random.default_rng(29)
Index = tuple[int, ...]


def numbered(*dims: int) -> np.ndarray:
    """Each element says where it was."""
    return np.array(list(range(int(np.prod(dims)))), np.float32).reshape(dims)


def moved(dims: Sequence[int], value: Callable[[Index], Any]) -> np.ndarray:
    """The array of `dims` whose element at each index is `value` of it."""
    made = np.empty(dims, np.float32)
    for index in itertools.product(*map(range, dims)):
        made[index] = value(index)
    return made


def check(got: np.ndarray, *wanted: np.ndarray) -> None:
    for want in wanted:
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 2, 2)), ((4,), (2, -1)), ((), (1, 1)), ((0, 3), (3, 0))],
)
def test_reshape(old: Index, new: Index) -> None:
    x = numbered(*old)
    (want,) = run_onnx("Reshape", [x, np.array(new, np.int64)], {"allowzero": 1})
    got = ops.reshape(x, dims=new)
    flat = [x[i] for i in itertools.product(*map(range, old))]
    places = itertools.count()
    check(got, want, moved(got.shape, lambda _: flat[next(places)]))


@pytest.mark.parametrize("perm", [*itertools.permutations(range(3)), (-1, 0, 1)])
def test_transpose(perm: Index) -> None:
    x = numbered(2, 3, 4)
    axes = [p % 3 for p in perm]
    (want,) = run_onnx("Transpose", [x], {"perm": axes})

    def came_from(index: Index) -> float:
        return x[tuple(index[axes.index(a)] for a in range(3))]

    check(ops.transpose(x, perm=perm), want, moved([x.shape[a] for a in axes], came_from))
    check(ops.transpose(x), run_onnx("Transpose", [x])[0])


@pytest.mark.parametrize(
    ("old", "new"), [((3, 1), (3, 4)), ((1,), (2, 3)), ((), (2,)), ((2, 1, 3), (4, 2, 5, 3))]
)
def test_expand(old: Index, new: Index) -> None:
    x = numbered(*old)
    (want,) = run_onnx("Expand", [x, np.array(new)])

    def came_from(index: Index) -> float:
        tail = index[len(new) - len(old) :]
        return x[tuple(0 if d == 1 else i for i, d in zip(tail, old))]

    check(ops.expand(x, dims=new), want, moved(new, came_from))


@pytest.mark.parametrize("axes", [None, (0,), (2,), (-1, 0), ()])
def test_squeeze(axes: Index | None) -> None:
    x = numbered(1, 3, 1, 2, 1)
    given = [x] if axes is None else [x, np.array(axes, np.int64)]
    check(ops.squeeze(x, axes=axes), x if axes == () else run_onnx("Squeeze", given)[0])


@pytest.mark.parametrize("axes", [(0,), (3,), (-1, 0), (1, 2), (-2,)])
def test_expand_dims(axes: Index) -> None:
    x = numbered(2, 3, 4)
    check(ops.expand_dims(x, axes=axes), run_onnx("Unsqueeze", [x, np.array(axes)])[0])


@pytest.mark.parametrize(("axis", "start", "length"), [(0, 1, 2), (1, 0, 4), (-1, 2, 1), (1, 3, 0)])
def test_narrow(axis: int, start: int, length: int) -> None:
    x = numbered(3, 4, 3)
    bounds = [np.array([n]) for n in (start, start + length, axis)]
    (want,) = run_onnx("Slice", [x, *bounds])
    at = axis % 3

    def came_from(index: Index) -> float:
        return x[tuple(i + start if a == at else i for a, i in enumerate(index))]

    dims = [length if a == at else d for a, d in enumerate(x.shape)]
    check(ops.narrow(x, axis=axis, start=start, length=length), want, moved(dims, came_from))


def test_slice_takes_what_python_does() -> None:
    """Every start, stop and step around an axis of 5; the other axis as well."""
    x = numbered(5, 4)
    for start, stop, step in itertools.product(range(-7, 8), range(-7, 8), (1, 2, -1, -3)):
        rows, columns = range(5)[start:stop:step], range(4)[3:-9:-1]
        got = ops.slice(x, starts=(start, 3), stops=(stop, -9), steps=(step, -1))
        assert got.tolist() == [[float(4 * r + c) for c in columns] for r in rows]


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slice_is_onnxs(step: int) -> None:
    x = numbered(5, 4, 3)
    for start, stop in [(0, 5), (1, -1), (-2, 1), (4, 0), (9, -9), (-9, 9), (3, 3)]:
        bounds = [np.array(v) for v in ([start, 0], [stop, 3], [0, 2], [step, 1])]
        (want,) = run_onnx("Slice", [x, *bounds])
        given = {"starts": (start, 0, 0), "stops": (stop, 4, 3), "steps": (step, 1, 1)}
        check(ops.slice(x, **given), want)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_and_stack(axis: int) -> None:
    xs = [numbered(2, 3, 2), -numbered(2, 3, 2), numbered(2, 3, 2) + 0.5]
    check(ops.concat(xs, axis=axis), run_onnx("Concat", xs, {"axis": axis})[0])
    got = ops.stack(*xs, axis=axis)
    apart = [run_onnx("Unsqueeze", [x, np.array([axis])])[0] for x in xs]
    check(got, run_onnx("Concat", apart, {"axis": axis})[0])
    check(np.moveaxis(got, axis, 0), np.array([x.tolist() for x in xs], np.float32))


def test_concat_of_unequal_sizes_is_that_of_lists() -> None:
    a, b, c = numbered(2, 3), numbered(0, 3), numbered(1, 3) + 10
    assert ops.concat(a, b, c, axis=0).tolist() == a.tolist() + b.tolist() + c.tolist()


@pytest.mark.parametrize(("sizes", "axis"), [((1, 2), 0), ((0, 3, 1), 1), ((5,), -1), ((2, 3), 2)])
def test_split(sizes: Index, axis: int) -> None:
    x = numbered(3, 4, 5)
    wanted = run_onnx("Split", [x, np.array(sizes)], {"axis": axis}, len(sizes))
    at, start = axis % 3, 0
    for got, want, size in zip(ops.split(x, sizes=sizes, axis=axis), wanted, sizes, strict=True):
        dims = [size if a == at else d for a, d in enumerate(x.shape)]

        def came_from(index: Index, start: int = start) -> float:
            return x[tuple(i + start if a == at else i for a, i in enumerate(index))]

        check(got, want, moved(dims, came_from))
        start += size


def _source(i: int, size: int, mode: str) -> int | None:
    """Where entry i of a padded axis comes from, counted from the first that is not padding."""
    if 0 <= i < size:
        return i
    if mode == "edge":
        return 0 if i < 0 else size - 1
    if mode == "wrap":
        return i % size
    return None if mode == "constant" else -i if i < 0 else 2 * (size - 1) - i


@pytest.mark.parametrize("low", [(0, 0), (1, 0), (2, 3)])
@pytest.mark.parametrize("high", [(0, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str, high: Index, low: Index) -> None:
    x = numbered(3, 4)
    value = 7.5 if mode == "constant" else 0.0
    (want,) = run_onnx("Pad", [x, np.array([*low, *high]), np.float32(value)], {"mode": mode})

    def came_from(index: Index) -> float:
        places = [_source(i - a, d, mode) for i, a, d in zip(index, low, x.shape)]
        return value if None in places else x[tuple(places)]

    dims = [a + d + b for a, d, b in zip(low, x.shape, high)]
    check(ops.pad(x, low=low, high=high, value=value, mode=mode), want, moved(dims, came_from))


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2), (3, 1)])
def test_tile(repeats: Index) -> None:
    x = numbered(2, 3)
    (want,) = run_onnx("Tile", [x, np.array(repeats)])
    dims = [d * r for d, r in zip(x.shape, repeats)]
    check(ops.tile(x, repeats=repeats), want, moved(dims, lambda i: x[i[0] % 2, i[1] % 3]))


@pytest.mark.parametrize("axes", [None, (0,), (1, -1), ()])
def test_flip(axes: Index | None) -> None:
    x = numbered(2, 3, 4)
    turned = range(3) if axes is None else [a % 3 for a in axes]

    def came_from(index: Index) -> float:
        return x[tuple(x.shape[a] - 1 - i if a in turned else i for a, i in enumerate(index))]

    check(ops.flip(x, axes=axes), moved(x.shape, came_from))
