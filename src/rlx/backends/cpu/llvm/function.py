"""Native functions as LLVM text, and code that is written when it is first read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

from rlx.backends.cpu.isa import Isa
from rlx.core.dim import DimLike

ATTRIBUTES = (
    'attributes #0 = {{ nounwind "min-legal-vector-width"="{0}" "prefer-vector-width"="{0}" }}'
)
STREAMING = "!0 = !{i32 1}"


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel's text, and what it shares with others of its module."""

    name: str
    text: str
    shared: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A function, and the dims whose values it is called with, in order."""

    function: Function
    sizes: tuple[DimLike, ...] = ()


class TaskCode:
    """The code of a task, written when it is first read: to choose a kernel, to schedule it and to
    describe it writes none.

    `write` is a pure function of the name. Codes of equal keys write the same text but for it."""

    def __init__(
        self, name: str, write: Callable[[str], Source], key: Hashable | None = None
    ) -> None:
        self.name, self._write = name, write
        self.key = self if key is None else key

    @cached_property
    def source(self) -> Source:
        """What it writes."""
        return self._write(self.name)

    def __repr__(self) -> str:
        return f"TaskCode({self.name})"


def head_of(name: str) -> str:
    """The signature of every function that a program calls."""
    args = "ptr %buffers, ptr %sizes, i64 %start, i64 %stop, ptr %scratch, ptr %poll"
    return f"define dso_local i32 @{name}({args})"


def module(functions: Iterable[Function], isa: Isa) -> str:
    """The text of a module: what is shared once, then the functions."""
    made = list(functions)
    shared = {name: text for f in made for name, text in f.shared}
    attributes = ATTRIBUTES.format(isa.vector_bytes * 8)
    return "\n".join([*shared.values(), *(f.text for f in made), attributes, STREAMING, ""])
