"""Programs that were compiled before: from the cache, and from files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.runtime import serialize as stored
from rlx.core import sections
from rlx.core.disk_cache import Cache
from rlx.fuzz.generate import grow
from rlx.runtime.compile_record import Record, recorded
from rlx.runtime.request_keys import comes_with_rlx, entry_key, request_key
from rlx.runtime.session import Session
from tests.patience import PATIENCE_S

pytest.importorskip("llvmlite")
F32 = np.float32
RNG = np.random.default_rng(0)


def dynamic() -> rlx.Graph:
    """Named dims, expressions of them, several outputs, constants, a part that is prepared."""
    g = rlx.Graph("dynamic")
    n = rlx.Dim("n", 1, 64)
    x = g.input("x", rlx.Shape([n, 4]))
    w = g.param("w", rlx.Shape([4, 4]))
    table = g.constant(np.arange(12, dtype=F32).reshape(3, 4))
    y = g.softmax(g.mm(x, w * 2.0) + table[1], axis=-1)
    g.set_outputs({"y": y, "both": g.concat([y, x], axis=0)})
    return g


def control() -> rlx.Graph:
    """A loop, a branch and a size that is measured."""
    g = rlx.Graph("control")
    x = g.input("x", rlx.Shape([8]))
    total = rlx.while_loop(
        lambda i, t: i < 5, lambda i, t: (i + 1, t * 1.5), g.constant(np.int64(0)), x
    )[1]
    chosen = rlx.cond(ops.sum(x) > 0.0, lambda t: t + 1.0, lambda t: t - 1.0, total)
    g.set_outputs([chosen, ops.nonzero(x)])
    return g


def given(graph: rlx.Graph) -> tuple[dict[str, Any], list[Any]]:
    def array(node: rlx.Node) -> Any:
        dims = [d if isinstance(d, int) else 3 for d in node.shape.dims]
        return RNG.normal(size=dims).astype(node.shape.dtype.numpy)

    return {n.attrs["name"]: array(n) for n in graph.params}, [array(n) for n in graph.inputs]


def results(exe: rlx.Executable, inputs: list[Any]) -> list[Any]:
    made = exe(*inputs)
    return [a.tobytes() for a in (made if isinstance(made, tuple) else (made,))]


# -- the cache -------------------------------------------------------------------------------------

CHILD = """
import sys
import numpy as np, rlx
g = rlx.Graph("net")
x, w = g.input("x", rlx.Shape([3, 4])), g.param("w", rlx.Shape([4, 4]))
g.set_outputs([g.softmax(g.mm(x, w), axis=-1)])
exe = rlx.compile(g, "cpu", params={"w": np.eye(4, dtype=np.float32)})
made = exe(np.ones((3, 4), np.float32))
assert made.tolist() == np.full((3, 4), 0.25).tolist()
print([m in sys.modules for m in ("llvmlite", "rlx.pipeline", "rlx.backends.cpu.llvm.compile")])
if "explain" in sys.argv:
    print(exe.explain())
"""


def child(folder: Path, *arguments: str, **more: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "RLX_CACHE"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env={**env, "RLX_CACHE_DIR": str(folder), **more},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_process_needs_neither_passes_nor_llvm(tmp_path: Path) -> None:
    assert "[True, True, True]" in child(tmp_path)
    told = child(tmp_path, "explain")
    assert "[False, False, False]" in told
    assert told.partition("\n")[2] == child(tmp_path, "explain", RLX_CACHE="off").partition("\n")[2]
    assert ": 2 kernels per call" in told


def test_processes_that_compile_at_once_leave_a_cache_that_serves(tmp_path: Path) -> None:
    env = {**os.environ, "RLX_CACHE": "on", "RLX_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", CHILD]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [p.wait(PATIENCE_S) for p in started] == [0] * 3
    assert "[False, False, False]" in child(tmp_path)


def test_whatever_happened_to_an_entry_the_answer_is_right(tmp_path: Path) -> None:
    graph = dynamic()
    params, inputs = given(graph)
    cache = Cache(tmp_path)
    expected = results(rlx.compile(graph, "cpu", cache=False, params=params), inputs)
    assert results(rlx.compile(graph, "cpu", cache=cache, params=params), inputs) == expected
    entry = max(tmp_path.iterdir(), key=lambda p: p.stat().st_size)
    whole = entry.read_bytes()
    rng = random.Random(0)
    for turn in range(8):
        changed = bytearray(whole[: rng.randrange(len(whole)) if turn % 4 == 0 else None])
        for _ in range(3):
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        entry.write_bytes(changed)
        exe = rlx.compile(graph, "cpu", cache=cache, params=params)
        assert results(exe, inputs) == expected
        assert "softmax" in str(exe.lir.mir)
        assert len(entry.read_bytes()) == len(whole)


def test_a_session_finds_in_memory_and_on_disk(tmp_path: Path) -> None:
    first, second = Session("cpu", cache=tmp_path), Session("cpu", cache=tmp_path)
    a, b = first.compile(dynamic()), first.compile(dynamic())
    assert first.cached == 1
    assert a.loaded.program is b.loaded.program
    c = second.compile(dynamic())
    assert isinstance(c.loaded.record, Record)
    assert c.inputs == a.inputs
    assert c.outputs == a.outputs
    assert c.params == a.params
    assert repr(c) == repr(a)
    assert c.lir.fingerprint == a.lir.fingerprint
    assert c.decisions == a.decisions
    assert c.fusion == a.fusion
    assert c.explain() == a.explain()
    assert c.memory(n=5) == a.memory(n=5)
    assert c.io_profile == a.io_profile


def test_a_request_is_all_that_a_compile_depends_on() -> None:
    graph = dynamic()
    target, plain = Session("cpu", cache=False).target, rlx.FusionOptions()
    other = rlx.Graph("dynamic")
    other.set_outputs([other.input("x", rlx.Shape([4]))])
    keys = [
        entry_key(request_key(graph, target, plain), "cpu avx2"),
        entry_key(request_key(graph, target, plain), "cpu sse2"),
        entry_key(request_key(graph, target, rlx.FusionOptions(skip_fusion=True)), "cpu avx2"),
        entry_key(request_key(graph, rlx.Target.of("cuda"), plain), "cpu avx2"),
        entry_key(request_key(other, target, plain), "cpu avx2"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == entry_key(request_key(dynamic(), target, plain), "cpu avx2")


def test_ops_of_the_program_are_not_kept_beyond_it(tmp_path: Path) -> None:
    double = rlx.custom_op("test_artefact.double", lambda x: x * 2, lambda x: x)
    g = rlx.Graph("own")
    g.set_outputs([double(g.input("x", rlx.Shape([4]))) + 1.0])
    assert not comes_with_rlx(g)
    assert comes_with_rlx(dynamic())
    assert comes_with_rlx(rlx.MirModule(control()))
    cache = Cache(tmp_path)
    exe = rlx.compile(g, "cpu", cache=cache)
    assert exe(np.ones(4, F32)).tolist() == [3] * 4
    assert [p for p in tmp_path.iterdir() if p.stat().st_size > 20_000] == []
    assert not any("own" in json.dumps(cache.get(p.stem).head) for p in tmp_path.iterdir())  # pyright: ignore


def test_equal_params_share_their_memory() -> None:
    session, graph = Session("cpu", cache=False), dynamic()
    params, inputs = given(graph)
    copies = {k: np.asfortranarray(v.copy()) for k, v in params.items()}
    a, b = session.compile(graph, params=params), session.compile(graph, params=copies)
    assert a.loaded.ready() is b.loaded.ready()
    other = {"w": params["w"] + 1}
    b.set_params(other)
    assert a.loaded.ready() is not b.loaded.ready()
    assert results(a, inputs) != results(b, inputs)
    a.set_params(other)
    assert a.loaded.ready() is b.loaded.ready()
    assert results(a, inputs) == results(b, inputs)


# -- accounts and interfaces -----------------------------------------------------------------------


def test_an_account_gives_back_what_the_compile_gave() -> None:
    for seed in range(8):
        graph = grow(seed).graph
        for like in ("cpu", "cuda"):
            options = rlx.FusionOptions(
                limits=rlx.FusionLimits(8, 3) if seed % 2 else None,
                dispatch=rlx.DispatchPolicy("prefer_native", {"gelu"}) if seed % 3 else None,
            )
            try:
                result = rlx.CompilePipeline(like, options=options).compile(graph)
            except rlx.UnsupportedError:
                continue
            back = Record(recorded(result), rlx.Target.of("metal"), "it").result()
            assert back.lir.fingerprint == result.lir.fingerprint
            assert str(back.lir.mir) == str(result.lir.mir)
            assert [n.label for n in back.lir.mir.graph.order()] == [
                n.label for n in result.lir.mir.graph.order()
            ]
            assert back.decisions == result.decisions
            assert back.rewrites == result.rewrites
            assert back.fusion == result.fusion
            assert back.options == result.options


@pytest.mark.parametrize("data", [b"", b"no", recorded.__doc__.encode()])  # pyright: ignore
def test_an_account_that_is_none(data: bytes) -> None:
    with pytest.raises(rlx.Error, match="it: the record of its compile is damaged"):
        Record(data, rlx.Target.of("cpu"), "it").result()


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dynamic, control])
def test_a_saved_program_gives_the_same_bits(make: Any, tmp_path: Path) -> None:
    graph = make()
    params, inputs = given(graph)
    exe = rlx.compile(graph, "cpu", params=params)
    exe.save(tmp_path / "it.rlx")
    back = rlx.load(tmp_path / "it.rlx", threads=1)
    assert isinstance(back, rlx.Executable)
    assert results(back, inputs) == results(exe, inputs)
    assert rlx.load(tmp_path / "it.rlx").explain() == exe.explain()
    back.save(tmp_path / "again.rlx")
    assert (tmp_path / "again.rlx").read_bytes() == (tmp_path / "it.rlx").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_artefact_is_all_there() -> None:
    for make in (dynamic, control):
        program: Any = rlx.compile(make(), "cpu").loaded.program
        head, parts = stored.packed(program.artefact)
        whole = b"".join(sections.packed(json.loads(json.dumps(head)), parts))
        file = sections.Sections.of("it", memoryview(whole))
        artefact = stored.opened(file.head, file)
        for name in [f.name for f in fields(artefact) if f.compare and f.name != "constants"]:
            assert getattr(artefact, name) == getattr(program.artefact, name), name
        for a, b in zip(artefact.constants, program.artefact.constants, strict=True):
            assert a.offset == b.offset
            assert a.value.dtype == b.value.dtype
            assert np.array_equal(a.value, b.value)


def test_weights_may_be_left_out(tmp_path: Path) -> None:
    graph = dynamic()
    params, inputs = given(graph)
    exe = rlx.compile(graph, "cpu")
    with pytest.raises(rlx.Error, match="params have no value yet: w"):
        exe.save(tmp_path / "it.rlx")
    exe.save(tmp_path / "it.rlx", weights=False)
    back: Any = rlx.load(tmp_path / "it.rlx")
    with pytest.raises(rlx.Error, match="params have no value yet: w"):
        back(*inputs)
    back.set_params(params)
    exe.set_params(params)
    assert results(back, inputs) == results(exe, inputs)


def test_large_weights_are_read_where_they_lie(tmp_path: Path) -> None:
    g = rlx.Graph("large")
    n = rlx.Dim("rows", 1, 4096)
    x = g.input("x", rlx.Shape([1024]))
    table, half = g.param("table", rlx.Shape([n, 1024])), g.param("half", rlx.Shape([4], "bf16"))
    g.set_outputs([g.sum(table * x, axes=-1), half])
    params = {
        "table": RNG.normal(size=(600, 1024)).astype(F32),
        "half": np.arange(4).astype(rlx.DType.BF16.numpy),
    }
    exe = rlx.compile(g, "cpu", params=params)
    exe.save(tmp_path / "it.rlx")
    back: Any = rlx.load(tmp_path / "it.rlx")
    exe.save(tmp_path / "it.rlx", weights=False)
    ones = [np.ones(1024, F32)]
    assert results(back, ones) == results(exe, ones)
    assert not back.loaded.given["table"].flags.owndata
    assert not back.loaded.given["table"].flags.writeable
    assert back.loaded.given["table"].ctypes.data % 64 == 0


CUSTOM = """
import sys
import numpy as np, rlx
if "known" in sys.argv:
    rlx.custom_op("test_artefact.triple", lambda x: x * 3, lambda x: x)
try:
    print(rlx.load(sys.argv[1])(np.ones(4, np.float32)).tolist())
except rlx.Error as error:
    print(error)
"""


def test_a_custom_op_is_found_by_its_name(tmp_path: Path) -> None:
    triple = rlx.custom_op("test_artefact.triple", lambda x: x * 3, lambda x: x)
    g = rlx.Graph("own")
    g.set_outputs([triple(g.input("x", rlx.Shape([4]))) + 1.0])
    rlx.compile(g, "cpu").save(tmp_path / "own.rlx")
    command = [sys.executable, "-c", CUSTOM, str(tmp_path / "own.rlx")]
    said = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["known"])
    ]
    assert "no custom op 'test_artefact.triple' is registered" in said[0]
    assert said[1].strip() == "[4.0, 4.0, 4.0, 4.0]"


def test_a_file_alone_runs_without_llvm(tmp_path: Path) -> None:
    graph = dynamic()
    params, _ = given(graph)
    rlx.compile(graph, "cpu", params=params).save(tmp_path / "it.rlx")
    code = (
        "import sys, numpy as np, rlx; sys.modules['llvmlite'] = None; "
        "exe = rlx.load(sys.argv[1]); print(exe(np.ones((2, 4), np.float32))[1].shape); "
        "print('rlx.pipeline' in sys.modules, len(str(exe.explain())) > 100)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "it.rlx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["(4, 4)", "False True"], done.stderr


def test_only_native_programs_are_saved(tmp_path: Path) -> None:
    exe = rlx.compile(dynamic(), "reference")
    with pytest.raises(rlx.UnsupportedError, match="target 'reference' does not write"):
        exe.save(tmp_path / "it.rlx", weights=False)
    with pytest.raises(rlx.Error, match=r"it\.rlx cannot be written"):
        rlx.compile(dynamic(), "cpu").save(tmp_path / "none" / "it.rlx", weights=False)


# -- files from elsewhere --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "it.rlx"
    graph = dynamic()
    rlx.compile(graph, "cpu", params=given(graph)[0]).save(path)
    return path.read_bytes()


def resealed(whole: bytes, change: Any) -> bytes:
    """The file with its head changed, and checksums that say it is whole."""
    file = sections.Sections.of("it", memoryview(whole))
    head = json.loads(json.dumps(file.head))
    changed = change(head)
    parts = {name: file.section(name) for name in file.entries}
    return b"".join(sections.packed(head if changed is None else changed, parts))


def refused(path: Path, whole: bytes) -> str:
    path.write_bytes(whole)
    with pytest.raises(rlx.Error) as error:
        rlx.load(path)
    return str(error.value)


def test_a_program_for_another_machine_or_version_is_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "it.rlx"

    def with_(**values: Any) -> bytes:
        return resealed(saved, lambda head: {**head, **values})

    def with_program(**values: Any) -> bytes:
        return resealed(saved, lambda head: {**head, "program": {**head["program"], **values}})

    other = "neon" if os.uname().machine == "x86_64" else "avx2"
    assert "cannot run here: it is for" in refused(path, with_program(isa=other))
    assert "no instruction set 'mmx'" in refused(path, with_program(isa="mmx"))
    assert "was made by rlx 0.0.1" in refused(path, with_(version="0.0.1"))
    assert "no program" in refused(path, with_(kind="blob"))
    assert "'npu'" in refused(path, with_(backend="npu"))
    assert "lacks weights" in refused(path, with_(params={}))
    assert "lacks weights" in refused(path, with_(params={"w": ["param 0 w", 5, 5]}))
    assert "'w' is f32[4, 4], got f32[16]" in refused(path, with_(params={"w": ["param 0 w", 16]}))


def test_a_processor_that_lacks_an_instruction_is_told(
    saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.backends.cpu import isa

    monkeypatch.setattr(isa, "_features", lambda: frozenset({"sse2"}))
    if isa.host().name == "sse2":
        assert "the processor has no pni, ssse3" in refused(tmp_path / "it.rlx", saved)
        with pytest.raises(rlx.UnsupportedError, match="'cpu:avx2' cannot run here"):
            rlx.compile(dynamic(), "cpu:avx2")


def test_damaged_files_are_refused(saved: bytes, tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "it.rlx"
    expected, refusals = None, 0
    for turn in range(600):
        changed = bytearray(saved)
        at = rng.randrange(len(changed))
        match turn % 4:
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                changed[at : at + 8] = rng.randbytes(8)
        path.write_bytes(changed)
        try:
            made = results(rlx.load(path), [np.ones((3, 4), F32)])  # pyright: ignore
        except rlx.Error:
            refusals += 1
            continue
        expected = expected or made
        assert made == expected  # only what lies between sections has changed
    assert refusals > 550


def _changed(value: Any, rng: random.Random) -> Any:
    """A manifest in which one value is another."""
    odd = [None, -1, 0, 1 << 70, 1e400, "", "n", [], [[]], {}, True, "x" * 100, [1, 2, 3]]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return [*value[:at], *value[at + 1 :]]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(odd)


def test_a_manifest_with_other_values_is_read_or_refused(saved: bytes, tmp_path: Path) -> None:
    """It is opened and not run: code and manifest belong together, and are trusted together."""
    rng, path = random.Random(2), tmp_path / "it.rlx"
    head = sections.Sections.of("it", memoryview(saved)).head
    without = {k: v for k, v in head.items() if k != "params"}
    is_opened: list[bool] = []
    for _ in range(400):
        changed = _changed(without, rng)
        if _has_no_params(changed):
            continue  # its prologue would run at once
        path.write_bytes(resealed(saved, lambda _, changed=changed: changed))
        try:
            is_opened.append(isinstance(rlx.load(path), rlx.Executable))
        except rlx.Error:
            is_opened.append(False)
    assert min(is_opened.count(True), is_opened.count(False)) > 20


def _has_no_params(head: Any) -> bool:
    try:
        return not head["program"]["interface"]["params"]
    except (KeyError, TypeError, IndexError):
        return False
