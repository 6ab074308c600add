"""Elementary functions: how far from the truth, in units in the last place, and every special."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.isa import AVX2, SSE2, Isa, host
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import Function, module
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType

COUNT = 200_000
ISAS = {"host": host(), "avx2": AVX2, "sse2": SSE2}
UNFUSED = "unfused sse2"
ISAS |= {f"fast {name}": replace(isa, maths="fast") for name, isa in ISAS.items()}
ISAS[UNFUSED] = replace(SSE2, maths="unfused")
"""What WebAssembly computes, if it has no relaxed multiply-adds."""
UNFUSED_BOUNDS = {("tanh", DType.F32): 2.5}
"""Where a second rounding a step costs more than the bound allows."""
FAST = {"exp": 3, "log": 3, "tanh": 3, "erf": 4, "sin": 2, "cos": 2}
"""The bounds of the fast functions, of f32."""


def _each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.array([function(float(v)) for v in x], np.longdouble)


# The reference, and the bounds in units in the last place for f32 and f64. A longer float than f64
# is the truth; where there is none (erf, erfc), libm is, which is itself within 1.
FUNCTIONS: dict[str, tuple[Callable[..., np.ndarray], float, float]] = {
    "exp": (np.exp, 1, 1),
    "expm1": (np.expm1, 1.5, 2),
    "log": (np.log, 1, 1),
    "tanh": (np.tanh, 2, 2),
    "sin": (np.sin, 1, 1),
    "cos": (np.cos, 1, 1),
    "erf": (_each(math.erf), 2, 2),
    "erfc": (_each(math.erfc), 1, 6),
    "atan2": (np.arctan2, 1, 2),
    "pow": (np.power, 1, 2),
    "rem": (np.fmod, 0, 0),
}
PAIRS = ("atan2", "pow", "rem")
PRECISE = [n for n in ISAS if "fast" not in n]


@functools.cache
def native(isa: str, dtype: DType) -> Native:
    """All functions for one dtype, as loops over arrays of whole vectors."""
    made = [_loop(name, ISAS[isa], dtype) for name in FUNCTIONS]
    return Native(module(made, ISAS[isa]), ISAS[isa])


def _loop(name: str, isa: Isa, dtype: DType) -> Function:
    code, element = Code(isa.lanes(dtype), isa), ELEMENT[dtype]
    with code.count(0, "%n", code.lanes) as i:
        args: list[Vec] = []
        for k in range(2 if name in PAIRS else 1):
            place = code.let(f"getelementptr {element}, ptr %a{k}, i64 {i}")
            text = code.let(f"load {code.vector(element)}, ptr {place}, align 4")
            args.append(code.vector_of(text, dtype))
        value = arith.apply(name, args, {}, dtype)
        place = code.let(f"getelementptr {element}, ptr %y, i64 {i}")
        code.do(f"store {value.type} {value.text}, ptr {place}, align 4")
    code.do("ret void")
    head = f"define void @of_{name}(ptr %a0, ptr %a1, ptr %y, i64 %n)"
    return Function(name, code.function(head), tuple(code.shared.items()))


def run(isa: str, dtype: DType, name: str, *given: np.ndarray) -> np.ndarray:
    arrays = [np.concatenate([a, np.ones(-len(a) % 64, a.dtype)]) for a in given]
    out = np.empty_like(arrays[0])
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    pointers = [a.ctypes.data for a in (arrays[0], arrays[-1], out)]
    kind(native(isa, dtype).address(f"of_{name}"))(*pointers, len(out))
    return out[: len(given[0])]


def samples(dtype: DType) -> np.ndarray:
    """Specials, numbers with random bits, of ordinary size, near 1, and near multiples of π/2."""
    rng = np.random.default_rng(0)
    kind, info = dtype.numpy, np.finfo(dtype.numpy)
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), COUNT, f"u{dtype.itemsize}").view(kind)
    ends = -np.log(float(info.max)) * 1.2, np.log(float(info.max)) * 1.1
    parts = [specials(dtype), bits, np.linspace(*ends, COUNT), rng.normal(size=COUNT) * 2]
    parts += [np.linspace(0.5, 2, COUNT), np.arange(1, 9999) * (np.pi / 2)]
    return np.concatenate([p.astype(kind) for p in parts])


def specials(dtype: DType) -> np.ndarray:
    info = np.finfo(dtype.numpy)
    plain = [0.0, 0.5, 1.0, 2.0, 3.0, 1e-3, 88.7, 709.7, info.max, info.tiny]
    small = [float(info.smallest_subnormal), float(info.tiny) / 3]
    values = [*map(float, plain), *small, math.inf, math.nan]
    return np.array([*values, *(-v for v in values)], dtype.numpy)


def errors(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """In units in the last place; infinite where a NaN, an infinity or a zero is wrong."""
    near = truth.astype(got.dtype)
    unit = np.spacing(np.minimum(np.abs(near), np.finfo(got.dtype).max)).astype(np.longdouble)
    off = np.abs(got.astype(np.longdouble) - truth) / unit
    is_same = (got == near) & (np.signbit(got) == np.signbit(near)) | np.isnan(got) & np.isnan(near)
    is_wrong = (np.isnan(got) != np.isnan(near)) | ((got == 0) & (near == 0) & ~is_same)
    return np.where(is_wrong, np.inf, np.where(is_same & ~np.isfinite(off), 0, off))


@pytest.mark.parametrize("isa", PRECISE)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_this_exact(name: str, dtype: DType, isa: str) -> None:
    bound = FUNCTIONS[name][1 + (dtype is DType.F64)]
    check(name, dtype, isa, UNFUSED_BOUNDS.get((name, dtype), bound) if isa == UNFUSED else bound)


@pytest.mark.parametrize("isa", [n for n in ISAS if n not in PRECISE])
@pytest.mark.parametrize("name", FAST)
def test_a_fast_function_is_this_exact(name: str, isa: str) -> None:
    check(name, DType.F32, isa, FAST[name])


def test_fast_is_another_code() -> None:
    """Each of them, or the option would do nothing."""
    for name in FAST:
        texts = {_loop(name, ISAS[isa], DType.F32).text for isa in ("host", "fast host")}
        assert len(texts) == 2, name


def check(name: str, dtype: DType, isa: str, bound: float) -> None:
    reference = FUNCTIONS[name][0]
    x = samples(dtype)
    if isa not in ("host", "fast host") or name in ("erf", "erfc"):
        x = np.concatenate([specials(dtype), x[::8]])
    given = (x, np.random.default_rng(1).permutation(x)) if name in PAIRS else (x,)
    if name in PAIRS:
        a, b = (v.ravel() for v in np.meshgrid(specials(dtype), specials(dtype)))
        given = np.concatenate([given[0], a]), np.concatenate([given[1], b])
    wide = np.float64 if dtype is DType.F32 else np.longdouble
    with np.errstate(all="ignore"):
        truth = reference(*(v.astype(wide) for v in given))
        off = errors(run(isa, dtype, name, *given), truth)
    worst = int(np.argmax(off))
    assert off[worst] <= bound, (off[worst], [v[worst] for v in given], truth[worst])
