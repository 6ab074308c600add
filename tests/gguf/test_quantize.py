"""Language models in other block formats: errors, mixtures, files, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gguf
import rlx
from gguf import GGMLQuantizationType as Type
from rlx.__main__ import main
from rlx.frontends.gguf.quantize import quantize
from rlx.frontends.gguf.reader import read_gguf
from rlx.frontends.gguf.type_rules import MIXTURES, TypeRules, mixture_of
from rlx.ops.quant.gguf_encoding import ENCODERS, encoded
from tests.gguf import files, vocabularies
from tests.gguf.evaluate import Evaluator
from tests.gguf.test_decoder import TOKENS

LLAMA_CPP = {
    "f16": 0.00021, "bf16": 0.00165, "q8_0": 0.00678, "q4_0": 0.10713, "q5_0": 0.05410,
    "q4_1": 0.09202, "q5_1": 0.04431, "iq4_nl": 0.08817, "mxfp4": 0.12850, "q2_k": 0.34562,
    "q3_k": 0.17572, "q4_k": 0.08453, "q5_k": 0.04298, "q6_k": 0.02179, "iq4_xs": 0.08887,
}  # fmt: skip
"""Errors of llama.cpp (llama-cpp-python 0.3.36) on `weights`, without an importance matrix."""


def weights() -> np.ndarray:
    return np.random.default_rng(0).laplace(size=(32, 1024)).astype(np.float32)


def error(scheme: str, x: np.ndarray) -> float:
    made = gguf.dequantize(encoded(x, scheme, threads=2), Type[scheme.upper()])
    return float(np.sqrt(np.square(made - x).mean() / np.square(x).mean()))


@pytest.mark.parametrize("scheme", LLAMA_CPP)
def test_errors_are_at_most_those_of_llama_cpp(scheme: str) -> None:
    # q4_k weighs errors as llama.cpp does, and is within half a percent of its plain error
    assert error(scheme, weights()) <= 1.005 * LLAMA_CPP[scheme] + 5e-6  # recorded to 5 digits


def test_weights_that_a_format_holds_are_held() -> None:
    """Zeros, a constant, and levels of the format itself; whatever the others of the row are."""
    for scheme in ENCODERS:
        assert error(scheme, np.concatenate([np.zeros((1, 256)), weights()[:1, :256]])) < 0.5
        made = gguf.dequantize(
            encoded(np.zeros((2, 512), np.float32), scheme), Type[scheme.upper()]
        )
        assert not made.any()
    assert gguf.dequantize(encoded(weights(), "f32"), Type.F32).tobytes() == weights().tobytes()
    eights = np.arange(-16, 16, dtype=np.float32)[None].repeat(2, 0)
    for scheme in ("q5_0", "q5_1", "q8_0"):
        made = gguf.dequantize(encoded(eights, scheme), Type[scheme.upper()])
        assert np.abs(made - eights).max() <= 0.07  # q8_0: half of 16/127


def test_threads_do_not_change_bytes() -> None:
    x = np.random.default_rng(1).normal(size=(256, 1024)).astype(np.float32)
    assert encoded(x, "q6_k", 1).tobytes() == encoded(x, "q6_k", 3).tobytes()


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(rlx.Error, match="no whole blocks of 256"):
        encoded(np.zeros((2, 32), np.float32), "q4_k")
    with pytest.raises(rlx.Error, match="infinite or no numbers"):
        encoded(np.full((1, 32), np.nan, np.float32), "q4_0")
    with pytest.raises(rlx.Error, match="range of the scales"):
        encoded(np.full((1, 32), 1e30, np.float32), "q4_1")
    with pytest.raises(rlx.UnsupportedError, match=r"IQ2_XXS.*It does to F32"):
        encoded(np.zeros((1, 256), np.float32), "iq2_xxs")


def test_mixtures_are_finer_where_errors_matter() -> None:
    """Q4_K_M of 16 layers: the first and the last eighth, and every third of those between."""
    rules = TypeRules(mixture_of("q4_k"), layers=16, sharing=4, is_tied=False)
    finer = [i for i in range(16) if rules.scheme(f"blk.{i}.attn_v.weight", (64, 256)) == "q6_k"]
    assert finer == [0, 1, 4, 7, 10, 13, 14, 15]
    assert rules.scheme("blk.3.ffn_up.weight", (64, 256)) == "q4_k"
    assert rules.scheme("blk.3.ffn_up.weight", (64, 288)) == "q5_0"
    assert rules.scheme("blk.3.ffn_up.weight", (64, 40)) == "f16"
    assert rules.scheme("output.weight", (64, 256)) == "q6_k"
    assert rules.scheme("blk.3.attn_norm.weight", (256,)) is None
    for name in MIXTURES:
        assert mixture_of(name.lower()) is MIXTURES[name]
    with pytest.raises(rlx.UnsupportedError, match=r"'Q9'.*Q4_K_M"):
        mixture_of("Q9")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return files.write(
        tmp_path / "model.gguf", "qwen2", float=True, words=len(vocabularies.pieces()[0]),
        vocabulary=vocabularies.add_pieces,
    )  # fmt: skip


def test_a_quantised_file_is_the_same_model(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    before = read_gguf(source)
    rows = quantize(before, out, mixture_of("Q8_0"))
    found = read_gguf(out)
    theirs = gguf.GGUFReader(out)
    assert {t.name: t.tensor_type.name.lower() for t in theirs.tensors} == {
        r.name: r.after for r in rows
    }
    for key, value in before.metadata.items():
        if key not in ("general.file_type", "general.alignment"):
            assert str(found.metadata[key]) == str(value)
    assert list(found.metadata["tokenizer.ggml.tokens"]) == vocabularies.pieces()[0]  # type: ignore[arg-type]
    exact, made = (Evaluator(p).logits(TOKENS) for p in (source, out))
    far = np.sqrt(np.square(made - exact).mean() / np.square(exact).mean())
    assert 0 < far < 0.05  # 22 products, each with an independent error of 0.7 %: 3.3 %
    rlx.load(out)


def test_each_tensor_has_its_measured_error(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    rows = {r.name: r for r in quantize(read_gguf(source), out, mixture_of("Q4_0"), threads=2)}
    name = "blk.0.ffn_up.weight"
    exact, made = (Evaluator(p).tensors[name] for p in (source, out))
    expected = np.sqrt(np.square(made - exact).mean() / np.square(exact).mean())
    assert rows[name].relative_error == pytest.approx(expected, rel=1e-6)
    assert rows[name].max_error == pytest.approx(np.abs(made - exact).max(), rel=1e-6)
    assert rows["blk.0.attn_norm.weight"].relative_error == 0


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.gguf")
    assert main(["quantize", str(source), out, "Q4_K_M", "--threads", "1"]) == 0
    assert "bits a weight" in capsys.readouterr().out
    assert main(["quantize", str(source), out, "q8_0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["type"] == "Q8_0"
    assert {t["after"] for t in facts["tensors"]} == {"f32", "q8_0"}
    assert main(["quantize", str(source), out, "Q9"]) == 2
    assert "Q4_K_M" in capsys.readouterr().err
    assert main(["quantize", str(source), str(source), "Q8_0"]) == 2
    assert "is the model itself" in capsys.readouterr().err
