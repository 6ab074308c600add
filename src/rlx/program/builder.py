"""Builder of SIMT programs: a kernel is written as the Python of one thread.

    b = Builder("scale", block=256, grid=((n + 255) // 256,))
    x, y, count = b.input("x", F32), b.output("y", F32), b.size("n", n)
    i = b.block_index() * 256 + b.thread
    with b.when(i < count):
        y[i] = x[i] * 2.0
    program = b.program()

Python loops unroll; `loop` and `when` are the program's own, and carry the variables they name:

    total = b.variable(0.0, F32)
    with b.loop(b.thread, count, 256, carry=[total]) as i:
        total += x[i]
    y[b.block_index()] = b.block_reduce("add", total)

Equal pure nodes of a region are made once, and integers of constants are computed here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.program import nodes as ir
from rlx.program.group_builder import GroupBuilder
from rlx.program.nodes import Region, Value
from rlx.program.program import Access, Buffer, Mbarrier, Program, Scalar, Shared, Table
from rlx.program.tensor_map import OuterDim, TensorMap, WindowAxis
from rlx.program.thread_builder import I32, values_of
from rlx.program.values import BufferRef, SharedRef, Var, Variable


class Builder(GroupBuilder):
    """One program under construction."""

    def __init__(
        self,
        name: str,
        *,
        block: int,
        grid: Sequence[DimLike] = (1,),
        cluster: int = 1,
        warp: int = 32,
        resident: int = 0,
    ) -> None:
        x, y, z = (*grid, 1, 1, 1)[:3]
        made = Program(name, (x, y, z), block, Region(), cluster=cluster, warp=warp)
        super().__init__(replace(made, resident=resident))

    @classmethod
    def empty(cls, program: Program) -> Builder:
        """A builder of a program with the same arguments, memory and sizes, and no body yet."""
        made = cls(program.name, block=program.block)
        made.made = replace(program, body=Region())
        return made

    def program(self) -> Program:
        """What was built."""
        return replace(self.made, body=self.closed())

    # -- arguments -------------------------------------------------------------------------------

    def input(self, name: str, dtype: DType, count: DimLike | None = None) -> BufferRef:
        return self.buffer(name, dtype, "read", count)

    def constant(self, name: str, dtype: DType, count: DimLike | None = None) -> BufferRef:
        """An input that no kernel of the run writes."""
        return self.buffer(name, dtype, "constant", count)

    def output(self, name: str, dtype: DType, count: DimLike | None = None) -> BufferRef:
        return self.buffer(name, dtype, "write", count)

    def buffer(
        self, name: str, dtype: DType, access: Access, count: DimLike | None = None
    ) -> BufferRef:
        added = Buffer(name, dtype, access, count)
        self.made = replace(self.made, buffers=(*self.made.buffers, added))
        return BufferRef(self, name, dtype)

    def scalar(self, name: str, dtype: DType = I32, dim: DimLike | None = None) -> Var:
        added = Scalar(name, Value(dtype), dim)
        self.made = replace(self.made, scalars=(*self.made.scalars, added))
        return Var(self, added.value)

    def size(self, name: str, dim: DimLike, dtype: DType = I32) -> Var:
        """The value of a dim as an argument."""
        return self.scalar(name, dtype, dim)

    def tensor_map(
        self,
        name: str,
        buffer: BufferRef,
        dims: tuple[DimLike, DimLike],
        box: tuple[int, int],
        *,
        pitch: DimLike | None = None,
        offset: DimLike = 0,
        outer: Sequence[OuterDim] = (),
        windows: Sequence[WindowAxis] = (),
    ) -> str:
        added = TensorMap(name, buffer.name, dims, box, pitch, offset, tuple(outer), tuple(windows))
        self.made = replace(self.made, maps=(*self.made.maps, added))
        return name

    def shared(
        self, name: str, dtype: DType, count: int, *, align: int = 16, is_swizzled: bool = False
    ) -> SharedRef:
        added = Shared(name, dtype, count, max(align, 1024 if is_swizzled else 0), is_swizzled)
        self.made = replace(self.made, shared=(*self.made.shared, added))
        return SharedRef(self, name, dtype)

    def table(self, name: str, dtype: DType, values: Sequence[float]) -> str:
        """Numbers as part of the program; a table of that name is made once."""
        if all(t.name != name for t in self.made.tables):
            added = Table(name, dtype, tuple(values))
            self.made = replace(self.made, tables=(*self.made.tables, added))
        return name

    def table_load(self, name: str, index: Var) -> Var:
        dtype = self.made.table(name).dtype
        node = ir.TableLoad(table=name, args=(index.value,), results=(Value(dtype),))
        return self.value(node)

    def mbarrier(self, name: str, count: int = 1) -> str:
        added = Mbarrier(name, count)
        self.made = replace(self.made, mbarriers=(*self.made.mbarriers, added))
        return name

    def failure(self, meaning: str) -> int:
        """The code of a new failure."""
        self.made = replace(self.made, failures=(*self.made.failures, meaning))
        return len(self.made.failures)

    # -- control ---------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        low: Var | int,
        high: Var | int,
        step: Var | int = 1,
        carry: Sequence[Variable] = (),
    ) -> Generator[Var]:
        """The index of a loop from low to below high."""
        typed = next((v for v in (low, high, step) if isinstance(v, Var)), self.const(0, I32))
        bounds = [self.like(v, typed) for v in (low, high, step)]
        given = [v.value for v in carry]
        params = (Value(typed.value.type), *(Value(v.type) for v in given))
        self.open(params)
        self._give(carry, params[1:])
        yield Var(self, params[0])
        body = self.close([v.value for v in carry])
        results = tuple(Value(v.type) for v in given)
        self.add(ir.For(args=(*values_of(bounds), *given), results=results, regions=(body,)))
        self._give(carry, results)

    @contextmanager
    def when(self, condition: Var, carry: Sequence[Variable] = ()) -> Generator[None]:
        """Only where the condition holds; an `otherwise` may follow at once."""
        given = [v.value for v in carry]
        self.open(())
        yield
        body = self.close([v.value for v in carry])
        self._branch(condition.value, (body, Region((), (), tuple(given))), carry)

    @contextmanager
    def otherwise(self, carry: Sequence[Variable] = ()) -> Generator[None]:
        """Where the condition of the `when` just closed does not hold; it carries the same."""
        last = self.take_last()
        if not isinstance(last, ir.If) or last.regions[1].nodes:
            raise Error(f"program {self.made.name}: an otherwise follows no when.")
        then, before = last.regions
        self._give(carry, before.yields)
        self.open(())
        yield
        body = self.close([v.value for v in carry])
        self._branch(last.args[0], (then, body), carry)

    def _branch(
        self, condition: Value, regions: tuple[Region, Region], carry: Sequence[Variable]
    ) -> None:
        results = tuple(Value(v.type) for v in regions[0].yields)
        self.add(ir.If(args=(condition,), results=results, regions=regions))
        self._give(carry, results)

    @contextmanager
    def repeat(self, carry: Sequence[Variable]) -> Generator[_Repeat]:
        """A loop that goes on while the condition given to `when` inside holds: everything before
        it is the test, everything after it the body."""
        given = tuple(v.value for v in carry)
        state = _Repeat(self, carry, tuple(Value(v.type) for v in given))
        self.open(state.tested)
        self._give(carry, state.tested)
        yield state
        if state.test is None:
            raise Error(f"program {self.made.name}: a repeat without a condition does not end.")
        body = self.close([v.value for v in carry])
        results = tuple(Value(v.type) for v in given)
        self.add(ir.While(args=given, results=results, regions=(state.test, body)))
        self._give(carry, results)

    def _give(self, carry: Sequence[Variable], values: Sequence[Value]) -> None:
        for variable, value in zip(carry, values, strict=True):
            variable.value = value


class _Repeat:
    """An open `repeat`."""

    def __init__(
        self, builder: Builder, carry: Sequence[Variable], tested: tuple[Value, ...]
    ) -> None:
        self.builder, self.carry, self.tested = builder, carry, tested
        self.test: Region | None = None

    def when(self, condition: Var) -> None:
        """Go on where it holds."""
        self.test = self.builder.close([condition.value])
        params = tuple(Value(v.type) for v in self.tested)
        self.builder.open(params)
        for variable, value in zip(self.carry, params):
            variable.value = value
