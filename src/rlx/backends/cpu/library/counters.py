"""Mutable integers in a function, and while loops on them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rlx.backends.cpu.llvm.builder import Bound, Code
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dtype import DType


class Variable:
    """A variable, an i64 or of another type."""

    def __init__(self, code: Code, value: Bound, kind: str = "i64") -> None:
        self._code, self._kind, self._slot = code, kind, code.slot(kind)
        self.set(value)

    def get(self) -> str:
        return self._code.let(f"load {self._kind}, ptr {self._slot}")

    def set(self, value: Bound) -> None:
        self._code.do(f"store {self._kind} {value}, ptr {self._slot}")

    def add(self, value: Bound) -> None:
        self.set(self._code.i64("add", self.get(), value))


@contextmanager
def loop_while(code: Code, condition: Callable[[], str]) -> Generator[None]:
    """A while loop; the condition is emitted in its header."""
    head, body, done = (code.label() for _ in range(3))
    code.do(f"br label %{head}")
    code.lines.append(f"{head}:")
    code.do(f"br i1 {condition()}, label %{body}, label %{done}")
    code.lines.append(f"{body}:")
    yield
    code.do(f"br label %{head}")
    code.lines.append(f"{done}:")


@contextmanager
def each_bit(code: Code, bits: str) -> Generator[str]:
    """The indices of the set bits of an i64, from the lowest."""
    left = Variable(code, bits)
    with loop_while(code, lambda: code.let(f"icmp ne i64 {left.get()}, 0")):
        now = left.get()
        yield code.intrinsic("cttz.i64", "i64", f"i64 {now}", "i1 true")
        less = code.let(f"sub i64 {now}, 1")
        left.set(code.let(f"and i64 {now}, {less}"))


def is_first_task(w: Writer) -> str:
    """Is this the task with unit 0, which always runs?"""
    return w.code.let("icmp eq i64 %start, 0")


def store_i64(w: Writer, value: Bound, number: int, place: Bound) -> None:
    """An integer to an array of i64."""
    w.code.do(f"store i64 {value}, ptr {w.pointer(number, place, DType.I64)}, align 8")
