"""Builder of a task's function: sizes, buffers and element accesses, scalar or vector."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Function, Source, head_of
from rlx.backends.cpu.llvm.function_nodes import I64
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.program.types import POINTER


class Writer:
    """A task's function under construction. With one lane, vectors are scalars."""

    def __init__(self, isa: Isa, lanes: int = 1, shared: dict[str, str] | None = None) -> None:
        self.code = Code(lanes, isa, shared)
        self._sizes: dict[DimLike, str] = {}
        self._buffers: dict[int, str] = {}

    @property
    def sizes(self) -> tuple[DimLike, ...]:
        """The dims whose values the function takes as arguments, in order."""
        return tuple(self._sizes)

    def size(self, dim: DimLike) -> Bound:
        """The value of a dim: a constant where it is static, else an argument."""
        return int(dim) if is_static(dim) else self.argument(dim)

    def argument(self, dim: DimLike) -> str:
        """The value of a dim as an argument, even where it is static."""
        if dim not in self._sizes:
            name = f"%n{len(self._sizes)}"
            number = len(self._sizes)
            self.code.entry += self.code.element_of(name, f"{name}.at", "%sizes", number, I64)
            self._sizes[dim] = name
        return self._sizes[dim]

    def buffer(self, number: int) -> str:
        """The address of a buffer of the task."""
        if number not in self._buffers:
            name = f"%b{number}"
            at = f"{name}.at"
            self.code.entry += self.code.element_of(name, at, "%buffers", number, POINTER)
            self._buffers[number] = name
        return self._buffers[number]

    # -- positions ------------------------------------------------------------------------------

    def place(self, layout: Layout, positions: Sequence[Bound]) -> Bound:
        """The offset of an element, in elements from the start of its buffer."""
        total = self.size(layout.offset)
        for stride, position in zip(layout.strides, positions, strict=True):
            step = self.code.i64("mul", position, self.size(stride))
            total = self.code.i64("add", total, step)
        return total

    def split(self, number: Bound, dims: Sequence[DimLike]) -> list[Bound]:
        """Delinearise an index into positions, row-major."""
        found: list[Bound] = []
        for dim in reversed(dims[1:]):
            size = self.size(dim)
            found.append(self.code.integer("rem", number, size, DType.U64))
            number = self.code.integer("div", number, size, DType.U64)
        return [*([number] if dims else []), *reversed(found)]

    def pointer(self, number: int, place: Bound, dtype: DType) -> str:
        """The address of an element of a buffer."""
        return advanced(self.code, self.buffer(number), place, dtype)

    def load(
        self,
        number: int,
        place: Bound,
        dtype: DType,
        stride: Bound = 1,
        mask: Vec | None = None,
    ) -> Vec:
        """A vector load; half precision is widened to f32."""
        return load(self.code, dtype, self.pointer(number, place, dtype), stride, mask)

    def store(
        self,
        value: Vec,
        number: int,
        place: Bound,
        dtype: DType,
        stride: Bound = 1,
        mask: Vec | None = None,
    ) -> None:
        store(self.code, value, dtype, self.pointer(number, place, dtype), stride, mask)

    # -- the end --------------------------------------------------------------------------------

    def fail(self, condition: str, number: int) -> None:
        """Return a failure number if the i1 holds."""
        self.code.fail(condition, number)

    def function(self, name: str, before: Sequence[str] = ()) -> Function:
        """The finished function, after those that it calls."""
        self.code.leave()
        text = "\n".join([*before, self.code.function(head_of(name))])
        return Function(name, text, tuple(self.code.shared.items()))

    def source(self, name: str) -> Source:
        """The finished function, and the dims that it takes as arguments."""
        return Source(self.function(name), self.sizes)
