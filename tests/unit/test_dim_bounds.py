"""What is said to be provable about sizes holds for every size."""

from __future__ import annotations

import math
import random

import pytest

import rlx
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, evaluate, exact_div, provably_le
from rlx.core.errors import GraphError
from tests.effort import tries


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


def test_quotients_are_bounded_in_products_too():
    """Sizes of a batch of what strided convolutions halve."""
    b, s = Dim("b"), Dim("s")
    frames = s // 64
    halved = (frames + 1) // 2
    assert provably_le(b * halved, b * frames + b)
    assert provably_le(b * halved, b * frames)
    assert not provably_le(b * halved, b * frames - b)
    assert provably_le(320 * b * halved, 1024 * b * frames + 768 * b + 64 * ((b * s + 63) // 64))
    for batch in range(4):
        for size in range(0, 300, 13):
            sizes = {"b": batch, "s": size}
            assert evaluate(b * halved, sizes) <= evaluate(b * frames + b, sizes)


def test_sizes_are_whole() -> None:
    """A size above -1 is not negative: n - (n + 1) // 2 is at least -1 / 2."""
    n, m = Dim("n"), Dim("m", 1)
    assert provably_le((n + 1) // 2, n)
    assert provably_le((n + 2) // 3, n)
    assert not provably_le((n + 3) // 3, n)
    assert provably_le(m // 2 + 1, m)
    assert not provably_le(n // 2 + 1, n)
    assert provably_le((m - 1) // 2 + m // 2 + 1, m)


def test_maxima_are_counted_from_their_least() -> None:
    b, n = Dim("b"), Dim("n")
    assert provably_le(0, 10 * b * dim_max(n, 1) - 8 * b)
    assert provably_le(b, 64 * ((10 * b * dim_max(n, 1) + 56 * b + 63) // 64) - 64 * b + n)
    assert not provably_le(0, 10 * b * dim_max(n, 1) - 11 * b)


def test_what_is_added_hides_no_common_factor() -> None:
    a, b, n = Dim("a"), Dim("b"), Dim("n")
    apart = n * n * dim_max(a, b) - n * n * dim_min(a, b)
    assert provably_le(0, apart + 63)
    assert provably_le(0, (4 * apart + 63) // 64 + (n + 63) // 64)
    assert not provably_le(0, 63 - apart)


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


Pair = tuple[DimLike, dict[tuple[int, int], int]]


def drawn(rng: random.Random, depth: int, sizes: list[tuple[int, int]]) -> Pair:
    """A dim over n and m, and what it is at each of some sizes, computed beside it."""
    if depth == 0:
        kind = rng.randrange(3)
        dims: list[DimLike] = [Dim("n", 1), Dim("m", 0, 9), rng.randint(-4, 6)]
        picks = (lambda n, m: n, lambda n, m: m, lambda n, m: dims[2])
        return dims[kind], {s: int(picks[kind](*s)) for s in sizes}  # pyright: ignore[reportArgumentType]
    (a, x), (b, y) = (drawn(rng, depth - 1, sizes) for _ in range(2))
    k = rng.choice([2, 3, 5, 7, 64])
    c = rng.randint(-3, 3)
    match rng.randrange(6):
        case 0:
            return a + c * b, {s: x[s] + c * y[s] for s in sizes}
        case 1:
            return a // k, {s: x[s] // k for s in sizes}
        case 2:
            return a % k, {s: x[s] % k for s in sizes}
        case 3:
            return dim_max(a, b), {s: max(x[s], y[s]) for s in sizes}
        case 4:
            return dim_min(a, b), {s: min(x[s], y[s]) for s in sizes}
        case _:
            return (a - b + k - 1) // k, {s: (x[s] - y[s] + k - 1) // k for s in sizes}


def test_expressions_are_what_they_are_made_of_and_inside_their_bounds() -> None:
    rng = random.Random(11)
    sizes = [(n, m) for n in (1, 2, 3, 5, 8, 64, 129) for m in (0, 1, 4, 9)]
    for _ in range(1500):
        dim, values = drawn(rng, rng.randint(1, 4), sizes)
        low, high = dim.bounds if isinstance(dim, Dim) else (dim, dim)
        shown = provably_le(0, dim)
        for (n, m), value in values.items():
            assert evaluate(dim, {"n": n, "m": m}) == value, dim
            assert low is None or low <= value, dim
            assert high is None or value <= high, dim
            assert value >= 0 or not shown, dim


@pytest.mark.parametrize("step", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("start", [0, 1, 2, 5])
def test_what_a_strided_slice_leaves_is_never_negative(start: int, step: int) -> None:
    """n - min(n, start) has a multiple of `step` taken off only where that leaves no less than 0;
    times another dim as well."""
    n, b = Dim("n"), Dim("b")
    size = (n - dim_min(n, start) + step - 1) // step
    assert isinstance(size, Dim)
    assert size.min == 0
    assert provably_le(0, b * size)
    assert provably_le(4 * b * size, (4 * b * size + 63) // 64 * 64)
    assert provably_le(0, (4 * b * size + 63) // 64 * 64)


def test_a_maximum_takes_in_what_is_added_to_it() -> None:
    """max(a + c, b + c) = c + max(a, b), so a + max(b - a, 0) is max(a, b)."""
    n, h, k = Dim("n"), Dim("h", 1), Dim("k")
    assert n + dim_max(256 - n, 0) == dim_max(256, n)
    assert dim_max(256, n) - n == dim_max(256 - n, 0)
    assert n - dim_min(n, h) == -dim_min(h - n, 0)
    assert h * n + h * dim_max(256 - n, 0) == h * dim_max(256, n)
    assert 3 * n + 2 * dim_max(k - n, 0) == n + 2 * dim_max(k, n)
    assert dim_max(n, 5) - 5 == dim_max(n - 5, 0)
    assert dim_max(256 - n, 0).bounds == (0, 256)


def test_sums_of_maxima_have_one_form() -> None:
    """Whatever the order in which terms are added, and whatever is added and taken off again."""
    rng = random.Random(5)
    n, m = Dim("n"), Dim("m", 0, 9)
    for _ in range(300):
        cases = [rng.choice([dim_max, dim_min])(some(rng, n) - m, some(rng, m)) for _ in range(3)]
        terms = [*(rng.choice([-2, -1, 1, 3]) * c for c in cases), rng.randint(-3, 3) * n, -m, 4]
        total = sum(terms, 0)
        rng.shuffle(terms)
        moved = some(rng, n) + rng.choice(cases)
        for same in (sum(terms, 0), total + moved - moved, moved + total - moved):
            assert same == total
            assert str(same) == str(total)
        for sizes in ({"n": 0, "m": 0}, {"n": 7, "m": 3}, {"n": 300, "m": 9}):
            assert evaluate(total, sizes) == sum(evaluate(t, sizes) for t in terms)


def test_a_size_that_may_be_negative_names_the_range_where_it_is_not() -> None:
    spectrum, taps = rlx.Graph("spectrum"), rlx.Graph("taps")
    spectrum.set_outputs([spectrum.irfft(spectrum.input("x", ["n", "m"], "c64"))])
    taps.set_outputs([taps.conv(taps.input("x", [1, 1, 5]), taps.input("k", [1, 1, "k"]))])
    for graph, dim in ((spectrum, r"'m', min=1"), (taps, r"'k', min=0, max=6")):
        with pytest.raises(rlx.GraphError, match=rf"Dim\({dim}\)\."):
            rlx.compile(graph)


def polynomial(rng: random.Random, atoms: list[DimLike], terms: int) -> DimLike:
    total: DimLike = rng.randint(-3, 3)
    for _ in range(terms):
        total = total + rng.randint(-4, 4) * math.prod(rng.choices(atoms, k=rng.randint(1, 2)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return total


def test_a_product_divided_by_a_factor_is_the_other() -> None:
    """Of sums too, whatever they are sums of; with a rest it is no quotient."""
    rng = random.Random(5)
    p, b, n = Dim("p", 1), Dim("b"), Dim("n")
    atoms: list[DimLike] = [p, b, n // 3, n % 4 + 1, dim_max(b, 5), 2 * p + 1]
    assert exact_div(192 * p + 192, 64 * p + 64) == 3
    assert (192 * p + 192) // (64 * p + 64) == 3
    assert (6 * p * b + 6 * p) // (3 * p) == 2 * b + 2
    assert exact_div(0, p + 1) == 0
    assert exact_div(5, p + 1) is None
    assert exact_div(p + 2, p + 1) is None
    for _ in range(tries(400, 4000)):
        one, other = polynomial(rng, atoms, 2), polynomial(rng, atoms, 2)
        if one == 0:
            continue
        found = exact_div(one * other, one)
        sizes = {"p": rng.randint(1, 9), "b": rng.randint(0, 9), "n": rng.randint(0, 20)}
        if found is not None:
            assert evaluate(found * one, sizes) == evaluate(one * other, sizes)
        assert found is not None or any(
            isinstance(d, Dim) and "max" in str(d) for d in (one, other)
        )
        rest = exact_div(one * other + 1, one)
        assert rest is None or evaluate(rest * one, sizes) == evaluate(one * other + 1, sizes)
