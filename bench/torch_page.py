"""The page of `bench.torch`: what `bench/results/torch.json` says, as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "torch.json"
ENGINES = ("eager", "inductor", "frozen", "rlx", "exported")
TITLES = ("eager", "inductor", "frozen inductor", '`torch.compile(backend="rlx")`', "exported")


def ratio(row: Mapping[str, Any], name: str) -> float:
    """To the better of inductor and frozen inductor."""
    return row["ms"][name] / min(row["ms"]["inductor"], row["ms"]["frozen"])


def mean(values: Iterable[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(map(math.log, values)))


def page(facts: Mapping[str, Any]) -> str:
    """All parts that were measured."""
    parts = [
        _head(facts),
        _calls(facts["calls"]),
        facts.get("note", ""),
        _first(facts["first_s"]),
        _tiny(facts["tiny_us"]),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(facts: Mapping[str, Any]) -> str:
    return (
        "# PyTorch models in turns with eager and inductor\n\n"
        f"`python -m bench.torch --save`: torch {facts['torch'].partition('+')[0]} (CPU), "
        f"{facts['threads']} threads of a shared machine with other jobs stopped, f32, random "
        "weights, batch 1 where none is stated. Medians of calls in turns in one process. Results "
        "of all engines are those of eager within 2e-4 of the greatest element."
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _calls(rows: Mapping[str, Any]) -> str:
    if not rows:
        return ""
    head = ["ms", *TITLES, "exported / better inductor", "torch.compile / better inductor"]
    kinds = "exported", "rlx"
    body = [
        [name, *(f"{row['ms'][e]:.3g}" for e in ENGINES), *(f"{ratio(row, k):.2f}" for k in kinds)]
        for name, row in rows.items()
    ]
    means = [f"{mean(ratio(r, k) for r in rows.values()):.2f}" for k in kinds]
    worst = [f"{max(ratio(r, k) for r in rows.values()):.2f}" for k in kinds]
    empty = [""] * len(ENGINES)
    return _table(head, [*body, ["geometric mean", *empty, *means], ["worst", *empty, *worst]])


def _first(rows: Mapping[str, Any]) -> str:
    if not rows:
        return ""
    text = (
        "First call in seconds, without caches of compiled code, each engine in a process of its "
        "own; exported: with the export. Ratios are to inductor."
    )
    head = ["s", *TITLES[1:], "torch.compile / inductor", "exported / inductor"]
    body = [
        [
            name, *(f"{row[e]:.2f}" for e in ENGINES[1:]),
            *(f"{row[k] / row['inductor']:.2f}" for k in ("rlx", "exported")),
        ]
        for name, row in rows.items()
    ]  # fmt: skip
    return f"{text}\n\n{_table(head, body)}"


def _tiny(rows: Mapping[str, float]) -> str:
    if not rows:
        return ""
    text = "A call of a tiny MLP (16×16×4, batch 1), the least of 25 rounds in turns:"
    return f"{text}\n\n{_table(['call', 'µs'], [[n, f'{v:.2f}'] for n, v in rows.items()])}"
