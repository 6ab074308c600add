"""Text out of tokens: whole characters, and an end at stop texts."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes in, text out. What may still become a character or a stop text is held back."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = tuple(filter(None, stops))
        self._held = ""
        self.is_stopped = False

    def add(self, data: bytes) -> str:
        """The text that is certain now; a stop text, and what follows it, is left out."""
        return self._released(self._held + self._decoder.decode(data))

    def rest(self) -> str:
        """What was held back, at the end of an answer."""
        return self._released(self._held + self._decoder.decode(b"", final=True), is_end=True)

    def _released(self, text: str, *, is_end: bool = False) -> str:
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if is_end else max((overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """How long an end of the text is a beginning of the stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
