"""SentencePiece's BPE: of all neighbours that form a piece, those of the best score merge first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Run:
    """Characters that have been merged, as a list linked by index."""

    text: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, order=True)
class _Pair:
    """Two neighbours that form a piece: the best score first, the leftmost of equal ones."""

    cost: float
    left: int
    right: int = field(compare=False)
    length: int = field(compare=False)


class SentencePieces:
    """Pieces by text, and their scores by token."""

    def __init__(
        self, vocabulary: Mapping[str, int], scores: Sequence[float], unknown: int | None
    ) -> None:
        self._vocabulary, self._scores, self._unknown = vocabulary, scores, unknown

    def encode(self, text: str) -> Iterator[int]:
        runs = [_Run(c, i - 1, i + 1) for i, c in enumerate(text)]
        if runs:
            runs[-1].after = -1
        self._merge(runs)
        at = 0 if runs else -1
        while at >= 0:
            yield from self._tokens(runs[at].text)
            at = runs[at].after

    def _merge(self, runs: list[_Run]) -> None:
        queue = [p for i in range(1, len(runs)) if (p := self._pair(runs, i - 1, i))]
        heapq.heapify(queue)
        while queue:
            pair = heapq.heappop(queue)
            left, right = runs[pair.left], runs[pair.right]
            if not left.text or not right.text or len(left.text + right.text) != pair.length:
                continue  # one of the two has become part of another piece
            left.text, right.text = left.text + right.text, ""
            left.after = right.after
            if right.after >= 0:
                runs[right.after].before = pair.left
            for a, b in ((left.before, pair.left), (pair.left, left.after)):
                if a >= 0 and b >= 0 and (made := self._pair(runs, a, b)):
                    heapq.heappush(queue, made)

    def _pair(self, runs: list[_Run], left: int, right: int) -> _Pair | None:
        text = runs[left].text + runs[right].text
        token = self._vocabulary.get(text)
        return None if token is None else _Pair(-self._scores[token], left, right, len(text))

    def _tokens(self, text: str) -> Iterator[int]:
        """The token of a piece; of what is none, those of its bytes."""
        token = self._vocabulary.get(text)
        if token is not None:
            yield token
            return
        for byte in text.encode():
            found = self._vocabulary.get(f"<0x{byte:02X}>", self._unknown)
            if found is not None:
                yield found
