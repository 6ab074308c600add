"""Loop kernels on a GPU: `python -m tests.backend.cuda.device [--draws N]`, where there is one.

Every region of `tests/backend/gpu/regions.py` and every op's laws whose step is one loop kernel are
printed as PTX, assembled by the driver, launched, and judged like any target's results; and each is
compared with the SIMT interpreter. Nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.cuda.device import CudaDevice
from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import choose
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.fuzz.judge import Expected, compare
from rlx.ir.interpret import evaluate
from rlx.kernel.lower.loop import loop_kernel
from rlx.ops import op as table
from rlx.program.program import Program
from rlx.program.verify import verify
from tests.backend.gpu import laws
from tests.backend.gpu.regions import CASES, bound, span, view
from tests.backend.gpu.test_loop import assert_close

Array = np.ndarray[Any, Any]
MACHINES = {"small": laws.SMALL, "default": GpuMachine()}


class Device:
    """Programs on the device, like `laws.execute` on NumPy."""

    def __init__(self) -> None:
        self.device = CudaDevice()
        self.queue = self.device.queue()
        self.launches = 0

    def execute(
        self,
        program: Program,
        operands: Sequence[Array],
        results: Sequence[Shape],
        sizes: Mapping[str, int] | None = None,
    ) -> list[Array]:
        known = dict(sizes or {})
        shapes = [s.bind(known) for s in results]
        flat = [np.empty(int(np.prod(s.static_dims)), s.dtype.numpy) for s in shapes]
        given = {f"x{i}": np.ascontiguousarray(a).reshape(-1) for i, a in enumerate(operands)}
        given |= {f"y{i}": a for i, a in enumerate(flat)}
        given |= {"failures": np.zeros(1, np.int32)} if program.failures else {}
        for array in flat:
            array.view(np.uint8)[:] = 1
        device, queue = self.device, self.queue
        kernel = device.load(device.assemble([program])[0])
        memory = {name: device.allocate(a.nbytes) for name, a in given.items()}
        for name, array in given.items():
            queue.write(memory[name].address, array)
        queue.launch(kernel, [memory[b.name].address for b in program.buffers], known)
        self.launches += 1
        for name, array in given.items():
            queue.read(memory[name].address, array)
            device.free(memory[name])
        queue.wait()
        if program.failures and given["failures"][0]:
            raise IndexError(program.failures[int(given["failures"][0]) - 1])
        return [a.reshape(s.static_dims) for a, s in zip(flat, shapes)]


def regions(device: Device) -> Iterator[str]:
    """What is wrong of the regions."""
    for name, case in CASES.items():
        node = case.node()
        given, taken = case.layouts(node)
        for kind, machine in MACHINES.items():
            kernel = legal(loop_kernel(node, given, taken))
            program = verify(emit(kernel, choose(kernel, machine)))
            for sizes in case.sizes:
                operands = case.data(sizes)
                spans = [
                    Shape((span(bound(x, sizes)),), s.dtype) for x, s in zip(taken, node.shapes)
                ]
                values = {
                    f"v{i}": view(bound(x, sizes), o)
                    for i, (x, o) in enumerate(zip(given, operands))
                }
                want = evaluate(node.attrs["body"].bind(sizes), values)
                try:
                    got = device.execute(program, operands, spans, sizes)
                    for flat, layout, result in zip(got, taken, want, strict=True):
                        assert_close(view(bound(layout, sizes), flat), result)
                except (AssertionError, Error) as error:
                    yield f"{name}, {kind}, {dict(sizes)}: {str(error)[:600]}"


def ops(device: Device, draws: int) -> Iterator[str]:
    """What is wrong of the laws."""
    for op in table.table().values():
        if op.why_no_cases:
            continue
        for made in laws.drawn(op, 0, draws):
            kernel = laws.kernel_of(made)
            if kernel is None:
                continue
            for kind, machine in MACHINES.items():
                yield from wrong(device, made, laws.program_of(kernel, machine), kind)


def wrong(device: Device, made: laws.Applied, program: Program, kind: str) -> Iterator[str]:
    operands = [made.values[f"x{i}"] for i in range(len(made.values))]
    shapes = [o.shape for o in made.graph.outputs]
    try:
        results = device.execute(program, operands, shapes)
    except (Error, IndexError) as error:
        yield f"{made.case}, {kind}: {str(error)[:600]}"
        return
    for found in compare("cuda", Expected(made.graph, made.values), results):
        yield f"{made.case}, {kind}: {found.message}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.backend.cuda.device", description=__doc__)
    parser.add_argument("--draws", type=int, default=3, help="of every op (3)")
    parser.add_argument("--seconds", type=float, default=300, help="after which it stops (300)")
    args = parser.parse_args(argv)
    device, end, bad = Device(), time.monotonic() + args.seconds, 0
    print(f"code for {device.device.architecture}", flush=True)
    for name, faults in (("regions", regions(device)), ("laws", ops(device, args.draws))):
        before = device.launches
        for fault in faults:
            bad += 1
            print(f"{name}: {fault}", flush=True)
            if time.monotonic() > end:
                print("stopped: no time left")
                return 1
        print(f"{name}: {device.launches - before} launches", flush=True)
    print(f"{device.launches} launches, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
