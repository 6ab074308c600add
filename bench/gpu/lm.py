"""`python -m bench.gpu.lm [shapes]`: language models with sessions on one GPU, by depth and batch.

Files have random weights. Rates are those of whole steps as an application asks for them: tokens
are given by the host, and logits come back to it. Beside each the memory floor: the bytes of the
weights and of the cached rows that a step reads, at the bandwidth that a copy reaches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.lm_files import SHAPES, write
from rlx.explain.memory_floor import floor_of, step_text
from rlx.lm import LanguageModel, load
from rlx.lm.decoder import SessionDecoder
from rlx.lm.slots import Part

COPY_BYTES, COPIES = 2 << 30, 10
STEPS, WARM = 48, 8
CHUNK = 512
MAX_SHOWN = 16
"""Kinds of kernels."""


@dataclass(frozen=True, slots=True)
class Row:
    """Steps of some tokens of some sequences, behind a number of cached tokens."""

    shape: str
    format: str
    cached: str
    tokens: int
    sequences: int
    depth: int
    step_us: float
    """Median, by the host's clock."""
    floor_us: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens * self.sequences / self.step_us * 1e6


class Bench:
    """One file, loaded once."""

    def __init__(self, model: LanguageModel, gb_s: float) -> None:
        assert isinstance(model.decoder, SessionDecoder)
        self.model, self.decoder, self.gb_s = model, model.decoder, gb_s
        self.words, self.rng = len(model.tokenizer.texts), np.random.default_rng(1)

    def ids(self, count: int) -> list[int]:
        return self.rng.integers(0, self.words, count).tolist()

    def fill(self, sequences: int, depth: int) -> None:
        """So many cached tokens in each slot: computed once, then copied."""
        for slot in range(self.decoder.count):
            self.decoder.truncate(slot, 0)
        ids = self.ids(depth)
        for start in range(0, depth, CHUNK):
            self.decoder.step([Part(0, ids[start : start + CHUNK], [])])
        for slot in range(1, sequences):
            self.decoder.copy(0, slot, depth)

    def step_us(self, tokens: int, sequences: int, depth: int) -> float:
        self.fill(sequences, depth)
        times: list[float] = []
        for _ in range(WARM + (STEPS if tokens == 1 else STEPS // 4)):
            parts = [Part(s, self.ids(tokens), [tokens - 1]) for s in range(sequences)]
            start = time.perf_counter()
            self.decoder.step(parts)
            times.append((time.perf_counter() - start) * 1e6)
            for slot in range(sequences):
                self.decoder.truncate(slot, depth)
        return statistics.median(times[WARM:])

    def floor_us(self, tokens: int, sequences: int, depth: int) -> float:
        report = self.model.step_reports(tokens, sequences, depth).planned()
        whole = floor_of(report)
        return (whole.weight_bytes + whole.state_bytes) / self.gb_s / 1e3


def main() -> int:
    args = _arguments()
    gb_s = copy_gb_s()
    print(f"a copy moves {gb_s:,.0f} GB/s", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in args.shapes or ["smollm2-135m", "llama-1b"]:
            for form in args.formats.split(","):
                path = write(Path(folder, f"{shape}-{form}.gguf"), SHAPES[shape], form)
                for row in _rows(path, shape, form, gb_s, args):
                    rows.append(row)
                    print(_line(row), flush=True)
                path.unlink()
    print("\n".join(table(rows)))
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.lm", description=__doc__)
    add = parser.add_argument
    add("shapes", nargs="*", help=f"some of {', '.join(SHAPES)}")
    add("--formats", default="q4_k_m", help="of weights, with commas between")
    add("--kv", default="f16", help="what keys and values are cached in")
    add("--precision", default="file", help="of products, as rlx.lm.load has it")
    add("--depths", default="0,512,2048,8192", help="cached tokens behind which is decoded")
    add("--batches", default="1,8", help="sequences that are decoded at once")
    add("--prompts", default="128,512", help="tokens of prompts; 0: none")
    add("--kernels", default="", help="depth:batch[:tokens], …: where the time of such a step goes")
    add("--json", help="write the rows to this file")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(t) for t in text.split(",") if int(t or 0)]


def _rows(path: Path, shape: str, form: str, gb_s: float, args: Any) -> Iterator[Row]:
    depths = [int(d) for d in args.depths.split(",")]
    batches, prompts = _numbers(args.batches), _numbers(args.prompts)
    asked = [tuple(map(int, a.split(":"))) for a in args.kernels.split(",") if a]
    context = max([*(d + 2 for d in depths), *prompts, 64, *(a[0] + 64 for a in asked)])
    start = time.perf_counter()
    how: dict[str, Any] = {"kv": args.kv, "precision": args.precision, "cache": False}
    model = load(path, target="cuda", slots=max(batches), context=context, **how)
    print(f"{shape} {form}: loaded in {time.perf_counter() - start:.1f} s", flush=True)
    bench = Bench(model, gb_s)
    tests = [(1, b, d) for b in batches for d in depths] + [(p, 1, 0) for p in prompts]
    for test in tests:
        yield Row(shape, form, args.kv, *test, bench.step_us(*test), bench.floor_us(*test))
    for depth, sequences, *tokens in asked:
        how = {"depth": depth, "sequences": sequences, "tokens": tokens[0] if tokens else 1}
        print(_kernels(model.explain(**how, measure=True, seconds=0.3)), flush=True)


def _kernels(report: Any) -> str:
    """A step as it is explained, and its kernels by time, equal ones together."""
    held: dict[tuple[str, ...], list[Any]] = {}
    for kernel in report.kernels:
        key = kernel.part, " ".join(kernel.ops), kernel.shape
        held.setdefault(key, []).append(kernel)
    lines = [step_text(report)]
    for key, kernels in sorted(held.items(), key=lambda pair: -sum(k.ns for k in pair[1])):
        us = sum(k.ns for k in kernels) / 1e3
        moved = sum(k.weight_bytes + k.state_bytes for k in kernels)
        rate = moved / max(1e-3, us) / 1e3
        lines.append(f"    {us:9.1f} us {len(kernels):3} x {rate:8.1f} GB/s  {', '.join(key)}")
    return "\n".join(lines[: 1 + MAX_SHOWN])


def copy_gb_s() -> float:
    """Bytes read and written for each nanosecond of a large copy on the device."""
    import torch

    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    times: list[float] = []
    for _ in range(COPIES):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e6)
    del source, target
    torch.cuda.empty_cache()
    return 2 * COPY_BYTES / statistics.median(times)


def _line(row: Row) -> str:
    what = f"{row.tokens} x{row.sequences} behind {row.depth}"
    return (
        f"{row.shape:14} {row.format:7} {what:22} {row.step_us:10.1f} us {row.rate:10.0f} tokens/s "
        f"floor {row.floor_us:8.1f} us, {row.floor_us / row.step_us:.0%}"
    )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The page's table."""
    yield "| model | weights | step | µs | tokens/s | floor, µs | share of the floor |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        what = f"prompt of {r.tokens}" if r.tokens > 1 else f"{r.sequences} × 1 behind {r.depth}"
        yield (
            f"| {r.shape} | {r.format} | {what} | {r.step_us:.0f} | {r.rate:,.0f} "
            f"| {r.floor_us:.0f} | {r.floor_us / r.step_us:.0%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
