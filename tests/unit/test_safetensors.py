"""Folders of safetensors: what they mean, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from bench.dialects import for_numpy
from bench.workloads.minilm import NORMS, WEIGHTS, Size, minilm_function
from rlx.frontends.safetensors.naming import Sizes, naming_of
from rlx.frontends.safetensors.reader import read_tensors

SIZE = Size(layers=2, width=32, heads=4, hidden=48, words=50, places=16)
BERT = {
    "model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 48, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert", "dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48,
    "activation": "gelu",
}  # fmt: skip
DISTILBERT_PARTS = {
    "attention.self.query": "attention.q_lin", "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin", "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm", "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2", "output.LayerNorm": "output_layer_norm",
}  # fmt: skip
# Rows of 32, sums of at most 48 products, a dozen of them deep: some hundred roundings of an f32
# whose values are about 1.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


# -- files -----------------------------------------------------------------------------------------


def packed(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A header and the bytes it speaks of."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        kind = {"float32": "F32", "int64": "I64", "bfloat16": "BF16", "float16": "F16"}
        header[name] = {
            "dtype": kind[str(array.dtype)], "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        data += raw
    return header, data


def written(path: Path, header: Any, data: bytes, *, pad: int = 0) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def folder_of(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], **files: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    written(folder / "model.safetensors", *packed(tensors))
    for name, value in files.items():
        path = folder / {"modules": "modules.json", "pooling": "1_Pooling/config.json"}[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def weights(seed: int = 0) -> dict[str, Any]:
    """Weights of a small BERT, under the names of its file."""
    rng = np.random.default_rng(seed)

    def drawn(*dims: int, near: float = 0.0) -> Any:
        return (near + 0.2 * rng.standard_normal(dims)).astype(np.float32)

    made = {
        f"embeddings.{n}_embeddings.weight": drawn(rows, 32)
        for n, rows in (("word", 50), ("position", 16), ("token_type", 2))
    }
    made |= {
        "embeddings.LayerNorm.weight": drawn(32, near=1),
        "embeddings.LayerNorm.bias": drawn(32),
    }
    dims = {"f1": (48, 32), "f2": (32, 48)}
    for i in range(2):
        for short, part in WEIGHTS.items():
            rows, columns = dims.get(short, (32, 32))
            made[f"encoder.layer.{i}.{part}.weight"] = drawn(rows, columns)
            made[f"encoder.layer.{i}.{part}.bias"] = drawn(rows)
        for part in NORMS.values():
            made[f"encoder.layer.{i}.{part}.weight"] = drawn(32, near=1)
            made[f"encoder.layer.{i}.{part}.bias"] = drawn(32)
    return made


def texts(padding: int = 0) -> tuple[Any, Any]:
    ids = np.random.default_rng(1).integers(5, 50, (3, 7))
    mask = (np.arange(7) < np.array([[7], [4], [1]])).astype(np.int64)
    return np.where(mask, ids, padding), mask


def expected(tensors: Mapping[str, Any], ids: Any, mask: Any, first: int = 0) -> Any:
    """The mean row of each text, spelled in NumPy and f64 by the benchmark's own words."""
    own = {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.pos": "embeddings.position_embeddings.weight",
        "emb.type": "embeddings.token_type_embeddings.weight",
        "emb.ln.g": "embeddings.LayerNorm.weight", "emb.ln.b": "embeddings.LayerNorm.bias",
    }  # fmt: skip
    for i in range(2):
        parts = {**dict.fromkeys(WEIGHTS, "wb"), **dict.fromkeys(NORMS, "gb")}
        for short, ends in parts.items():
            place = f"encoder.layer.{i}.{ {**WEIGHTS, **NORMS}[short] }"
            own[f"l{i}.{short}.{ends[0]}"], own[f"l{i}.{short}.b"] = (
                f"{place}.weight",
                f"{place}.bias",
            )
    params = {k: np.asarray(tensors[n], np.float64) for k, n in own.items()}
    params["emb.pos"] = params["emb.pos"][first:]
    return minilm_function(SIZE)(for_numpy, params, ids, mask)


MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return [{"type": f"sentence_transformers.models.{k}", "path": paths[k]} for k in kinds]


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_bert_with_a_mean(target: str, tmp_path: Path) -> None:
    tensors = weights()
    folder = folder_of(
        tmp_path / "tiny", BERT, {**tensors, "embeddings.position_ids": np.arange(16)[None]},
        modules=modules("Transformer", "Pooling", "Normalize"), pooling=MEAN,
    )  # fmt: skip
    model = rlx.load(folder)
    assert model.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert model.outputs == ("sentence_embedding",)
    assert rlx.load(folder / "model.safetensors").name == model.name == "tiny"
    exe = rlx.compile(model, target)
    ids, mask = texts()
    want = expected(tensors, ids, mask)
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_allclose(exe(ids, mask, np.zeros_like(ids)), want, **CLOSE)
    one = exe(ids[1:2, :4], mask[1:2, :4], np.zeros((1, 4), np.int64))
    np.testing.assert_allclose(one, want[1:2], **CLOSE)


def test_kinds_of_tokens_count(tmp_path: Path) -> None:
    tensors = weights()
    exe = rlx.compile(rlx.load(folder_of(tmp_path, BERT, tensors)), "reference")
    ids, mask = texts()
    moved = dict(tensors)
    moved["embeddings.token_type_embeddings.weight"] = moved[
        "embeddings.token_type_embeddings.weight"
    ][::-1]
    rows = exe(ids, mask, np.ones_like(ids)) * mask[..., None]
    np.testing.assert_allclose(
        rows.sum(1) / mask.sum(1)[:, None], expected(moved, ids, mask), **CLOSE
    )


def test_roberta_counts_places_after_padding(tmp_path: Path) -> None:
    tensors = weights()
    config = {**BERT, "model_type": "xlm-roberta", "pad_token_id": 1}
    prefixed = {f"roberta.{n}": t for n, t in tensors.items()}
    folder = folder_of(
        tmp_path, config, prefixed, modules=modules("Transformer", "Pooling"), pooling=MEAN
    )
    model = rlx.load(folder)
    assert model.inputs == ("input_ids", "attention_mask")
    ids, mask = texts(padding=1)
    made = rlx.compile(model, "reference")(ids, mask)
    np.testing.assert_allclose(made, expected(tensors, ids, mask, first=2), **CLOSE)
    with pytest.raises(rlx.Error):
        rlx.compile(model, "reference")(*np.ones((2, 1, 15), np.int64))


def test_distilbert(tmp_path: Path) -> None:
    tensors = weights()
    tensors["embeddings.token_type_embeddings.weight"] *= 0
    renamed = {}
    for name, tensor in tensors.items():
        for ours, theirs in DISTILBERT_PARTS.items():
            if name.startswith("encoder.") and name.partition(".")[2][8:].startswith(ours):
                number = name.split(".")[2]
                name = f"transformer.layer.{number}.{theirs}.{name.rpartition('.')[2]}"
                break
        if "token_type" not in name:
            renamed[name] = tensor
    folder = folder_of(
        tmp_path, DISTILBERT, renamed, modules=modules("Transformer", "Pooling"), pooling=MEAN
    )
    ids, mask = texts()
    made = rlx.compile(rlx.load(folder), "reference")(ids, mask)
    np.testing.assert_allclose(made, expected(tensors, ids, mask), **CLOSE)


def test_rows_and_the_pooler(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    pooler = {
        "pooler.dense.weight": rng.standard_normal((32, 32)).astype(np.float32) / 8,
        "pooler.dense.bias": rng.standard_normal(32).astype(np.float32),
    }
    exe = rlx.compile(rlx.load(folder_of(tmp_path, BERT, {**weights(), **pooler})), "reference")
    ids, mask = texts()
    made = exe.run({"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids})
    first = made["last_hidden_state"][:, 0]
    want = np.tanh(first @ pooler["pooler.dense.weight"].T + pooler["pooler.dense.bias"])
    np.testing.assert_allclose(made["pooler_output"], want, **CLOSE)


def test_every_way_to_pool(tmp_path: Path) -> None:
    tensors = weights()
    ids, mask = texts()
    rows = rlx.compile(rlx.load(folder_of(tmp_path / "rows", BERT, tensors)), "reference")(
        ids, mask, 0 * ids
    )
    held = np.where(mask[..., None] != 0, rows, np.nan)
    want = {
        "cls_token": rows[:, 0], "max_tokens": np.nanmax(held, 1),
        "mean_tokens": np.nanmean(held, 1),
        "mean_sqrt_len_tokens": np.nansum(held, 1) / np.sqrt(mask.sum(1))[:, None],
    }  # fmt: skip
    for mode, vector in want.items():
        folder = folder_of(
            tmp_path / mode, BERT, tensors, modules=modules("Transformer", "Pooling"),
            pooling={f"pooling_mode_{mode}": True},
        )  # fmt: skip
        made = rlx.compile(rlx.load(folder), "reference")(ids, mask, 0 * ids)
        np.testing.assert_allclose(made, vector, **CLOSE)
    folder = folder_of(
        tmp_path / "all", BERT, tensors, modules=modules("Transformer", "Pooling"),
        pooling={f"pooling_mode_{mode}": True for mode in reversed(want)},
    )  # fmt: skip
    made = rlx.compile(rlx.load(folder), "reference")(ids, mask, 0 * ids)
    np.testing.assert_allclose(made, np.concatenate(list(want.values()), 1), **CLOSE)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_weights_are_computed_with_in_f32(dtype: Any, tmp_path: Path) -> None:
    halves = {n: t.astype(dtype) for n, t in weights().items()}
    folder = folder_of(
        tmp_path, BERT, halves, modules=modules("Transformer", "Pooling"), pooling=MEAN
    )
    ids, mask = texts()
    made = rlx.compile(rlx.load(folder), "cpu")(ids, mask, 0 * ids)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, expected(halves, ids, mask), **CLOSE)


def test_decisions_name_the_layers(tmp_path: Path) -> None:
    exe = rlx.compile(rlx.load(folder_of(tmp_path, BERT, weights())), "reference")
    assert "encoder.layer.0–1" in str(exe.explain())


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": 33}, "hidden_size|heads"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"hidden_size": 64}, "expected floats"),
        ({"num_hidden_layers": 3}, "encoder.layer.2"),
        ({"num_hidden_layers": 1}, "encoder.layer.1"),
        ({"num_attention_heads": 5}, "heads"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoder"),
        ({"embedding_size": 5}, r"config.json: embedding_size is 5, which rlx does not read"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"quantization_config": {"bits": 8}}, "quantization_config is"),
    ],
)
def test_configurations_that_do_not_fit(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(rlx.Error, match=told):
        rlx.load(folder_of(tmp_path, {**BERT, **change}, weights()))


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(rlx.Error, match=r"no config.json"):
        rlx.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(rlx.Error, match=r"no model.safetensors"):
        rlx.load(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(rlx.Error, match="pickle"):
        rlx.load(tmp_path)
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(rlx.Error, match="folders"):
        rlx.load(tmp_path / "other.safetensors")
    with pytest.raises(rlx.Error, match="cannot be read"):
        rlx.load(tmp_path / "missing.safetensors")


def test_heads_are_named_not_dropped(tmp_path: Path) -> None:
    head = {"classifier.weight": np.zeros((2, 32), np.float32)}
    with pytest.raises(rlx.UnsupportedError, match=r"classifier.weight"):
        rlx.load(folder_of(tmp_path, BERT, {**weights(), **head}))


def test_fields_that_change_nothing_are_allowed(tmp_path: Path) -> None:
    """And absent ones are as transformers has them: padding of RoBERTa is token 1."""
    more = {
        "_name_or_path": "here", "torch_dtype": "float32", "hidden_dropout_prob": 0.1,
        "vocab_size": 9, "classifier_dropout": None, "pooler_fc_size": 768,
        "directionality": "bidi", "id2label": {"0": "a"}, "add_cross_attention": False,
        "gradient_checkpointing": False,
    }  # fmt: skip
    assert rlx.load(folder_of(tmp_path, {**BERT, **more}, weights())).outputs
    config = {k: v for k, v in BERT.items() if k != "pad_token_id"} | {"model_type": "roberta"}
    where = tmp_path / "config.json"
    assert Sizes.of(config, naming_of(config, where), where).padding == 1


@pytest.mark.parametrize(
    ("listed", "pooling", "told"),
    [
        ([], {}, "begin with a Transformer"),
        ([{"type": "x.Transformer"}], {}, "no path"),
        ([{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": "2"}], {}, "Dense"),
        ([{"type": "x.Transformer", "path": "../.."}], {}, "not a folder inside"),
        ([{"type": "x.Transformer", "path": "a/b"}], {}, "not a folder inside"),
        (modules("Transformer", "Normalize"), {}, "Normalize"),
        (modules("Transformer", "Pooling", "Pooling"), MEAN, "Pooling"),
        (modules("Transformer", "Pooling"), {"pooling_mode_lasttoken": True}, "lasttoken"),
        (modules("Transformer", "Pooling"), {"pooling_mode_mean_tokens": False}, "no pooling mode"),
        ({"a": 1}, {}, "no list"),
        (modules("Transformer", "Pooling"), {**MEAN, "include_prompt": False}, "include_prompt is"),
    ],
)
def test_modules_that_make_no_sense(listed: Any, pooling: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(rlx.Error, match=told):
        rlx.load(folder_of(tmp_path, BERT, weights(), modules=listed, pooling=pooling))


# -- hostile files ---------------------------------------------------------------------------------


def entry(begin: Any = 0, end: Any = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


HOSTILE: dict[str, Any] = {
    "no JSON": b"{",
    "not UTF-8": b'{"\xff": 1}',
    "a list": b"[]",
    "a number": b"1",
    "nested too deeply": b'{"a":' + b"[" * 100_000,
    "a name twice": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "metadata no map": {"__metadata__": 1, "a": entry()},
    "metadata no texts": {"__metadata__": {"a": 1}, "b": entry()},
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "more than it should": {"a": {**entry(), "more": 1}},
    "unknown dtype": {"a": entry(dtype="F3")},
    "dtype no text": {"a": entry(dtype=4)},
    "wrong size": {"a": entry(dtype="F64")},
    "shape no counts": {"a": entry(shape=[2.0])},
    "shape negative": {"a": entry(shape=[-2, -1])},
    "shape a truth": {"a": entry(0, 4, shape=[True])},
    "shape of 2^90": {"a": entry(shape=[1 << 45, 1 << 45])},
    "shape of 10^400": b'{"a":{"dtype":"F32","shape":[1' + b"0" * 400 + b'],"data_offsets":[0,8]}}',
    "shape of 10^9999": b'{"a":{"dtype":"F32","shape":[1' + b"0" * 9999 + b"]}}",
    "shape NaN": b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    "rank of 1000": {"a": entry(0, 4, shape=[1] * 1000)},
    "past the end": {"a": entry(0, 80, shape=[20])},
    "begins past the end": {"a": entry(80, 88)},
    "ends before it begins": {"a": entry(8, 0)},
    "offsets negative": {"a": entry(-8, 0)},
    "three offsets": {"a": {**entry(), "data_offsets": [0, 4, 8]}},
    "overlap": {"a": entry(), "b": entry(4, 8, shape=[1])},
    "the same bytes": {"a": entry(), "b": entry()},
    "a gap": {"a": entry(4, 8, shape=[1])},
    "bytes left over": {"a": entry(0, 4, shape=[1])},
    "nothing": {},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_one_error(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.safetensors", HOSTILE[name], bytes(8))
    with pytest.raises(rlx.Error) as caught:
        read_tensors(path)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("size", [0, 3, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_lengths_of_headers_that_cannot_be(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}" + bytes(1000))
    with pytest.raises(rlx.Error):
        read_tensors(path)
    path.write_bytes(b"\x01")
    with pytest.raises(rlx.Error, match="length of a header"):
        read_tensors(path)
    with open(path, "wb") as file:
        file.write((1 << 25).to_bytes(8, "little"))
        file.truncate(1 << 26)
    with pytest.raises(rlx.Error, match="header would take"):
        read_tensors(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(rlx.Error, match="cannot be read"):
        rlx.load(tmp_path)
    (tmp_path / "config.json").write_text(" " * (1 << 21))
    with pytest.raises(rlx.Error, match="damaged"):
        rlx.load(tmp_path)


def test_tensors_are_copied_once_and_aligned(tmp_path: Path) -> None:
    big = np.arange(1 << 19, dtype=np.float32).reshape(1 << 10, -1)
    small = np.array(7, np.int64)
    header, data = packed({"small": small, "big": big, "none": np.zeros((0, 4), np.float32)})
    size = len(json.dumps(header))
    for odd in (0, 1):
        pad = -(8 + size) % 8 + odd
        found = read_tensors(written(tmp_path / "model.safetensors", header, data, pad=pad))
        assert found["small"] == 7
        assert found["none"].shape == (0, 4)
        np.testing.assert_array_equal(found["big"], big)
        assert not found["big"].flags.writeable
        assert found["big"].flags.aligned
        held = found["big"]
        while isinstance(held.base, np.ndarray):
            held = held.base
        assert held.nbytes == found["big"].nbytes
