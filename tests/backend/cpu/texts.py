"""A hash of the LLVM text of every kernel: `python -m tests.backend.cpu.texts > before.txt`.

A change under the kernels' emitters that is to change no code is proved by equal lists:

    python -m tests.backend.cpu.texts --against before.txt

Compiled are the laws' applications of every op, the workloads of the benches, the published models
that were fetched for `tests.onnx.zoo`, random graphs, and what all programs share; each for every
instruction set. A line is the instruction set, the case, the kernel and the hash of its text.
Nothing is run, so that this machine need not have the instructions.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlx.backends.cpu.isa import ISAS, isa
from rlx.backends.cpu.llvm.function import Function
from rlx.backends.cpu.program.module import assembled
from rlx.backends.cpu.runtime.support_code import support_text
from rlx.backends.cpu.system.current import SYSTEMS
from rlx.core.errors import Error
from rlx.fuzz.workers import Lost, each
from rlx.ir.lir import LirModule
from rlx.ops.op import lookup
from rlx.pipeline import CompilePipeline
from tests.backend.cpu.laws import CLAIMED, batch

CASES, SEEDS = 6, 100
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class Job:
    """A graph, by its kind and its name, for some instruction sets."""

    kind: str
    name: str
    isas: tuple[str, ...]

    @property
    def case(self) -> str:
        return f"{self.kind}:{self.name}"


def lines(job: Job) -> list[str]:
    """What a job has to say, a kernel in each line."""
    if job.kind == "shared":
        system, _, machine = job.name.partition("-")
        return [f"- {job.case} support {_hash(support_text(SYSTEMS[system](machine)))}"]
    model = _model(job)
    return [line for name in job.isas for line in _lines_for(job, model, name)]


def _lines_for(job: Job, model: Any, name: str) -> Iterator[str]:
    from rlx.backends.cpu.backend import CpuBackend

    try:
        backend = CpuBackend(name)
        program = backend.program(_planned(model, backend))
        made = assembled(program, isa(name))
    except Error as error:
        yield f"{name} {job.case} - {type(error).__name__}"
        return
    for function in (*made.kernels, *made.subprograms):
        yield f"{name} {job.case} {function.name} {_hash(_text(function))}"


def _planned(model: Any, backend: Any) -> LirModule:
    return CompilePipeline(backend.target()).compile(model).lir


def _text(function: Function) -> str:
    return "\n".join([function.text, *(f"{k}\n{v}" for k, v in function.shared)])


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


# -- models ---------------------------------------------------------------------------------------


def _model(job: Job) -> Any:
    return _MODELS[job.kind](job.name)


def _law(name: str) -> Any:
    """Applications of one op."""
    return batch([lookup(name)], 0, CASES).graph


def _workload(name: str) -> Any:
    from bench.workloads import WORKLOADS

    workload = WORKLOADS[name]()
    return workload.model(workload.rlx_params())


def _published(name: str) -> Any:
    import rlx

    model: Any = rlx.load(_zoo()[name])
    return model.graph


def _random(seed: str) -> Any:
    from rlx.fuzz import grow

    return grow(int(seed)).graph


@cache
def _zoo() -> dict[str, Path]:
    from tests.onnx.zoo import FOLDER, ZOO

    paths = {name: FOLDER / f"{name}.onnx" for name in ZOO}
    return {name: path for name, path in paths.items() if path.exists()}


_MODELS = {"law": _law, "bench": _workload, "zoo": _published, "fuzz": _random}


def jobs(isas: Sequence[str], seeds: int, only: str) -> list[Job]:
    from bench.workloads import WORKLOADS

    names: dict[str, Iterable[str]] = {
        "shared": (f"{system}-{machine}" for system in SYSTEMS for machine in MACHINES),
        "law": (op.name for op in CLAIMED),
        "bench": WORKLOADS,
        "zoo": _zoo(),
        "fuzz": map(str, range(seeds)),
    }
    every = (Job(kind, name, tuple(isas)) for kind, those in names.items() for name in those)
    return [job for job in every if re.search(only, job.case)]


# -- the command ----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.backend.cpu.texts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--isa", default=",".join(ISAS), help="which, with commas (all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"random graphs ({SEEDS})")
    parser.add_argument("--only", metavar="RE", default="", help="cases whose name has this")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier list")
    args = parser.parse_args(argv)
    found: list[str] = []
    chosen = jobs(args.isa.split(","), args.seeds, args.only)
    for number, (job, answer) in enumerate(zip(chosen, each(lines, chosen, args.jobs)), 1):
        those = [f"- {job.case} - {answer.reason}"] if isinstance(answer, Lost) else answer
        found += those
        if args.against is None:
            print("\n".join(those), flush=True)
        print(f"\r{number} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 0 if args.against is None else _compared(found, args.against)


def _compared(found: Sequence[str], against: Path) -> int:
    """Exit 0 if every kernel has the text it had."""
    now, then = _hashes(found), _hashes(against.read_text().splitlines())
    cases = {_case(key) for key in now}
    then = {key: text for key, text in then.items() if _case(key) in cases}
    differ = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
    print(*differ[:50], sep="\n")
    print(f"{len(now)} texts, {len(differ)} differ from {against}")
    return 1 if differ else 0


def _hashes(found: Iterable[str]) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in found)


def _case(key: str) -> str:
    """The instruction set and the case."""
    return " ".join(key.split()[:2])


if __name__ == "__main__":
    sys.exit(main())
