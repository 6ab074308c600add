"""Every verb of the command line on every real model, and on graphs built by hand.

`python -m tests.onnx.verbs [--only MODEL] [--verbs VERB]`, or `make zoo-verbs`. Each call is a
process of its own, as a user's is, with a time limit; what it leaves is judged: the exit code, one
line or none on stderr, JSON with the keys that are documented, a page that needs no network, a
trace with passes, code and kernels. Prints seconds by model and verb; exit 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.explain.report import Report
from tests.onnx.zoo import FOLDER, ZOO, fetched

LIMIT_S = 300.0
PAGE_BYTES = 5_000_000


class Wrong(Exception):
    """What a call left is not what it should be."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, what it is run on, and the folder for what is made of it."""

    path: str
    inputs: tuple[str, ...]
    folder: Path
    held: dict[str, Any] = field(default_factory=dict[str, Any])
    """What one verb leaves for the next, such as the names of nodes."""

    def file(self, name: str) -> str:
        return str(self.folder / name)


@dataclass(frozen=True, slots=True)
class Verb:
    """A call, and what must be true of what it leaves."""

    arguments: Callable[[Subject], list[str]]
    judge: Callable[[Subject, str], None]
    code: int = 0


# -- models ----------------------------------------------------------------------------------------


def real(name: str, files: Path, folder: Path) -> Subject:
    rng = np.random.default_rng(0)
    given: list[str] = []
    for key, make in ZOO[name].inputs.items():
        path = folder / f"{key}.npy"
        np.save(path, make(rng))
        given += ["--input", f"{key}={path}"]
    return Subject(str(fetched(name, files)), tuple(given), folder)


def by_hand(folder: Path) -> Subject:
    """A graph of ops: its weights are in no file, and one dim is named."""
    g = rlx.Graph("by_hand")
    x = g.input("x", rlx.Shape([rlx.Dim("rows"), 64]))
    w, v = g.param("w", rlx.Shape([64, 256])), g.param("v", rlx.Shape([256, 10]))
    hidden = g.gelu(g.mm(x, w))
    g.set_outputs({"scores": g.softmax(g.mm(hidden, v), axis=-1), "hidden": hidden})
    return _written(g, folder)


def blocks(folder: Path) -> Subject:
    """A module of blocks."""
    m = rlx.HirModule("blocks", rlx.FusionPolicy.FUSABLE)
    x = m.input("x", rlx.Shape([4, 64]))
    up, gate = m.param("up", rlx.Shape([64, 128])), m.param("gate", rlx.Shape([64, 128]))
    m.set_outputs([m.swiglu_ffn(x, up, gate, m.param("down", rlx.Shape([128, 64])))])
    return _written(m, folder)


def _written(model: Any, folder: Path) -> Subject:
    path = folder / f"{model.name}.ir"
    path.write_text(str(model))
    return Subject(str(path), (), folder)


HAND_MADE: dict[str, Callable[[Path], Subject]] = {"by_hand": by_hand, "blocks": blocks}


# -- what must be true -----------------------------------------------------------------------------


def need(is_right: object, what: str) -> None:
    if not is_right:
        raise Wrong(what)


def told(text: str, *keys: str) -> dict[str, Any]:
    """The JSON of a verb, with these keys."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Wrong(f"no JSON: {error}") from None
    missing = [k for k in keys if k not in found]
    need(not missing, f"JSON without {', '.join(missing)}")
    return found


def _compiled(s: Subject, out: str) -> None:
    found = told(out, "file", "bytes", "kernels", "fingerprint", "inputs", "outputs")
    need(Path(found["file"]).stat().st_size == found["bytes"] > 0, "the file has another size")
    need(found["kernels"], "no kernels")


def _ran(s: Subject, out: str) -> None:
    found = told(out, "inputs", "outputs", "files")
    need(found["outputs"], "no outputs")


def _ran_program(s: Subject, out: str) -> None:
    need(re.search(r"^out ", out, re.M), "no outputs")


def _checked(s: Subject, out: str) -> None:
    found = told(out, "runs", "counts", "nodes", "static", "is_static", "why_static")
    need(found["runs"], "it says that the model cannot run")


def _timed(s: Subject, out: str) -> None:
    need(told(out, "times")["times"]["rlx"]["median_ms"] > 0, "no time")


def _traced(s: Subject, out: str) -> None:
    facts = told(out, "file", "events", "passes", "units", "threads")
    events = json.loads(Path(facts["file"]).read_text())["traceEvents"]
    kinds = {e.get("cat") for e in events}
    missing = {"pass", "codegen", "kernel", "call"} - kinds
    need(not missing, f"a trace without {', '.join(sorted(missing))}")
    need(
        all(e["dur"] >= 0 for e in events if e["ph"] == "X"), "an event that ends before it begins"
    )


def _explained(s: Subject, out: str) -> None:
    need("kernels by" in out and "\ndecisions" in out, "no head, or no decisions")
    need(out.count("\n") < 250, "over 250 lines")


def _report(s: Subject, out: str) -> None:
    found = told(out, *(f.name for f in fields(Report)))
    need(json.loads(Report.from_json(out).to_json()) == found, "it does not read back")
    need(found["kernels"] and found["decisions"], "no kernels, or no decisions")
    (s.folder / "report.json").write_text(out)
    longest = max(found["kernels"], key=lambda k: k["predicted_ns"])
    name = next((n for k in (longest, *found["kernels"]) for n in k["where"]), f"k{longest['id']}")
    s.held["node"] = name.removeprefix("onnx ")


def _measured(s: Subject, out: str) -> None:
    found = told(out, *(f.name for f in fields(Report)))
    need("gate" in found["timings"], "nothing measured of the gate")
    need(any(k["measured"] for k in found["kernels"]), "no kernel was timed")


def _page(s: Subject, out: str) -> None:
    page = (s.folder / "report.html").read_bytes()
    need(len(page) < PAGE_BYTES, f"a page of {len(page):,} bytes")
    fetching = re.search(rb"""(?:src|href)=["']?(?:https?:)?//|@import|\bfetch\(""", page)
    need(fetching is None, f"a page that asks for {fetching and fetching.group()!r}")
    need(page.rstrip().endswith(b"</html>"), "a page that is cut short")


def _followed(s: Subject, out: str) -> None:
    need("kernel" in out, "the node is in no kernel")


def _unchanged(s: Subject, out: str) -> None:
    need(told(out)["is_same"], "a compile differs from its own report")


def _differs(s: Subject, out: str) -> None:
    need(isinstance(told(out), dict), "no facts")


def _kept(s: Subject, out: str) -> None:
    found = told(out, "count", "bytes", "damaged")
    need(found["count"] and not found["damaged"], "nothing kept, or damaged")


VERBS: dict[str, Verb] = {
    "compile": Verb(lambda s: ["-o", s.file("made.rlx"), "--json"], _compiled),
    "run": Verb(lambda s: ["-o", s.file("results"), "--json"], _ran),
    "check": Verb(lambda s: ["--json"], _checked),
    "bench": Verb(lambda s: ["--rounds", "1", "--json"], _timed),
    "trace": Verb(lambda s: ["-o", s.file("trace.json"), "--json"], _traced),
    "explain": Verb(lambda s: [], _explained),
    "explain --json": Verb(lambda s: ["--json"], _report),
    "explain --why": Verb(lambda s: ["--why", s.held["node"]], _followed),
    "explain --html": Verb(lambda s: ["--html", s.file("report.html")], _page),
    "explain --measure": Verb(
        lambda s: ["--measure", "--most", "2", "--seconds", "0.05", "--json"], _measured
    ),
    "diff": Verb(lambda s: [s.file("report.json"), "--json"], _unchanged),
    "diff --other": Verb(lambda s: [s.path, "--other", "tpu", "--json"], _differs, code=1),
    "cache": Verb(lambda s: ["verify", "--json"], _kept),
}  # fmt: skip
WITHOUT_MODEL = ("cache",)
PATH_ALONE = ("check", "run", "bench", "explain")
"""Verbs that make up inputs which fit the model: they are given none."""


# -- calls -----------------------------------------------------------------------------------------


def called(name: str, subject: Subject) -> tuple[float, str]:
    """Seconds that a verb took, and what is wrong with it, if anything is."""
    verb, word = VERBS[name], name.partition(" ")[0]
    start = time.perf_counter()
    try:
        inputs = () if name in PATH_ALONE else subject.inputs
        given = [] if name in WITHOUT_MODEL else [subject.path, *inputs]
        done = _process([word, *given, *verb.arguments(subject)], subject.folder)
        took = time.perf_counter() - start
        need(done.returncode == verb.code, f"exit {done.returncode}: {_last(done.stderr)}")
        need("Traceback" not in done.stderr, _last(done.stderr))
        need(done.stdout.strip(), "it says nothing")
        verb.judge(subject, done.stdout)
    except subprocess.TimeoutExpired:
        return LIMIT_S, f"not done after {LIMIT_S:.0f} s"
    except (Wrong, OSError, KeyError, ValueError, rlx.Error) as error:
        return time.perf_counter() - start, f"{type(error).__name__}: {error}"
    return took, ""


def _process(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {"RLX_CACHE": "on", "RLX_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "rlx", *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **kept}, check=False,
    )  # fmt: skip


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing on stderr"])[-1]


# -- all -------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.verbs", description=__doc__,
        epilog="example: python -m tests.onnx.verbs --only silero --verbs explain",
    )  # fmt: skip
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--verbs", metavar="RE", default="", help="verbs whose name has this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of model files ({FOLDER})")
    parser.add_argument("--keep", type=Path, help="a folder for what is made, kept for a look")
    args = parser.parse_args(argv)
    names = [n for n in (*HAND_MADE, *ZOO) if re.search(args.only, n)]
    verbs = [v for v in VERBS if re.search(args.verbs, v)]
    print(f"{'seconds':18}", *(f"{v:>{_width(v)}}" for v in verbs), flush=True)
    wrong = [line for n in names for line in _row(n, verbs, args.folder, args.keep)]
    print(*wrong, sep="\n") if wrong else None
    calls = len(names) * len(verbs)
    print(f"{calls - len(wrong)} of {calls} calls are right, on {len(names)} models")
    return 1 if wrong else 0


def _row(name: str, verbs: list[str], files: Path, keep: Path | None) -> list[str]:
    """One model: prints what each verb took; what went wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        folder = keep / name if keep else Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        subject = HAND_MADE[name](folder) if name in HAND_MADE else real(name, files, folder)
        print(f"{name:18}", end="", flush=True)
        for verb in verbs:
            took, fault = called(verb, subject)
            shown = f"{took:.1f}{'!' if fault else ''}"
            print(f" {shown:>{_width(verb)}}", end="", flush=True)
            wrong += [f"{name}: rlx {verb}: {fault}"] if fault else []
    print(flush=True)
    return wrong


def _width(verb: str) -> int:
    return max(6, len(verb))


if __name__ == "__main__":
    sys.exit(main())
