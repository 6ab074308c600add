"""Squared magnitudes in one form: |z|² = z·z̄ = re² + im², whichever way it is written, on the
spectrum itself and not on a part or a view of it; and what is real among complex numbers as reals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import NORMS
from rlx.rules.engine import Uses, no, rule
from rlx.rules.match import scalar_of

_COMPLEX = (DType.C64, DType.C128)
_ROUNDED_TWICE = "a root that is squared again, or a sum of squares that is rounded once more"

# -- complex numbers that are real ----------------------------------------------------------------


def _sample_zeros(draw: Draw) -> Node:
    x = Graph("sample").input("x", Shape(draw.dims(0, 3), draw.choice((DType.F32, DType.F64))))
    zeros = x.graph.constant(np.zeros(() if draw.coin() else (1,) * x.rank, x.dtype.numpy))
    return ops.make_complex(x, ops.expand(zeros, dims=x.shape.dims))


@rule(lambda x: ops.make_complex(x, 0), sample=_sample_zeros)
def complex_without_imaginary_part(x: Node, node: Node) -> Any:
    """x + 0j is x as a complex number."""
    return ops.cast(x, to=node.dtype) if x.shape.dims == node.shape.dims else None


def real_behind(z: Node) -> Node | None:
    """The real numbers of the same precision that complex ones are."""
    if z.op == "cast" and z.dtype.is_complex:
        return z.inputs[0] if z.inputs[0].dtype is z.dtype.real else None
    if z.op != "constant" or not z.dtype.is_complex:
        return None
    value = z.attrs["value"].array
    return None if np.any(value.imag) else z.graph.constant(value.real.copy())


def _sample_real_part(draw: Draw) -> Node:
    x = Graph("sample").input("x", Shape(draw.dims(0, 3), draw.choice((DType.F32, DType.F64))))
    return ops.real(ops.cast(x, to=x.dtype.complex))


@rule(lambda x: ops.real(ops.cast(x)), sample=_sample_real_part)
def real_part_of_real(node: Node) -> Any:
    """The real part of a real number is that number."""
    return real_behind(node.inputs[0])


_LINEAR = frozenset((
    "mul", "add", "sub", "neg", "sum", "mean", "concat", "narrow", "slice", "reshape", "transpose",
    "frame",
))  # fmt: skip
"""Ops that make real numbers of real numbers, part by part."""


def _sample_linear(draw: Draw) -> Node:
    g, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    x, y = (g.input(name, Shape((3, 4), dtype)) for name in "xy")
    a, b = (ops.cast(i, to=dtype.complex) for i in (x, y))
    two = g.constant(np.asarray(2.0, dtype.complex.numpy))
    forms = (
        lambda: ops.mul(a, b),
        lambda: ops.mul(two, a),
        lambda: ops.add(a, b),
        lambda: ops.neg(a),
        lambda: ops.mean(a, axes=(1,)),
        lambda: ops.concat([a, b], axis=1),
        lambda: ops.narrow(a, axis=1, start=1, length=2),
        lambda: ops.transpose(a, perm=(1, 0)),
    )
    return draw.choice(forms)()


def _may_be_real(node: Node) -> bool:
    return node.op in _LINEAR and node.dtype.is_complex and any(i.op == "cast" for i in node.inputs)


@rule(
    sample=_sample_linear,
    when=_may_be_real,
    slack=4.0,
    domain="plain",
    why="the sign of an imaginary 0, and sums in another order",
)
def complex_of_real(node: Node) -> Any:
    """Sums, products and parts of real numbers written as complex ones are computed as reals."""
    reals = [real_behind(i) for i in node.inputs]
    known = [r for r in reals if r is not None]
    if len(known) < len(reals):
        return None
    return ops.cast(node.graph.node(node.decl, known, node.attrs), to=node.dtype)


# -- squared magnitudes ---------------------------------------------------------------------------


def _sample_part(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape((*draw.dims(0, 3),), draw.choice(_COMPLEX)))
    parts = ops.view_as_real(z)
    return ops.narrow(parts, axis=z.rank, start=draw.integer(0, 1), length=1)


@rule(lambda z: ops.narrow(ops.view_as_real(z)), sample=_sample_part)
def part_of_pairs(z: Node, node: Node) -> Any:
    """One of each pair of parts is the real or the imaginary part."""
    if node.attrs["axis"] != z.rank or node.attrs["length"] != 1:
        return None
    part = (ops.real, ops.imag)[int(node.attrs["start"])]
    return ops.reshape(part(z), dims=node.shape.dims)


def _sample_magnitude(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape(draw.dims(0, 3), draw.choice(_COMPLEX)))
    forms = (
        lambda: ops.square(ops.abs(z)),
        lambda: ops.add(ops.square(ops.real(z)), ops.square(ops.imag(z))),
        lambda: ops.square(ops.sqrt(ops.complex_norm_sq(z))),
    )
    return draw.choice(forms)()


@rule(
    lambda z: ops.square(ops.abs(z)),
    lambda z: ops.add(ops.square(ops.real(z)), ops.square(ops.imag(z))),
    lambda z: ops.square(ops.sqrt(z)),
    sample=_sample_magnitude,
    slack=8.0,
    domain="plain",
    why=_ROUNDED_TWICE,
)
def squared_magnitude(z: Node, node: Node, uses: Uses) -> Any:
    """|z|² = re² + im², and the square of the root of a power is that power."""
    if node.op == "square" and uses(node.inputs[0]) > 1:
        return None
    if node.inputs[0].op == "sqrt":
        return z if z.op in ("complex_norm_sq", "power_frames") else None
    return ops.complex_norm_sq(z) if z.dtype.is_complex else None


def _sample_reshaped_parts(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape(draw.dims(0, 3), draw.choice(_COMPLEX)))
    parts = [ops.reshape(part(z), dims=(*z.shape.dims, 1)) for part in (ops.real, ops.imag)]
    return ops.add(*(ops.square(p) for p in parts))


@rule(
    lambda z: ops.add(ops.square(ops.reshape(ops.real(z))), ops.square(ops.reshape(ops.imag(z)))),
    sample=_sample_reshaped_parts,
)
def squared_magnitude_of_reshaped(z: Node, node: Node) -> Any:
    """re² + im² of reshaped parts is |z|², reshaped."""
    parts = [square.inputs[0].shape.dims for square in node.inputs]
    if parts[0] != parts[1]:
        return None
    return ops.reshape(ops.complex_norm_sq(z), dims=node.shape.dims)


def _sample_scaled(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape(draw.dims(0, 3), draw.choice(_COMPLEX)))
    factor = z.graph.constant(np.asarray(draw.choice((2.0, 0.5, 3 + 4j)), z.dtype.numpy))
    return ops.complex_norm_sq(ops.mul(z, factor) if draw.coin() else ops.div(z, factor))


@rule(
    lambda z: ops.complex_norm_sq(z),
    sample=_sample_scaled,
    slack=8.0,
    domain="plain",
    why=_ROUNDED_TWICE,
)
def power_of_scaled_spectrum(z: Node, uses: Uses) -> Any:
    """|c·z|² = |c|² · |z|²."""
    if z.op not in ("mul", "div") or uses(z) > 1:
        return None
    for i in (0, 1) if z.op == "mul" else (1,):
        x, value = z.inputs[1 - i], scalar_of(z.inputs[i])
        if value is not None and x.shape == z.shape and (z.op == "mul" or value != 0):
            factor = float(abs(complex(value))) ** 2
            power = ops.complex_norm_sq(x)
            return ops.mul(power, factor if z.op == "mul" else 1.0 / factor)
    return None


def _sample_conjugates(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape(draw.dims(0, 3), draw.choice(_COMPLEX)))
    both = [z, ops.conj(z)]
    return ops.mul(*(both if draw.coin() else reversed(both)))


@rule(
    lambda z: ops.mul(z, ops.conj(z)),
    sample=_sample_conjugates,
    slack=2048.0,
    domain="plain",
    why="an imaginary part of 0 may be what rounding leaves of products as large as 40²",
)
def product_with_conjugate(z: Node, node: Node) -> Any:
    """z · z̄ = |z|², a real number."""
    return ops.cast(ops.complex_norm_sq(z), to=node.dtype)


def _sample_absolute(draw: Draw) -> Node:
    z = Graph("sample").input("z", Shape(draw.dims(0, 3), draw.choice(_COMPLEX)))
    return ops.abs(ops.cast(ops.complex_norm_sq(z), to=z.dtype))


@rule(lambda x: ops.abs(ops.cast(x)), sample=_sample_absolute, domain="plain")
def magnitude_of_power(x: Node, node: Node) -> Any:
    """A squared magnitude is its own magnitude."""
    return x if x.op == "complex_norm_sq" and x.dtype is node.dtype else None


# -- of a spectrum itself -------------------------------------------------------------------------

TRANSFORMS = ("rfft", "stft", "fft")
SHARED = "the spectrum is needed elsewhere too"


def _sample_moved(draw: Draw) -> Node:
    x = Graph("sample").input("x", Shape((2, 3, draw.size(1)), draw.choice((DType.F32, DType.F64))))
    z = ops.rfft(x)
    bins = int(z.shape.dims[-1])
    forms = (
        lambda: ops.transpose(z, perm=(0, 2, 1)),
        lambda: ops.reshape(z, dims=(6, bins)),
        lambda: ops.narrow(z, axis=2, start=0, length=bins - 1),
        lambda: ops.slice(z, starts=(0, 1, 0), stops=(2, 3, bins), steps=(1, 2, 1)),
    )
    return ops.complex_norm_sq(draw.choice(forms)())


@rule(lambda z: ops.complex_norm_sq(z), sample=_sample_moved)
def power_of_moved_spectrum(z: Node, uses: Uses) -> Any:
    """The power of a part or a view of a spectrum is that part or view of its power."""
    if z.op not in ("reshape", "transpose", "narrow", "slice"):
        return None
    spectrum = z.inputs[0]
    transform = spectrum
    while transform.op in ("mul", "div"):
        transform = transform.inputs[scalar_of(transform.inputs[0]) is not None]
    is_part = z.op in ("narrow", "slice")
    if transform.op not in TRANSFORMS or (transform.op == "fft" and is_part):
        return None
    if uses(z) > 1 or uses(spectrum) > 1:
        return no(SHARED)
    return z.graph.node(z.decl, (ops.complex_norm_sq(spectrum),), z.attrs)


def _sample_half(draw: Draw) -> Node:
    n, dtype = draw.integer(1, 9), draw.choice((DType.F32, DType.F64))
    x = Graph("sample").input("x", Shape((*draw.dims(0, 2), n), dtype))
    power = ops.complex_norm_sq(ops.fft(ops.cast(x, to=dtype.complex)))
    return ops.narrow(power, axis=-1, start=0, length=n // 2 + 1)


@rule(lambda z: ops.narrow(ops.complex_norm_sq(z)), sample=_sample_half)
def half_of_power(z: Node, node: Node, uses: Uses) -> Any:
    """The first half of the power of a real signal's spectrum is the power of that half."""
    if z.op != "fft" or real_behind(z.inputs[0]) is None or not _is_half(node):
        return None
    if uses(node.inputs[0]) > 1 or uses(z) > 1:
        return None
    return ops.complex_norm_sq(ops.narrow(z, **node.attrs))


# -- real transforms ------------------------------------------------------------------------------


def _sample_resized(draw: Draw) -> Node:
    n, dtype = draw.integer(1, 9), draw.choice((DType.F32, DType.F64))
    x = Graph("sample").input("x", Shape((*draw.dims(0, 2), n), dtype))
    return ops.rfft(x, n=draw.integer(1, 12))


@rule(lambda x: ops.rfft(x), sample=_sample_resized)
def rfft_of_resized(x: Node, node: Node) -> Any:
    """A transform of n points is that of the signal padded or cut to n."""
    n, size = node.attrs["n"], x.shape.dims[-1]
    if n is None or not isinstance(size, int):
        return None
    if n > size:
        x = ops.pad(x, low=(0,) * x.rank, high=(*[0] * (x.rank - 1), n - size), value=0.0)
    elif n < size:
        x = ops.narrow(x, axis=x.rank - 1, start=0, length=n)
    return ops.rfft(x, norm=node.attrs["norm"])


def _sample_half_of_fft(draw: Draw) -> Node:
    n, dtype = draw.integer(1, 9), draw.choice((DType.F32, DType.F64))
    x = Graph("sample").input("x", Shape((*draw.dims(0, 2), n), dtype))
    z = ops.fft(ops.cast(x, to=dtype.complex), norm=draw.choice(NORMS))
    return ops.narrow(z, axis=-1, start=0, length=n // 2 + 1)


@rule(
    lambda x: ops.narrow(ops.fft(ops.cast(x))),
    sample=_sample_half_of_fft,
    slack=16.0,
    domain="plain",
    why="a real transform sums in another order",
)
def half_of_fft_as_rfft(x: Node, node: Node, uses: Uses) -> Any:
    """The first half of the transform of real numbers is their real transform."""
    z = node.inputs[0]
    if z.attrs["inverse"] or real_behind(z.inputs[0]) is None or uses(z) > 1:
        return None
    if not _is_half(node):
        return None
    return ops.rfft(x, norm=z.attrs["norm"])


def _is_half(node: Node) -> bool:
    """Is it the first n // 2 + 1 bins of n along the last axis?"""
    size, attrs = node.inputs[0].shape.dims[-1], node.attrs
    is_last = attrs["axis"] == node.rank - 1
    return is_last and attrs["start"] == 0 and attrs["length"] == size // 2 + 1
