"""Folders for browsers, as far as they are made without one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx import Dim, Graph, Shape, UnsupportedError, ops
from rlx.__main__ import main
from rlx.backends.web import wasm
from rlx.backends.web.bundle import HEADERS, MODULES, module_text, texts
from rlx.backends.web.export import FORMAT
from rlx.backends.web.minify import minified
from rlx.backends.web.webgpu.kernels import Kernels
from rlx.backends.wgpu.wgsl.module import Module
from rlx.frontends.web import ENGINES, export_web, web_backends
from rlx.pipeline import CompilePipeline
from tests.browser import graphs

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def linear() -> Graph:
    g = Graph("linear")
    x, w = g.input("x", Shape([Dim("n", 1, 64), 4])), g.param("w", Shape([4, 3]))
    g.set_outputs({"y": ops.relu(ops.matmul(x, w))})
    return g


def doubles() -> Graph:
    g = Graph("doubles")
    x = g.input("x", Shape([Dim("n", 1, 64), 4], "f64"))
    g.set_outputs({"y": ops.exp(x)})
    return g


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_the_folder_has_all_that_a_page_needs(tmp_path: Path) -> None:
    made = export_web(linear(), tmp_path, params={"w": WEIGHTS})
    assert {f.name for f in tmp_path.iterdir()} == set(made.files)
    assert not made.refused
    manifest = read(tmp_path, "model.json")
    assert manifest["inputs"][0]["shape"] == "f32[n, 4]"
    assert manifest["names"] == {"n": [1, 64]}
    raw, stated = (tmp_path / "weights.bin").read_bytes(), manifest["weights"]
    assert hashlib.sha256(raw).hexdigest() == stated["sha256"] == stated["chunks"][0]
    for file in manifest["engines"]["webgpu"]["plans"].values():
        plan = read(tmp_path, file)
        slab, at = plan["params"][0]
        (offset,) = (e[2] for e in plan["entries"] if e[:2] == [slab, at])
        assert raw[offset : offset + WEIGHTS.nbytes] == WEIGHTS.tobytes()
    for module in manifest["engines"]["wasm"]["modules"].values():
        code = (tmp_path / module["file"]).read_bytes()
        assert hashlib.sha256(code).hexdigest() == module["sha256"]


def test_engines_share_the_weights(tmp_path: Path) -> None:
    sizes: dict[str, int] = {}
    for name, engines in {"both": ENGINES, "webgpu": ("webgpu",), "wasm": ("wasm",)}.items():
        export_web(linear(), tmp_path / name, params={"w": WEIGHTS}, engines=engines)
        sizes[name] = (tmp_path / name / "weights.bin").stat().st_size
    assert sizes["both"] == sizes["webgpu"] == sizes["wasm"]
    (entry,) = read(tmp_path / "both", "wasm.json")["entries"]
    offset, count = entry[-2:]
    raw = (tmp_path / "both" / "weights.bin").read_bytes()
    assert raw[offset : offset + count] == WEIGHTS.tobytes()


def test_an_engine_can_be_left_out(tmp_path: Path) -> None:
    export_web(linear(), tmp_path, params={"w": WEIGHTS})
    export_web(linear(), tmp_path, params={"w": WEIGHTS}, engines=("wasm",))
    names = {f.name for f in tmp_path.iterdir()}
    assert {"rlx.js", "wasm.js", "wasm.json", "program.wasm"} <= names
    assert not names & {"webgpu.js", "gpu.json", "software.json"}
    assert list(read(tmp_path, "model.json")["engines"]) == ["wasm"]


def test_a_model_that_one_engine_refuses_is_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export_web(doubles(), tmp_path)
    assert re.search(r"exp at .*64-bit floats", made.refused["webgpu"])
    assert read(tmp_path, "model.json")["refused"] == made.refused
    assert "webgpu.js" not in made.files
    monkeypatch.setattr(wasm, "find_spec", lambda _: None)
    made = export_web(linear(), tmp_path, params={"w": WEIGHTS})
    assert "rlx[cpu]" in made.refused["wasm"]
    assert "program.wasm" not in made.files
    with pytest.raises(UnsupportedError, match=r"(?s)WebGPU: .*f64.*WebAssembly: .*rlx\[cpu\]"):
        export_web(doubles(), tmp_path)


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        export_web(linear(), tmp_path / name, params={"w": WEIGHTS})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_weights_that_only_the_prologue_reads_are_freed(tmp_path: Path) -> None:
    g = Graph("prologue")
    x, w = g.input("x", Shape([4])), g.param("w", Shape([4, 4]))
    g.set_outputs({"y": x + ops.sum(ops.exp(w), axes=(0,))})
    params = {"w": WEIGHTS.reshape(-1)[:4] * np.ones((4, 1), "f")}
    export_web(g, tmp_path, params=params, engines=("webgpu",))
    plan = read(tmp_path, "gpu.json")
    slab, _ = plan["params"][0]
    assert not plan["slabs"][slab]["isKept"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_page_downloads_is_small(engine: str) -> None:
    front, own = (module_text(name) for name in ("rlx.js", f"{engine}.js"))
    assert len(front.encode()) + len(own.encode()) <= 40_000
    assert "import{" not in front
    assert re.findall(r'import\{[^}]*\}from"([^"]*)"', own) == ["./rlx.js"]
    assert own.count("export{") == 1
    for name, text in {"rlx.js": front, f"{engine}.js": own}.items():
        assert text.startswith(f"{HEADERS[name]}\n")
        assert not re.search(r"/\*\*|// ", text.removeprefix(HEADERS[name]))


def test_modules_are_of_one_file_each() -> None:
    every = [m for modules in MODULES.values() for m in modules]
    assert len(every) == len(set(every))


def test_minifying_keeps_what_is_quoted() -> None:
    given = """const a = `x  ${f({ b: "}" }, `y  ${c}`)}  // z`; // gone
    /** gone
     * too */
    const r = /[/ ]  "/g.test(s) ? p / q / 2 : "a  // b";
    if (a)
      return typeof b in c;
    const d = { e: 1, f: + +g, };
    """
    want = (
        'const a=`x  ${f({ b: "}" }, `y  ${c}`)}  // z`;'
        'const r=/[/ ]  "/g.test(s)?p/q/2:"a  // b";'
        "if(a)return typeof b in c;const d={e:1,f:+ +g};\n"
    )
    assert minified(given) == want


KEYS = {2: "c0da38e73e437cfa"}
"""Of each format, the hash of the keys that its files have."""


def test_the_format_rises_when_files_change(tmp_path: Path) -> None:
    """A page may have an `rlx.js` of another version than a folder that is dropped on it."""
    paths: set[str] = set()
    for name in ("layers", "branching", "looping", "scanning", "measuring"):
        graph, params, _ = graphs.CASES[name]()
        engines = ENGINES if name == "measuring" else ("webgpu",)
        export_web(graph, tmp_path / name, params=params, engines=engines)
        for file in sorted((tmp_path / name).glob("*.json")):
            paths |= {f"{file.name} {path}" for path in _keys(read(tmp_path / name, file.name))}
    found = hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:16]
    assert {FORMAT: found} == KEYS, "raise FORMAT in export.py and model.js, and note the new hash"
    assert f"FORMAT={FORMAT};" in module_text("rlx.js")


NAMES = {"names", "weightSizes", "usualSizes", "routines", "refused", "texts"}
"""Objects whose keys are of the model."""


def _keys(value: Any, path: str = "") -> set[str]:
    """The paths of keys in JSON."""
    if isinstance(value, list):
        return {p for v in value for p in _keys(v, path)} or {path}
    if not isinstance(value, dict):
        return {path}
    is_open = path.rpartition(".")[2] in NAMES
    return {p for k, v in value.items() for p in _keys(v, f"{path}.{'*' if is_open else k}")} or {
        path
    }


def test_the_documentation_names_what_there_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "browser.md").read_text("utf-8")
    (shown,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    (imported,) = re.findall(r'import \{ (.*?) \} from "./rlx.js"', shown)
    exported = re.findall(r"export\{(.*?)\};", module_text("rlx.js"))[0]
    assert set(imported.split(", ")) <= set(exported.split(","))
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
        source = module.source()
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
    export_web(g, tmp_path, params={"a": weights, "b": weights}, engines=("webgpu",))
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


def test_a_path_and_bytes_are_models(tmp_path: Path) -> None:
    """Whatever `rlx.load` takes."""
    path = tmp_path / "linear.ir"
    rlx.save(linear(), path)
    onnx = tmp_path / "tiny.onnx"
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy"]
    graph = helper.make_graph([node], "tiny", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.write_bytes(model.SerializeToString())
    made = [
        export_web(str(path), tmp_path / "a", params={"w": WEIGHTS}, engines=("webgpu",)),
        export_web(onnx, tmp_path / "b", engines=("webgpu",)),
        export_web(onnx.read_bytes(), tmp_path / "c", engines=("webgpu",)),
        export_web(model, tmp_path / "d", engines=("webgpu",)),
    ]
    assert all("model.json" in each.files for each in made)
    with pytest.raises(rlx.Error, match=r"absent\.onnx cannot be read"):
        export_web(tmp_path / "absent.onnx", tmp_path / "e")


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


def test_a_model_that_depends_on_the_call_is_for_inputs(tmp_path: Path) -> None:
    """A Range whose end is an input: how long the output is, its value decides."""
    onnx = pytest.importorskip("onnx", reason="models are made with onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    zero, one = (helper.make_tensor(n, kind.INT64, [], [v]) for n, v in (("zero", 0), ("one", 1)))
    node = helper.make_node("Range", ["zero", "n", "one"], ["r"])
    total = helper.make_node("Add", ["x", "r"], ["y"])
    inputs = [
        helper.make_tensor_value_info("n", kind.INT64, []),
        helper.make_tensor_value_info("x", kind.INT64, ["k"]),
    ]
    output = helper.make_tensor_value_info("y", kind.INT64, None)
    graph = helper.make_graph([node, total], "ranged", inputs, [output], [zero, one])
    onnx.save(helper.make_model(graph), tmp_path / "ranged.onnx")
    model = rlx.load(tmp_path / "ranged.onnx")
    with pytest.raises(rlx.Error, match=r"inputs=\{'n', 'x'\}"):
        export_web(model, tmp_path / "web", engines=("wasm",))
    given = {"n": np.array(4), "x": np.arange(4)}
    export_web(model, tmp_path / "web", engines=("wasm",), inputs=given)
    assert read(tmp_path / "web", "model.json")["outputs"][0]["dims"] == [4]
