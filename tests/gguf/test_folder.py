"""Language models in folders of safetensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gguf
import rlx
from rlx.frontends.gguf.architecture import architecture_of
from rlx.frontends.gguf.quantize import quantize
from rlx.frontends.gguf.source import language_model_file
from rlx.frontends.gguf.type_rules import mixture_of
from rlx.lm.tokenizer import tokenizer_of
from tests.gguf import files, vocabularies
from tests.gguf.evaluate import Evaluator
from tests.gguf.test_decoder import TOKENS

Array = np.ndarray[Any, Any]
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TYPES = {"gemma3": "gemma3_text"}


def logits_of(model: Any, tokens: list[int]) -> Array:
    """Logits of every token, in f32."""
    exe = rlx.compile(model)
    a = model.architecture
    empty = np.zeros((1, 0, a.kv_heads * a.head_dim), np.float32)
    caches = [empty] * (len(exe.inputs) - 2)
    return exe(np.array([tokens]), np.arange(len(tokens)), *caches)[0][0]


def write_tensors(path: Path, tensors: dict[str, Array]) -> None:
    kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
    header: dict[str, Any] = {}
    at = 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": kinds[values.dtype.name], "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }  # fmt: skip
        at += values.nbytes
    raw = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(raw)) + raw + b"".join(v.tobytes() for v in tensors.values())
    )


def their_tensors(source: Path, architecture: str) -> dict[str, Array]:
    """The tensors of a GGUF file by the names, and in the form, of transformers."""
    found: dict[str, Array] = {}
    own_norms = architecture in ("gemma2", "gemma3")
    for tensor in gguf.GGUFReader(source).tensors:
        values = np.array(tensor.data).reshape(tensor.shape[::-1])
        *layer, part, kind = tensor.name.split(".")
        if part.endswith("norm") and architecture.startswith("gemma"):
            values = values - 1
        if part in ("attn_q", "attn_k") and architecture in ("llama", "smollm3"):
            heads = files.HEADS if part == "attn_q" else files.KV_HEADS
            values = values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2)
            values = np.ascontiguousarray(values).reshape(tensor.shape[::-1])
        name = NAMES.get(part, part)
        if part == "ffn_norm":
            name = "pre_feedforward_layernorm" if own_norms else "post_attention_layernorm"
        if architecture == "phi3" and part == "ffn_up":
            name = "mlp.gate_up_proj"
        found[f"{f'model.layers.{layer[1]}.' if layer else ''}{name}.{kind}"] = values
    return found


def config_of(architecture: str, **more: Any) -> dict[str, Any]:
    found = {
        "model_type": TYPES.get(architecture, architecture), "hidden_size": files.WIDTH,
        "intermediate_size": files.HIDDEN, "num_hidden_layers": files.layers_of(architecture),
        "num_attention_heads": files.HEADS, "num_key_value_heads": files.KV_HEADS,
        "head_dim": files.HEAD_DIM, "max_position_embeddings": files.CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "tie_word_embeddings": architecture in files.TIED, **more,
    }  # fmt: skip
    if architecture.startswith("gemma"):
        found["hidden_activation"] = "gelu_pytorch_tanh"
    if architecture == "gemma3":
        found["rope_local_base_freq"] = 10000.0
    if architecture in ("gemma2", "gemma3"):
        found |= {"sliding_window": 5, "query_pre_attn_scalar": files.HEAD_DIM}
    if architecture == "gemma2":
        found |= {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 3.0}
    return found


def folder_of(folder: Path, architecture: str, *, shards: int = 1, **more: Any) -> Path:
    """A folder of the model that `files.write` gives, and the GGUF file beside it."""
    source = files.write(folder / "same.gguf", architecture, float=True)
    tensors = their_tensors(source, architecture)
    (folder / "config.json").write_text(json.dumps(config_of(architecture, **more)))
    if shards == 1:
        write_tensors(folder / "model.safetensors", tensors)
        return folder
    places: dict[str, str] = {}
    for n in range(shards):
        part = dict(list(tensors.items())[n::shards])
        name = f"model-{n + 1:05}-of-{shards:05}.safetensors"
        write_tensors(folder / name, part)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("architecture", files.ARCHITECTURES)
def test_a_folder_is_the_model_of_its_file(architecture: str, tmp_path: Path) -> None:
    shards = 3 if architecture == "qwen3" else 1
    folder = folder_of(tmp_path, architecture, shards=shards)
    exact = Evaluator(tmp_path / "same.gguf").logits(TOKENS)
    made = logits_of(rlx.load(folder), TOKENS)
    assert np.abs(made - exact).max() <= 1e-5 * np.abs(exact).max()  # sums of f32


def test_half_floats_stay_as_they_are(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen2")
    path = folder / "model.safetensors"
    tensors = their_tensors(tmp_path / "same.gguf", "qwen2")
    write_tensors(path, {n: v.astype(ml_dtypes.bfloat16) for n, v in tensors.items()})
    file = language_model_file(folder)
    assert {t.scheme for t in file.tensors.values()} == {"bf16"}
    made, exact = logits_of(rlx.load(folder), TOKENS), Evaluator(tmp_path / "same.gguf")
    far = np.abs(made - exact.logits(TOKENS)).max() / np.abs(exact.logits(TOKENS)).max()
    assert 1e-4 < far < 0.05  # bf16 has 8 bits


def test_a_folder_is_written_as_a_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    out = tmp_path / "out.gguf"
    quantize(language_model_file(folder), out, mixture_of("F32"))
    exact, made = (Evaluator(p).logits(TOKENS) for p in (tmp_path / "same.gguf", out))
    assert np.abs(made - exact).max() <= 1e-9 * np.abs(exact).max()


# -- tokenizers ------------------------------------------------------------------------------------


def byte_level(folder: Path, pre: list[dict[str, Any]]) -> None:
    texts, merges, _ = vocabularies.byte_pairs()
    vocabulary = {t: i for i, t in enumerate(texts) if t not in vocabularies.SPECIAL}
    added = [{"id": i, "content": t, "special": True} for i, t in enumerate(vocabularies.SPECIAL)]
    whole = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [m.split(" ") for m in merges]},
        "added_tokens": added, "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole))


def test_the_tokenizer_and_the_template_are_those_of_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    folder = folder_of(tmp_path, "qwen2")
    byte_level(folder, [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}])
    said = {"eos_token": {"content": "<|end|>"}, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 0]}))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    file = language_model_file(folder)
    found = tokenizer_of(file)
    assert file.metadata["tokenizer.ggml.pre"] == "smollm"
    assert [found.texts[t] for t in found.encode("on the é")][2] == "Ġthe"
    assert found.ends == {3, 0}
    assert file.metadata["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"
    byte_level(folder, [{"type": "Whitespace"}])
    with pytest.raises(rlx.UnsupportedError, match="cuts words by 'Whitespace'"):
        language_model_file(folder)


def test_pieces_merge_in_the_order_of_their_pairs(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gemma")
    texts, _, kinds = vocabularies.pieces()
    merges = ["▁ he", "h e", "l l", "he ll", "▁ hell", "hell o", "▁hell o"]
    vocabulary = {t: i for i, t in enumerate(texts) if kinds[i] != vocabularies.CONTROL}
    whole = {
        "model": {
            "vocab": vocabulary, "merges": merges, "byte_fallback": True, "unk_token": "<unk>",
        },
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    found = tokenizer_of(language_model_file(folder))
    assert [found.texts[t] for t in found.encode("hello hell é")] == [
        "<s>", "▁hello", "▁hell", "▁", "<0xC3>", "<0xA9>",
    ]  # fmt: skip


# -- what is refused -------------------------------------------------------------------------------


def test_configurations_that_are_not_believed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    path = folder / "config.json"
    whole = config_of("llama")
    for change, match in (
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": 2**60}, "hidden_size is 1152921504606846976"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'.*llama3 and longrope"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "rope_scaling.factor is -1"),
        ({"rope_theta": "x"}, "rope_theta is 'x'"),
        ({"num_hidden_layers": 4}, "no tensor 'model.layers.3"),
        ({"num_hidden_layers": 2}, "does not use the tensors model.layers.2"),
        ({"intermediate_size": 95}, "96×64, expected 95×64"),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(rlx.Error, match=match):
            rlx.load(folder)
    path.write_text(json.dumps({**whole, "model_type": "mamba"}))
    with pytest.raises(rlx.UnsupportedError, match="'mamba'"):
        rlx.lm.load(folder)


@pytest.mark.parametrize("architecture", files.ARCHITECTURES)
def test_a_field_that_nothing_reads_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    """Whatever it is called; fields that change nothing, or not with their value, are allowed."""
    path = folder_of(tmp_path, architecture) / "config.json"
    whole = config_of(architecture)
    for key, value in (
        ("residual_multiplier", 0.5), ("use_bidirectional_attention", True), ("is_causal", False),
        ("quantization_config", {"bits": 4}), ("rope_parameters", {"rope_type": "x", "twist": 1}),
        ("attention_chunk_size", 8), ("is_encoder_decoder", True), ("rope_interleaved", True),
        ("mlp_bias", True),
    ):  # fmt: skip
        path.write_text(json.dumps({**whole, key: value}))
        with pytest.raises(
            rlx.Error, match=rf"config.json.*({key}|'x'|tensor 'model.*bias)|bias.*"
        ):
            rlx.load(tmp_path)
    neutral = {
        "_name_or_path": "here", "torch_dtype": "bfloat16", "use_cache": False, "twist": None,
        "attention_dropout": 0.5, "is_causal": True, "use_bidirectional_attention": False,
        "architectures": ["Decoder"], "eos_token_id": [2], "mlp_bias": False,
    }  # fmt: skip
    path.write_text(json.dumps({**whole, **neutral}))
    assert rlx.load(tmp_path).architecture.name == architecture


def test_layers_of_a_configuration_are_those_of_the_model(tmp_path: Path) -> None:
    """Fields by which transformers' classes choose layers with a window and a rotary embedding."""
    full, window = "full_attention", "sliding_attention"
    for name, more, windows, rotated in (
        ("smollm3", {"no_rope_layers": [0, 1, 0, 1]}, "....", "nrnr"),
        ("smollm3", {"no_rope_layer_interval": 2}, "....", "rnrn"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 3}, "...w", "rrrn"),
        ("qwen2", {"sliding_window": 3, "max_window_layers": 1}, "...", "rrr"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
         ".ww", "rrr"),
        ("qwen3", {"use_sliding_window": True, "layer_types": [window, full, window]},
         "w.w", "rrr"),
        ("gemma2", {}, "w.w", "rrr"),
        ("gemma3", {"sliding_window_pattern": 2}, "w.w.w.", "rrrrrr"),
    ):  # fmt: skip
        path = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        folder_of(path, name, **more)
        a = architecture_of(language_model_file(path))
        assert "".join(".w"[w is not None] for w in a.windows) == windows, more
        assert "".join("nr"[r] for r in a.rotated) == rotated, more


def test_an_index_names_files_of_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama", shards=2)
    path = folder / "model.safetensors.index.json"
    whole = json.loads(path.read_text())
    name = "model.norm.weight"
    for place, match in (
        ("../model-00001-of-00002.safetensors", "no map of tensors to files of the folder"),
        ("/etc/passwd", "no map of tensors"),
        (7, "no map of tensors"),
        ("other.safetensors", "cannot be read"),
    ):
        path.write_text(json.dumps({"weight_map": {**whole["weight_map"], name: place}}))
        with pytest.raises(rlx.Error, match=match):
            rlx.load(folder)
    path.write_text(
        json.dumps(
            {"weight_map": {**whole["weight_map"], "more": "model-00001-of-00002.safetensors"}}
        )
    )
    with pytest.raises(rlx.Error, match="has no tensor 'more'"):
        rlx.load(folder)


def test_damaged_folders_load_or_are_refused(tmp_path: Path) -> None:
    """A sample of `python -m tests.gguf.folder_mutations`."""
    from tests.gguf import folder_mutations as damage

    made = damage.whole(tmp_path)
    found: set[str] = set()
    for seed in range(90):
        path = made / damage.CHANGED[seed % len(damage.CHANGED)]
        before = path.read_bytes()
        data = damage.changed(before, np.random.default_rng(seed))
        found.add(damage.tried(path, data, model=made))
        path.write_bytes(before)
    assert found == {"loads", "refused"}
