"""The pages of results, made from the JSON files beside them: `python -m bench.page`."""

from __future__ import annotations

from typing import Any

from bench import results_file
from bench.peers import OURS
from bench.table import HEAD, Line, cells, duration, table
from bench.web import page as webgpu

GOAL = 1.15
"""Within this of the best peer counts as beside it."""
SINGLE = ("calls", "startup", "dynamic", "images", "lm_limits")
"""Measurements of rlx alone, with limits."""

METHOD = """## Method

Each peer runs in a process of its own. It loads its weights, compiles, checks its answer against
NumPy in double precision and warms up; then it is stopped (SIGSTOP). Rounds follow: in each, every
peer in turn is let go for a fraction of a second, runs the workload again and again, and is stopped
once more, so that all see the same machine and none is disturbed by another's waiting threads.
Before each round the machine must be idle for a moment; where it was not, rows say `noisy`.

The median and the spread (between the quartiles) are over all calls. A ratio is to the best peer:
the median over rounds of the ratio within the round; below 1 is faster. The floor is the time that
the useful arithmetic alone, or the bytes that must move alone, would take at the measured limits
above, whichever is more. The error is the greatest difference to the exact answer, as a share of
its greatest value. `rlx-out` is rlx with arrays for its outputs that are used again; every peer but
openvino makes new ones on each call. Setting up includes imports, compiling and the first call;
rlx's cache is off, inductor's is not."""


BESIDE = (
    "",
    "On a GPU: [gpu.md](gpu.md). Language models: [lm.md](lm.md). PyTorch: [torch.md](torch.md). "
    "By WebGPU, in and without a browser: [web.md](web.md). Compiled for TPUs: [tpu.md](tpu.md).",
)


def newest() -> dict[str, tuple[dict[str, Any], list[Line]]]:
    """For each workload the newest run that has it, and its lines."""
    found: dict[str, tuple[dict[str, Any], list[Line]]] = {}
    for run in results_file.runs():
        for name in run["workloads"]:
            own = [Line(**line) for line in run["lines"] if line["workload"] == name]
            found[name] = run, own
    return {name: found[name] for name in sorted(found)}


# -- workloads ------------------------------------------------------------------------------------


def summary(found: dict[str, tuple[dict[str, Any], list[Line]]]) -> list[str]:
    """One line per workload: ours, the best peer, and where that leaves us."""
    rows: list[tuple[str, ...]] = []
    for name, (run, lines) in found.items():
        timed = [line for line in lines if line.median_us is not None and line.is_right]
        ours = our_line(lines)
        floor = run["workloads"][name]["floor_us"]
        best = min((x for x in timed if x.peer not in OURS), key=_median, default=None)
        rows.append((
            f"{name}: {run['workloads'][name]['about']}",
            "–" if ours is None else duration(_median(ours)),
            "–" if best is None else f"{duration(_median(best))} ({best.peer})",
            "" if ours is None or ours.ratio is None else f"{ours.ratio:.2f}×",
            _verdict(ours),
            "" if floor is None else duration(floor),
        ))  # fmt: skip
    return table(("workload", "rlx", "best peer", "ratio", "", "floor"), rows)


def standing(found: dict[str, tuple[dict[str, Any], list[Line]]]) -> list[str]:
    """Where rlx wins and where it does not, in a line each."""
    where: dict[str, list[str]] = {}
    for name, (_, lines) in found.items():
        where.setdefault(_verdict(our_line(lines)).removesuffix(", noisy"), []).append(name)
    meaning = {
        "ahead": "Ahead of every peer",
        "beside": f"Within {GOAL:g}× of the best",
        "behind": "Behind",
        "does not run": "Does not run",
        "no peer": "Without a peer",
    }
    return [f"- {said}: {', '.join(where[k])}." for k, said in meaning.items() if k in where]


def our_line(lines: list[Line]) -> Line | None:
    """The faster of our rows."""
    timed = [x for x in lines if x.peer in OURS and x.median_us is not None and x.is_right]
    return min(timed, key=_median, default=None)


def _median(line: Line) -> float:
    assert line.median_us is not None
    return line.median_us


def _verdict(ours: Line | None) -> str:
    if ours is None:
        return "does not run"
    if ours.ratio is None:
        return "no peer"
    said = "ahead" if ours.ratio <= 1 else "beside" if ours.ratio <= GOAL else "behind"
    return f"{said}, noisy" if ours.is_noisy else said


def details(found: dict[str, tuple[dict[str, Any], list[Line]]]) -> list[str]:
    made: list[str] = []
    for name, (run, lines) in found.items():
        what = run["workloads"][name]
        made += ["", f"### {name}", "", f"{what['about']}. Measured {run['date']}.", ""]
        made += table((*HEAD, "set up", "peak MB"), [(*cells(x), *_costs(x)) for x in lines])
    return made


def _costs(line: Line) -> tuple[str, str]:
    if line.setup_s is None:
        return "", ""
    return f"{line.setup_s:.2f} s", str(line.peak_mb)


def machine(run: dict[str, Any]) -> list[str]:
    facts, limits = run["machine"], run["limits"]
    made = [
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB, last cache "
        f"{facts['last_cache_mb']} MB, {facts['system']}, Python {facts['python']}; "
        f"{run['plan']['threads']} threads each."
    ]
    if limits:
        made += [
            "",
            f"Measured limits: {limits['gflops']} GFLOP/s, {limits['read_gb_s']} GB/s read, "
            f"{limits['copy_gb_s']} GB/s copied, {limits['cache_gb_s']} GB/s from the last cache.",
        ]
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
    return [*made, "", f"Versions: {versions}."]


# -- the other measurements -----------------------------------------------------------------------


def checks() -> list[str]:
    """What is measured of rlx alone, with the limits that were set."""
    rows = [row for name in SINGLE for row in _checks(name)]
    return ["", "## Calls, start and named sizes", "", *_limits(rows)] if rows else []


def engines() -> list[str]:
    """rlx on jax and on mlx beside the same models written by hand for them."""
    on_jax = _engine(
        "jax", "engines", "",
        "Compiling is processor time from the model to the first result; rlx's includes its own "
        "passes and the plan.",
    )  # fmt: skip
    on_mlx = _engine(
        "mlx", "engines_mlx", " --target mlx",
        "Times are the processor's. mlx's Linux build multiplies matrices slowly: ratios tell, "
        "times do not.",
    )  # fmt: skip
    return [*on_jax, *on_mlx]


def _engine(name: str, part_name: str, option: str, more: str) -> list[str]:
    part = results_file.load(part_name)
    if not part:
        return []
    said = (
        f"Measured {part['measured']}, by `python -m bench.engines{option}`: one process, one "
        f"device of {name}, call by call in turns, NumPy's arrays in and out. {more}"
    )
    title = f"## On {name}, beside models written by hand"
    return ["", title, "", said, "", *_limits(_checks(part_name))]


def _checks(name: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    part = results_file.load(name)
    for row in part["rows"] if part else []:
        limit = "" if row["limit"] is None else f"{row['limit']:g} {row['unit']}"
        rows.append((row["what"], f"{row['value']:.3g} {row['unit']}", limit))
    return rows


def _limits(rows: list[tuple[str, ...]]) -> list[str]:
    return table(("", "measured", "limit"), rows)


def rooflines() -> list[str]:
    part = results_file.load("rooflines")
    if not part:
        return []
    rows = [
        (r["op"], r["case"], duration(r["us"]), f"{r['share']:.0%}", r["bound"], r["reason"])
        for r in part["rows"]
    ]
    said = (
        "Each op alone, at about a million elements, with outputs that are used again. The share "
        "is of what the measured limits allow. Below 10 % there is a reason."
    )
    made = ["", "## Ops against the roofline", "", said, ""]
    made += table(("op", "operands", "time", "share", "bound by", "reason"), rows)
    left = [f"- `{k}`: {v}" for k, v in part["left_out"].items()]
    return [*made, "", "Not measured:", "", *left] if left else made


def zoo() -> list[str]:
    """Real models against onnxruntime."""
    part = results_file.load("zoo")
    if not part:
        return []
    rows = [
        (r["name"], duration(r["rlx_us"]), duration(r["onnxruntime_us"]), f"{r['ratio']:.2f}×",
         f"{r['cold_s']:.2f} s", f"{1e3 * r['cached_s']:.0f} ms",
         f"{1e3 * r['onnxruntime_setup_s']:.0f} ms", "noisy" if r["is_noisy"] else "")
        for r in part["rows"]
    ]  # fmt: skip
    head = ("model", "rlx", "onnxruntime", "ratio", "load and compile", "from cache",
            "onnxruntime's load", "")  # fmt: skip
    said = f"{part['threads']} threads, measured {part['date']}. {part['summary']}."
    return ["", "## Real models", "", said, "", *table(head, rows)]


def trees() -> list[str]:
    """Ensembles of trees against onnxruntime."""
    part = results_file.load("trees")
    if not part:
        return []
    rows = [
        (r["name"], str(r["rows"]), str(r["threads"]), duration(r["rlx_us"]),
         duration(r["onnxruntime_us"]), f"{r['ratio']:.2f}×", f"{r['setup_s']:.2f} s",
         f"{r['onnxruntime_setup_s']:.2f} s", f"{r['error']:.0e}", f"{r['onnxruntime_error']:.0e}",
         "noisy" if r["is_noisy"] else "")
        for r in part["rows"]
    ]  # fmt: skip
    head = ("model", "rows", "threads", "rlx", "onnxruntime", "ratio", "load and compile",
            "onnxruntime's load", "error", "onnxruntime's", "")  # fmt: skip
    said = (
        f"Measured {part['date']}, by `python -m bench.trees`. {part['summary']}. Errors are to "
        "what the library itself predicts, as a share of the greatest score."
    )
    return ["", "## Trees", "", said, "", *table(head, rows)]


def text() -> str:
    found = newest()
    made = ["# Results", ""]
    if found:
        run = max((run for run, _ in found.values()), key=lambda r: r["date"])
        made += [*machine(run), "", *summary(found), "", *standing(found), ""]
    made += [METHOD, *BESIDE, *zoo(), *trees(), *checks(), *engines(), *rooflines()]
    made += ["", "## Workloads", *details(found)] if found else []
    return "\n".join(made) + "\n"


def write() -> None:
    (results_file.ROOT / "README.md").write_text(text())
    (results_file.ROOT / "web.md").write_text(webgpu.text())


if __name__ == "__main__":
    write()
