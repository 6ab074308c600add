"""Where questions come from: a person, a pipe, or, where there is neither, a list."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator

BUILT_IN = (
    "I put too much salt in my broth, what now?",
    "Which transport runs overnight?",
    "Could there be oceans on distant worlds?",
    "Why did the price of the stock drop?",
    "How do I stop hackers from getting into my email?",
)
PATIENCE_S = 5.0
"""A pipe that says nothing for so long is nobody's."""


def questions() -> Iterator[str]:
    """One after the other; blank ones are left out."""
    source = _typed if sys.stdin is not None and sys.stdin.isatty() else _piped
    yield from source()


def _typed() -> Iterator[str]:
    print("Ask something, in your own words; an empty line ends it.")
    while True:
        try:
            text = input("\n? ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not text:
            return
        yield text


def _piped() -> Iterator[str]:
    found = [line.strip() for line in sys.stdin] if _has_words() else []
    for text in [t for t in found if t] or BUILT_IN:
        print(f"\n? {text}")
        yield text


def _has_words() -> bool:
    """Does somebody write to us? A pipe that stays silent must not keep us waiting."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    if stat.S_ISREG(kind):
        return True
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return False
    return bool(select.select([sys.stdin], [], [], PATIENCE_S)[0])
