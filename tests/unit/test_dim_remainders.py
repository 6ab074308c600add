"""Remainders of sizes: what two ways of rounding come to is one expression."""

from __future__ import annotations

import random

import pytest

from rlx.core.dim import Dim, DimLike, evaluate, exact_div, provably_le
from rlx.core.extent import ceiling, measured

H, W = Dim("h"), Dim("w", 0, 100)
SIZES = [(h, w) for h in (0, 1, 2, 5, 8, 63, 64, 129) for w in (0, 1, 7, 50, 100)]


def drawn(rng: random.Random, k: int, depth: int = 2) -> DimLike:
    """A sum of sizes and of remainders by multiples of k."""
    total: DimLike = rng.randint(-9, 9)
    for dim in (H, W, H * W):
        total = total + rng.randint(-5, 5) * dim
    if depth:
        total = total + rng.randint(-3, 3) * (drawn(rng, k, depth - 1) % (k * rng.randint(1, 3)))
    return total


@pytest.mark.parametrize("k", [2, 3, 4, 7, 8, 64])
def test_a_remainder_is_what_it_is_of_modulo_its_divisor(k: int) -> None:
    rng = random.Random(k)
    for _ in range(60):
        a, b = drawn(rng, k), drawn(rng, k)
        assert (a - a % k) % k == 0
        assert (a - a % (2 * k)) % k == 0
        assert (a % k + b % (3 * k) - (a + b)) % k == 0
        multiple = exact_div(a - a % k, k)
        for h, w in SIZES:
            sizes = {"h": h, "w": w}
            at = evaluate(a, sizes)
            assert evaluate(a % k, sizes) == at % k
            assert multiple is not None
            assert evaluate(multiple, sizes) == at // k


@pytest.mark.parametrize("k", [3, 4, 7, 8, 64])
def test_rounding_down_takes_the_remainder_off(k: int) -> None:
    for dim in (H, W, H * W, H + 5, 2 * k * H + W, H // 3):
        assert dim // k * k == dim - dim % k
        assert (dim % (2 * k)) % k == dim % k


@pytest.mark.parametrize("k", [2, 3, 4, 7, 8, 64])
def test_what_fills_the_last_window_is_a_rounding_up(k: int) -> None:
    up = (H + k - 1) // k
    for fill in ((-H) % k, (k - H % k) % k, ((k - 1) * H) % k if k > 2 else (-H) % k):
        assert H + fill == up * k
        assert exact_div(H + fill, k) == (H + fill) // k == up


@pytest.mark.parametrize("k", [2, 3, 4, 7, 8, 64])
def test_bounds_of_remainders_are_exact(k: int) -> None:
    for dim in (H, -H, 3 * H + 5, W - H):
        rest = dim % k
        low, high = rest.bounds if isinstance(rest, Dim) else (rest, rest)
        found = {evaluate(rest, {"h": h, "w": w}) for h in range(3 * k) for w in range(3)}
        assert (low, high) == (min(found), max(found))
        assert provably_le(H * rest, (k - 1) * H)


def test_storage_for_what_is_rounded_up_is_as_tight_as_before() -> None:
    m = measured("m", 1000)
    assert ceiling(m + (-m) % 8) == 1000
    assert ceiling(m + (-m) % 7) == 1001
    assert ceiling(m % 8) == 7
