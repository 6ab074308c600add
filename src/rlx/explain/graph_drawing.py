"""Layered drawing of a graph: each card is below all that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEAD, LINE = 204.0, 26.0, 15.0
GAP, BETWEEN = 22.0, 46.0
SWEEPS = 4
Spot = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Card:
    title: str
    lines: tuple[str, ...]
    is_early: bool = False
    """Does it run before calls? It is placed just above its readers, not above everything."""

    @property
    def height(self) -> float:
        return HEAD + LINE * len(self.lines)


def placed(
    cards: Sequence[Card], links: Sequence[tuple[int, int]]
) -> tuple[list[Spot], tuple[float, float]]:
    """x, y, width and height of each card, and the size of the whole.

    Links lead from earlier cards to later ones.
    """
    above, below = neighbours(len(cards), links)
    layers = _ordered(_layers(cards, above, below), above, below)
    widest = max((len(layer) for layer in layers), default=0) * (WIDTH + GAP)
    spots: list[Spot] = [(0.0, 0.0, 0.0, 0.0)] * len(cards)
    y = 0.0
    for layer in layers:
        x = (widest - len(layer) * (WIDTH + GAP)) / 2
        for place, card in enumerate(layer):
            spots[card] = (x + place * (WIDTH + GAP), y, WIDTH, cards[card].height)
        y += max(cards[c].height for c in layer) + BETWEEN
    return spots, (max(widest, WIDTH), max(y, HEAD))


def neighbours(
    count: int, links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """What each card reads, and what reads it."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in links:
        above[b].append(a)
        below[a].append(b)
    return above, below


def _layers(
    cards: Sequence[Card], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[list[int]]:
    """One below the lowest that it reads; what runs before calls, as low as its readers allow."""
    depth: list[int] = []
    for reads in above:
        own = [a for a in reads if not cards[a].is_early]
        depth.append(1 + max((depth[a] for a in own), default=-1))
    for card in reversed(range(len(cards))):
        if cards[card].is_early and below[card]:
            depth[card] = min(depth[b] for b in below[card]) - 1
    top = min(depth, default=0)
    layers: list[list[int]] = [[] for _ in range(max(depth, default=top - 1) - top + 1)]
    for card, at in enumerate(depth):
        layers[at - top].append(card)
    return [layer for layer in layers if layer]


def _ordered(
    layers: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Each layer in the order of the middles of its neighbours, down and up again."""
    for sweep in range(SWEEPS):
        is_down = sweep % 2 == 0
        near = above if is_down else below
        place = {c: i - len(layer) / 2 for layer in layers for i, c in enumerate(layer)}
        for layer in layers if is_down else reversed(layers):
            layer.sort(key=lambda c: (_middle([place[n] for n in near[c]], place[c]), c))
            place.update((c, i - len(layer) / 2) for i, c in enumerate(layer))
    return layers


def _middle(places: Sequence[float], own: float) -> float:
    return sum(places) / len(places) if places else own
