"""The demo: where its questions come from and, where its model is installed, what it answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.dialects import for_numpy
from bench.workloads.minilm import MINILM, minilm_function, published_folder, published_params
from demo.asking import BUILT_IN

ROOT = Path(__file__).parents[2]
ASK = "from demo.asking import questions; print(len(list(questions())), 'asked')"


def asked(given: object) -> str:
    """How many questions there are where stdin is `given`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import demo.asking as a; a.PATIENCE_S = 0.2; {ASK}"],
        cwd=ROOT, stdin=given, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def test_questions_come_from_a_file_a_pipe_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "asked").write_text("one?\n\ntwo?\n")
    with open(tmp_path / "asked") as file:
        assert asked(file) == "2 asked"
    assert asked(subprocess.DEVNULL) == f"{len(BUILT_IN)} asked"
    ends = os.pipe()
    os.write(ends[1], b"only one?\n")
    os.close(ends[1])
    assert asked(ends[0]) == "1 asked"
    os.close(ends[0])


def test_a_silent_pipe_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    assert asked(reading) == f"{len(BUILT_IN)} asked"
    os.close(reading)
    os.close(writing)


def test_the_answers_are_those_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="`make demo` installs it")
    folder = published_folder()
    if folder is None:
        pytest.skip("`make demo` installs the model")
    from demo.encoder import Encoder

    encoder = Encoder.of(folder)
    texts = ["A man is eating food.", "Someone has a meal.", "Stocks fell sharply on Monday."]
    made = encoder.vectors(texts)
    ids, mask, _ = encoder.tokens(texts)
    params = {k: v.astype(np.float64) for k, v in published_params().items()}
    want = minilm_function(MINILM)(for_numpy, params, ids, mask)
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    # Six layers of sums over at most 1,536 products, and vectors of length 1: 5e-7 was seen.
    np.testing.assert_allclose(made, want, atol=5e-6, rtol=0)
    near = made @ made.T
    assert near[0, 1] > 0.6 > 0.3 > near[0, 2]
