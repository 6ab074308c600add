"""Every loop kernel of the laws, for AMD GPUs: `python -m tests.backend.rocm.all [emulate]`.

Each is verified as LLVM IR and assembled for gfx942, gfx1100 and gfx1201, its code object passes
the structure checks, and the interpreter runs it in waves of 64; with `emulate`, what was printed
is run on the host, too. Large sizes are drawn for every third.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rlx.backends.rocm.architecture import ARCHITECTURES, Architecture
from tests.backend.gpu import laws
from tests.backend.rocm import emulate
from tests.backend.rocm.programs import DRAWN, small
from tests.backend.rocm.structure import checked

TARGETS = ("gfx942", "gfx1100", "gfx1201")


def applications() -> Iterator[laws.Applied]:
    for op in DRAWN:
        yield from laws.drawn(op, 0, 3)


def faults(target: Architecture, *, is_emulated: bool) -> tuple[int, list[str]]:
    """Programs, and what is wrong with them."""
    count, found = 0, list[str]()
    for made in applications():
        kernel = laws.kernel_of(made)
        if kernel is None:
            continue
        program = laws.program_of(kernel, small(target))
        found += checked(program, target)[1]
        if target.wave == 64:
            found += laws.wrong(made, program)
        if is_emulated:
            found += emulate.wrong(made, program, target)
        count += 1
    return count, found


def main() -> int:
    is_emulated, every = "emulate" in sys.argv[1:], list[str]()
    for name in TARGETS:
        start = time.perf_counter()
        count, found = faults(ARCHITECTURES[name], is_emulated=is_emulated)
        seconds = time.perf_counter() - start
        print(f"{name}: {count} kernels, {len(found)} faults, {seconds:.0f} s", flush=True)
        every += found
    print("\n".join(every[:20]))
    return bool(every)


if __name__ == "__main__":
    sys.exit(main())
