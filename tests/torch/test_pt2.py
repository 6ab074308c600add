"""`.pt2` archives: what torch wrote is read, and nothing of what others wrote is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlx
from rlx.core.errors import Error

Edit = Callable[[dict[str, bytes]], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.tied = nn.Parameter(self.linear.weight.detach()[:, :2])
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("wide", torch.ones(1).expand(3))
        self.register_buffer("none", torch.zeros(0, 2))
        self.scale = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)

    def forward(self, x: Tensor, *, more: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.steps.add_(1)
        scaled = self.linear(x) * self.scale.float() + self.tied.sum() + self.none.sum()
        rest = torch.cat([more["a"], x.flatten()[: x.shape[0] // 2], self.wide])
        return scaled, rest * self.steps


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    shapes = {"x": {0: torch.export.Dim.AUTO}, "more": {"a": None}}
    args = {"more": {"a": torch.ones(2)}}
    save(torch.export.export(Net(), (torch.randn(8, 4),), args, dynamic_shapes=shapes), path)
    return path


def save(program: Any, path: Path) -> None:
    """torch warns of tensors that share memory, and stores them as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)


def edited(saved: Path, to: Path, edit: Edit, *, compression: int = zipfile.ZIP_STORED) -> Path:
    """A copy of an archive whose entries, by their names below its folder, were edited."""
    with zipfile.ZipFile(saved) as source:
        entries = {n.partition("/")[2]: source.read(n) for n in source.namelist()}
    edit(entries)
    with zipfile.ZipFile(to, "w", compression) as made:
        for name, data in entries.items():
            made.writestr(f"net/{name}", data)
    return to


def in_json(name: str, change: Callable[[Any], Any]) -> Edit:
    """An edit of the JSON in an entry."""

    def edit(entries: dict[str, bytes]) -> None:
        held = json.loads(entries[name])
        change(held)
        entries[name] = json.dumps(held).encode()

    return edit


MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def test_what_torch_wrote_is_what_torch_reads(saved: Path) -> None:
    program, x = torch.export.load(saved), torch.randn(7, 4)
    exe = rlx.compile(rlx.load(saved))
    module, more = program.module(), {"a": torch.ones(2)}
    for _ in range(2):
        torch.testing.assert_close(exe(x, more=more), module(x, more=more))


@pytest.mark.parametrize("kind", [
    torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool,
    torch.uint8,
])  # fmt: skip
def test_every_dtype_is_read(tmp_path: Path, kind: torch.dtype) -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.arange(6).reshape(2, 3).to(kind).t())

        def forward(self, x: Tensor) -> Tensor:
            return self.held.to(torch.float32) + x

    module, x = Held(), torch.ones(3, 2)
    save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    got = rlx.compile(rlx.load(tmp_path / "m.pt2"), "reference")(x)
    torch.testing.assert_close(got, module(x))


# -- archives that others wrote --------------------------------------------------------------------


MARK = Path(tempfile.gettempdir()) / f"rlx-pt2-{os.getpid()}"
"""A file that running anything of an archive makes."""
TOUCH = f"touch {MARK}"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (TOUCH,)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No command is run, and no module beside the model is imported."""
    (tmp_path / "planted.py").write_text(f"import os; os.system({TOUCH!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert not MARK.exists()


def pickled(value: Any) -> bytes:
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def set_entry(name: str, data: bytes) -> Edit:
    return lambda entries: entries.update({name: data})


def first_weight(**fields: Any) -> Edit:
    return in_json(WEIGHTS, lambda c: next(iter(c["config"].values())).update(fields))


def first_meta(**fields: Any) -> Edit:
    def change(held: Any) -> None:
        next(iter(held["config"].values()))["tensor_meta"].update(fields)

    return in_json(WEIGHTS, change)


def graph(change: Callable[[Any], Any]) -> Edit:
    return in_json(MODEL, lambda p: change(p["graph_module"]["graph"]))


def renamed(name: str) -> Edit:
    """The input x under another name, everywhere."""

    def edit(entries: dict[str, bytes]) -> None:
        entries[MODEL] = entries[MODEL].replace(b'"x"', json.dumps(name).encode())

    return edit


def sized(text: str) -> Edit:
    def change(found: Any) -> None:
        found["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}

    return graph(change)


def targeting(name: str) -> Edit:
    return graph(lambda g: g["nodes"][0].update(target=name))


def structured(tree: Any) -> Edit:
    def change(program: Any) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = json.dumps([1, tree])

    return in_json(MODEL, change)


def tree(kind: str, context: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": []}


def nested(depth: int) -> dict[str, Any]:
    inner = tree("builtins.tuple", None)
    for _ in range(depth):
        inner = {**tree("builtins.tuple", None), "children_spec": [inner]}
    return inner


ENUM = json.dumps([{"__enum__": True, "fqn": "planted:E", "name": "A"}])
CALL = f"__import__('os').system({TOUCH!r})"
FACTORY = {
    "default_factory_module": "planted", "default_factory_name": "x", "dict_context": [],
}  # fmt: skip
ONNX = b"\x08\x08" * 100
HOSTILE: dict[str, tuple[Edit, str]] = {
    "a weight is pickled": (first_weight(use_pickle=True), "is pickled"),
    "a weight is pickled and in the file": (
        lambda e: (
            first_weight(use_pickle=True)(e), set_entry("data/weights/weight_0", pickled(Bomb()))(e)
        )[0], "is pickled"),
    "weights are a pickle": (
        set_entry("data/weights/model.pt", pickled({"w": Bomb()})), "weights are pickled"),
    "constants are a pickle": (
        set_entry("data/constants/model.pt", pickled({"w": Bomb()})), "constants are pickled"),
    "an object": (
        in_json(CONSTANTS, lambda c: next(iter(c["config"].values())).update(
            path_name="opaque_obj_0", use_pickle=True, tensor_meta=None)), "is pickled"),
    "an object that claims to be bytes": (
        in_json(CONSTANTS, lambda c: next(iter(c["config"].values())).update(
            path_name="custom_obj_0")), "is pickled"),
    "a payload elsewhere": (first_weight(path_name="../constants/tensor_0"), "is pickled"),
    "a payload that is not there": (first_weight(path_name="weight_99"), "no entry"),
    "a size is code": (sized(CALL), "no size"),
    "a size is code in a call": (sized(f"Max(1, {CALL})"), "no size"),
    "a size looks up an attribute": (sized("Integer(1).__class__"), "no size"),
    "a size is a function": (sized("(lambda: 1)()"), "no size"),
    "a size is a tower of powers": (sized("9**9**9**9"), "no size"),
    "a size is powers of powers": (sized("((2**64)**64)**64"), "beyond all bounds"),
    "a size of many minima": (
        sized(f"Max({', '.join(f's{i} + s{i + 1}' for i in range(300))})"), "too long"),
    "a size is long": (sized("+".join(["s0"] * 9000)), "too long|no size"),
    "a size is deep": (sized("(" * 9000 + "1" + ")" * 9000), "no size"),
    "a symbol is text": (sized("Symbol('x).foo(')"), "no size"),
    "a float has many digits": (sized("FloorToInt(Float('1e999999999'))"), "no size"),
    "a float is precise": (sized("FloorToInt(Float('1', precision=999999999))"), "no size"),
    "a symbol is counted up to": (
        in_json(MODEL, lambda p: p["range_constraints"].update(
            u99999999999={"min_val": 0, "max_val": 9})), "no name of a size"),
    "a name is code": (renamed(f"x={CALL}"), "no name"),
    "a name ends a line": (renamed("x):\n  pass\nprint(1)\ndef f(y"), "no name"),
    "an op is a function of torch": (targeting("torch.hub.load"), "no op"),
    "an op is a function of os": (targeting("torch.os.system"), "no op"),
    "an op is an attribute of ops": (targeting("torch.ops.load_library.x.y"), "no op"),
    "an op is a method": (targeting("torch.ops.aten.add.Tensor.__call__"), "no op"),
    "an op of operator": (targeting("_operator.attrgetter"), "no op"),
    "an op of an extension": (targeting("#planted:x"), "no op"),
    "an op is not there": (targeting("torch.ops.planted.op.default"), "no op"),
    "an argument is an op": (
        graph(lambda g: g["nodes"][0]["inputs"][0].update(
            arg={"as_operator": "torch.os.system"})), "no op"),
    "arguments have an enum": (structured(tree("builtins.dict", ENUM)), "would be imported"),
    "arguments have an enum in escapes": (
        structured(tree("builtins.dict", ENUM.replace("_enum_", "\\u005fenum_"))),
        "would be imported"),
    "arguments have a factory": (
        structured(tree("collections.defaultdict", FACTORY)), "would be imported"),
    "arguments are deep": (structured(nested(100)), "nested too deeply"),
    "arguments are very deep": (structured(nested(400)), "nested too deeply"),
    "arguments are no tree": (structured([1, 2]), "no structure"),
    "a tensor is beyond its bytes": (first_meta(sizes=[{"as_int": 1 << 10}] * 2), "out of bounds"),
    "a tensor takes more than memory": (
        first_meta(sizes=[{"as_int": 1 << 40}], strides=[{"as_int": 0}]), "this machine has"),
    "a tensor begins before its bytes": (first_meta(storage_offset={"as_int": -1}), "no numbers"),
    "a tensor has code for a size": (
        first_meta(sizes=[{"as_expr": {"expr_str": CALL}}]), "no numbers"),
    "a tensor of no dtype": (first_meta(dtype=99), "unknown dtype"),
    "JSON is deep": (set_entry(MODEL, b"[" * 100_000), "not JSON"),
    "JSON is none": (set_entry(MODEL, b"\x80\x04."), "not JSON"),
    "machine code": (
        lambda e: (e.clear(), e.update({"data/aotinductor/model/x.so": b"\x7fELF"}))[0] or None,
        "machine code that AOTInductor compiled"),
    "nothing": (lambda e: e.clear(), "no program|older format"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_not_run(saved: Path, tmp_path: Path, case: str) -> None:
    edit, why = HOSTILE[case]
    with pytest.raises(Error, match=why):
        rlx.load(edited(saved, tmp_path / "bad.pt2", edit))


def test_pickled_example_inputs_are_not_read(saved: Path, tmp_path: Path) -> None:
    planted = set_entry("data/sample_inputs/model.pt", pickled(Bomb()))
    exe = rlx.compile(rlx.load(edited(saved, tmp_path / "bad.pt2", planted)), "reference")
    assert exe(torch.ones(4, 4), more={"a": torch.ones(2)})[1].shape == (7,)


def test_guards_and_metadata_are_not_compiled(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        program["guards_code"] = [CALL]
        for node in program["graph_module"]["graph"]["nodes"]:
            node["metadata"]["source_fn_stack"] = "x,torch.os.system"
            node["metadata"]["custom"] = "[" * 10_000
            node["metadata"]["stack_trace"] = f"\n{CALL}\n"

    rlx.load(edited(saved, tmp_path / "bad.pt2", in_json(MODEL, change)))


def test_compressed_archives_are_refused(saved: Path, tmp_path: Path) -> None:
    """A few bytes may be gigabytes."""
    path = edited(saved, tmp_path / "x.pt2", lambda e: None, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(Error, match="is compressed"):
        rlx.load(path)


def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.pt2").touch()
    (tmp_path / "onnx.pt2").write_bytes(ONNX)
    (tmp_path / "pickle.pt2").write_bytes(pickle.dumps(Bomb()))
    os.mkfifo(tmp_path / "pipe.pt2")
    for name in ("empty", "onnx", "pickle", "pipe", "missing"):
        with pytest.raises(Error, match=f"{name}.pt2 cannot be read"):
            rlx.load(tmp_path / f"{name}.pt2")


def test_damaged_archives_are_errors(saved: Path, tmp_path: Path) -> None:
    """Any byte of it may be any other."""
    random, data = np.random.default_rng(0), saved.read_bytes()
    path = tmp_path / "x.pt2"
    for _ in range(40):
        changed = bytearray(data)
        for at in random.integers(0, len(data), 3):
            changed[at] = random.integers(0, 256)
        path.write_bytes(changed[: random.integers(1, 2 * len(data))])
        try:
            rlx.load(path)
        except Error:
            continue
