"""Ratios to the best peer as a picture for documents: `python -m bench.chart`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench import results_file
from bench.page import newest, our_line

FILE = Path(__file__).parents[1] / "docs" / "images" / "benchmarks.svg"
ROW, LABELS, BARS, RIGHT, HEAD = 22, 350, 330, 120, 58
LEAST, MOST = 1 / 16, 2.0
"""Ratios at the ends of the axis, which is logarithmic."""


def rows() -> list[tuple[str, float, str]]:
    """A workload, our time over the best peer's, and what that peer is."""
    made: list[tuple[str, float, str]] = []
    for name, (run, lines) in newest().items():
        ours = our_line(lines)
        if ours is not None and ours.ratio is not None:
            about = f"{run['workloads'][name]['about']}{_precision(name)}"
            made.append((about, ours.ratio, "best of all peers"))
    zoo = results_file.load("zoo")
    if zoo:
        ratios = [row["ratio"] for row in zoo["rows"]]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        made.append((f"{len(ratios)} published ONNX models, to onnxruntime", mean, "onnxruntime"))
    return sorted(made, key=lambda row: row[1])


def _precision(name: str) -> str:
    _, is_lower, what = name.partition(" in ")
    return f", {what}" if is_lower else ""


def svg(made: Sequence[tuple[str, float, str]]) -> str:
    """Bars to the left of the line are faster than the peer, by the factor at their end."""
    height = HEAD + ROW * len(made) + 12
    width = LABELS + BARS + RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>Time of rlx over the time of the best peer, CPU, two threads</title>",
        "<style>text{fill:#1f2328}.m{fill:#59636e}.a{fill:#1a7f5a}.b{fill:#9a6700}"
        ".l{stroke:#59636e}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.m{fill:#9198a1}"
        ".a{fill:#3fb68b}.b{fill:#d29922}.l{stroke:#9198a1}}</style>",
        f'<text x="{LABELS}" y="18" font-size="14" font-weight="600" text-anchor="start">'
        "time of rlx / time of the best peer</text>",
        f'<text class="m" x="{LABELS}" y="36">CPU, 2 threads, in turns; left of the line is '
        "faster</text>",
    ]
    for index, row in enumerate(made):
        parts += _bar(*row, y=HEAD + ROW * index)
    one = LABELS + _x(1.0)
    parts.append(f'<line class="l" x1="{one:.1f}" x2="{one:.1f}" y1="{HEAD - 12}" y2="{height}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(about: str, ratio: float, peer: str, *, y: int) -> list[str]:
    at, one = _x(ratio), _x(1.0)
    left, wide = LABELS + min(at, one), max(abs(at - one), 1.0)
    kind = "a" if ratio <= 1 else "b"
    said = f"{1 / ratio:.1f}× faster" if ratio <= 0.95 else f"{ratio:.2f}×"
    return [
        f'<text x="{LABELS - 10}" y="{y + 13}" text-anchor="end">{escape(about)}</text>',
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{wide:.1f}" height="13" rx="2">'
        f"<title>{ratio:.2f} of {escape(peer)}</title></rect>",
        f'<text class="m" x="{LABELS + BARS + 8}" y="{y + 13}">{said}</text>',
    ]


def _x(ratio: float) -> float:
    held = min(max(ratio, LEAST), MOST)
    return BARS * math.log(held / LEAST) / math.log(MOST / LEAST)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(svg(rows()))
