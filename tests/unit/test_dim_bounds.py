"""What is said to be provable about sizes holds for every size."""

from __future__ import annotations

import math
import random

import pytest

from rlx.dim import Dim, DimLike, evaluate, provably_le
from rlx.errors import GraphError


def some(rng: random.Random, n: Dim) -> DimLike:
    inner = n * rng.randint(0, 2) + rng.randint(-3, 3)
    quotient = inner // rng.randint(1, 4)
    return rng.randint(-3, 3) * quotient + rng.randint(-2, 2) * n + rng.randint(-5, 5)


def test_what_is_provable_holds_for_every_size():
    rng, proved = random.Random(0), 0
    for _ in range(3000):
        n = Dim("n", rng.randint(0, 3), rng.choice([None, 9]))
        a, b = some(rng, n), some(rng, n)
        if provably_le(a, b):
            proved += 1
            for size in range(n.min or 0, 10):
                assert evaluate(a, {"n": size}) <= evaluate(b, {"n": size}), (a, b, size)
    assert proved > 500


def test_strided_windows_stay_inside():
    h = Dim("h", 3, 100)
    assert provably_le(2 * ((h - 3) // 2) + 3, h)
    assert not provably_le(2 * ((h - 3) // 2) + 4, h)
    assert provably_le(h // 2 + h // 3 + h // 6, h)
    assert not provably_le(h // 2 + h // 3 + h // 5, h)


def test_what_takes_too_long_to_prove_is_not_known():
    every = [Dim(f"n{i}", 1) for i in range(12)]
    both = math.prod(every[:6], start=1) * math.prod(n + 2 for n in every[6:9])
    assert not provably_le(both * every[9] * every[10] * every[11], both)


@pytest.mark.parametrize("kind", ["terms", "depth", "doubling", "coefficient"])
def test_sizes_do_not_explode(kind):
    names = [Dim(f"d{i}", 1) for i in range(8)]

    def grow():
        total = sum(names[1:], names[0])
        for i in range(1, 200):
            if kind == "terms":
                total = total * sum(names[1:], names[0])
            elif kind == "depth":
                total = (total + i) // 3
            elif kind == "doubling":
                total = total // 2 + total // 3
            else:
                total = total * 2**62

    with pytest.raises(GraphError, match=r"too large|past"):
        grow()


def test_products_of_what_is_above_its_least() -> None:
    n, h, w = Dim("n"), Dim("h", 3), Dim("w", 2)
    assert provably_le(0, n * (h - 2) * ((w - 2) // 2 + 1))
    assert provably_le(n, n * (h - 2))
    assert not provably_le(1, n * (h - 2))
    assert not provably_le(0, n * (h - 4))


def test_numbers_are_added_and_multiplied_as_sums_are() -> None:
    """What is known without looking at the terms is what the terms say."""
    rng = random.Random(1)
    for _ in range(300):
        n, h = Dim("n", rng.randint(0, 3)), Dim("h", 1, 9)
        a, k = some(rng, n) * h + some(rng, n), rng.randint(-4, 4)
        if not isinstance(a, Dim):
            continue
        added = a + (n + k) - n
        times = sum([a] * abs(k), 0) if k >= 0 else -sum([a] * -k, 0)
        for quick, slow in ((a + k, added), (a - -k, added), (k + a, added), (a * k, times)):
            assert quick == slow
            assert hash(quick) == hash(slow)
            assert str(quick) == str(slow)
            if isinstance(quick, Dim) and isinstance(slow, Dim):
                assert (quick.weight, quick.depth) == (slow.weight, slow.depth)
                assert quick.bounds == slow.bounds
