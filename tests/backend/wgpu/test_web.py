"""Folders for browsers, as far as they are made without one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape, UnsupportedError, ops
from rlx.__main__ import main
from rlx.backends.wgpu.web.bundle import HEADER, MODULES, runtime_module, texts
from rlx.backends.wgpu.web.kernels import ENTRY, Kernels
from rlx.backends.wgpu.wgsl.module import Module
from rlx.frontends.web import export_web, web_backends
from rlx.pipeline import CompilePipeline

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def linear() -> Graph:
    g = Graph("linear")
    x, w = g.input("x", Shape([Dim("n", 1, 64), 4])), g.param("w", Shape([4, 3]))
    g.set_outputs({"y": ops.relu(ops.matmul(x, w))})
    return g


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_the_folder_has_all_that_a_page_needs(tmp_path: Path) -> None:
    made = export_web(linear(), tmp_path, params={"w": WEIGHTS})
    assert {f.name for f in tmp_path.iterdir()} == set(made.files)
    manifest = read(tmp_path, "model.json")
    assert manifest["inputs"][0]["shape"] == "f32[n, 4]"
    assert manifest["names"] == {"n": [1, 64]}
    raw, stated = (tmp_path / "weights.bin").read_bytes(), manifest["weights"]
    assert hashlib.sha256(raw).hexdigest() == stated["sha256"] == stated["chunks"][0]
    for file in manifest["plans"].values():
        plan = read(tmp_path, file)
        slab, at = plan["params"][0]
        (offset,) = (e[2] for e in plan["entries"] if e[:2] == [slab, at])
        assert raw[offset : offset + WEIGHTS.nbytes] == WEIGHTS.tobytes()


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        export_web(linear(), tmp_path / name, params={"w": WEIGHTS})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_weights_that_only_the_prologue_reads_are_freed(tmp_path: Path) -> None:
    g = Graph("prologue")
    x, w = g.input("x", Shape([4])), g.param("w", Shape([4, 4]))
    g.set_outputs({"y": x + ops.sum(ops.exp(w), axes=(0,))})
    export_web(g, tmp_path, params={"w": WEIGHTS.reshape(-1)[:4] * np.ones((4, 1), "f")})
    plan = read(tmp_path, "gpu.json")
    slab, _ = plan["params"][0]
    assert not plan["slabs"][slab]["isKept"]


def test_the_runtime_is_one_small_module() -> None:
    text = runtime_module()
    assert len(text.encode()) <= 40_000
    assert "import " not in text
    assert text.count("export ") == 1
    assert len(MODULES) == len(set(MODULES))
    assert text.startswith(f"{HEADER}\n")
    assert not re.search(r"/\*\*|(^|; )// ", text.removeprefix(HEADER), re.MULTILINE)


def test_the_readme_names_what_there_is() -> None:
    page = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    (imported,) = re.findall(r'import \{ (.*?) \} from "./rlx.js"', shown)
    (exported,) = re.findall(r"export \{ (.*?) \};", runtime_module())
    assert set(imported.split(", ")) <= set(exported.split(", "))
    types = texts()["rlx.d.ts"]
    for option in re.findall(r"\{ (\w+):", shown):
        assert re.search(rf"^  {option}\?: ", types, re.MULTILINE), option


def test_a_page_makes_the_text_that_the_printer_does() -> None:
    """For bindings of their own: the text is put together of the same parts."""
    backend = web_backends()["gpu"]
    lir = CompilePipeline(backend.target()).compile(linear()).lir
    codes = backend.build(backend.program(lir)).codes
    made = Kernels.of(codes)
    assert made.codes
    for code, shown in zip(codes, made.codes):
        module, stated = Module.of_bytes(code.binary), made.texts[shown["text"]]
        source = module.source().replace(f"fn {module.name}(", f"fn {ENTRY}(")
        assert source.startswith(stated["head"])
        assert source.endswith(stated["body"])
        for buffer, use in stated["accesses"]:
            texts = made.accesses[use]["texts"].values()
            filled = [
                t.replace("{buffer}", str(buffer)).replace("{binding}", str(buffer)) for t in texts
            ]
            assert any(t and t in source for t in filled)


def test_kernels_that_differ_in_names_share_a_text(tmp_path: Path) -> None:
    """Both products pack their weights by the same program, and differ in their epilogues."""
    g = Graph("two")
    x, shape = g.input("x", Shape([Dim("n"), 64])), Shape([64, 64])
    hidden = ops.relu(ops.matmul(x, g.param("a", shape)))
    g.set_outputs({"y": ops.exp(ops.matmul(hidden, g.param("b", shape)))})
    weights = np.ones((64, 64), np.float32)
    export_web(g, tmp_path, params={"a": weights, "b": weights})
    plan = read(tmp_path, "software.json")
    codes, texts = plan["codes"], plan["texts"]
    assert len({json.dumps(t) for t in texts}) == len(texts) < len(codes)
    assert {c["text"] for c in codes} == set(range(len(texts)))
    assert len({c["name"] for c in codes}) == len(codes)


@pytest.mark.parametrize("kind", ["gpu", "software"])
def test_kernels_ask_for_no_more_than_every_browser_has(kind: str) -> None:
    """WebGPU's default limits, of large products, attention and reductions."""
    g = Graph("limits")
    x, w = g.input("x", Shape([Dim("n"), 512])), g.param("w", Shape([512, 512]))
    y = ops.softmax(ops.matmul(x, w), axis=-1)
    q = ops.reshape(y, dims=(1, Dim("n"), 512))
    how = {"num_heads": 8, "kv_heads": 8, "mask_kind": "causal"}
    g.set_outputs({"y": ops.attention(q, q, q, **how), "s": ops.sum(y, axes=(0, 1))})
    backend = web_backends()[kind]
    lir = CompilePipeline(backend.target()).compile(g).lir
    codes = backend.build(backend.program(lir)).codes
    modules = [Module.of_bytes(c.binary) for c in codes]
    assert max(m.shared_bytes for m in modules) <= 16 << 10
    assert max(m.block for m in modules) <= 256
    assert not {f for m in modules for f in m.features}


def test_what_only_the_host_does_is_refused_by_node(tmp_path: Path) -> None:
    g = Graph("custom")
    x = g.input("x", Shape([3]))
    double = rlx.custom_op("test_web_double", lambda a: 2 * a, shape=lambda s: s)
    g.set_outputs({"y": double(x)})
    with pytest.raises(UnsupportedError, match=r"test_web_double.*NumPy.*JavaScript"):
        export_web(g, tmp_path)
    assert not list(tmp_path.iterdir())


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(rlx.Error, match="no weights for w"):
        export_web(linear(), tmp_path)


def test_an_executable_is_planned_already(tmp_path: Path) -> None:
    exe = rlx.compile(linear(), "reference", params={"w": WEIGHTS})
    with pytest.raises(rlx.Error, match="Executable is planned for one target"):
        export_web(exe, tmp_path)  # pyright: ignore[reportArgumentType]


def test_the_command_line_writes_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = Graph("net")
    x = g.input("x", Shape([Dim("n"), 8]))
    g.set_outputs({"y": ops.softmax(x, axis=1)})
    path, folder = tmp_path / "net.ir", tmp_path / "web"
    path.write_text(str(g))
    assert main(["compile", str(path), "-t", "wgpu", "--web", str(folder), "--dim", "n=4"]) == 0
    assert "model.json" in capsys.readouterr().out
    assert read(folder, "gpu.json")["usualSizes"] == {"n": 4}
    assert main(["compile", str(path), "-t", "cpu", "--web", str(folder)]) == 2
    assert "-t wgpu --web FOLDER" in capsys.readouterr().err
