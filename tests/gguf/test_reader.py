"""GGUF files: what is read, and what is refused before anything is believed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import gguf
import rlx
from rlx.frontends.gguf.reader import TYPES, read_gguf
from rlx.ops.quant.gguf_formats import SCHEMES
from tests.gguf import files
from tests.gguf.mutations import mutated, sources, tried


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return files.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "qwen2").read_bytes()


def test_it_reads_what_the_package_reads(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(data)
    found, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert found.metadata["qwen2.block_count"] == files.LAYERS
    assert list(found.metadata["tokenizer.ggml.tokens"])[-1] == f"word{files.WORDS - 1}"
    assert set(found.tensors) == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        info = found.tensors[tensor.name]
        assert info.dims == tuple(int(d) for d in tensor.shape[::-1])
        assert found.packed(tensor.name).tobytes() == tensor.data.tobytes()


def test_numbers_of_block_formats_are_those_of_the_package() -> None:
    for number, scheme in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert theirs.name.lower() == scheme
        weights, size = gguf.GGML_QUANT_SIZES[theirs]
        assert (SCHEMES[scheme].weights, SCHEMES[scheme].block_bytes) == (weights, size)


def refused(data: bytes, folder: Path, match: str) -> None:
    path = folder / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(rlx.Error, match=match):
        rlx.load(path)


def test_short_and_foreign_files(data: bytes, tmp_path: Path) -> None:
    refused(b"", tmp_path, "damaged: its first bytes would take 4 bytes")
    refused(b"GGML" + data[4:], tmp_path, "does not begin with GGUF")
    refused(data[:4] + struct.pack("<I", 1) + data[8:], tmp_path, "version 1")
    refused(data[: len(data) // 2], tmp_path, "would end behind the file")
    refused(data[:200], tmp_path, "are left")


def test_counts_are_checked_before_anything_is_made(data: bytes, tmp_path: Path) -> None:
    for at, size in ((8, 2**62), (16, 2**62)):
        refused(data[:at] + struct.pack("<Q", size) + data[at + 8 :], tmp_path, "would have")
    begin = data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    refused(data[:begin] + struct.pack("<Q", 2**60) + data[begin + 8 :], tmp_path, "would take")


def test_extents_are_checked_before_they_are_multiplied(data: bytes, tmp_path: Path) -> None:
    begin = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4
    huge = struct.pack("<QQ", 2**60, 2**60)
    refused(data[:begin] + huge + data[begin + 16 :], tmp_path, "would have 1152921504606846976×")
    odd = struct.pack("<QQ", 33, 4)
    refused(data[:begin] + odd + data[begin + 16 :], tmp_path, "rows of 33: q8_0 has blocks of 32")


def test_tensors_stay_inside_the_file_and_do_not_overlap(data: bytes, tmp_path: Path) -> None:
    offset = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8 + 4
    refused(data[:offset] + bytes(8) + data[offset + 8 :], tmp_path, "overlaps another")
    far = struct.pack("<Q", 2**62)
    refused(data[:offset] + far + data[offset + 8 :], tmp_path, "end behind the file")


def test_a_file_that_changes_meanwhile_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(data)
    file = read_gguf(path)
    path.write_bytes(data[:-100])
    with pytest.raises(rlx.Error, match="has changed"):
        file.packed("output.weight")


def test_damaged_files_load_or_are_refused(tmp_path: Path) -> None:
    """A sample of `python -m tests.gguf.mutations`."""
    whole = sources(tmp_path)
    found = [
        tried(tmp_path / "m.gguf", mutated(whole[seed % 6], np.random.default_rng(seed)))
        for seed in range(150)
    ]
    assert set(found) == {"loads", "refused"}


@pytest.mark.parametrize(
    "key", ["qwen2.attention.causal", "qwen2.rope.scaling.alpha", "qwen2.new.thing"]
)
def test_a_key_that_nothing_reads_is_refused_by_name(key: str, tmp_path: Path) -> None:
    more = {key.removeprefix("qwen2."): 3}
    path = files.write(tmp_path / "tiny.gguf", "qwen2", **more)
    with pytest.raises(rlx.UnsupportedError, match=rf"tiny.gguf: {key} is 3.*--remove-metadata"):
        rlx.load(path)


def test_notes_of_other_tools_are_no_part_of_a_model(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"word{i}" for i in range(files.WORDS)])
        for key in ("general.license.name", "tool.version", "general.base_model.0.name"):
            writer.add_string(key, "x")

    path = files.write(tmp_path / "tiny.gguf", "qwen2", vocabulary=add)
    assert rlx.load(path).architecture.layers == files.LAYERS
    for key, value in (("general.type", "adapter"), ("general.secret", "x")):
        path = files.write(
            tmp_path / "other.gguf",
            "qwen2",
            vocabulary=lambda w, k=key, v=value: w.add_string(k, v),
        )
        with pytest.raises(rlx.UnsupportedError, match=rf"{key} is '{value}'"):
            rlx.load(path)


def test_a_tokenizer_key_that_nothing_reads_is_refused_by_name(tmp_path: Path) -> None:
    from rlx.lm.tokenizer import tokenizer_of
    from tests.gguf import vocabularies

    def add(writer: gguf.GGUFWriter) -> None:
        vocabularies.add_byte_pairs(writer)
        writer.add_bool("tokenizer.ggml.reverses_words", True)

    words = len(vocabularies.byte_pairs()[0])
    path = files.write(tmp_path / "tiny.gguf", "qwen2", words=words, vocabulary=add)
    with pytest.raises(rlx.UnsupportedError, match=r"tokenizer\.ggml\.reverses_words is True"):
        tokenizer_of(read_gguf(path))
