"""Compile units: a program's LLVM text split into modules that compile in parallel.

A function that several modules use is defined in the first unit that needs it, and declared in the
others. Unit boundaries depend on the text alone, so that a program is the same however many threads
compile it.

Functions with relaxed multiply-adds of WebAssembly are a unit of their own: with relaxed SIMD, LLVM
makes of a comparison and a select of floats a relaxed minimum or maximum, which has any result for
NaN. Such functions are register tiles, which compare no floats; one that does has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import ATTRIBUTES, STREAMING, Function
from rlx.backends.cpu.llvm.multiply_add import RELAXED, without_relaxed

UNIT_CHARS = 100_000
"""Text that LLVM compiles in about a tenth of a second."""
_DEFINED = re.compile(r"^define (?:internal |dso_local )?([^@\n]*@([\w.$-]+)\()", re.MULTILINE)
_DECLARED = re.compile(r"^declare [^@\n]*@([\w.$-]+)\(", re.MULTILINE)
_NAMED = re.compile(r"@([\w.$-]+)")


@dataclass(frozen=True, slots=True)
class Unit:
    """The text of a module."""

    text: str
    functions: tuple[str, ...]
    """Those that a program calls."""


class Units:
    """Takes functions as they are emitted, and yields the texts of modules."""

    def __init__(self, isa: Isa) -> None:
        self._end = [ATTRIBUTES.format(isa.vector_bytes * 8), STREAMING, ""]
        self._plain: dict[str, str] = {}
        """Declarations and constants: every unit has those that it uses."""
        self._heads: dict[str, str] = {}
        """The declaration of every known function."""
        self._open: list[str] = []
        self._relaxed: list[str] = []
        self._size = 0

    def add(self, function: Function) -> Iterator[Unit]:
        """The units that are full with this function. It calls what it shares, and nothing else."""
        if function.name in self._heads:
            return
        yield from self.write([*self.shared(function.shared), function.text])

    def shared(self, items: Iterable[tuple[str, str]]) -> list[str]:
        """The functions among shared text that are new."""
        found: list[str] = []
        for name, text in items:
            if text.startswith("define "):
                found += [] if name in self._heads else [text]
            else:
                self._plain[name] = text
        return found

    def write(self, texts: Iterable[str]) -> Iterator[Unit]:
        """The units that are full with functions that call each other."""
        new = [without_relaxed(t) if RELAXED in t and "fcmp " in t else t for t in texts]
        for text in new:
            self._heads |= _declarations(text)
        for text in new:
            if RELAXED in text:
                self._relaxed.append(text)
                continue
            self._open.append(text)
            self._size += len(text)
            if self._size >= UNIT_CHARS:
                yield self.last()

    def relaxed(self) -> Iterator[Unit]:
        """The functions with relaxed multiply-adds, if there are any."""
        if self._relaxed:
            yield self._unit(self._relaxed)

    def last(self, *texts: str) -> Unit:
        """The remaining functions, and more, as a unit."""
        given = [*self._open, *texts]
        self._open, self._size = [], 0
        return self._unit(given)

    def _unit(self, texts: Iterable[str]) -> Unit:
        body = "\n".join(texts).replace("define internal ", "define hidden ")
        defined = {m[2]: m[1] for m in _DEFINED.finditer(body)}
        own = {*defined, *_DECLARED.findall(body)}
        used = [n for n in dict.fromkeys(_NAMED.findall(body)) if n not in own]
        outside = [self._plain.get(n) or self._heads[n] for n in used]
        called = tuple(name for name, head in defined.items() if not head.startswith("hidden "))
        return Unit("\n".join([*outside, body, *self._end]), called)


def _declarations(text: str) -> dict[str, str]:
    found = _DEFINED.finditer(text)
    return {m[2]: f"declare hidden {_head(text, m.start(1), m.end(1))}" for m in found}


def _head(text: str, start: int, at: int) -> str:
    """From the type of a function's result to the end of its arguments."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[start:at]
