"""`python -m rlx.fuzz.onnx`: damaged ONNX files, each of which must give a result or an rlx.Error.

Every file is read, and some are compiled and run, in child processes with 1 GiB to use. Whatever
is another exception, a crash, or takes longer than 2 seconds is a finding, with its seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rlx.core.errors import Error
from rlx.frontends.onnx.reader import NEWEST_OPSET, UNCHANGED
from rlx.fuzz.mutate import mutated
from rlx.fuzz.workers import Lost, each

LIMIT_S = 2.0
"""Of processor time, so that a busy machine finds nothing wrong."""
HANG_S = 60.0
LIMIT_BYTES = 1 << 30
MOST_FLOPS = 1_000_000_000
LARGEST = 1 << 18
"""Files of the corpus up to here: larger ones are weights for the most part."""


@dataclass(frozen=True, slots=True)
class Job:
    """A file by its seed."""

    seed: int
    is_run: bool
    corpus: str
    is_strict: bool = False
    """Is an error that nobody thought of a finding, too?"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a file gave: a word to count, and what is wrong with it, if anything."""

    word: str
    finding: str = ""


# -- the corpus ---------------------------------------------------------------------------------


@cache
def corpus(folder: str) -> tuple[bytes, ...]:
    """The small files of a folder."""
    return tuple(_files(Path(folder)))


def gather(source: str, folder: Path) -> None:
    """Models to damage, where children find them: those of another folder, or those that come
    with onnx, `stored` ones only, or `all`."""
    if source in ("stored", "all"):
        found = _stored() + (_made() if source == "all" else [])
    else:
        found = _files(Path(source))
    if not found:
        raise Error(f"{source}: there are no small .onnx files")
    for number, data in enumerate(found):
        (folder / f"{number:06}.onnx").write_bytes(_readable(data))


def _readable(data: bytes) -> bytes:
    """A model of an opset that rlx reads: what is refused for its age tests nothing."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = max(UNCHANGED, min(opset.version, NEWEST_OPSET))
    return model.SerializeToString()


def _files(folder: Path) -> list[bytes]:
    paths = sorted(folder.rglob("*.onnx"))
    return [p.read_bytes() for p in paths if p.stat().st_size <= LARGEST]


def _stored() -> list[bytes]:
    from rlx.frontends.onnx.reader import onnx_package

    return _files(Path(onnx_package().__file__).parent / "backend" / "test" / "data")


def _made() -> list[bytes]:
    """The cases of single operators, which onnx makes in memory."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = sorted(load_model_tests(kind="node"), key=lambda c: c.name)
    made = [c.model.SerializeToString() for c in cases if c.model is not None]
    return [m for m in made if len(m) <= LARGEST]


# -- one file -----------------------------------------------------------------------------------


def outcome(job: Job) -> Outcome:
    """Read the file, and run it if asked."""
    warnings.simplefilter("ignore")
    data = mutated(job.seed, corpus(job.corpus))
    _limit_memory()
    start = time.process_time()
    try:
        word = _tried(data, job)
    except Error as error:
        finding = _surprise(error) if job.is_strict else ""
        word = type(error).__name__
    except Exception as error:
        word, finding = type(error).__name__, _finding(error)
    else:
        finding = ""
    took = time.process_time() - start
    if took > LIMIT_S and not finding:
        return Outcome("slow", f"it took {took:.1f} s, and gave {word}")
    return Outcome(word, finding)


def _tried(data: bytes, job: Job) -> str:
    from rlx.frontends.files import load
    from rlx.ir.verify import verify

    with tempfile.TemporaryDirectory(prefix="rlx-fuzz-") as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(data)
        model: Any = load(path)
        if not model.is_static:
            verify(model.graph)
        return _run(model) if job.is_run else "read"


def _run(model: Any) -> str:
    """Compiled, and run unless it asks for more arithmetic than there is time for."""
    from rlx.runtime.random_inputs import random_inputs
    from rlx.runtime.session import Session

    exe = Session("cpu", threads=1, cache=False).compile(model)
    given = random_inputs(exe.inputs, {}, 0, typical=3)
    program, _ = exe.settled(given)
    if _flops(program) > MOST_FLOPS:
        return "heavy"
    exe.run(given)
    return "ran"


def _flops(program: Any) -> int:
    from rlx.cost.terms import Terms
    from rlx.passes.bodies import nodes_within

    terms = Terms(program.lir.target)
    return sum(terms.flops_of(n) for n in nodes_within(program.lir.mir.graph) if not n.is_leaf)


@cache
def _limit_memory() -> None:
    """1 GiB more than what is there before the first file."""
    import resource

    for module in (
        "rlx.frontends.onnx.model",
        "rlx.runtime.session",
        "rlx.backends.cpu.backend",
        "onnx",
    ):
        import_module(module)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _surprise(error: Error) -> str:
    from rlx.frontends.onnx.reader import ReadError

    is_one = isinstance(error, ReadError) and not isinstance(error.__cause__, MemoryError)
    return _finding(error.__cause__ or error) if is_one else ""


def _finding(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__} at {where}: {str(error)[:160]}"


# -- all of them --------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Exit 0 if every file gave a result or an rlx.Error, in time."""
    parser = argparse.ArgumentParser(
        "python -m rlx.fuzz.onnx",
        description=__doc__,
        epilog="example: python -m rlx.fuzz.onnx --files 20000 --run 200",
    )
    parser.add_argument("--files", type=int, default=2000, help="how many files (2000)")
    parser.add_argument("--run", type=int, default=20, help="how many of them are run (20)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--corpus",
        default="all",
        help="a folder of models to damage, or those of onnx: stored, or all (all)",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="write files that are findings there")
    parser.add_argument(
        "--strict", action="store_true", help="errors that nobody thought of are findings, too"
    )
    args = parser.parse_args(argv)
    os.environ["RLX_CACHE"] = "off"
    with tempfile.TemporaryDirectory(prefix="rlx-corpus-") as folder:
        gather(args.corpus, Path(folder))
        return summary(_all(_jobs(args, folder), args.jobs, args.keep))


def _jobs(args: argparse.Namespace, folder: str) -> list[Job]:
    every = max(1, args.files // args.run) if args.run else args.files + 1
    seeds = range(args.first, args.first + args.files)
    return [Job(s, s % every == 0 and args.run > 0, folder, args.strict) for s in seeds]


def _all(jobs: Sequence[Job], workers: int, keep: str | None) -> Counter[str]:
    words: Counter[str] = Counter()
    for job, got in zip(jobs, each(outcome, jobs, workers, HANG_S)):
        found = _again(job, got) if isinstance(got, Lost) else got
        words[found.word] += 1
        if found.finding:
            words["findings"] += 1
            print(f"seed {job.seed}{' run' * job.is_run}: {found.finding}", flush=True)
            if keep:
                Path(keep).mkdir(parents=True, exist_ok=True)
                Path(keep, f"{job.seed}.onnx").write_bytes(mutated(job.seed, corpus(job.corpus)))
    return words


def _again(job: Job, lost: Lost) -> Outcome:
    """A file that gave no answer is tried once more, alone: the machine may have been asleep."""
    got = next(iter(each(outcome, [job], 1, HANG_S)))
    return Outcome("lost", lost.reason) if isinstance(got, Lost) else got


def summary(words: Counter[str]) -> int:
    findings = words.pop("findings", 0)
    counts = ", ".join(f"{n} {w}" for w, n in words.most_common())
    print(f"{words.total()} files: {counts}; {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
