"""What an engine is to rlx: arrays, a namespace, and a compiler of whole functions.

An engine owns its fusion, its memory and its schedule. rlx gives it one function per segment of a
plan, of arrays whose shapes are known, and keeps what it made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from rlx.backends.engine.calls import CallTable
from rlx.backends.engine.derive import Derivation
from rlx.core.dtype import DType
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.ops.op import Array, Op, python_names

Compiled = Callable[..., Sequence[Any]]
"""Arrays in order to results in order."""
Body = Callable[..., Sequence[Any]]
"""A graph that control flow holds, as a function of arrays."""


class Engine(ABC):
    """An array library that compiles functions of its arrays."""

    name: ClassVar[str]
    table: ClassVar[CallTable]
    own_control: ClassVar[frozenset[str]] = frozenset()
    """Of "if", "while" and "scan", those that a compiled function may hold."""

    def __init__(self) -> None:
        self._derivation: Derivation | None = None

    # -- what it is --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the engine and its device: part of the key of what it compiled."""

    @property
    @abstractmethod
    def namespace(self) -> Any:
        """What takes the place of `np` in derived calls."""

    @abstractmethod
    def holds(self, dtype: DType) -> bool:
        """Can an array of the engine have this dtype?"""

    @abstractmethod
    def dtype(self, dtype: DType) -> Any:
        """What the engine calls a dtype that it holds."""

    # -- arrays ------------------------------------------------------------------------------------

    @abstractmethod
    def is_own(self, value: Any) -> bool:
        """Is it an array of the engine?"""

    @abstractmethod
    def shape_of(self, array: Any) -> Shape:
        """Dims and dtype of an array of the engine."""

    @abstractmethod
    def array(self, value: Array) -> Any:
        """A NumPy array as one of the engine's, which may read the same memory."""

    def weight(self, node: Node, value: Array, sizes: Mapping[str, int]) -> Any:
        """A value that calls read and that stays on the engine; sizes are those of named dims."""
        return self.array(value)

    def placed(self, node: Node, value: Any, sizes: Mapping[str, int]) -> Any:
        """A value inside of a function that is traced, where it is to lie."""
        return value

    @abstractmethod
    def constant(self, value: Array) -> Any:
        """A small array that is part of a function that is compiled."""

    @abstractmethod
    def numpy(self, array: Any) -> Array:
        """An array of the engine as NumPy's, once it is known; perhaps the same memory, which
        nobody may write then."""

    def copied(self, array: Any) -> Any:
        """An array of the engine that stays as it is whatever calls consume: itself, where they
        consume none."""
        return array

    def is_consumed(self, array: Any) -> bool:
        """Has a call written over the memory of an array of the engine?"""
        return False

    @abstractmethod
    def cast(self, array: Any, dtype: DType) -> Any:
        """The engine's own cast: rounding to nearest even between floats."""

    @abstractmethod
    def failed(self, flag: Any) -> Any:
        """An i32: 0 where all of these bools are true, else 1."""

    @abstractmethod
    def stack(self, arrays: Sequence[Any]) -> Any:
        """Arrays of one shape along a new first axis."""

    # -- functions ---------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[Any]:
        """Settings of the engine that tracing and calling need, which the caller's code keeps."""
        return nullcontext()

    @abstractmethod
    def compiled(self, function: Compiled, shapes: Sequence[Shape]) -> Compiled:
        """The function compiled for arrays of these shapes, which may also be NumPy's where
        `takes_numpy`."""

    compiles_at_first_call: ClassVar[bool] = False
    """Is what `compiled` gives traced and compiled when it is called first?"""
    takes_numpy: ClassVar[bool] = False
    """May arrays given to a compiled function be NumPy's?"""

    def acceptor(self, shapes: Sequence[Shape]) -> Callable[[Sequence[Any]], bool]:
        """Are values arrays of these shapes that a compiled function takes as they are?"""
        wanted = [(s.static_dims, self.dtype(s.dtype)) for s in shapes]
        is_own = self.is_own

        def takes(values: Sequence[Any]) -> bool:
            for value, (dims, dtype) in zip(values, wanted):
                if not is_own(value) or value.dtype != dtype or tuple(value.shape) != dims:
                    return False
            return True

        return takes

    @abstractmethod
    def begin(self, arrays: Sequence[Any]) -> None:
        """Start computing what is lazy; nothing waits for it."""

    @abstractmethod
    def wait(self, arrays: Sequence[Any]) -> None:
        """Until these are computed."""

    # -- control flow, of those that it owns -------------------------------------------------------

    def branch(self, predicate: Any, then: Body, other: Body, operands: Sequence[Any]) -> Any:
        """One of two functions of the operands; the other does not run."""
        raise NotImplementedError

    def loop(self, condition: Body, body: Body, carries: Sequence[Any]) -> Any:
        """The carries after `body` was applied for as long as `condition` of them is true."""
        raise NotImplementedError

    def scan(
        self,
        body: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
        carries: Sequence[Any],
        slices: Sequence[Any],
        length: int,
        *,
        reverse: bool,
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """The last carries, and what each step gave, stacked."""
        raise NotImplementedError

    # -- errors ------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: Exception) -> bool:
        """Is it the engine's error of memory that there is not?"""
        return isinstance(error, MemoryError)

    def error(self, where: str, error: Exception) -> Exception:
        """What the engine raised, as an error of rlx that says where."""
        said = " ".join(str(error).split())[:500] or type(error).__name__
        if self.is_out_of_memory(error):
            return OutOfMemoryError(f"{where}: {self.name} has not enough memory: {said}")
        return Error(
            f"{where}: {self.name} failed: {said}. target='cpu' runs the model without it."
        )

    # -- calls -------------------------------------------------------------------------------------

    def function(self, op: Op) -> Callable[..., Any]:
        """The call of an op, which is in the table."""
        row = self.table.get(op.name)
        if row is None:
            raise Error(f"{self.name} has no call for {op.name}, which a derived call is made of.")
        return row.function or self._derive(op)

    def _derive(self, op: Op) -> Callable[..., Any]:
        if self._derivation is None:
            self._derivation = Derivation(self.namespace, self._inner)
        return self._derivation.function(op.reference)

    def _inner(self, op: Op) -> Callable[..., Any]:
        """An op inside of another's meaning: attributes get their defaults and canonical form."""

        def call(*operands: Any, **attrs: Any) -> Any:
            shapes = [self.shape_of(o) for o in operands]
            return self.function(op)(*operands, **python_names(op.canonical(attrs, shapes)))

        return call
