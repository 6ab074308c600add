"""Names of a model on a terminal, and terminals that lack characters."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import rlx
from rlx.__main__ import main
from rlx.core.printable import encodable, one_line, printable
from tests.onnx.test_malicious_files import model, node, value

HOSTILE = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://a\x1b\\", "\u202erotadnammoc", "\u2066x\u2069",
    "a\nrlx: all is well\nb", "a\rb", "\x9b31m", "\x08\x08", "\u200f", "\ufeff", "\u2028", "\x7f",
)  # fmt: skip
ENCODINGS = ("cp1252", "cp932", "latin-1", "ascii", "cp437", "utf-8")


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_are_escaped(name: str) -> None:
    assert printable(name).replace("\n", "").isprintable()
    assert one_line(name).isprintable()
    assert "\\" in one_line(name)
    assert one_line(name) in str(rlx.Error(name)).replace("\n", "\\n")


@pytest.mark.parametrize("text", ["größe", "日本 語", "👩\u200d👧", "a→b × 2 µs …", "tab\tend\n"])
def test_other_characters_stay(text: str) -> None:
    assert printable(text) is text or printable(text) == text
    assert encodable(text, "utf-8") == text


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_character_that_an_encoding_lacks_is_spelled(encoding: str) -> None:
    for char in map(chr, [*range(0x20, 0x2A00, 7), 0xB5, 0xD7, 0x2026, 0x2192, 0x1F600, 0xD800]):
        encodable(char, encoding).encode(encoding if char != "\ud800" else "ascii")
    if encoding == "ascii":
        assert encodable("2 × 3 → 6 µs…", encoding) == "2 x 3 -> 6 us..."


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model each of whose names holds all of it."""
    name = "".join(HOSTILE)
    nodes = [node("MatMul", [f"x{name}", f"w{name}"], [f"h{name}"], name=f"n{name}"),
             node("Relu", [f"h{name}"], [f"y{name}"], name=f"r{name}")]  # fmt: skip
    weights = onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), f"w{name}")
    made = model(nodes, [weights], inputs=[value(f"x{name}", ("batch", 3))],
                 outputs=[value(f"y{name}", ("batch", 3))])  # fmt: skip
    path = tmp_path_factory.mktemp("names") / "named.onnx"
    path.write_bytes(made.SerializeToString())
    return path


VERBS = (
    ("check", "{}"), ("check", "{}", "--json"), ("explain", "{}", "-t", "cuda", "--dim", "batch=2"),
    ("explain", "{}", "-t", "cuda", "--dim", "batch=2", "--json"), ("run", "{}", "-t", "reference"),
    ("trace", "{}", "-t", "reference", "-o", "{}.json"), ("compile", "{}", "-o", "{}.rlx"),
    ("run", "{}", "--input", "no=x.npy"),
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_name_reaches_the_terminal_raw(
    named: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    main([word.format(named) for word in verb])
    out, err = capsys.readouterr()
    for line in (out + err).split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("rlx: all is well")
    if "--json" in verb:
        json.loads(out)


@pytest.mark.parametrize("encoding", ["cp1252", "cp932", "ascii"])
def test_output_in_any_encoding(
    named: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """As redirected output of Windows is."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["explain", str(named), "-t", "cuda", "--dim", "batch=2"]) == 0
    assert main(["check", str(named)]) == 0
    assert main(["explain", "→ µ × ….onnx"]) == 2
    assert main(["--help"]) == 0
    for stream in (out, err):
        stream.flush()
        text = stream.buffer.getvalue().decode(encoding)  # pyright: ignore[reportAttributeAccessIssue]
        assert "bug of rlx" not in text
    assert sys.stdout is out
