"""Tables of text reports: aligned columns, and long cells in several lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rlx.core.printable import one_line
from rlx.explain.naming import NO_BREAK

WIDTH = 120
"""Columns of a text report. A table whose figures need more has what they need."""
NARROWEST, LONG_WORD = 12, 24
"""Characters of a column of text, however many columns there are: those of its longest word, within
these."""
SENTENCE = 40
"""Characters of a last column from which it may be below the others."""
GAP, INDENT = 2, 4


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""
    """What is not listed, or how to read it."""


def without_empty(section: Section) -> Section:
    """Without columns that hold nothing."""
    held = [i for i in range(len(section.columns)) if any(row[i] for row in section.rows)]
    rows = [tuple(row[i] for i in held) for row in section.rows]
    return replace(section, columns=tuple(section.columns[i] for i in held), rows=rows)


def table_lines(section: Section) -> list[str]:
    """A table below its title."""
    note = folded(section.note) if section.note else []
    return ["", f"{section.title}:", *aligned([section.columns, *section.rows]), *note]


def folded(line: str, width: int = WIDTH) -> list[str]:
    """A sentence in lines of the width of a report."""
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False) or [""]


def aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns; those of numbers to the right. Of a table that is too wide long sentences in
    its last column are below their rows, and cells of text are folded."""
    table = [tuple(map(one_line, row)) for row in table]
    right = [is_figure(row[i] for row in table[1:]) for i in range(len(table[0]))]
    widths = _natural(table)
    if _total(widths) > WIDTH and widths[-1] > SENTENCE and not right[-1]:
        rows = [row[:-1] for row in table]
        widths, indent = _fitted(rows, right), " " * INDENT
        below = (
            textwrap.indent("\n".join(folded(row[-1], WIDTH - INDENT)), indent) for row in table
        )
        return [line for row, text in zip(rows, below)
                for line in (*_lines(row, widths, right), *text.splitlines())]  # fmt: skip
    widths = _fitted(table, right)
    return [line for row in table for line in _lines(row, widths, right)]


def is_figure(cells: Iterable[str]) -> bool:
    """Does a column hold numbers, rather than text that begins with some?"""
    return all(len(c) <= LONG_WORD and c[:1] in "-+×0123456789" for c in cells)


def _natural(table: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fitted(table: Sequence[tuple[str, ...]], right: Sequence[bool]) -> list[int]:
    """The widths of the longest cells; of text as much less as the report is wider otherwise, the
    widest columns first, and down to that of a word."""
    widths, words = _natural(table), [_longest_word(column) for column in zip(*table)]
    least = [w if is_right else min(w, max(word, NARROWEST))
             for w, word, is_right in zip(widths, words, right)]  # fmt: skip
    for _ in range(_total(widths) - WIDTH):
        room = [w if w > low else 0 for w, low in zip(widths, least)]
        if not any(room):
            break
        widths[room.index(max(room))] -= 1
    return widths


def _longest_word(column: Sequence[str]) -> int:
    return min(LONG_WORD, max(len(word) for cell in column for word in cell.split(" ")))


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    cells = [textwrap.wrap(c, w, break_on_hyphens=False) if len(c) > w else [c]
             for c, w in zip(row, widths)]  # fmt: skip
    for line in zip_longest(*cells, fillvalue=""):
        yield (
            (" " * GAP)
            .join(
                cell.rjust(width) if is_right else cell.ljust(width)
                for cell, width, is_right in zip(line, widths, right)
            )
            .rstrip()
            .replace(NO_BREAK, " ")
        )
