"""Damaged folders: `python -m tests.gguf.folder_mutations --files 20000` loads so many.

One file of a folder of safetensors is changed: configuration, tokenizer, index or weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from tests.gguf import test_folder
from tests.gguf.mutations import MAX_SECONDS, Source, bound_memory, mutated, tried

CHANGED = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "model.safetensors.index.json", "model-00001-of-00002.safetensors",
)  # fmt: skip
VALUES = (b"0", b"-1", b"1e309", b"null", b'"x"', b"[]", b"{}", b"true", b"99999999999999999999")


def whole(folder: Path) -> Path:
    """A folder with all that is read."""
    test_folder.folder_of(folder, "llama", shards=2)
    test_folder.byte_level(folder, [{"type": "ByteLevel"}])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 0]}))
    return folder


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    """Another value behind one of the colons of its JSON, or bytes as those of GGUF files."""
    colons = [i + 1 for i, c in enumerate(data[:40_000]) if c == ord(":")]
    if rng.integers(0, 2) and colons:
        few = colons[-24:] if rng.integers(0, 2) else colons  # a vocabulary has most of them
        at = few[rng.integers(len(few))]
        ends = [e for e in (data.find(mark, at) for mark in (b",", b"}")) if e > 0]
        return data[:at] + VALUES[rng.integers(len(VALUES))] + data[min(ends, default=at) :]
    marks = tuple(colons) or (0,)
    return mutated(Source(data, min(len(data), 4096), marks), rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    asked = parser.parse_args()
    counts, slowest = {"loads": 0, "refused": 0}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        made = whole(Path(folder))
        sources = {name: (made / name).read_bytes() for name in CHANGED}
        bound_memory()
        warnings.simplefilter("error")
        for seed in range(asked.files):
            name = CHANGED[seed % len(CHANGED)]
            begin = time.process_time()
            try:
                data = changed(sources[name], np.random.default_rng(seed))
                counts[tried(made / name, data, MAX_SECONDS, model=made)] += 1
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
                return 1
            slowest = max(slowest, time.process_time() - begin)
            (made / name).write_bytes(sources[name])
    print(f"{asked.files} folders: {counts['refused']} refused, {counts['loads']} load, "
          f"0 otherwise; slowest {slowest * 1e3:.0f} ms")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
