"""Emitter of loop kernels: LLVM text with explicit vectors. Pure: kernel, schedule and instruction
set in, text out.

The method: open one loop per axis; at each level compute every value that is invariant in deeper
axes, reductions included; where all axes of a store are open, store. All values are vectors; one
that does not vary along the lanes is uniform.

    i32 name(ptr buffers, ptr sizes, i64 start, i64 stop, ptr scratch, ptr poll)

`buffers` holds the operands' and then the results' addresses; `sizes` the values of
`sizes_of(kernel)`; `scratch` is `scratch_bytes(...)` private to this call, to stage row values in;
`poll` points to a function that says whether to continue (`Code.poll`).
The range [start, stop) of the iterations of the parallel loops is computed; what does not vary
along them belongs to the task with the first one, so at least [0, 1) must run. The result is 0, or
n if the n-th gathering load has an index out of range.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.store_nests import StoreNests
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Function, head_of
from rlx.backends.cpu.llvm.function_nodes import I64
from rlx.backends.cpu.schedule.loop_schedule import Schedule, check, lanes_of, sizes_of
from rlx.kernel.collapse import collapsed
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Apply, Kernel
from rlx.kernel.reciprocal import by_reciprocals
from rlx.kernel.split_complex import SPLIT, has_complex, split, touches_complex
from rlx.program.nodes import Node
from rlx.program.types import POINTER
from rlx.program.vector_program import VectorProgram


def legal(kernel: Kernel) -> Kernel:
    """The kernel in ops and dtypes that the CPU has; schedules are chosen for this one."""
    kernel = collapsed(kernel)
    if has_complex(kernel):
        kernel = split(decomposed(kernel, _is_native_or_split))
    return by_reciprocals(decomposed(kernel, lambda node: arith.is_native(node.op.name)))


def _is_native_or_split(node: Apply) -> bool:
    return not touches_complex(node) or node.op.name in SPLIT


def emit(kernel: Kernel, schedule: Schedule, isa: Isa, name: str = "") -> Function:
    """The function of a legal kernel."""
    check(schedule, kernel)
    return Emitter(kernel, schedule, isa).function(name or kernel.name)


def program_of(kernel: Kernel, schedule: Schedule, isa: Isa) -> VectorProgram:
    """What that function is printed from, to be verified and interpreted."""
    check(schedule, kernel)
    emitter = Emitter(kernel, schedule, isa)
    emitter.write()
    return emitter.code.program(kernel.name)


class Emitter:
    """One function."""

    def __init__(self, kernel: Kernel, schedule: Schedule, isa: Isa) -> None:
        self.kernel, self.schedule = kernel, schedule
        self.code = Code(lanes_of(kernel, schedule, isa.vector_bytes), isa)
        self.sizes = {d: f"%s{i}" for i, d in enumerate(sizes_of(kernel))}

    def function(self, name: str) -> Function:
        self.write()
        text = self.code.function(head_of(name))
        return Function(name, text, tuple(self.code.shared.items()))

    def write(self) -> None:
        """All nodes."""
        code, schedule = self.code, self.schedule
        if schedule.streaming:
            self.streamed()
            schedule = replace(schedule, unroll=1)
        self.nests(schedule).emit()
        code.leave()
        code.entry[:0] = self.arguments()

    def nests(self, schedule: Schedule, *, is_streaming: bool = False) -> StoreNests:
        context = LoopContext(self.kernel, schedule, self.code, self.sizes)
        return StoreNests(context, is_streaming=is_streaming)

    def streamed(self) -> None:
        """The nests with non-temporal stores, if buffers and range are aligned to cache lines."""
        code = self.code
        places = [f"%y{i}" for i in range(len(self.kernel.results))]
        bits = [code.let(f"ptrtoint ptr {p} to i64") for p in places]
        together = "%start" if self.schedule.vector in self.schedule.parallel else "0"
        for number in bits:
            together = code.integer("or", together, number)
        low = code.integer("and", together, 63)
        is_aligned = code.compare("eq", low, 0)
        yes, no = code.label("yes"), code.label("no")
        code.do(f"br i1 {is_aligned}, label %{yes}, label %{no}")
        code.place(yes)
        self.nests(self.schedule, is_streaming=True).emit()
        code.do("fence seq_cst", "ret i32 0")
        code.place(no)

    def arguments(self) -> list[Node]:
        """The entry block: loads of addresses and sizes."""
        code, names = self.code, [f"%x{i}" for i in range(len(self.kernel.operands))]
        names += [f"%y{i}" for i in range(len(self.kernel.results))]
        return [
            *(
                node
                for i, name in enumerate(names)
                for node in code.element_of(name, f"%b{i}", "%buffers", i, POINTER)
            ),
            *(
                node
                for i, name in enumerate(self.sizes.values())
                for node in code.element_of(name, f"%n{i}", "%sizes", i, I64)
            ),
        ]
