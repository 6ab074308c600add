"""Damaged files: `python -m tests.gguf.mutations --files 200000` loads so many.

Whatever happens to a file, loading it, reading its weights and encoding a text give results or one
rlx.Error, in little time and memory.
"""

from __future__ import annotations

import argparse
import re
import resource
import struct
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rlx
from rlx.frontends.gguf.model import GgufModel
from rlx.lm.tokenizer import tokenizer_of
from tests.gguf import files, vocabularies

EXTREMES = (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40)
MAX_SECONDS, MAX_BYTES = 2.0, 1 << 30
"""Of processor time and of memory; a file takes a few milliseconds."""
TEXT = "hello hell, the é"


@dataclass(frozen=True, slots=True)
class Source:
    """A whole file, and where its header has what decides: ends of names, where types, lengths and
    values begin."""

    data: bytes
    header: int
    marks: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes, header: int = 0) -> Source:
        names = (
            rb"(general|tokenizer|llama|qwen2|qwen3|phi3|gemma2|gemma3)\.[a-z_.]+|[a-z_.\d]+weight"
        )
        found = tuple(m.end() for m in re.finditer(names, data))
        return cls(data, header or found[-1] + 32, found)


def mutated(source: Source, rng: np.random.Generator) -> bytes:
    """One to four changes, in the header but for cuts: bytes, whole numbers, cuts, repeats."""
    made = bytearray(source.data)
    for _ in range(1 + int(rng.integers(0, 4)) * int(rng.integers(0, 2))):
        at = _place(source, rng, len(made))
        match int(rng.integers(0, 8)):
            case 0:
                made[at : at + 1] = rng.bytes(1)
            case 1:
                made[at : at + 4] = struct.pack("<I", int(rng.choice(EXTREMES[:4])))
            case 2:
                made[at : at + 8] = struct.pack("<Q", EXTREMES[int(rng.integers(len(EXTREMES)))])
            case 3:
                del made[int(rng.integers(0, len(made) + 1)) :]
            case 4:
                made[at:at] = made[at : at + int(rng.integers(1, 64))]
            case 5 | 6:  # the value or the type behind a name
                at = source.marks[rng.integers(len(source.marks))] + 4 * int(rng.integers(0, 2))
                made[at : at + 4] = struct.pack("<I", int(rng.integers(0, 200)))
            case _:
                del made[at : at + int(rng.integers(1, 16))]
    return bytes(made)


def _place(source: Source, rng: np.random.Generator, size: int) -> int:
    """Anywhere in the header, or just behind one of its names."""
    if not size:
        return 0
    if rng.integers(0, 2):
        return min(source.marks[rng.integers(len(source.marks))] + int(rng.integers(0, 24)), size)
    return int(rng.integers(0, min(source.header, size)))


def tried(
    path: Path, data: bytes, most_seconds: float = 10 * MAX_SECONDS, model: Path | None = None
) -> str:
    """What using a file, or the model that it is a part of, gives: "loads", or "refused"; anything
    else is an error of rlx."""
    path.write_bytes(data)
    start = time.process_time()
    try:
        _used(model or path)
        found = "loads"
    except rlx.Error:
        found = "refused"
    took = time.process_time() - start
    if took > most_seconds:
        raise AssertionError(f"{took:.1f} s")
    return found


def _used(path: Path) -> None:
    """All that a file says is asked for, but for running the model."""
    model = rlx.load(path)
    assert isinstance(model, GgufModel)
    for name in model.params:
        assert model.params[name].nbytes >= 0
    tokens = tokenizer_of(model.file)
    assert isinstance(tokens.decode(tokens.encode(TEXT, special=True)), bytes)


def sources(folder: Path) -> list[Source]:
    """Files of every architecture, with vocabularies of all kinds."""
    made: list[Source] = []
    for n, name in enumerate(files.ARCHITECTURES):
        add, texts = VOCABULARIES[n % len(VOCABULARIES)]
        path = files.write(folder / f"{name}.gguf", name, words=texts, vocabulary=add)
        made.append(Source.of(path.read_bytes()))
    return made


VOCABULARIES = (
    (vocabularies.add_pieces, len(vocabularies.pieces()[0])),
    (vocabularies.add_byte_pairs, len(vocabularies.byte_pairs()[0])),
    (vocabularies.add_word_pieces, len(vocabularies.word_pieces()[0])),
)


def bound_memory() -> None:
    """An allocation beyond the limit is a MemoryError, which is no rlx.Error."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MAX_BYTES, -1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    counts, start, slowest = {"loads": 0, "refused": 0}, time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        found, path = sources(Path(folder)), Path(folder, "mutated.gguf")
        bound_memory()
        warnings.simplefilter("error")
        for seed in range(asked.seed, asked.seed + asked.files):
            data = mutated(found[seed % len(found)], np.random.default_rng(seed))
            begin = time.process_time()
            try:
                counts[tried(path, data, MAX_SECONDS)] += 1
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
                return 1
            slowest = max(slowest, time.process_time() - begin)
            if (seed + 1) % 20_000 == 0:
                print(f"{seed + 1 - asked.seed} files", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{asked.files} files: {counts['refused']} refused, {counts['loads']} load, 0 otherwise; "
          f"slowest {slowest * 1e3:.0f} ms, peak {peak:.0f} MB, "
          f"{asked.files / (time.perf_counter() - start):.0f} files/s")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
