"""Builder of a function: nodes of vector programs, and their names in LLVM.

Loop counters and accumulators are local variables, which SROA promotes to registers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from rlx.backends.cpu.llvm.function_nodes import I1, I64, FunctionNodes
from rlx.backends.cpu.llvm.printer import (
    ELEMENT,
    SCALE_MASK,
    literal,
    scale_name,
)
from rlx.backends.cpu.llvm.values import Bound, Scalar, Vec
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.nodes import Node, Number, Region, Value
from rlx.program.types import POINTER, POINTERS, UNIFORM, Type

SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}


class Code(FunctionNodes):
    """A function under construction: values, control and memory."""

    # -- nodes ----------------------------------------------------------------------------------

    def emit(self, kind: type[Node], dtype: DType, *args: Value, **attrs: Any) -> Vec:
        """A node whose result is a vector."""
        value = self.named(dtype)
        self.body.append(kind(args=args, results=(value,), **attrs))
        return Vec(self, value, dtype)

    def viewed(self, kind: type[Node], value: Vec, dtype: DType, is_same: bool) -> Vec:
        """A node that is no instruction where the bits and LLVM's type stay the same."""
        if not is_same:
            return self.emit(kind, dtype, value.value)
        view = Value(dtype)
        self.names[view] = value.text
        self.body.append(kind(args=(value.value,), results=(view,)))
        return Vec(self, view, dtype)

    def verbatim(self, text: str, dtype: DType) -> Vec:
        """A vector that an emitter wrote itself."""
        return self.vector_of(self.let(text), dtype)

    def vector_of(self, text: str, dtype: DType) -> Vec:
        """A vector by its name, or by its numbers as LLVM writes them."""
        return Vec(self, self._named_as(text, dtype), dtype)

    # -- values ---------------------------------------------------------------------------------

    def vector(self, element: str) -> str:
        return self.types.vector(element)

    def suffix(self, element: str) -> str:
        return self.types.element_suffix(element)

    def const(self, value: Number, dtype: DType) -> Vec:
        text = f"splat ({ELEMENT[dtype]} {literal(value, dtype)})"
        return Vec(self, self._constant(text, dtype, value), dtype)

    def splat(self, scalar: Bound, dtype: DType) -> Vec:
        """Broadcast a scalar."""
        if isinstance(scalar, int):
            return self.const(scalar, dtype)
        first, operand = self.name(), self.operand(scalar, UNIFORM[dtype])
        vector = self.emit(vec.Broadcast, dtype, operand)
        self.labels[self.body[-1]] = (first,)
        return vector

    def iota(self, dtype: DType) -> Vec:
        """0, 1, 2 … along the lanes."""
        element, value = ELEMENT[dtype], Value(dtype)
        numbers = ", ".join(f"{element} {n}" for n in range(self.lanes))
        self.names[value] = f"<{numbers}>"
        self.body.append(vec.LaneIndex(results=(value,)))
        return Vec(self, value, dtype)

    def mask_of(self, bits: Sequence[bool]) -> Vec:
        """A constant mask."""
        return self.vector_const([int(b) for b in bits], DType.BOOL)

    def opaque_mask(self, mask: Vec) -> Vec:
        """The mask, opaque to LLVM."""
        parts = [self.name() for _ in range(2 if self.lanes < 8 else 0)]
        hidden = self.emit(vec.OpaqueMask, DType.BOOL, mask.value)
        self.labels[self.body[-1]] = tuple(parts)
        return hidden

    def scaled(self, x: Vec, n: Vec) -> Vec:
        """x · 2ⁿ by AVX-512's scalef, for full registers."""
        kind = self.types[x.dtype]
        self.declare(scale_name(x.dtype), kind, kind, kind, kind, SCALE_MASK[x.dtype], "i32")
        return self.emit(vec.Scale, x.dtype, x.value, n.value)

    def vector_const(self, numbers: Sequence[Number], dtype: DType) -> Vec:
        """A constant, lane by lane."""
        element, value = ELEMENT[dtype], Value(dtype)
        parts = ", ".join(f"{element} {literal(n, dtype)}" for n in numbers)
        self.names[value] = f"<{parts}>"
        self.body.append(vec.VectorConst(numbers=tuple(numbers), results=(value,)))
        return Vec(self, value, dtype)

    def table(self, name: str, dtype: DType, numbers: Sequence[Number]) -> str:
        """The address of constants in memory."""
        element = ELEMENT[dtype]
        parts = ", ".join(f"{element} {literal(n, dtype)}" for n in numbers)
        self.shared[name] = (
            f"@{name} = internal unnamed_addr constant "
            f"[{len(numbers)} x {element}] [{parts}], align 64"
        )
        self.tables[f"@{name}"] = dtype, tuple(numbers)
        return f"@{name}"

    def first_lane(self, condition: str) -> Vec:
        """A mask of which the condition is the first lane, and no other is set."""
        return self.emit(vec.FirstLane, DType.BOOL, self.operand(condition, I1))

    def i64(self, word: ir.BinaryOp, a: Bound, b: Bound) -> Bound:
        """Index arithmetic, folded where both are constants."""
        if isinstance(a, int) and isinstance(b, int):
            return {"add": a + b, "sub": a - b, "mul": a * b}[word]
        if (word in ("add", "sub") and b == 0) or (word == "mul" and b == 1):
            return a
        if (word == "add" and a == 0) or (word == "mul" and a == 1):
            return b
        if word == "mul" and 0 in (a, b):
            return 0
        return self.integer(word, a, b)

    def integer(self, op: ir.BinaryOp, a: Bound, b: Bound, dtype: DType = DType.I64) -> Scalar:
        """Arithmetic of integers that is not folded."""
        kind = UNIFORM[dtype]
        return self.scalar(ir.Binary, dtype, self.operand(a, kind), self.operand(b, kind), op=op)

    def compare(self, op: ir.CompareOp, a: Bound, b: Bound, dtype: DType = DType.I64) -> Scalar:
        kind, truth = UNIFORM[dtype], DType.BOOL
        return self.scalar(ir.Compare, truth, self.operand(a, kind), self.operand(b, kind), op=op)

    def negated(self, condition: str) -> Scalar:
        return self.integer("xor", condition, "true", DType.BOOL)

    def both(self, a: str, b: str) -> Scalar:
        return self.integer("and", a, b, DType.BOOL)

    def either(self, a: str, b: str) -> Scalar:
        return self.integer("or", a, b, DType.BOOL)

    def choose(self, condition: str, yes: Bound, no: Bound, dtype: DType = DType.I64) -> Scalar:
        """One of two uniform numbers."""
        kind = UNIFORM[dtype]
        args = self.operand(condition, I1), self.operand(yes, kind), self.operand(no, kind)
        return self.scalar(ir.Select, dtype, *args)

    def converted(self, value: Bound, dtype: DType, to: DType) -> Scalar:
        return self.scalar(ir.Convert, to, self.operand(value, UNIFORM[dtype]))

    def least(self, a: Bound, b: Bound) -> Bound:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self._extreme("min", a, b)

    def most(self, a: Bound, b: Bound) -> Bound:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self._extreme("max", a, b)

    def _extreme(self, op: ir.BinaryOp, a: Bound, b: Bound) -> Scalar:
        self.declare(f"s{op}.i64", "i64", "i64", "i64")
        return self.integer(op, a, b)

    # -- control --------------------------------------------------------------------------------

    def label(self, prefix: str = "L") -> str:
        return self.name(prefix)[1:]

    @contextmanager
    def region(self) -> Generator[list[Node]]:
        """Nodes that are emitted meanwhile are those of a region."""
        outer, inner = self.body, list[Node]()
        self.body = inner
        yield inner
        self.body = outer

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """An if: what runs only if the i1 holds."""
        labels = self.label("yes"), self.label("done")
        with self.region() as nodes:
            yield
        node = ir.If(
            args=(self.operand(condition, I1),), regions=(Region(nodes=tuple(nodes)), Region())
        )
        self.labels[node] = labels
        self.body.append(node)

    def poll(self) -> None:
        """Return where the call is interrupted, or has failed in another thread. Cold, and it
        writes no memory that kernels read, so nothing is reloaded after it."""
        values = [self.name() for _ in range(3)]
        blocks = self.label("yes"), self.label("done"), self.label()
        node = vec.Poll(statement=self.left)
        self.labels[node] = (*values, *blocks)
        self.body.append(node)

    @contextmanager
    def count(self, low: Bound, high: Bound, step: int, polled: Bound = 0) -> Generator[Scalar]:
        """A loop over low, low + step … below high; a long one polls after each so many
        iterations."""
        known = [n for n in (low, high, polled) if isinstance(n, int)]
        is_short = len(known) == 3 and known[1] - known[0] <= known[2] * step
        if polled == 0 or is_short or not self.left:
            with self._count(low, high, step) as i:
                yield i
            return
        block = self.i64("mul", polled, step)
        with self._count(low, high, block) as first:
            with self.when(self.compare("ne", first, low)):
                self.poll()
            end = self.least(self.i64("add", first, block), high)
            with self._count(first, end, step) as i:
                yield i

    @contextmanager
    def loop_while(self, condition: Callable[[], str]) -> Generator[None]:
        """A while loop; the condition is computed before each turn."""
        labels = tuple(self.label() for _ in range(3))
        with self.region() as header:
            goes_on = self.operand(condition(), I1)
        with self.region() as body:
            yield
        regions = Region((), tuple(header), (goes_on,)), Region((), tuple(body))
        node = ir.While(regions=regions)
        self.labels[node] = labels
        self.body.append(node)

    def fail(self, condition: str, number: int) -> None:
        """Return a failure number if the i1 holds."""
        with self.when(condition):
            self.leave(number, "never")

    def leave(self, number: int = 0, label: str = "") -> None:
        """Return; what follows begins a block of that name, if there is one."""
        node = vec.Return(code=number)
        self.labels[node] = (self.label(label),) if label else ()
        self.body.append(node)

    def fail_together(self, lanes: Vec, number: int) -> None:
        """Return a failure number if any lane is set, by one block of the function for all
        failures of a number."""
        labels = f"fail{number}", self.label("on")
        node = vec.FailIf(args=(lanes.any().value,), code=number)
        self.labels[node] = labels
        self.failures[labels[0]] = number
        self.body.append(node)

    @contextmanager
    def _count(self, low: Bound, high: Bound, step: Bound) -> Generator[Scalar]:
        args = self.operand(low), self.operand(high), self.operand(step)
        slot = self.local(I64)
        labels = slot, *(self.label() for _ in range(3))
        index, more = self.named(I64), self.name()
        with self.region() as nodes:
            yield Scalar.of(self.names[index], index)
        following = self.names[index] if step == 0 else self.name()
        node = ir.For(args=args, regions=(Region((index,), tuple(nodes)),))
        self.labels[node] = (*labels, more, following)
        self.body.append(node)

    def repeat(
        self, start: Sequence[Vec], more: Callable[..., Vec], step: Callable[..., Sequence[Vec]]
    ) -> list[Vec]:
        """While any lane wants more, replace the values by the step's."""
        slots = [self.local(v.dtype) for v in start]
        labels = [self.label() for _ in range(3)]
        now = [Vec(self, self.named(v.dtype), v.dtype) for v in start]
        params = tuple(v.value for v in now)
        with self.region() as condition:
            goes_on = more(*now).any()
        with self.region() as body:
            following = tuple(v.value for v in step(*now))
        results = tuple(Value(v.dtype) for v in now)
        node = ir.While(
            args=tuple(v.value for v in start),
            results=results,
            regions=(
                Region(params, tuple(condition), (goes_on.value,)),
                Region(params, tuple(body), following),
            ),
        )
        self.names.update(zip(results, (v.text for v in now)))
        self.labels[node] = (*labels, *slots)
        self.body.append(node)
        return [Vec(self, value, v.dtype) for value, v in zip(results, now)]

    def outlined(self, name: str, build: Callable[..., Vec], *args: Vec) -> Vec:
        """An internal function: long code that is emitted once in a module and called."""
        result = args[0].dtype
        full = ".".join([name, *(a.dtype.value for a in args), str(self.lanes)])
        if full not in self.shared:
            self.shared[full] = ""
            inner = Code(self.lanes, self.isa, self.shared, self.outlines)
            params = [Value(a.dtype) for a in args]
            inner.names.update((value, f"%a{i}") for i, value in enumerate(params))
            made = build(*(Vec(inner, v, a.dtype) for v, a in zip(params, args)))
            region = Region(tuple(params), tuple(inner.body), (made.value,))
            self.outlines[full] = inner.outline(region)
            self.tables.update(inner.tables)
            inner.do(f"ret {made.type} {made.text}")
            typed = ", ".join(f"{a.type} %a{i}" for i, a in enumerate(args))
            self.shared[full] = inner.function(f"define internal {made.type} @{full}({typed})")
        return self.emit(vec.FunctionCall, result, *(a.value for a in args), function=full)

    # -- memory ---------------------------------------------------------------------------------

    def local(self, kind: Type) -> Scalar:
        """The address of a variable of this function."""
        value = self.named(POINTER, "slot")
        self.entry.append(vec.Local(kind=kind, results=(value,)))
        return Scalar.of(self.names[value], value)

    def variable(self, value: Vec) -> Scalar:
        """The address of a variable that begins as a value."""
        slot = self.local(value.dtype)
        self.store(slot, value)
        return slot

    def advanced(self, address: str, index: Bound, element: DType | Type) -> Scalar:
        """The address, some elements on."""
        kind = UNIFORM[element] if isinstance(element, DType) else element
        args = self.operand(address, POINTER), self.operand(index)
        return self._scalar(vec.Advance(args=args, results=(self.named(POINTER),), element=kind))

    def lane_addresses(self, address: str, index: Vec, element: DType) -> Value:
        """An address for each lane, some elements on."""
        args, result = (self.operand(address, POINTER), index.value), self.named(POINTERS)
        self.body.append(vec.Advance(args=args, results=(result,), element=UNIFORM[element]))
        return result

    def load(self, address: str, dtype: DType, align: int = 0, mask: Vec | None = None) -> Vec:
        """Neighbours from an address on; lanes that are masked off read nothing, and are 0."""
        where = self.operand(address, POINTER)
        if mask is None:
            return self.emit(vec.Load, dtype, where, align=align)
        kind, masks = self.types[dtype], self.types[DType.BOOL]
        self.declare(f"masked.load.{self.types.suffix(dtype)}.p0", kind, "ptr", masks, kind)
        return self.emit(vec.Load, dtype, where, mask.value, align=align)

    def gather(self, addresses: Value, dtype: DType, align: int, mask: Vec | None) -> Vec:
        kind, pointers, masks = (self.types[t] for t in (dtype, POINTERS, DType.BOOL))
        name = f"masked.gather.{self.types.suffix(dtype)}.v{self.lanes}p0"
        self.declare(name, kind, pointers, masks, kind)
        return self.emit(vec.Load, dtype, addresses, self._mask(mask), align=align)

    def scatter(self, addresses: Value, value: Vec, align: int, mask: Vec | None) -> None:
        kind, pointers, masks = (self.types[t] for t in (value.dtype, POINTERS, DType.BOOL))
        name = f"masked.scatter.{self.types.suffix(value.dtype)}.v{self.lanes}p0"
        self.declare(name, "void", kind, pointers, masks)
        self.body.append(vec.Store(args=(addresses, value.value, self._mask(mask)), align=align))

    def _mask(self, mask: Vec | None) -> Value:
        return (self.const(1, DType.BOOL) if mask is None else mask).value

    def load_scalar(self, address: str, dtype: DType, align: int = 0) -> Scalar:
        return self.load_uniform(address, UNIFORM[dtype], align)

    def load_uniform(self, address: str, kind: Type, align: int = 0) -> Scalar:
        args, result = (self.operand(address, POINTER),), self.named(kind)
        return self._scalar(vec.Load(args=args, results=(result,), align=align))

    def store(
        self, address: str, value: Vec, align: int = 0, *, is_streaming: bool = False
    ) -> None:
        args = self.operand(address, POINTER), value.value
        self.body.append(vec.Store(args=args, align=align, is_streaming=is_streaming))

    def store_masked(self, address: str, value: Vec, align: int, mask: Vec) -> None:
        """The lanes that are not masked off."""
        kind, masks = self.types[value.dtype], self.types[DType.BOOL]
        name = f"masked.store.{self.types.suffix(value.dtype)}.p0"
        self.declare(name, "void", kind, "ptr", masks)
        args = self.operand(address, POINTER), value.value, mask.value
        self.body.append(vec.Store(args=args, align=align))

    def store_scalar(self, address: str, value: Bound, dtype: DType, align: int = 0) -> None:
        self.store_uniform(address, value, UNIFORM[dtype], align)

    def store_uniform(self, address: str, value: Bound, kind: Type, align: int = 0) -> None:
        args = self.operand(address, POINTER), self.operand(value, kind)
        self.body.append(vec.Store(args=args, align=align))

    def element_of(self, name: str, at: str, array: str, index: int, kind: Type) -> list[Node]:
        """An element of an array that the function gets, as a value of a name, and the name of its
        address: nodes of the entry block."""
        address, value = Value(POINTER), self.arguments.setdefault(name, Value(kind))
        self.names.update({address: at, value: name})
        args = self.operand(array, POINTER), self.operand(index)
        return [
            vec.Advance(args=args, results=(address,), element=kind),
            vec.Load(args=(address,), results=(value,)),
        ]
