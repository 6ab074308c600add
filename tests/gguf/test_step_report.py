"""`lm.explain()`, `rlx explain model.gguf`: a step of a decoder against the memory floor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlx
from rlx.__main__ import main
from rlx.explain.memory_floor import floor_of, parts_of
from rlx.explain.report import Report
from tests.gguf import files, vocabularies

PARTS = {"attention projections", "attention", "MLP", "head", "norms", "embedding"}


@pytest.fixture(scope="module")
def lm(path: Path) -> rlx.lm.LanguageModel:
    return rlx.lm.load(path, context=64, slots=2, threads=1)


def state_bytes(report: Report) -> int:
    return floor_of(report).state_bytes


def test_bytes_are_those_of_the_weights_and_of_the_cached_rows(lm: rlx.lm.LanguageModel) -> None:
    depth, sequences = 40, 2
    report = lm.explain(depth=depth, sequences=sequences)
    row = files.KV_HEADS * files.HEAD_DIM * 2  # f16
    rows = 2 * files.LAYERS * sequences * (depth + 1)  # keys and values, read
    assert state_bytes(report) == row * (rows + 2 * files.LAYERS * sequences)  # and written
    assert {p.name for p in parts_of(report)} == PARTS
    named = {p.name: p for p in parts_of(report)}
    shapes = lm.executable.params
    own = [s for n, s in shapes.items() if ".ffn_" in n and "norm" not in n]
    assert named["MLP"].weight_bytes == sum(int(s.size_bytes) for s in own) > 0
    assert named["attention"].state_bytes == state_bytes(report)
    assert sum(len(p.kernels) for p in parts_of(report)) == report.totals.kernels


def test_decisions_are_priced_at_the_sizes_of_the_step(lm: rlx.lm.LanguageModel) -> None:
    """One token of one sequence, of a program that was compiled for as many as come."""
    report = lm.explain(depth=9)
    assert report.model.sizes == {"batch": 1, "rows": 1, "seq": 1, "slots": 1}
    assert report.totals.output_bytes == 4 * len(lm.tokenizer.texts)
    fused = [d for d in report.decisions if d.kind == "fusion" and d.predicted_ns]
    assert fused
    assert max(d.predicted_ns for d in fused) < report.totals.predicted_ns
    more = {d.id: d for d in lm.explain(depth=9, tokens=32).decisions}
    assert all(d.bytes_saved < more[d.id].bytes_saved for d in fused if "blk" in d.where[0])
    assert all(d.verdict is more[d.id].verdict for d in report.decisions if d.kind != "schedule")


def test_windows_bound_what_is_read(tmp_path: Path) -> None:
    words = len(vocabularies.pieces()[0])
    made = files.write(
        tmp_path / "tiny.gguf", "gemma3", words=words, vocabulary=vocabularies.add_pieces
    )
    near, far = (rlx.lm.load(made, threads=1).explain(depth=d) for d in (30, 60))
    windowed = [k for k in near.kernels if k.op == "cached_attention"]
    behind = {k.id: k.state_bytes for k in far.kernels}
    same = [k.state_bytes == behind[k.id] for k in windowed]
    assert any(same)
    assert not all(same)


def test_a_step_is_measured_and_leaves_the_slots_alone(lm: rlx.lm.LanguageModel) -> None:
    before = lm.complete([5, 6, 7], max_tokens=4).tokens
    report = lm.explain(tokens=3, depth=20, measure=True, seconds=0.01)
    assert report.timings["read_gb_s"] > 0
    assert all(k.measured for k in report.kernels if k.phase != "prologue")
    text = str(report)
    assert "3 tokens of 1 sequence behind 20" in text
    assert "at the memory floor" in text
    assert all(part in text for part in PARTS)
    assert Report.from_json(report.to_json()).step == {"tokens": 3, "sequences": 1, "depth": 20}
    assert "step against the memory floor" in report.to_html()
    assert lm.complete([5, 6, 7], max_tokens=4).tokens == before


def test_what_does_not_fit_is_refused(lm: rlx.lm.LanguageModel) -> None:
    with pytest.raises(rlx.Error, match="more than the context of 64"):
        lm.explain(depth=64)
    with pytest.raises(rlx.Error, match="sequences"):
        lm.explain(sequences=0)


def test_the_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "step.html"
    asked = ["explain", str(path), "--depth", "9", "--batch", "2", "--threads", "1", "--json"]
    assert main([*asked, "--html", str(page), "--seconds", "0.01"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert held["step"] == {"tokens": 1, "sequences": 2, "depth": 9}
    assert '"part":"attention projections"' in page.read_text("utf-8")
    measure = [*asked[:4], "--measure", "--seconds", "0.01", "--threads", "1"]
    assert main(measure) == 0
    said = capsys.readouterr().out
    assert "decisions of language models are not reversed" in " ".join(said.split())
    assert main([*measure, "--most", "3"]) != 0
    assert "--most: decisions of language models are not reversed" in capsys.readouterr().err
    assert main(["explain", str(path), "--dim", "seq=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] is None
    assert main(["explain", str(path), "--dim", "seq=2", "--depth", "9"]) != 0
    assert "--depth: this is no step" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["cuda", "rocm", "metal", "wgpu", "mlx", "tpu"])
def test_a_step_is_explained_without_the_device(
    target: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As models of tensors are; the depth is what the model's context has room for."""
    assert main(["explain", str(path), "-t", target]) == 0
    head = capsys.readouterr().out
    assert head.startswith(f"tiny on {target}: ")
    assert f"step: 1 token of 1 sequence behind {files.CONTEXT - 1}" in head
    assert main(["explain", str(path), "-t", target, "--depth", str(files.CONTEXT)]) == 1
    assert "more than the context" in capsys.readouterr().err


def test_a_file_of_another_kind_is_named_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not as a damaged file of language models."""
    for name, hint in (
        ("model.onnx", "rlx run"), ("model.pt2", "rlx run"), ("model.safetensors", "give their fo"),
        ("model.bin", "save the model as safetensors"), ("model.txt", "Give one of them"),
    ):  # fmt: skip
        path = tmp_path / name
        path.write_bytes(b"\x08\x0a another kind")
        for arguments in (
            ["chat", str(path)], ["quantize", str(path), str(tmp_path / "out.gguf"), "Q8_0"],
            ["lm-bench", str(path)],
        ):  # fmt: skip
            assert main(arguments) == 1
            told = capsys.readouterr().err
            assert "no language model that rlx knows" in told
            assert hint in told
        with pytest.raises(rlx.UnsupportedError, match="no language model that rlx knows"):
            rlx.lm.load(path)
    (tmp_path / "model.gguf").write_bytes(b"another kind")
    with pytest.raises(rlx.Error, match="damaged: it does not begin with GGUF"):
        rlx.lm.load(tmp_path / "model.gguf")
