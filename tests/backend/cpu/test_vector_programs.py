"""CPU kernels as programs: verified and interpreted, with races, bounds and reads of what nothing
wrote watched. What they give is what the native code is tested against, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from rlx.backends.cpu.codegen.loop.emit import legal, program_of
from rlx.backends.cpu.isa import AVX2, AVX512, SSE2, Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop_schedule import choose, scratch_bytes, sizes_of
from rlx.core.dim import evaluate, product
from rlx.core.dtype import DType
from rlx.ops.op import Op
from rlx.program.check.vectors import verify_vectors
from rlx.program.errors import ProgramError
from rlx.program.interpret.vectors import Kernel, Memory
from rlx.program.nodes import Binary
from rlx.program.types import POINTER
from rlx.program.vector_program import VectorProgram
from tests.backend.cpu.kernels import LOOPS, Work, assert_close, works_of
from tests.effort import sample, tries

CASES = tries(1, 4)
ISAS = (AVX512, AVX2, SSE2)
F32 = DType.F32


def interpreted(work: Work, isa: Isa, parts: int) -> list[np.ndarray] | None:
    """The results of a loop kernel; None where a part of it is written in LLVM."""
    kernel = legal(work.kernel)
    schedule = choose(kernel, CpuMachine.of(isa))
    program = verify_vectors(program_of(kernel, schedule, isa))
    if not program.is_typed:
        return None
    shapes = [r.bind(work.sizes) for r in kernel.results]
    outputs = [np.zeros(s.static_dims, s.dtype.numpy) for s in shapes]
    buffers = [Memory(f"operand {i}", a) for i, a in enumerate(work.arrays)]
    buffers += [Memory(f"result {i}", a, is_written=False) for i, a in enumerate(outputs)]
    run = Kernel(
        program,
        buffers,
        [evaluate(d, work.sizes) for d in sizes_of(kernel)],
        evaluate(scratch_bytes(schedule), work.sizes),
    )
    extent = evaluate(product(a.extent for a in schedule.parallel), work.sizes)
    edges = np.linspace(0, max(1, extent), parts + 1).astype(int)
    for start, stop in itertools.pairwise(edges):
        assert run.run(int(start), int(stop)) == 0
    results = buffers[len(work.arrays) :]
    assert all(r.is_written.all() for r in results)
    return [r.array(a.dtype).reshape(a.shape) for r, a in zip(results, outputs)]


@pytest.mark.parametrize("op", sample(LOOPS, 4), ids=lambda o: o.name)
@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_loop_kernels_mean_what_their_ops_do(op: Op, isa: Isa) -> None:
    works, expected = works_of(op, range(CASES))
    for work, value in zip(works, expected):
        results = interpreted(work, isa, parts=2)
        if results is not None:
            values = value if isinstance(value, tuple) else (value,)
            for result, right in zip(results, values):
                assert_close(result, np.asarray(right), op.name)


# -- planted faults --------------------------------------------------------------------------------


def planted(write: Callable[[Code, str], None]) -> VectorProgram:
    """A kernel that a test writes: `write` gets the builder and this task's number."""
    code = Code(8, AVX2)
    write(code, "%start")
    code.leave()
    code.entry[:0] = [
        n for i, b in enumerate(("%x", "%y"))
        for n in code.element_of(b, f"{b}.at", "%buffers", i, POINTER)
    ]  # fmt: skip
    return verify_vectors(code.program("planted"))


def run(program: VectorProgram) -> None:
    """Two tasks, on sixteen numbers."""
    numbers = np.arange(16, dtype=np.float32)
    x, y = Memory("x", numbers), Memory("y", numbers, is_written=False)
    kernel = Kernel(program, [x, y], [])
    for task in range(2):
        assert kernel.run(task, task + 1) == 0


def copied(code: Code, task: str) -> None:
    """Right: each task copies half of x to y."""
    place = code.i64("mul", task, 8)
    value = code.load(code.advanced("%x", place, F32), F32, 4)
    code.store(code.advanced("%y", place, F32), value, 4)


def raced(code: Code, task: str) -> None:
    """Both tasks write the first element."""
    copied(code, task)
    code.store_scalar("%y", code.load_scalar("%x", F32, 4), F32, 4)


def read_of_others(code: Code, task: str) -> None:
    """Each task reads what the first one writes."""
    copied(code, task)
    code.load("%y", F32, 4)


def out_of_bounds(code: Code, task: str) -> None:
    place = code.i64("add", code.i64("mul", task, 8), 1)
    code.store(code.advanced("%y", place, F32), code.const(0, F32), 4)


def before_the_start(code: Code, task: str) -> None:
    code.load(code.advanced("%x", -1, F32), F32, 4)


def uninitialised(code: Code, task: str) -> None:
    code.load("%y", F32, 4)


def uninitialised_variable(code: Code, task: str) -> None:
    code.load(code.local(F32), F32)


def unaligned(code: Code, task: str) -> None:
    code.load(code.advanced("%x", 1, DType.U8), F32, 4)


def test_a_kernel_without_a_fault() -> None:
    run(planted(copied))


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (raced, "task 1: writes bytes of y that another task touches"),
        (read_of_others, "task 1: reads bytes of y that another task touches"),
        (out_of_bounds, r"task 1: writes bytes 36..67 of y, which has 64"),
        (before_the_start, r"task 0: reads bytes -4..27 of x, which has 64"),
        (uninitialised, r"task 0: reads bytes of y that nothing wrote: 0..31"),
        (uninitialised_variable, "reads bytes of a local variable that nothing wrote"),
        (unaligned, "reads x at an address that is not aligned to 4"),
    ],
)
def test_a_planted_fault_is_found_by_name(write: Callable[[Code, str], None], why: str) -> None:
    with pytest.raises(ProgramError, match=f"planted, {why}" if why[0] == "t" else why):
        run(planted(write))


def test_types_that_do_not_fit_are_found() -> None:
    def mixed(code: Code, task: str) -> None:
        del task
        one, two = code.const(1, F32), code.const(1, DType.I32)
        code.emit(Binary, F32, one.value, two.value, op="add")

    with pytest.raises(ProgramError, match="planted: Binary of f32, i32 gives f32"):
        planted(mixed)


def test_a_value_that_is_not_defined_is_found() -> None:
    def undefined(code: Code, task: str) -> None:
        with code.when(code.compare("eq", task, 0)):
            inner = code.integer("add", task, 1)
        code.integer("add", inner, 1)

    with pytest.raises(ProgramError, match="Binary uses a value that is not defined"):
        planted(undefined)
