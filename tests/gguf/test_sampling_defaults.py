"""How a model's authors draw tokens is how requests draw that do not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlx
from gguf import GGUFWriter
from rlx.frontends.gguf.quantize import quantize
from rlx.frontends.gguf.reader import read_gguf
from rlx.frontends.gguf.source import language_model_file
from rlx.frontends.gguf.type_rules import mixture_of
from rlx.lm.sampling_defaults import sampling_text, stated_sampling
from tests.gguf import files, vocabularies
from tests.gguf.test_folder import folder_of

GREEDY = {"temperature": 0.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
          "repetition_penalty": 1.0, "penalty_tokens": 1 << 24}  # fmt: skip


def file_of(path: Path, **keys: float) -> Path:
    def add(writer: GGUFWriter) -> None:
        vocabularies.add_pieces(writer)
        for key, value in keys.items():
            put = writer.add_float32 if isinstance(value, float) else writer.add_int32
            put(f"general.sampling.{key}", value)

    words = len(vocabularies.pieces()[0])
    return files.write(path / "tiny.gguf", "llama", words=words, vocabulary=add)


def test_keys_of_a_file_are_fields_of_sampling(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, temp=0.6, top_k=20, top_p=0.95, min_p=0.1, penalty_repeat=1.2,
        penalty_last_n=32, mirostat=0, mirostat_tau=5.0, xtc_probability=0.0,
    )  # fmt: skip
    found = stated_sampling(read_gguf(path))
    assert found == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.2,
        "penalty_tokens": 32,
    }  # fmt: skip
    assert sampling_text(found) == (
        "temperature 0.6, top_k 20, top_p 0.95, min_p 0.1, repetition_penalty 1.2"
    )
    assert stated_sampling(read_gguf(file_of(tmp_path, penalty_last_n=-1))) == {
        "penalty_tokens": 1 << 24
    }
    for key, value, match in (
        ("mirostat", 2, "general.sampling.mirostat is 2"), ("sequence", 1, "sequence is 1"),
        ("xtc_probability", 0.5, "xtc_probability is 0.5"), ("top_p", 1.5, "top_p is 1.5"),
    ):  # fmt: skip
        with pytest.raises(rlx.Error, match=match):
            stated_sampling(read_gguf(file_of(tmp_path, **{key: value})))


@pytest.mark.parametrize(
    ("config", "stated"),
    [
        ({}, {}),
        ({"eos_token_id": 3, "max_length": 99}, {}),
        ({"do_sample": True}, {**GREEDY, "temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
         {**GREEDY, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1}),
        ({"temperature": 0.6}, GREEDY),
        ({"repetition_penalty": 1.1}, {**GREEDY, "repetition_penalty": 1.1}),
    ],
)  # fmt: skip
def test_a_folder_states_what_transformers_would_do(
    config: dict[str, Any], stated: dict[str, Any], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, "llama")
    (folder / "generation_config.json").write_text(json.dumps(config))
    file = language_model_file(folder)
    assert stated_sampling(file) == stated
    quantize(file, tmp_path / "out.gguf", mixture_of("F16"))
    assert stated_sampling(read_gguf(tmp_path / "out.gguf")) == stated


def test_a_way_to_choose_that_rlx_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    path = folder / "generation_config.json"
    for key, value in (("num_beams", 4), ("no_repeat_ngram_size", 2), ("suppress_tokens", [1]),
                       ("twist", 1)):  # fmt: skip
        path.write_text(json.dumps({key: value}))
        with pytest.raises(rlx.UnsupportedError, match=rf"generation_config.json: {key} is"):
            rlx.load(folder)


def test_requests_draw_as_the_file_states_unless_they_say(tmp_path: Path) -> None:
    path = file_of(tmp_path, temp=0.6, top_k=20)
    lm = rlx.lm.load(path, slots=1)
    drawn = lm.request("hello").sampling
    assert (drawn.temperature, drawn.top_k, drawn.top_p) == (0.6, 20, 1.0)
    drawn = lm.request("hello", temperature=0.0).sampling
    assert (drawn.temperature, drawn.top_k) == (0.0, 20)
    assert lm.request("hello", sampling=rlx.lm.Sampling()).sampling.top_k == 0
    other = rlx.lm.load(path, slots=1, sampling=rlx.lm.Sampling(temperature=0.1))
    assert other.request("hello").sampling == rlx.lm.Sampling(temperature=0.1)
