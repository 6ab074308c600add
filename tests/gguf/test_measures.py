"""Perplexity, divergence and rates of language models, and their commands."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.__main__ import main
from rlx.frontends.gguf.quantize import quantize
from rlx.frontends.gguf.reader import read_gguf
from rlx.frontends.gguf.type_rules import mixture_of
from rlx.lm.bench import Workload, measured, workloads_of
from rlx.lm.perplexity import divergence, perplexity
from rlx.lm.slots import Part
from tests.gguf import files, vocabularies
from tests.gguf.evaluate import Evaluator

TEXT = "hello hell, hello hello é hell " * 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write(
        tmp_path_factory.mktemp("measures") / "tiny.gguf", "llama",
        words=len(vocabularies.pieces()[0]), vocabulary=vocabularies.add_pieces,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lm(path: Path) -> rlx.lm.LanguageModel:
    return rlx.lm.load(path, context=64, precision="exact")


def log_softmax(rows: Any) -> Any:
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def windows(lm: rlx.lm.LanguageModel, size: int) -> list[list[int]]:
    """By the definition: windows of equal length that begin with the token of a beginning."""
    ids = lm.tokenizer.encode(TEXT)
    return [[1, *ids[i + 1 : i + size]] for i in range(0, len(ids) - size + 1, size)]


def test_perplexity_is_that_of_double_precision(path: Path, lm: rlx.lm.LanguageModel) -> None:
    exact, expected = Evaluator(path), []
    for ids in windows(lm, 32):
        p = log_softmax(exact.logits(ids))
        expected += [-p[i, ids[i + 1]] for i in range(16, 31)]
    found = perplexity(lm, TEXT, window=32)
    assert found.tokens == len(expected) > 30
    assert found.value == pytest.approx(np.exp(np.mean(expected)), rel=1e-5)  # f32 logits
    error = np.std(expected, ddof=1) / np.sqrt(len(expected))
    assert found.error == pytest.approx(found.value * error, rel=1e-4)
    assert perplexity(lm, TEXT, window=32, windows=1).tokens == 15


def test_divergence_is_that_of_double_precision(
    path: Path, lm: rlx.lm.LanguageModel, tmp_path: Path
) -> None:
    coarse = tmp_path / "coarse.gguf"
    quantize(read_gguf(path), coarse, mixture_of("Q4_0"))
    found = divergence(rlx.lm.load(coarse, context=64, precision="exact"), lm, TEXT, window=32)
    expected = []
    for ids in windows(lm, 32):
        p, q = (log_softmax(Evaluator(f).logits(ids))[16:31] for f in (path, coarse))
        expected += list((np.exp(p) * (p - q)).sum(-1))
    assert found.mean == pytest.approx(np.mean(expected), rel=1e-3)  # differences of f32 logits
    assert found.quantile(1) == pytest.approx(np.max(expected), rel=1e-3)
    assert 0 < found.same_top <= 1
    same = divergence(lm, lm, TEXT, window=32)
    assert same.mean == 0
    assert same.same_top == 1


def test_what_cannot_be_scored(lm: rlx.lm.LanguageModel) -> None:
    with pytest.raises(rlx.Error, match="less than one window of 32"):
        perplexity(lm, "hello", window=32)
    with pytest.raises(rlx.Error, match="below the context, 64"):
        perplexity(lm, TEXT, window=64)


class Counted:
    """Slots that count what they are given, on a clock of their own: a second a step."""

    count = 3

    def __init__(self) -> None:
        self.lengths, self.now = [0] * 3, 0.0

    def step(self, parts: Sequence[Part]) -> list[Any]:
        self.now += 1
        for part in parts:
            self.lengths[part.slot] += len(part.tokens)
        return [np.zeros((len(p.rows), 4)) for p in parts]

    def keeps(self, slot: int, length: int) -> int:
        return min(length, self.lengths[slot])

    def truncate(self, slot: int, length: int) -> None:
        assert length <= self.lengths[slot]
        self.lengths[slot] = length

    def copy(self, source: int, target: int, length: int) -> None:
        raise AssertionError("rates copy no sequences")


def test_rates_are_tokens_of_all_sequences_a_second() -> None:
    slots = Counted()
    tests = workloads_of([512, 0], [8], [0, 100], [1, 3])
    assert [t.name for t in tests][:4] == ["pp512", "tg8", "pp512 @ d100", "tg8 @ d100"]
    assert tests[-1].name == "tg8 @ d100 x3"
    rates = {r.test.name: r for r in measured(slots, 4, tests, 2, clock=lambda: slots.now)}
    assert rates["pp512"].rates == (512.0, 512.0)  # one step
    assert rates["tg8"].mean == 1.0
    assert rates["tg8 @ d100 x3"].mean == 3.0
    assert rates["tg8"].deviation == 0
    with pytest.raises(rlx.Error, match="4 sequences need as many slots"):
        list(measured(slots, 4, [Workload(False, 1, 0, 4)], 1))


def test_the_commands(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    call = ["perplexity", str(path), str(text), "--window", "32"]
    assert main(call) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main([*call, "--against", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kl_mean"] == 0
    assert main([*call, "--against", "exact", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["kl_mean"] < 0.1  # activations of int8
    assert main(["perplexity", str(path), "nowhere.txt"]) == 2
    assert "nowhere.txt cannot be read" in capsys.readouterr().err
    bench = ["lm-bench", str(path), "-p", "8", "-n", "2", "-r", "1", "-t", "1"]
    assert main(bench) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [c.strip() for c in lines[0].split("|")[1:-1]][-2:] == ["test", "t/s"]
    assert len(lines) == 4
    assert main([*bench, "-o", "json", "-b", "2"]) == 0
    assert {r["test"] for r in json.loads(capsys.readouterr().out)} == {"pp8 x2", "tg2 x2"}
    assert main([*bench, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["n_prompt"] for r in rows] == ["8", "0"]
    assert main([*bench, "-d", "900"]) == 2
    assert "context" in capsys.readouterr().err
    assert main([*bench, "-p", "x"]) == 2
