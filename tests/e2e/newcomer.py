"""What a newcomer types first, as a script: `python newcomer.py`. It needs rlx, NumPy and onnx.

Each obvious call must work, and each obvious mistake must be an rlx.Error that names the call that
works. It imports nothing of the project's tests, so that it runs from a wheel in an environment of
its own; prints one line for each step, and exits with 1 at the first that fails.

With a folder that holds README.md and docs, pyright (strict) and mypy check the code in them:
`python newcomer.py .`. `make test-newcomer` runs all of it in a fresh environment.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import operator
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import rlx

Step = Callable[[Path], None]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    STEPS[function.__name__.replace("_", " ")] = function
    return function


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def refused(told: str, call: Callable[[], Any]) -> None:
    """The call is an rlx.Error with this text."""
    text = "no error"
    try:
        call()
    except rlx.Error as error:
        text = str(error)
    assert re.search(told, text), f"{told!r} is not in {text!r}"


X, Y = np.float32([[1, -2]]), np.float32([[3, 4]])
FEED = {"x": X, "y": Y}


def model(folder: Path) -> Path:
    """y + relu(x), and x·y, of any number of rows."""
    path = folder / "m.onnx"
    if not path.exists():
        rows: list[int | str] = ["rows", 2]
        info = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, rows) for n in "xysp"}
        nodes = [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Add", ["r", "y"], ["s"]),
            helper.make_node("Mul", ["x", "y"], ["p"]),
        ]
        graph = helper.make_graph(nodes, "m", [info["x"], info["y"]], [info["s"], info["p"]])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, path)
    return path


def compiled(folder: Path) -> Any:
    return rlx.compile(model(folder))


@step
def compile_a_path(folder: Path) -> None:
    exe = compiled(folder)
    same(exe(X, Y)[0], [[4, 4]])
    same(rlx.compile(str(model(folder)))(X, Y)[1], [[3, -8]])
    refused("cannot be read", lambda: rlx.compile("missing.onnx"))
    refused(r"rlx\.jit", lambda: rlx.compile(lambda x: x))  # pyright: ignore


@step
def load_bytes_files_and_protobufs(folder: Path) -> None:
    path = model(folder)
    data = path.read_bytes()
    with path.open("rb") as file:
        for source in (path, data, io.BytesIO(data), file, onnx.load(path)):
            same(rlx.compile(rlx.load(source))(X, Y)[0], [[4, 4]])
    refused("an open file of them, an onnx.ModelProto", lambda: rlx.load(5))


@step
def call_by_keyword_and_by_name(folder: Path) -> None:
    exe = compiled(folder)
    same(exe(y=Y, x=X)[0], exe(X, Y)[0])
    same(exe.run(FEED)["p"], [[3, -8]])
    out = np.empty((1, 2), np.float32)
    made = exe.run(FEED, outputs=["s"], out={"s": out})
    assert list(made) == ["s"]
    assert made["s"] is out
    refused("there is no input 'z'. It has: x, y", lambda: exe(X, z=Y))
    refused("no value for y", lambda: exe(x=X))
    refused(r"exe\(\*\*feed\)", lambda: exe(FEED, Y))
    refused(r"exe\(\*\*feed\)", lambda: exe(FEED))
    refused(r"takes 2 inputs \(x, y\)", lambda: exe(X))
    refused(r"x\.astype\('float32'\)", lambda: exe(X.astype(np.float64), Y))
    refused("Reshape it", lambda: exe(X[0], Y))
    refused("It has: s, p", lambda: exe.run(FEED, outputs=["q"]))
    refused("outputs is 's'. Give a list", lambda: exe.run(FEED, outputs="s"))
    refused("read-only", lambda: exe.run(FEED, out={"s": np.broadcast_to(np.float32(0), (1, 2))}))
    refused(r"exe\.run\(feed\)", lambda: exe.predict(X))
    refused(r"rlx\.InferenceSession", lambda: exe.run(None, FEED))


@step
def keep_and_copy_programs(folder: Path) -> None:
    exe = compiled(folder)
    for made in (pickle.loads(pickle.dumps(exe)), copy.copy(exe), copy.deepcopy(exe)):
        same(made(X, Y)[0], [[4, 4]])
    exe.save(folder / "m.rlx")
    same(rlx.load(folder / "m.rlx")(X, Y)[1], [[3, -8]])  # pyright: ignore
    refused(r"Use rlx\.load", lambda: rlx.compile(folder / "m.rlx"))


@step
def limit_threads(folder: Path) -> None:
    exe = compiled(folder)
    with rlx.threads(1):
        same(exe(X, Y)[0], [[4, 4]])
    refused("threads is 0", lambda: rlx.threads(0))


@step
def drop_in_for_onnxruntime(folder: Path) -> None:
    session = rlx.InferenceSession(str(model(folder)), providers=["CPUExecutionProvider"])
    same(session.run(None, FEED)[0], [[4, 4]])
    first = session.get_inputs()[0]
    assert (first.name, first.shape, first.type) == ("x", ["rows", 2], "tensor(float)")
    refused(r"session\.executable\.bind", session.io_binding)


@step
def build_a_graph(folder: Path) -> None:
    g = rlx.Graph("g")
    x, w = g.input("x", [2, 3]), g.param("w", ["n", 3])
    g.set_outputs({"y": g.reshape(x, (3, 2)).transpose().sum(axis=0), "z": w.mean(axis=1)})
    given = np.ones((4, 3), np.float32)
    exe = rlx.compile(g, params={"w": given})
    same(exe.get_params()["w"], given)
    same(exe(np.float32([[1, 2, 3], [4, 5, 6]]))[0], [3, 7, 11])
    unknown: Any = g
    refused("no method or op 'sofmax'. Did you mean softmax", lambda: unknown.sofmax(x))
    refused("there is no op 'sofmax'. Did you mean softmax", lambda: rlx.ops.sofmax(x))  # pyright: ignore
    refused("Did you mean rlx.compile", lambda: rlx.compil(g))  # pyright: ignore
    refused(r"It has: axis", lambda: g.softmax(x, dim=1))  # pyright: ignore
    refused(r"rlx\.ops\.relu\(node\)", lambda: x.relu())  # pyright: ignore
    refused("is a value", lambda: operator.setitem(x, 0, 1.0))
    refused("cannot be read as a number", lambda: float(x))
    refused("a whole number, a name or a rlx.Dim", lambda: g.input("y", [None, 3]))  # pyright: ignore
    assert {"softmax", "matmul"} <= set(dir(rlx.Graph))
    assert "divided by its sum" in str(rlx.ops.softmax.__doc__)


@step
def trace_numpy(folder: Path) -> None:
    function: Any = rlx.jit(lambda x: np.where(x > 0, np.exp(x), np.float32(0)) + x.max())
    given = np.float32([0, 1, -1])
    # Two roundings of f32: the compiled exp is another one than NumPy's.
    want = np.where(given > 0, np.exp(given), 0) + 1
    np.testing.assert_allclose(function(given), want, rtol=3e-7)
    refused(r"np\.median.*rlx\.ops", lambda: rlx.jit(lambda x: np.median(x))(given))


@step
def trace_structures(folder: Path) -> None:
    def net(params: Any, x: rlx.Node, *, scale: float = 1.0, bias: Any = None) -> Any:
        made = x @ params["layers"][0]["w"] * scale
        return {"y": made if bias is None else made + bias, "rest": (x, [made])}

    jitted = rlx.jit(net)
    params = {"layers": [{"w": np.eye(2, dtype=np.float32)}]}
    same(jitted(params, X)["y"], X)
    same(jitted(params, x=X, bias=Y, scale=2.0)["y"], 2 * X + Y)
    assert isinstance(jitted(params, X)["rest"][1], list)
    refused("Python values are given by keyword", lambda: jitted(params, 2.0))


@step
def read_the_log(folder: Path) -> None:
    seen = io.StringIO()
    handler, log = logging.StreamHandler(seen), logging.getLogger("rlx")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for _ in range(2):
            rlx.compile(model(folder), cache=folder / "cache")
        rlx.compile(model(folder), cache=folder / "cache", precision="bf16")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    assert re.search(r"compiled for \w+ in .* no program of 'm'", seen.getvalue()), seen.getvalue()
    assert "m: cache hit, opened for" in seen.getvalue()
    assert "options differs" in seen.getvalue()


def command(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "rlx", *words], capture_output=True, text=True, check=False,
        cwd=folder, env={**os.environ, "RLX_CACHE": "on", **environment},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@step
def use_the_command_line(folder: Path) -> None:
    model(folder)
    own = {"RLX_CACHE_DIR": str(folder / "cli")}
    for words in (["check"], ["run"], ["bench", "--rounds", "2"], ["explain"]):
        code, text = command(folder, words[0], "m.onnx", *words[1:], **own)
        assert code == 0, text
    code, text = command(folder, "cache", "why", "m.onnx", **own)
    assert (code in (0, 1), "m.onnx: cache" in text) == (True, True), text
    code, text = command(folder, "doctor", **own, RLX_THREADS="1")
    assert "threads: 1, RLX_THREADS says so" in text, text
    code, text = command(folder, "doctor", **own, OMP_NUM_THREADS="3")
    assert "threads: 3, OMP_NUM_THREADS says so" in text, text
    code, text = command(folder, "run", "missing.onnx", **own)
    assert code == 2, text
    assert "No such file" in text


def taken(arrays: Callable[[], Any], name: str) -> None:
    """bf16 and 8-bit floats of another library, by DLPack."""
    for given, dtype in arrays():
        g = rlx.Graph("g")
        g.set_outputs([g.input("x", [2], dtype).astype("f32")])
        same(rlx.compile(g)(given), [1, 2])
    print(f"  {name} was here")


@step
def exchange_low_precision_arrays(folder: Path) -> None:
    """Of torch and jax, where they are installed."""
    try:
        import torch  # pyright: ignore
    except ImportError:
        print("  torch is not installed: not tried")
    else:
        one: Any = torch.tensor([1.0, 2.0])
        taken(lambda: [(one.to(torch.bfloat16), "bf16")], "torch")
    try:
        import jax.numpy as jnp  # pyright: ignore
    except ImportError:
        print("  jax is not installed: not tried")
    else:
        two: Any = jnp.array([1.0, 2.0])
        taken(lambda: [(two.astype(jnp.bfloat16), "bf16")], "jax")


CODE = re.compile(r"```python\n(.*?)```", re.S)


def programs(root: Path) -> dict[str, str]:
    """The code of documents: each block of the README, each page of docs as one program."""
    blocks = CODE.findall((root / "README.md").read_text())
    made = {f"readme_{i}": code for i, code in enumerate(blocks)}
    for page in sorted((root / "docs").rglob("*.md")):
        if found := CODE.findall(page.read_text()):
            made[f"page_{re.sub(r'[^a-z]', '_', page.stem.lower())}"] = "\n".join(found)
    return made


def type_check(root: Path, folder: Path) -> int:
    """Both checkers, on all of it: how many files. What is misspelt must not pass."""
    given = {**programs(root), "misspelt": "import rlx\nrlx.Graph('g').sofmax()\n"}
    for name, code in given.items():
        (folder / f"{name}.py").write_text(code)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    checkers = {
        "basedpyright": ["-p", str(folder), "--pythonpath", sys.executable],
        "mypy": ["--strict", *(f"{name}.py" for name in given)],
    }
    for checker, options in checkers.items():
        done = subprocess.run(
            [sys.executable, "-m", checker, *options],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        errors = [line for line in done.stdout.splitlines() if "error: " in line]
        wrong = [e for e in errors if "misspelt.py" not in e]
        assert not wrong, f"{checker}: {wrong}"
        assert errors, f"{checker} found nothing, not even what is misspelt: {done.stderr}"
    return len(given) - 1


def main(documents: list[str]) -> int:
    with tempfile.TemporaryDirectory() as made:
        os.environ.setdefault("RLX_CACHE", "off")
        for name, run in STEPS.items():
            try:
                run(Path(made))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
                return 1
            print(f"{name}: fine")
        for root in documents:
            folder = Path(made, "documents")
            folder.mkdir()
            print(f"types: {type_check(Path(root), folder)} programs of documents, by two checkers")
    print(f"{len(STEPS)} steps, with rlx {rlx.__version__} of {Path(rlx.__file__).parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
