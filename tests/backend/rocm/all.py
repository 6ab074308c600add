"""Every kernel of the laws, for AMD GPUs: `python -m tests.backend.rocm.all [emulate] [first]`.

One application of every op is compiled. All its programs, of every form, are verified as LLVM IR
and assembled for gfx942, gfx1100 and gfx1201, and their code objects pass the structure checks;
the interpreter runs the loop kernels in waves of 64. With `emulate`, the models run as they would
on a device: by calls of HIP, which stand-ins of the host's take, and by what was printed; so do a
few random graphs with states. `first` is the number of the application that is drawn (0); every
third is large.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rlx.backends.gpu.runtime.lay_out import launches_of
from rlx.backends.rocm.architecture import ARCHITECTURES
from rlx.core.errors import Error
from rlx.fuzz.states import ends_of, grow_states, judge_calls, judge_phases, opened
from rlx.ops import op as table
from rlx.pipeline import CompilePipeline
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import differences, outputs
from tests.backend.rocm.fake import EmulatedBackend, FakeHip
from tests.backend.rocm.programs import small
from tests.backend.rocm.structure import checked

TARGETS = ("gfx942", "gfx1100", "gfx1201")
NUM_STATES = 3
"""Random graphs with states."""
OPS = [o for o in table.table().values() if not o.why_no_cases]


def of_programs(made: laws.Applied, backend: EmulatedBackend) -> Iterator[list[str]]:
    """What is wrong with each program that is made of an application."""
    target = backend.device().target
    lir = CompilePipeline(backend.target()).compile(made.graph).lir
    for program in (t.program() for t in launches_of(backend.program(lir))):
        yield checked(program, target)[1]
    kernel = laws.kernel_of(made) if target.wave == 64 else None
    if kernel is not None:
        yield laws.wrong(made, laws.program_of(kernel, small(target)))


def faults(
    made: laws.Applied, backend: EmulatedBackend, *, is_emulated: bool
) -> Iterator[list[str]]:
    try:
        yield from of_programs(made, backend)
        if is_emulated:
            got = outputs(made.graph, made.values, backend)
            yield differences(made.graph, made.values, got)
    except Error as error:
        yield [str(error)]


def wrong_calls(number: int, backend: EmulatedBackend) -> list[str]:
    """What is wrong with calls of a session of a random graph."""
    try:
        grown = grow_states(number)
        session = opened(backend, grown, ends_of(grown.graph))
        found = judge_calls("rocm", grown, session) + judge_phases("rocm", grown, session)
    except Error as error:
        return [str(error)]
    return [f"{m.output}: {m.message}" for m in found]


def main() -> int:
    words, bad = sys.argv[1:], 0
    first = next((int(w) for w in words if w.isdigit()), 0)
    is_emulated = "emulate" in words
    for name in TARGETS:
        start, count = time.perf_counter(), 0
        backend = EmulatedBackend(FakeHip(architecture=ARCHITECTURES[name].name))
        for op in OPS:
            for made in laws.drawn(op, first, 1):
                for found in faults(made, backend, is_emulated=is_emulated):
                    count, bad = count + 1, bad + len(found)
                    for fault in found:
                        print(f"{name}: {op.name}: {fault[:400]} in {made.case}", flush=True)
        for number in range(first, first + NUM_STATES if is_emulated else first):
            found = wrong_calls(number, backend)
            count, bad = count + 1, bad + len(found)
            for fault in found:
                print(f"{name}: states {number}: {fault[:400]}", flush=True)
        print(f"{name}: {count} checks in {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{bad} faults")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
