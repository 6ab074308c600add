"""Loop kernels of drawn ops, run by the interpreter and judged as the fuzzer judges targets."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import choose
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.fuzz.generate import is_bounded
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph, Node
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.loop import lower_loop
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.ops.draw import Case, Draw
from rlx.ops.op import Op
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.verify import verify

Array = np.ndarray[Any, Any]
Run = Callable[[Program, Mapping[str, Array], Mapping[str, int] | None], None]
"""What executes a program on arrays, in place."""
SMALL = GpuMachine(
    block=64, max_block=64, warp_row=64, staged_vectors=2, processors=4, launch_bytes=1 << 10
)
"""Small blocks, so that small shapes have several of them, loops and tails."""

WEBGPU = GpuMachine(
    warp=1,
    block=64,
    max_block=256,
    warp_row=16,
    processors=4,
    shared_bytes=16 << 10,
    index_bits=32,
    has_f64=False,
)
"""All that WebGPU promises: no warps, 256 threads and 16 KiB of a block, indices of 32 bits,
no f64."""
SOFTWARE = replace(
    WEBGPU, processors=2, barrier_cycles=500, load_cycles=0, simd=8, launch_bytes=32 << 10
)
"""The same run by a few threads of the host, which barriers make to switch between threads."""

MAX_ELEMENTS = 1 << 16
"""Of all operands: a minute of the interpreter is no test."""


@dataclass(frozen=True)
class Applied:
    """A drawn application as a graph of one op, and values for its inputs."""

    graph: Graph
    values: Mapping[str, Array]
    node: Node
    case: Case


def drawn(
    op: Op, first: int, count: int, limit: int = MAX_ELEMENTS, *, has_weights: bool = False
) -> Iterator[Applied]:
    """The same on every run; every third has sizes that fill warps and blocks."""
    for i in range(first, first + count):
        draw, case = _case(op, i, limit)
        yield applied(case, draw.arrays(case), has_weights=has_weights)


def _case(op: Op, number: int, limit: int) -> tuple[Draw, Case]:
    draw = Draw([zlib.crc32(f"gpu {op.name}".encode()), number], is_large=number % 3 == 2)
    case = draw.case(op)
    while not is_bounded(case) or _elements(case) > limit:
        case = draw.case(op)
    return draw, case


def one_of_each_dtype(op: Op, draws: int, limit: int = MAX_ELEMENTS) -> list[int]:
    """Of the first so many applications, the first of each dtype of the first operand."""
    found: dict[DType | None, int] = {}
    for number in range(draws):
        specs = _case(op, number, limit)[1].specs
        found.setdefault(specs[0].dtype if specs else None, number)
    return list(found.values())


def _elements(case: Case) -> int:
    return sum(int(np.prod(s.dims)) for s in case.specs)


def applied(case: Case, arrays: Sequence[Array], *, has_weights: bool = False) -> Applied:
    """With weights, all operands but the first are parameters of the graph."""
    graph = Graph("law")
    values = {f"x{i}": a for i, a in enumerate(arrays)}
    shapes = [Shape(s.dims, s.dtype) for s in case.specs]
    makers = [graph.input, graph.param if has_weights else graph.input]
    operands = [makers[i > 0](f"x{i}", s) for i, s in enumerate(shapes)]
    attrs = {k: v for k, v in case.attrs.items() if k != "extent"}
    node = graph.node(case.op, operands, graph.extents.named(case.op, operands, attrs))
    items = range(len(node.shapes)) if node.has_items else ()
    graph.set_outputs([graph.node("item", (node,), {"index": i}) for i in items] or [node])
    return Applied(graph, values, node, case)


def flushed(values: Mapping[str, Array]) -> dict[str, Array]:
    """The same with 0 for numbers below the least normal one of f32: WGSL lets an implementation
    take one for the other, as SwiftShader does, and their logarithms and reciprocals differ."""
    return {name: _flushed(array) for name, array in values.items()}


def _flushed(array: Array) -> Array:
    parts = _real(np.ascontiguousarray(array).copy())
    if DType.of(parts.dtype) in (DType.F32, DType.BF16):
        size = np.abs(parts.astype(np.float64))
        parts[(size > 0) & (size < float(np.finfo(np.float32).tiny))] = 0
    return parts.view(array.dtype).reshape(array.shape)


def kernel_of(made: Applied) -> Kernel | None:
    """The loop kernel, where the op is one."""
    if not made.case.specs or not all(s.is_static for s in made.node.shapes):
        return None  # a constant, or of a size that only data decides
    found = lower_loop(made.node)
    return None if isinstance(found, Refusal) else found


def program_of(kernel: Kernel, machine: GpuMachine) -> Program:
    legalised = legal(kernel)
    return verify(emit(legalised, choose(legalised, machine)))


def execute(
    program: Program,
    operands: Sequence[Array],
    results: Sequence[Shape],
    sizes: Mapping[str, int] | None = None,
    run: Run = launch,
) -> list[Array]:
    """The results of a launch on flat operands; what is not written stays a pattern of bits."""
    buffers = {f"x{i}": _real(np.ascontiguousarray(a).reshape(-1)) for i, a in enumerate(operands)}
    shapes = [s.bind(sizes or {}) for s in results]
    flat = [np.empty(int(np.prod(s.static_dims)), s.dtype.numpy) for s in shapes]
    for array in flat:
        array.view(np.uint8)[:] = 1
    buffers |= {f"y{i}": _real(a) for i, a in enumerate(flat)}
    if program.failures:
        buffers["failures"] = np.zeros(1, np.int32)
    run(program, buffers, sizes)
    if program.failures and buffers["failures"][0]:
        raise IndexError(program.failures[int(buffers["failures"][0]) - 1])
    return [a.reshape(s.static_dims) for a, s in zip(flat, shapes)]


def run_schedule(
    schedule: Schedule[GpuTask],
    operands: Sequence[Array],
    results: Sequence[Shape],
    sizes: Mapping[str, int] | None = None,
) -> list[Array]:
    """The same for launches one after the other, with their temporaries."""
    known = dict(sizes or {})
    shapes = [s.bind(known) for s in results]
    flat = [np.empty(int(np.prod(s.static_dims)), s.dtype.numpy) for s in shapes]
    temps = [np.empty(evaluate(t, known), np.uint8) for t in schedule.temps]
    for array in (*flat, *temps):
        array.view(np.uint8)[:] = 1
    held = {"operand": [np.ascontiguousarray(a).reshape(-1) for a in operands]}
    held |= {"result": flat, "temp": temps}
    for task in schedule.tasks:
        assert isinstance(task, Launch)
        program = verify(task.program())
        given = {n: _real(held[b.kind][b.index]) for n, b in zip(task.names, task.buffers)}
        own = [b for b in program.buffers if b.name in given]
        typed = {b.name: given[b.name].view(b.dtype.numpy) for b in own}
        failures = np.zeros(1, np.int32)
        launch(program, typed | ({"failures": failures} if task.failures else {}), known)
        if failures[0]:
            raise IndexError(task.failures[int(failures[0]) - 1])
    return [a.reshape(s.static_dims) for a, s in zip(flat, shapes)]


def _real(array: Array) -> Array:
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def wrong(made: Applied, program: Program, run: Run = launch) -> list[str]:
    """What the program computes wrongly, each with its case."""
    operands = [made.values[f"x{i}"] for i in range(len(made.values))]
    results = execute(program, operands, [o.shape for o in made.graph.outputs], run=run)
    found = compare("gpu", Expected(made.graph, made.values), results)
    return [f"{m.message} in {made.case}" for m in found]
