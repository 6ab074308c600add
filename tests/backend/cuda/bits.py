"""The same bits from run to run: `python -m tests.backend.cuda.all --bits [cases…]`.

Every workload of `bench/gpu` is compiled and run in two processes, each of which calls it as single
launches, as a recorded graph and as a graph that is replayed: all results must be the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import rlx
from bench.gpu.cases import Case, Maker, cases, graph_of

CALLS = 4
"""The first are launches, the second is recorded, the others replay it."""
PROCESSES = 2


def digests(case: Case) -> Iterator[str]:
    """Of the results of each call in this process."""
    import torch

    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[case.dtype]
    maker = Maker(torch, dtype)
    params, inputs = case.params(maker), case.inputs(maker)
    held = {k: _host(torch, v) for k, v in params.items()}
    exe: Any = rlx.compile(graph_of(case, params, inputs), target="cuda", params=held)
    bound = exe.bind(*inputs)
    for _ in range(CALLS):
        bound()
        bound.wait()
        yield _digest(bound.outputs)
    yield _digest(list(exe.run({f"x{i}": _host(torch, x) for i, x in enumerate(inputs)}).values()))


def _digest(arrays: Sequence[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(np.asarray(array)).view(np.uint8).data)
    return found.hexdigest()[:16]


def _host(torch: Any, tensor: Any) -> Any:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return np.ascontiguousarray(tensor.cpu().numpy())


def _child(name: str, seconds: float) -> list[str]:
    """The digests of a process of its own; what it said where it gave none."""
    command = [sys.executable, "-m", "tests.backend.cuda.bits", "--inside", name]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return ["out of time"]
    lines = ended.stdout.decode().splitlines()
    found = [x.removeprefix("bits ") for x in lines if x.startswith("bits ")]
    return found if not ended.returncode else [ended.stderr.decode()[-300:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all bits are equal, 1 where some are not."""
    parser = argparse.ArgumentParser("python -m tests.backend.cuda.all --bits", description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of names of cases; all, if none is given")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once (4)")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each process (300)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        (case,) = (c for c in cases() if c.name == args.inside)
        for found in digests(case):
            print(f"bits {found}", flush=True)
        return 0
    names = [c.name for c in cases() if not args.parts or any(p in c.name for p in args.parts)]
    return _all(names, args.jobs, args.seconds)


def _all(names: Sequence[str], jobs: int, seconds: float) -> int:
    start, right = time.monotonic(), 0
    each = [n for n in names for _ in range(PROCESSES)]
    with ThreadPoolExecutor(jobs) as pool:
        found = iter(pool.map(lambda n: _child(n, seconds), each))
        for name in names:
            got = [d for _ in range(PROCESSES) for d in next(found)]
            is_right = len(set(got)) == 1 and len(got) == PROCESSES * (CALLS + 1)
            right += is_right
            print(f"{name}: {'same bits' if is_right else got}", flush=True)
    took = time.monotonic() - start
    print(f"bits: {right} of {len(names)} the same in {PROCESSES} processes, {took:.0f} s")
    return int(right < len(names))


if __name__ == "__main__":
    sys.exit(main())
