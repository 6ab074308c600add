"""Cards of a graph: below what they read, and none on another."""

from __future__ import annotations

import random
from itertools import pairwise

from rlx.explain.graph_drawing import GAP, Card, placed


def test_cards_lie_below_what_they_read_and_apart() -> None:
    rng = random.Random(3)
    cards = [Card(f"k{i}", ("a",) * rng.randrange(4)) for i in range(200)]
    links = sorted({(rng.randrange(b), b) for b in range(1, 200) for _ in range(2)})
    spots, (width, height) = placed(cards, links)
    for a, b in links:
        assert spots[a][1] + spots[a][3] < spots[b][1]
    for x, y, w, h in spots:
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    rows: dict[float, list[float]] = {}
    for x, y, *_ in spots:
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a >= spots[0][2] + GAP - 1e-9 for a, b in pairwise(row))


def test_what_runs_before_calls_lies_just_above_its_reader() -> None:
    cards = [Card("pack", (), True), Card("a", ()), Card("b", ()), Card("c", ())]
    spots, _ = placed(cards, [(1, 2), (2, 3), (0, 3)])
    assert spots[0][1] == spots[2][1]


def test_nothing_is_drawn_of_nothing() -> None:
    spots, (width, height) = placed([], [])
    assert spots == []
    assert width > 0
    assert height > 0
