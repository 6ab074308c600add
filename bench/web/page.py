"""web.md: what was measured by WebGPU, in a browser and without one, and by WebAssembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import results_file
from bench.table import duration, table

HEAD = ("workload", "", "time", "ratio to rlx", "off by", "kernels", "dispatches", "submits")
COUNTED = (
    "Kernels are the distinct pipelines of a call, dispatches its launches, submits its "
    "submissions to the queue: counted where the API is called, alike for all."
)


def text() -> str:
    """The page, of the numbers that there are."""
    made = ["# WebGPU and WebAssembly", "", COUNTED, *_native(), *_browser()]
    return "\n".join(made) + "\n"


def _native() -> list[str]:
    part = results_file.load("webgpu")
    if not part:
        return []
    versions = ", ".join(f"{k} {v}" for k, v in part["versions"].items())
    said = (
        f"`python -m bench.webgpu`, {part['date']}, on {part['adapter']}, a driver in software on "
        f"two cores; {versions}. rlx runs by wgpu-native, from NumPy arrays to NumPy arrays; "
        "tinygrad by Dawn with its inputs on the device, where its results stay. Medians of calls "
        "in turns; errors are shares of the greatest element. tinygrad has no Fourier transform: "
        "that of log-mel is a product with its matrix."
    )
    rows = [_native_row(r, _ours(part["rows"], r, "peer")) for r in part["rows"]]
    return ["", "## Without a browser", "", said, "", *table((*HEAD, "set up"), rows)]


def _native_row(row: Mapping[str, Any], ours: Mapping[str, Any] | None) -> Sequence[str]:
    if row["median_us"] is None:
        return (row["about"], row["peer"], row["why"], *[""] * 6)
    ratio = _ratio(row, ours, "median_us")
    time = duration(row["median_us"])
    cells = (row["about"], row["peer"], time, ratio, f"{row['error']:.0e}")
    return (*cells, *_counts(row), f"{row['setup_s']:.1f} s")


def _browser() -> list[str]:
    part = results_file.load("web")
    if not part:
        return []
    said = (
        f"`python -m bench.web`, {part['date']}, {part['peer']}; {part['browser']}, headless, on "
        "two cores without a GPU, so that WebGPU is SwiftShader, a driver in software. A call is "
        "from typed arrays to typed arrays; medians of calls in turns on one page, those by WebGPU "
        "and those by WebAssembly apart. WebAssembly has one thread. Errors are of an element "
        "against double precision. On a GPU nothing was measured."
    )
    rows = [_browser_row(r, _same_kind(part["rows"], r)) for r in part["rows"]]
    head = (*HEAD, "shader modules", "loads in")
    return ["", "## In a browser", "", said, "", *table(head, rows)]


def _browser_row(row: Mapping[str, Any], ours: Mapping[str, Any] | None) -> Sequence[str]:
    if "error" in row:
        return (row["about"], row["engine"], row["error"], *[""] * 7)
    cells = (row["about"], row["engine"], duration(row["ms"] * 1e3), _ratio(row, ours, "ms"))
    off, modules = f"{row['off_by']:.0e}", str(row["modules"] or "")
    return (*cells, off, *_counts(row), modules, f"{row['load_s']:.1f} s")


def _ours(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], key: str) -> Any:
    """The row of rlx beside one."""
    same = (r for r in rows if r["workload"] == row["workload"] and r[key] == "rlx")
    return next(same, None)


def _same_kind(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Any:
    """The row of rlx by the same means."""
    wanted = row["workload"], f"rlx-{row['engine'].partition('-')[2]}"
    return next((r for r in rows if (r["workload"], r["engine"]) == wanted), None)


def _ratio(row: Mapping[str, Any], ours: Mapping[str, Any] | None, key: str) -> str:
    if ours is None or not ours.get(key):
        return ""
    return f"{row[key] / ours[key]:.2g}×"


def _counts(row: Mapping[str, Any]) -> Sequence[str]:
    found = row["launches"]
    if not found or not found["dispatches"]:
        return ("", "", "")
    return tuple(str(found[k]) for k in ("kernels", "dispatches", "submits"))
