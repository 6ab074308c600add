"""What a language model takes beside its rates: `python -m bench.lm.limits FILE.gguf`.

Fresh processes load the file with an empty cache and with a full one, and answer: seconds until it
is loaded, and until its first token is there, and resident memory after 32 tokens and behind a
prompt of 1,000. Then greedy answers of 64 tokens to 20 prompts are compared with those of f32
activations, and steps of decoding are watched for page faults.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rlx
from bench.alone import Check, parser, report
from rlx.lm.slots import Part

REPEATS, STEPS = 5, 300
ANSWER_TOKENS = 64
MEGABYTE = 1_000_000
BESIDE_WEIGHTS_MB = 120
PROMPTS = (
    "The capital of France is", "Water boils at", "Once upon a time", "def fibonacci(n):",
    "The three laws of motion are", "In 1969,", "A recipe for bread needs", "Photosynthesis is",
    "The largest planet is", "To be or not to be", "My favourite book is", "The sum of 2 and 3 is",
    "Dear Sir or Madam,", "The quick brown fox", "import numpy as np\n", "Rome was founded",
    "A prime number is", "The weather today", "How do I learn to play the piano?",
    "Explain why the sky is blue.",
)  # fmt: skip

CODE = """
import json, sys, time
start = time.perf_counter()
def passed(): return time.perf_counter() - start
def resident():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) for l in file if l.startswith("VmRSS")) * 1024
import rlx
lm = rlx.lm.load(sys.argv[1], threads=int(sys.argv[2]))
load_s = passed()
pieces = lm.generate("The capital of France is", max_tokens=32, ignore_end=True)
next(pieces)
first_s = passed()
for _ in pieces: pass
short = resident()
ids = [5 + i * 7919 % (len(lm.tokenizer.texts) - 5) for i in range(1000)]
lm.complete(ids, max_tokens=1)
print(json.dumps(dict(load_s=load_s, first_s=first_s, short=short, long=resident(),
    imports_llvm="llvmlite" in sys.modules)))
"""


def fresh(path: Path, threads: int, cache: str) -> dict[str, Any]:
    """What a process of its own answers; bytecode is kept, as where rlx is installed."""
    where = {**os.environ, "RLX_CACHE_DIR": cache}
    where.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", CODE, str(path), str(threads)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def processes(path: Path, threads: int) -> list[Check]:
    """Of a process that compiles, and of one that finds its program in the cache."""
    with tempfile.TemporaryDirectory() as cache:
        fresh(path, threads, cache)  # from now on there is bytecode of all modules
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(fresh(path, threads, cache))
            warm.append(fresh(path, threads, cache))
    most = path.stat().st_size / MEGABYTE + BESIDE_WEIGHTS_MB
    return [
        Check("loaded, compiled", _median(cold, "load_s"), "s", 2.0),
        Check("first token from the cache, with imports", _median(warm, "first_s"), "s", 0.6),
        Check("resident after 32 tokens, compiled", _megabytes(cold, "short"), "MB", most),
        Check("resident after 32 tokens, from the cache", _megabytes(warm, "short"), "MB", most),
        Check("the same behind 1,000 tokens, compiled", _megabytes(cold, "long"), "MB"),
        Check("the same behind 1,000 tokens, from the cache", _megabytes(warm, "long"), "MB"),
        Check("processes that loaded LLVM", sum(r["imports_llvm"] for r in cold + warm), "", 0),
    ]


def _median(runs: list[dict[str, Any]], what: str) -> float:
    return statistics.median(run[what] for run in runs)


def _megabytes(runs: list[dict[str, Any]], what: str) -> float:
    return max(run[what] for run in runs) / MEGABYTE


def answers(path: Path, threads: int, precision: str) -> list[tuple[int, ...]]:
    lm = rlx.lm.load(path, context=256, slots=1, precision=precision, threads=threads)
    how: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_end": True}
    return [lm.complete(prompt, **how).tokens for prompt in PROMPTS]


def greedy(path: Path, threads: int) -> list[Check]:
    """Answers that are not those of f32 activations."""
    expected = answers(path, threads, "exact")
    what = f"of {len(PROMPTS)} greedy answers, those that differ from f32's"
    counts = {
        precision: sum(a != b for a, b in zip(answers(path, threads, precision), expected))
        for precision in ("int16", "file")
    }
    return [
        Check(f'{what}, precision="int16"', counts["int16"], "", 0),
        Check(f'{what}, precision="file"', counts["file"], ""),
    ]


def faults(path: Path, threads: int) -> Check:
    """Page faults of steps at one position, once a few have run."""
    slots = rlx.lm.load(path, context=512, slots=1, threads=threads).decoder
    for count in (8, STEPS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            slots.step([Part(0, [7], [0])])
            slots.truncate(0, 0)
    found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return Check(f"page faults of {STEPS} steps", found, "", 0)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("file", type=Path)
    asked = made.parse_args()
    path, threads = asked.file, asked.threads
    rows = [*processes(path, threads), faults(path, threads), *greedy(path, threads)]
    named = [Check(f"{path.name}: {r.what}", r.value, r.unit, r.limit) for r in rows]
    return report("lm_limits", named, asked)


if __name__ == "__main__":
    sys.exit(main())
