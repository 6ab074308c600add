"""The page of `bench.lm`: what bench/results/lm.json says, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import results_file

HEAD = """\
# Language models in turns with llama.cpp and openvino-genai

`python -m bench.lm FILE.gguf ... -p 128 -n 64 --save`, on a machine with other jobs stopped:
{machine}. Each runner has the file in a process of its own, with its own defaults for all but the
number of threads, and computes every workload in every round; rates are medians of rounds in tokens
a second, ratios medians of those within a round. `pp128` is a prompt of 128 tokens, `tg64` are 64
steps of decoding, `@ d2048` is behind 2048 tokens, `x8` is with 8 sequences at once. rlx and
llama.cpp round activations to int8 and cache keys and values in f16. {versions}.
"""
PREDICTIONS = """\
## Predictions

`python -m bench.lm.predictions FILE.gguf ... --save`: logits of English and code, compared with the
file evaluated in double precision by NumPy. `precision="exact"` differs by f32 rounding: the
greatest difference, to the greatest logit. The mean KL divergence of int8 activations
(`precision="file"`, the default) stands beside that of llama.cpp on the same tokens.
"""
Row = Mapping[str, Any]


def key(row: Row) -> tuple[str, str, int, tuple[str, ...]]:
    """What a row is about; one of another set of peers is another row."""
    return row["file"], row["test"], row["threads"], tuple(row["ratios"])


def text(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    parts = [HEAD.format(machine=_machine(facts["machine"]), versions=versions)]
    for peer in ("llama.cpp", "openvino-genai"):
        rows = [row for row in facts["rows"] if peer in row["ratios"]]
        parts += [_rates(rows, peer)] if rows else []
    parts += _predictions(facts.get("predictions", ()))
    parts += [facts["notes"]] if "notes" in facts else []
    return "\n".join(parts)


def _machine(found: Row) -> str:
    return f"{found['processor']}, {found['cores']} cores, {found['memory_gb']} GB"


def _rates(rows: Sequence[Row], peer: str) -> str:
    threads = sorted({row["threads"] for row in rows})
    head = ["file", "test"]
    for count in threads:
        head += [f"rlx, {count} thread{'s' * (count > 1)}", peer, "ratio"]
    found = {(row["file"], row["test"], row["threads"]): row for row in rows}
    names = sorted({(file, test) for file, test, _ in found})
    body = [[*name, *_cells([found.get((*name, n)) for n in threads], peer)] for name in names]
    return table(head, body)


def _cells(rows: Iterable[Row | None], peer: str) -> list[str]:
    made: list[str] = []
    for row in rows:
        if row is None:
            made += ["", "", ""]
            continue
        rates = row["rates"]
        made += [f"{rates['rlx']:.4g}", f"{rates[peer]:.4g}", f"{row['ratios'][peer]:.2f}"]
    return made


def _predictions(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = ["file", "tokens", "exact", "mean KL", "llama.cpp's"]
    body = [
        [row["file"], str(row["tokens"]), f"{row['exact']:.1e}", *map(_with_error, row["kl"])]
        for row in rows
    ]
    return [PREDICTIONS, table(head, body)]


def _with_error(kl: tuple[float, float]) -> str:
    return f"{kl[0]:.2e} ± {kl[1]:.0e}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def write() -> None:
    facts = results_file.load("lm")
    if facts is not None:
        (results_file.ROOT / "lm.md").write_text(text(facts))
