"""What a run comes to: medians, spreads, ratios within rounds, and shares of the floor."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.conductor import Measured, Row
from bench.machine import QUIET
from bench.peers import OURS
from bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table. The spread is that between the quartiles; the ratio is to the best peer,
    the median of what it was in each round."""

    workload: str
    peer: str
    why: str = ""
    median_us: float | None = None
    spread_us: float | None = None
    least_us: float | None = None
    ratio: float | None = None
    floor_share: float | None = None
    error: float | None = None
    is_right: bool = True
    is_noisy: bool = False
    calls: int = 0
    rounds: int = 0
    setup_s: float | None = None
    peak_mb: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def lines(measured: Measured, workload: Workload, floor_us: float | None) -> list[Line]:
    """A line for each row, in the order of the rows."""
    best = _best_peer(measured.rows, workload.tolerance)
    is_noisy = not measured.idle or statistics.median(measured.idle) < QUIET
    return [_line(row, best, workload, floor_us, is_noisy) for row in measured.rows]


def _best_peer(rows: list[Row], tolerance: float) -> Row | None:
    """The fastest of those that are not ours and answer rightly."""
    fit = [r for r in rows if r.turns and r.peer not in OURS and r.setup["error"] < tolerance]
    return min(fit, key=lambda r: _middle(r), default=None)


def _middle(row: Row) -> float:
    return statistics.median([ns for turn in row.turns for ns in turn])


def _line(
    row: Row, best: Row | None, workload: Workload, floor_us: float | None, is_noisy: bool
) -> Line:
    if not row.turns:
        return Line(workload.name, row.peer, row.why or "no turn")
    calls = sorted(ns / 1e3 for turn in row.turns for ns in turn)
    median = statistics.median(calls)
    return Line(
        workload.name, row.peer, row.why, median_us=median,
        spread_us=calls[3 * len(calls) // 4] - calls[len(calls) // 4], least_us=calls[0],
        ratio=None if best is None else ratio(row.turns, best.turns),
        floor_share=None if floor_us is None else floor_us / median,
        error=row.setup["error"], is_right=row.setup["error"] < workload.tolerance,
        is_noisy=is_noisy, calls=len(calls), rounds=len(row.turns),
        setup_s=row.setup["setup_s"], peak_mb=row.setup["peak_mb"],
    )  # fmt: skip


def ratio(turns: list[list[float]], others: list[list[float]]) -> float:
    """The median over rounds of the ratio of medians."""
    pairs = zip(turns, others)
    return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    escaped = [[c.replace("|", "\\|") for c in row] for row in rows]
    parts = [list(head), ["---"] * len(head), *escaped]
    return [f"| {' | '.join(row)} |" for row in parts]


def duration(us: float) -> str:
    """Microseconds as they are read most easily."""
    if us < 1000:
        return f"{us:.3g} µs" if us < 100 else f"{us:.0f} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def cells(line: Line) -> tuple[str, ...]:
    """Peer, median, spread, ratio, share of the floor, error, remark."""
    if line.median_us is None:
        return (line.peer, "–", "", "", "", "", line.why)
    marks = [*([] if line.is_right else ["WRONG"]), *(["noisy"] if line.is_noisy else [])]
    return (
        line.peer,
        duration(line.median_us),
        duration(line.spread_us or 0.0),
        "" if line.ratio is None else f"{line.ratio:.2f}×",
        "" if line.floor_share is None else f"{line.floor_share:.0%}",
        f"{line.error:.0e}",
        ", ".join([*marks, *([line.why] if line.why else [])]),
    )


HEAD = ("peer", "median", "spread", "to best peer", "of floor", "error", "")


def text(title: str, made: list[Line]) -> str:
    """The lines in columns, under a title."""
    table = [HEAD, *(cells(line) for line in made)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    shown = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in table]
    return "\n".join([title, *(f"  {row}" for row in shown)])
