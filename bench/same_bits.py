"""Do two versions of rlx compute the same bits? `python -m bench.same_bits --before FOLDER`.

FOLDER is another checkout, such as `git worktree add ../before COMMIT`. Its code and this one's
compile the same cases for cpu, each in a process of its own, and the digests of all outputs are
compared: the workloads, the published ONNX models that were fetched for `tests.onnx.zoo`, and
random graphs of the fuzzer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
Case = tuple[str, Callable[[], Sequence[Any]]]


# -- in a checkout --------------------------------------------------------------------------------


def cases(seeds: int, only: str) -> Iterator[Case]:
    """Names, and what computes the outputs."""
    found = (*_workloads(), *_models(), *((f"seed_{s}", _graph(s)) for s in range(seeds)))
    return ((name, run) for name, run in found if re.search(only, name))


def _workloads() -> Iterator[Case]:
    import rlx
    from bench.workloads import WORKLOADS

    def run(name: str) -> Sequence[Any]:
        workload = WORKLOADS[name]()
        params = workload.rlx_params()
        return _listed(rlx.compile(workload.model(params), "cpu", params=params)(*workload.inputs))

    yield from ((name, lambda name=name: run(name)) for name in WORKLOADS)


def _models() -> Iterator[Case]:
    from tests.onnx.zoo import FOLDER, MODELS

    def run(name: str, path: Path) -> Sequence[Any]:
        import rlx

        rng = np.random.default_rng(0)
        given = {k: make(rng) for k, make in MODELS[name].inputs.items()}
        exe: Any = rlx.compile(rlx.load(path), "cpu")
        return list(exe.run(given).values())

    for name in MODELS:
        path = FOLDER / f"{name}.onnx"
        if path.exists():
            yield name, lambda name=name, path=path: run(name, path)


def _graph(seed: int) -> Callable[[], Sequence[Any]]:
    def run() -> Sequence[Any]:
        import rlx
        from rlx.fuzz import grow

        grown = grow(seed)
        named = {n.attrs["name"]: n for n in grown.graph.params}
        params = {name: grown.values[name] for name in named}
        exe: Any = rlx.compile(grown.graph, "cpu", params=params)
        return _listed(exe(*(grown.values[n.attrs["name"]] for n in grown.graph.inputs)))

    return run


def _listed(made: Any) -> Sequence[Any]:
    return made if isinstance(made, tuple | list) else [made]


def digest(outputs: Sequence[Any]) -> str:
    """Of the bytes; every NaN is the same one."""
    made = hashlib.blake2b(digest_size=12)
    for value in outputs:
        array = np.asarray(value)
        if array.dtype.kind in "fc":
            array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
        data = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
        made.update(f"{array.dtype}{array.shape}".encode() + data)
    return made.hexdigest()


def tell(seeds: int, only: str) -> None:
    """A line for each case: its name and its digest, or the error."""
    import rlx

    for name, run in cases(seeds, only):
        try:
            made = digest(run())
        except rlx.Error as error:
            made = type(error).__name__
        print(json.dumps([name, made]), flush=True)


# -- both ------------------------------------------------------------------------------------------


def digests(folder: Path, seeds: int, only: str) -> dict[str, str]:
    """What the code in a checkout computes."""
    path = os.pathsep.join((str(folder / "src"), str(folder)))
    done = subprocess.run(
        [sys.executable, __file__, "--tell", "--seeds", str(seeds), "--only", only],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, "RLX_CACHE": "off"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return dict(map(json.loads, done.stdout.splitlines()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.same_bits", description=__doc__)
    parser.add_argument("--before", type=Path, help="the other checkout")
    parser.add_argument("--seeds", type=int, default=500, help="random graphs (500)")
    parser.add_argument("--only", metavar="RE", default="", help="cases whose name has this")
    parser.add_argument("--tell", action="store_true", help="this checkout's digests alone")
    args = parser.parse_args(argv)
    if args.tell or args.before is None:
        tell(args.seeds, args.only)
        return 0
    before = digests(args.before.resolve(), args.seeds, args.only)
    after = digests(ROOT, args.seeds, args.only)
    differ = [name for name, made in before.items() if after.get(name) != made]
    print(f"{len(before)} cases, {len(differ)} differ: {', '.join(differ) or 'none'}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
