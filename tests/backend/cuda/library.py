"""Named algorithms on a GPU: `python -m tests.backend.cuda.library [ops…] [--draws N]`.

Drawn cases of every op of the library, judged like any target's results. Nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import FAILURES, Launch
from rlx.core.errors import Error
from rlx.ops.op import lookup
from rlx.program.verify import verify
from tests.backend.cuda.harness import Run
from tests.backend.gpu import launches, laws, test_named_algorithms

MACHINES = {"small": test_named_algorithms.SMALL, "default": GpuMachine(shared_bytes=227 << 10)}


class DeviceMemory(launches.Memory):
    """The same arrays, copied to the device and back around each launch."""

    on: Any = None
    launched = 0

    def launch(self, task: Launch) -> None:
        run, program = self.on, verify(task.program())
        kernel = run.load(program)
        named = dict(zip(task.names, task.buffers, strict=True))
        arrays = {b.name: self.arrays[named[b.name]] for b in program.buffers if b.name in named}
        failed = np.zeros(1, np.int32)
        arrays |= {b.name: failed for b in program.buffers if b.name == FAILURES}
        memory = {name: run.device.allocate(a.nbytes + 64) for name, a in arrays.items()}
        for name, array in arrays.items():
            run.queue.write(memory[name].address, array)
        addresses = [memory[b.name].address for b in program.buffers]
        run.queue.launch(kernel, addresses, dict(self.sizes))
        for name, array in arrays.items():
            run.queue.read(memory[name].address, array)
            run.device.free(memory[name])
        run.queue.wait()
        DeviceMemory.launched += 1
        if failed[0]:
            raise Error(task.failures[int(failed[0]) - 1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.backend.cuda.library", description=__doc__)
    parser.add_argument("ops", nargs="*", help="all of the library, where none is given")
    parser.add_argument("--draws", type=int, default=6, help="of every op (6)")
    parser.add_argument("--seconds", type=float, default=300, help="after which it stops (300)")
    args = parser.parse_args(argv)
    DeviceMemory.on, bad = Run(), 0
    launches.Memory, end = DeviceMemory, time.monotonic() + args.seconds
    for name in args.ops or test_named_algorithms.OPS:
        for number, made in enumerate(laws.drawn(lookup(name), 0, args.draws)):
            for kind, machine in MACHINES.items():
                try:
                    found = test_named_algorithms.wrong(made, machine, is_strided=number % 2 == 1)
                except (Error, launches.Host) as error:
                    found = [f"{str(error)[:600]} in {made.case}"]
                bad += len(found)
                for fault in found:
                    print(f"{kind}: {fault}", flush=True)
            if time.monotonic() > end:
                print("stopped: no time left")
                return 1
        print(f"{name}: {DeviceMemory.launched} launches, {bad} wrong so far", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
