"""Transforms of a few points in registers: radix 2, 4, 8, and odd primes."""

from __future__ import annotations

import math

from rlx.program.values import Var

Complex = tuple[Var, Var]
"""Real and imaginary part."""


def add(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def subtract(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def times_minus_i(a: Complex) -> Complex:
    return a[1], -a[0]


def scaled(a: Complex, factor: float) -> Complex:
    return (a[0] * factor, a[1] * factor) if factor != 1.0 else a


def swapped(a: Complex) -> Complex:
    """Its parts exchanged: an inverse transform is a transform between two of these."""
    return a[1], a[0]


def multiplied(a: Complex, b: Complex) -> Complex:
    """(a₀ + i a₁)(b₀ + i b₁)."""
    fma = a[0].builder.fma
    return fma(a[0], b[0], -(a[1] * b[1])), fma(a[0], b[1], a[1] * b[0])


def butterfly(v: list[Complex]) -> list[Complex]:
    """The discrete Fourier transform of as many points as there are."""
    match len(v):
        case 1:
            return v
        case 2:
            return [add(*v), subtract(*v)]
        case 4:
            return _four(v)
        case 8:
            return _eight(v)
        case _:
            return _odd(v)


def _four(v: list[Complex]) -> list[Complex]:
    even, odd = butterfly(v[0::2]), butterfly(v[1::2])
    last = times_minus_i(odd[1])
    return [
        add(even[0], odd[0]),
        add(even[1], last),
        subtract(even[0], odd[0]),
        subtract(even[1], last),
    ]


def _eight(v: list[Complex]) -> list[Complex]:
    """Two of four points, the odd ones turned by multiples of an eighth: (1 - i)/√2 and powers."""
    even, odd = _four(v[0::2]), _four(v[1::2])
    half = math.sqrt(0.5)
    re, im = odd[1]
    one = scaled((re + im, im - re), half)
    two = times_minus_i(odd[2])
    re, im = odd[3]
    three = scaled((im - re, -(re + im)), half)
    turned = [odd[0], one, two, three]
    return [
        *(add(a, b) for a, b in zip(even, turned)),
        *(subtract(a, b) for a, b in zip(even, turned)),
    ]


def _odd(v: list[Complex]) -> list[Complex]:
    """Pairs x_m ± x_{p-m} share their cosines and sines."""
    count = len(v)
    half = count // 2
    sums = [add(v[m], v[count - m]) for m in range(1, half + 1)]
    gaps = [subtract(v[m], v[count - m]) for m in range(1, half + 1)]
    first = v[0]
    for s in sums:
        first = add(first, s)
    found: dict[int, Complex] = {0: first}
    fma = v[0][0].builder.fma
    for k in range(1, half + 1):
        re, im = v[0]
        across: Complex | None = None
        for m, (s, g) in enumerate(zip(sums, gaps), 1):
            angle = 2 * math.pi * (k * m % count) / count
            c, z = math.cos(angle), math.sin(angle)
            re, im = fma(s[0], c, re), fma(s[1], c, im)
            across = (
                (g[0] * z, g[1] * z)
                if across is None
                else (fma(g[0], z, across[0]), fma(g[1], z, across[1]))
            )
        assert across is not None
        found[k] = re + across[1], im - across[0]
        found[count - k] = re - across[1], im + across[0]
    return [found[k] for k in range(count)]
