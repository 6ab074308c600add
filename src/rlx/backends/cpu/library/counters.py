"""Mutable integers in a function, and while loops on them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function_nodes import I1, I64
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Scalar
from rlx.core.dtype import DType
from rlx.program.types import POINTER, Type

KINDS: dict[str, Type] = {"i64": I64, "i1": I1, "ptr": POINTER}


class Variable:
    """A variable, an i64 or of another type."""

    def __init__(self, code: Code, value: Bound, kind: str = "i64") -> None:
        self._code, self._kind = code, KINDS[kind]
        self._slot = code.local(self._kind)
        self.set(value)

    def get(self) -> Scalar:
        return self._code.load_uniform(self._slot, self._kind)

    def set(self, value: Bound) -> None:
        self._code.store_uniform(self._slot, value, self._kind)

    def add(self, value: Bound) -> None:
        self.set(self._code.i64("add", self.get(), value))


@contextmanager
def each_bit(code: Code, bits: str) -> Generator[str]:
    """The indices of the set bits of an i64, from the lowest."""
    left = Variable(code, bits)
    with code.loop_while(lambda: code.compare("ne", left.get(), 0)):
        now = left.get()
        yield code.intrinsic("cttz.i64", "i64", f"i64 {now}", "i1 true")
        left.set(code.integer("and", now, code.integer("sub", now, 1)))


def is_first_task(w: Writer) -> str:
    """Is this the task with unit 0, which always runs?"""
    return w.code.compare("eq", "%start", 0)


def store_i64(w: Writer, value: Bound, number: int, place: Bound) -> None:
    """An integer to an array of i64."""
    w.code.store_scalar(w.pointer(number, place, DType.I64), value, DType.I64, 8)
