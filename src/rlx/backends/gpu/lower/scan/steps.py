"""The kernels of a scan in native ops, and their expressions at a position of the time axis.

Values of a scan change from step to step. What is made of them belongs to the innermost scope,
where the step is, however few axes it varies with; all else is made where its axes are open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from rlx.backends.gpu.lower.elementwise import is_native
from rlx.backends.gpu.lower.expressions import Expressions
from rlx.backends.gpu.lower.scopes import Guards, Values
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Axis, Expr, Kernel, Load, Reduce, Store
from rlx.kernel.reciprocal import by_reciprocals
from rlx.kernel.scan import Memory, Scan, Value
from rlx.program.builder import Builder
from rlx.program.program import Access
from rlx.program.values import BufferRef, Var


def native(kernel: Contract | Kernel) -> Kernel:
    """A kernel of a scan in ops that GPUs have; its axes are those of the scan."""
    given = kernel.kernel() if isinstance(kernel, Contract) else kernel
    return by_reciprocals(decomposed(given, is_native))


@dataclass(frozen=True)
class ScanKernels:
    """One direction of a scan, or several with the same steps, as loop kernels."""

    scan: Scan
    start: tuple[Kernel, ...]
    steps: tuple[Kernel, ...]
    finish: tuple[Kernel, ...]
    reversals: tuple[bool, ...]
    """Of each direction: are the positions taken from the end?"""
    first: int = 0
    """The number of the first direction."""

    @property
    def memory(self) -> Memory:
        return self.scan.memory

    @property
    def all(self) -> tuple[Kernel, ...]:
        return (*self.start, *self.steps, *self.finish)

    @cached_property
    def whole(self) -> Kernel:
        """All expressions, as a kernel that is only read."""
        axes = dict.fromkeys(a for k in self.all for a in k.axes)
        stores = tuple(s for k in self.all for s in k.stores)
        return Kernel(self.scan.name, tuple(axes), stores, *self.memory.shapes())

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple(n for n in self.whole.nodes if isinstance(n, Load))

    def value_of(self, load: Load) -> Value | None:
        """What a load reads of the scan's own."""
        number = load.operand - len(self.scan.operands)
        return self.memory.values[number] if number >= 0 else None

    def stored_value(self, store: Store) -> Value | None:
        number = store.result - len(self.scan.results)
        return self.memory.values[number] if number >= 0 else None

    @cached_property
    def written(self) -> frozenset[str]:
        """The values that a step, or what is before or behind all steps, writes."""
        made = (self.stored_value(s) for s in self.whole.stores)
        return frozenset(v.name for v in made if v is not None)

    @cached_property
    def reduced(self) -> tuple[Axis, ...]:
        folds = (n.axis for n in self.whole.nodes if isinstance(n, Reduce))
        return tuple(dict.fromkeys(folds))

    @cached_property
    def volatile(self) -> frozenset[Expr]:
        """What is made of values that are written."""
        found: set[Expr] = set()
        for node in self.whole.nodes:
            value = self.value_of(node) if isinstance(node, Load) else None
            is_own = value is not None and value.name in self.written
            if is_own or any(a in found for a in node.args):
                found.add(node)
        return frozenset(found)


def directions(scan: Scan) -> Iterable[ScanKernels]:
    """The directions of a scan; neighbours with the same steps together."""
    start, finish = (tuple(map(native, kernels)) for kernels in (scan.start, scan.finish))
    numbered = list(enumerate(scan.directions))
    for _, group in groupby(numbered, key=lambda n: tuple(map(id, n[1].steps))):
        members = list(group)
        first, one = members[0]
        ways = tuple(d.is_reversed for _, d in members)
        yield ScanKernels(scan, start, tuple(map(native, one.steps)), finish, ways, first)


class Steps(Expressions):
    """Expressions of a scan's kernels, with values wherever a form keeps them."""

    def __init__(
        self,
        builder: Builder,
        kernels: ScanKernels,
        index: DType,
        vector: Axis | None,
        constants: frozenset[int],
    ) -> None:
        self.kernels, self.scan = kernels, kernels.scan
        self.volatile = kernels.volatile
        super().__init__(builder, kernels.whole, index, vector, constants)

    def declare(self, constants: frozenset[int]) -> None:
        """Operands that are read, and results; values are the form's."""
        read = {n.operand for n in self.kernels.loads}
        made = {s.result for s in self.kernels.whole.stores}
        self.inputs = [
            self.buffer(f"x{i}", s.dtype.real, "constant" if i in constants else "read", i in read)
            for i, s in enumerate(self.scan.operands)
        ]
        self.outputs = [
            self.buffer(f"y{i}", s.dtype.real, "write", i in made)
            for i, s in enumerate(self.scan.results)
        ]

    def buffer(self, name: str, dtype: DType, access: Access, is_used: bool) -> BufferRef:
        """A buffer of the program, if it has a use for it."""
        used = self.b.buffer(name, dtype, access) if is_used else None
        return used or BufferRef(self.b, name, dtype)

    def place(self, node: Expr, guards: Guards) -> int:
        if node in self.volatile or any(g in self.volatile for g, _ in guards):
            return len(self.scopes) - 1
        return super().place(node, guards)

    def fetched(self, node: Load, guards: Guards) -> Values:
        value = self.kernels.value_of(node)
        return super().fetched(node, guards) if value is None else self.held_value(node, value)

    @abstractmethod
    def held_value(self, node: Load, value: Value) -> Values:
        """What a value of the scan is now."""

    def position_of(self, step: Var, is_reversed: bool) -> Var:
        """On the time axis, of a step."""
        return self.number(self.scan.time.extent - 1) - step if is_reversed else step


def first_points(kernel: Kernel, store: Store, is_open: Sequence[Axis]) -> list[Axis]:
    """Axes that a store does not vary with: it belongs to their first point."""
    return [a for a in kernel.axes if a in is_open and a not in store.at.axes]
