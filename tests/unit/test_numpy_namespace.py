"""NumPy's namespace on nodes: what is taken gives what NumPy gives, the rest says what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.ir.numpy_functions import FUNCTIONS
from rlx.ir.numpy_names import HINTS, METHODS, OPERATORS, UFUNCS, qualified
from rlx.ops.op import find

Case = Callable[..., Any]
A = np.float32([[0.5, -1.5, 2.25], [3.0, 0.25, -0.75]])
B = np.float32([[1.5, 2.0, -3.0], [0.75, -2.5, 1.0]])
T = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
Z = (A + 1j * B).astype(np.complex64)
S = np.float32([[4, 1, 0.5], [1, 3, 0.25], [0.5, 0.25, 2]])
I, J = np.int64([[7, -8, 12], [-5, 6, 0]]), np.int64([[2, 3, -5], [4, -4, 3]])
P = np.abs(A) + np.float32(0.1)
SMALL = np.clip(A, -0.9, 0.9)
INTEGERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm")
SHIFTS, TRUTHS = ("left_shift", "right_shift"), ("logical_and", "logical_or", "logical_xor")
DOMAINS = {
    **dict.fromkeys(("sqrt", "log", "log2", "log10", "log1p", "power", "float_power"), P),
    **dict.fromkeys(("arcsin", "arccos", "arctanh"), SMALL), "arccosh": P + 1,
}  # fmt: skip


def of_ufunc(name: str) -> tuple[Any, ...]:
    """Operands of an elementwise function."""
    if name == "matmul":
        return A, S
    if name in INTEGERS:
        return I, J
    if name in SHIFTS:
        return I, np.abs(J)
    if name == "invert":
        return (I,)
    if name in TRUTHS or name == "logical_not":
        return (A > 0, B > 0)[: getattr(np, name).nin]
    return (DOMAINS.get(name, A), B)[: getattr(np, name).nin]


CASES: dict[str, list[tuple[Case, *tuple[Any, ...]]]] = {
    "sum": [(lambda x: np.sum(x, axis=(0, 2)), T), (lambda x: np.sum(x, 1, keepdims=True), T)],
    "mean": [(lambda x: np.mean(x, -1), T), (np.mean, I)],
    "average": [(np.average, T), (lambda x: np.average(x, 0, keepdims=True), T)],
    "argmax": [(np.argmax, T), (lambda x: np.argmax(x, keepdims=True), T)],
    "argmin": [(lambda x: np.argmin(x, 1, keepdims=True), T)],
    "cumsum": [(np.cumsum, T), (lambda x: np.cumsum(x, 1), T)],
    "cumprod": [(lambda x: np.cumprod(x, axis=-1), T)],
    "sort": [(np.sort, T), (lambda x: np.sort(x, axis=None), T), (lambda x: np.sort(x, 0), T)],
    "argsort": [(np.argsort, T), (lambda x: np.argsort(x, None), T)],
    "var": [(np.var, T), (lambda x: np.var(x, 1, ddof=1), Z), (np.var, I)],
    "std": [(lambda x: np.std(x, (0, 1), keepdims=True), T), (np.std, Z)],
    "real": [(np.real, Z), (np.real, A)], "imag": [(np.imag, Z), (np.imag, A)],
    "angle": [(np.angle, Z)],
    "round": [(np.round, 3 * A)], "around": [(np.around, 3 * A)], "fix": [(np.fix, 3 * A)],
    "copy": [(np.copy, A)], "sinc": [(np.sinc, A)], "i0": [(np.i0, A)],
    "clip": [(lambda x: np.clip(x, -1, 1), A), (lambda x: np.clip(x, None, a_max=1), A)],
    "reshape": [(lambda x: np.reshape(x, (4, -1)), T), (lambda x: np.reshape(x, -1), T)],
    "transpose": [(np.transpose, T), (lambda x: np.transpose(x, axes=(1, 0, 2)), T)],
    "permute_dims": [(lambda x: np.permute_dims(x, (2, 0, 1)), T)],
    "swapaxes": [(lambda x: np.swapaxes(x, 0, -1), T)],
    "moveaxis": [(lambda x: np.moveaxis(x, 0, -1), T),
                 (lambda x: np.moveaxis(x, (0, 1), (-1, 0)), T)],
    "squeeze": [(np.squeeze, T[:1, :, :1]), (lambda x: np.squeeze(x, 0), T[:1, :, :1])],
    "expand_dims": [(lambda x: np.expand_dims(x, (0, -1)), A), (lambda x: np.expand_dims(x, 1), A)],
    "broadcast_to": [(lambda x: np.broadcast_to(x, (2, 2, 3)), A)],
    "tile": [(lambda x: np.tile(x, 2), T), (lambda x: np.tile(x, (2, 1, 1, 3)), A),
             (lambda x: np.tile(x, (3, 2)), T)],
    "flip": [(np.flip, T), (lambda x: np.flip(x, (0, 2)), T)],
    "concatenate": [(lambda x, y: np.concatenate([x, y], 1), A, B)],
    "concat": [(lambda x, y: np.concat([x, y]), A, B)],
    "stack": [(lambda x, y: np.stack([x, y], axis=-1), A, B)],
    "vstack": [(lambda x, y: np.vstack([x, y]), A, B), (lambda x, y: np.vstack([x, y]), A, B[0])],
    "hstack": [(lambda x, y: np.hstack([x, y]), A, B), (lambda x: np.hstack([x, B[0]]), A[0])],
    "column_stack": [(lambda x, y: np.column_stack([x, y]), A, B[:, 0])],
    "split": [(lambda x: np.split(x, 2, axis=-1)[1], T), (lambda x: np.split(x, [1, 3], 2)[1], T),
              (lambda x: np.split(x, [1, 3], axis=-1)[2], T)],
    "diff": [(np.diff, T), (lambda x: np.diff(x, 2, axis=1), T)],
    "pad": [(lambda x: np.pad(x, 1), A), (lambda x: np.pad(x, ((0, 1), (2, 0)), mode="edge"), A),
            (lambda x: np.pad(x, (1, 2), constant_values=7.0), A)],
    "tril": [(np.tril, T), (lambda x: np.tril(x, -1), T)],
    "triu": [(np.triu, T), (lambda x: np.triu(x, k=1), T)],
    "where": [(lambda x, y: np.where(x > 0, x, y), A, B)],
    "take": [(lambda x: np.take(x, np.int64([[2, 0]])), T),
             (lambda x: np.take(x, np.int64([2, 0]), axis=1), T)],
    "take_along_axis": [(lambda x: np.take_along_axis(x, np.int64([[0], [2]]), 1), A)],
    "searchsorted": [(lambda x, y: np.searchsorted(x, y, side="right"), np.sort(A[0]), B)],
    "dot": [(np.dot, A, S), (np.dot, T, A[:, 0].repeat(2)), (lambda x: np.dot(x, 2.0), A)],
    "outer": [(np.outer, A, B[0])],
    "trace": [(np.trace, T), (lambda x: np.trace(x, 1), T)],
    "einsum": [(lambda x, y: np.einsum("ij,ij->i", x, y), A, B)],
    "zeros_like": [(np.zeros_like, A), (lambda x: np.zeros_like(x, np.int32), A)],
    "ones_like": [(np.ones_like, A), (lambda x: np.ones_like(x, bool), A)],
    "full_like": [(lambda x: np.full_like(x, 2.5), A), (lambda x: np.full_like(x, 3, "int32"), A)],
    "shape": [(lambda x: x * np.shape(x)[1], A)], "ndim": [(lambda x: x * np.ndim(x), A)],
    "size": [(lambda x: x * np.size(x), A), (lambda x: x * np.size(x, 1), A)],
    "linalg.solve": [(np.linalg.solve, S, B.T), (np.linalg.solve, S, B[0])],
    "linalg.outer": [(np.linalg.outer, A[0], B[1])],
    "linalg.matmul": [(np.linalg.matmul, A, S)],
    "linalg.slogdet": [(lambda x: np.linalg.slogdet(x)[1], S)],
    "linalg.trace": [(np.linalg.trace, T), (lambda x: np.linalg.trace(x, offset=1), T)],
    "fft.fft": [(np.fft.fft, A), (lambda x: np.fft.fft(x, 5, 0, norm="ortho"), Z),
                (lambda x: np.fft.fft(x, n=2, axis=1), I)],
    "fft.ifft": [(np.fft.ifft, A), (lambda x: np.fft.ifft(x, n=4), Z)],
    "fft.rfft": [(np.fft.rfft, A), (lambda x: np.fft.rfft(x, 5, axis=0), A)],
    "fft.irfft": [(np.fft.irfft, Z), (lambda x: np.fft.irfft(x, n=3, axis=0, norm="forward"), Z)],
    "fft.fftshift": [(np.fft.fftshift, T), (lambda x: np.fft.fftshift(x, axes=1), T)],
    "fft.ifftshift": [(lambda x: np.fft.ifftshift(x, (0, 2)), T)],
    **{f"{n}.reduce": [(f.reduce, x), (lambda x, f=f: f.reduce(x, axis=(0, 1)), x),
                       (lambda x, f=f: f.reduce(x, axis=None, keepdims=True), x)]
       for n, f, x in (("add", np.add, T), ("multiply", np.multiply, T),
                       ("maximum", np.maximum, T), ("minimum", np.minimum, T),
                       ("logical_and", np.logical_and, T > 0),
                       ("logical_or", np.logical_or, T > 1))},
    **{f"{n}.accumulate": [(f.accumulate, T), (lambda x, f=f: f.accumulate(x, axis=2), T)]
       for n, f in (("add", np.add), ("multiply", np.multiply))},
}  # fmt: skip
for _name in ("max", "min", "amax", "amin", "prod", "any", "all"):
    _f = getattr(np, _name)
    _x = T > 0 if _name in ("any", "all") else T
    CASES[_name] = [(_f, _x), (lambda x, f=_f: f(x, axis=1, keepdims=True), _x)]
for _name in ("ravel", "matrix_transpose", "fliplr", "flipud"):
    CASES[_name] = [(getattr(np, _name), T)]
for _name in ("matrix_transpose", "det", "inv", "cholesky"):
    CASES[f"linalg.{_name}"] = [(getattr(np.linalg, _name), S)]
for _name in (*UFUNCS, *OPERATORS):
    _f = getattr(np, _name)
    _first = (lambda *x, f=_f: f(*x)[0] + f(*x)[1]) if _name == "divmod" else _f
    CASES[_name] = [(_first, *of_ufunc(_name))]


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_is_what_numpy_gives(name: str) -> None:
    for function, *arrays in CASES[name]:
        traced = rlx.jit(lambda *xs, f=function: f(*xs), target="reference")
        got, want = traced(*arrays), np.asarray(function(*arrays))
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        # f32 through at most a dozen roundings, of numbers up to some ten
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=4e-6)


def test_every_function_has_a_case() -> None:
    assert set(CASES) == {*FUNCTIONS, *UFUNCS, *OPERATORS, *METHODS}


def test_each_hint_names_an_op() -> None:
    for name, op in HINTS.items():
        assert find(op) is not None, op
        assert name not in {*FUNCTIONS, *UFUNCS, *OPERATORS}
        assert name in NAMES


NAMES = {
    qualified(f): f
    for module in (np, np.linalg, np.fft)
    for f in vars(module).values()
    if type(f).__name__ == "_ArrayFunctionDispatcher"
} | {n: f for n, f in vars(np).items() if isinstance(f, np.ufunc) and f.__name__ == n}
REST = sorted(set(NAMES) - {*FUNCTIONS, *UFUNCS, *OPERATORS, "divide"})
X = rlx.Graph("g").input("x", [3, 3])


@pytest.mark.parametrize("name", REST)
def test_the_rest_says_what_there_is(name: str) -> None:
    told = [said(NAMES[name], count) for count in (1, 2, 3, 4)]
    assert any(told) != (name in BEFORE_RLX)
    named = [m[1] for m in re.finditer(r"rlx\.ops\.(\w+)", " ".join(told))]
    assert {*named} == {HINTS[name]} if name in HINTS else not named


BEFORE_RLX = {"poly", "ravel_multi_index", "roots"}
"""What NumPy refuses itself: it looks into what it is given."""


def said(function: Any, count: int) -> str:
    """What rlx says of a function of as many nodes; nothing where NumPy refuses them itself."""
    try:
        function(*[X] * count)
    except rlx.Error as error:
        return str(error)
    except TypeError:
        return ""
    return ""
