"""Writing control code as LLVM text: words, calls, branches. No vectors, no arithmetic to speak of.

f = Function("define internal i64 @second(ptr %list)")
f.give(f.word("%list", 1))
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

Value = int | str
"""A number, or a name."""


class Function:
    """A function being written, line by line. Loop counters are stack slots, which LLVM turns
    into registers."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._is_ended = False

    def text(self) -> str:
        lines = [f"{self._head} #0 {{", "entry:", *self._entry, *self._lines]
        return "\n".join([*lines, *([] if self._is_ended else ["  unreachable"]), "}", ""])

    # -- lines ----------------------------------------------------------------------------------

    def let(self, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def _label(self) -> str:
        self._count += 1
        return f"L{self._count}"

    def _begin(self, label: str) -> None:
        """Lines from here on belong to the label; what comes before runs into it."""
        if not self._is_ended:
            self.do(f"br label %{label}")
        self._lines.append(f"{label}:")
        self._is_ended = False

    # -- memory ---------------------------------------------------------------------------------

    def slot(self, kind: str = "i64", align: int = 8) -> str:
        """A place on the stack, for the whole of the function."""
        self._count += 1
        self._entry.append(f"  %s{self._count} = alloca {kind}, align {align}")
        return f"%s{self._count}"

    def at(self, pointer: str, offset: Value) -> str:
        """The address some bytes further on."""
        return self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def nth(self, pointer: str, index: Value) -> str:
        """The address some words further on."""
        return self.let(f"getelementptr i64, ptr {pointer}, i64 {index}")

    def load(self, kind: str, pointer: str, offset: Value = 0) -> str:
        return self.let(f"load {kind}, ptr {self.at(pointer, offset)}")

    def word(self, pointer: str, index: Value = 0) -> str:
        return self.let(f"load i64, ptr {self.nth(pointer, index)}")

    def address(self, pointer: str, index: Value = 0) -> str:
        return self.let(f"load ptr, ptr {self.nth(pointer, index)}")

    def put(self, typed: str, pointer: str, index: Value = 0) -> None:
        """Store a word, given with its type."""
        self.do(f"store {typed}, ptr {self.nth(pointer, index)}")

    # -- values ---------------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> str:
        return self.let(f"add i64 {a}, {b}")

    def least(self, a: Value, b: Value) -> str:
        return self.let(f"call i64 @llvm.umin.i64(i64 {a}, i64 {b})")

    def test(self, comparison: str, kind: str, a: Value, b: Value) -> str:
        return self.let(f"icmp {comparison} {kind} {a}, {b}")

    def call(self, result: str, function: str, *typed: str) -> str:
        text = f"call {result} {function}({', '.join(typed)})"
        if result != "void":
            return self.let(text)
        self.do(text)
        return ""

    # -- control --------------------------------------------------------------------------------

    def give(self, typed: str = "void") -> None:
        """Return."""
        self.do(f"ret {typed}")
        self._is_ended = True

    def give_if(self, condition: str, typed: str) -> None:
        with self.when(condition):
            self.give(typed)

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Lines that run only if the i1 holds."""
        yes, done = self._label(), self._label()
        self.do(f"br i1 {condition}, label %{yes}, label %{done}")
        self._is_ended = True
        self._begin(yes)
        yield
        self._begin(done)

    @contextmanager
    def forever(self) -> Generator[tuple[str, str]]:
        """A loop; gives the labels that `jump_if` goes to for the next round and for the end."""
        again, done = self._label(), self._label()
        self._begin(again)
        yield again, done
        if not self._is_ended:
            self.do(f"br label %{again}")
        self._is_ended = True
        self._begin(done)

    def jump_if(self, condition: str, label: str) -> None:
        rest = self._label()
        self.do(f"br i1 {condition}, label %{label}, label %{rest}")
        self._is_ended = True
        self._begin(rest)

    @contextmanager
    def count(self, high: Value) -> Generator[str]:
        """A loop over 0, 1 … below `high`."""
        slot = self.slot()
        self.put("i64 0", slot)
        with self.forever() as (_, done):
            i = self.word(slot)
            self.jump_if(self.test("sge", "i64", i, high), done)
            yield i
            self.put(f"i64 {self.add(i, 1)}", slot)
