"""Compiles in child processes: the same bytes, and whatever fails, the program is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from bench.models import chain, transformer
from rlx.core.sections import Sections
from rlx.ir.mir import Graph
from rlx.passes.options import FusionOptions
from rlx.runtime import compile_process
from rlx.runtime.child_session import ChildSession
from rlx.runtime.compile_process import GREETING, CompileProcess
from rlx.runtime.compile_record import graph_json, options_json
from rlx.runtime.session import Session
from tests.children import require_children
from tests.patience import PATIENCE_S, eventually

HERE = {"target": "cpu", "threads": 1, "cache": None}
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The children that a test starts, all of which are gone when it ends."""
    require_children()
    started: list[Any] = []

    class Listed(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Listed)
    yield started
    assert all(child.returncode is not None for child in started)


def net(width: int = 4) -> Graph:
    g = Graph("net")
    x, w = g.input("x", ["rows", width]), g.param("w", [width, 3])
    g.set_outputs({"y": g.softmax(g.mm(x, w), axis=-1)})
    return g


def small_transformer() -> Graph:
    seq = rlx.Dim("seq", 1, 64)
    return transformer(2, seq, width=32, heads=4, kv_heads=2, ffn=48).lower().graph


def counter() -> Graph:
    g = Graph("counter")
    count = g.state("count", rlx.Shape([4]), init=1.0)
    g.set_outputs([g.assign(count, g.input("x", [4]) + count)])
    return g


def entry(cache: Path) -> tuple[str, bytes]:
    """The one program in a cache: the name and the bytes of its file."""
    found = [p for p in cache.glob("*.rlx") if Sections.open(p).head["kind"] == "program"]
    assert len(found) == 1
    return found[0].name, found[0].read_bytes()


def run(session: Session) -> Any:
    exe = session.compile(net(), params={"w": np.eye(4, 3, dtype=np.float32)})
    return exe(np.ones((2, 4), np.float32))


# -- the same program ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [net, small_transformer, counter])
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_entries_are_equal_byte_by_byte(
    make: Any, precision: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = Session("cpu", cache=tmp_path / "here").compile(make(), precision=precision)
    with caplog.at_level("INFO", "rlx"):
        apart = ChildSession("cpu", cache=tmp_path / "apart").compile(make(), precision=precision)
    assert "in this process" not in caplog.text
    assert f"{make().name}: compiled for cpu in " in caplog.text
    assert "cache miss: no program of" in caplog.text
    assert entry(tmp_path / "apart") == entry(tmp_path / "here")
    assert apart.lir.fingerprint == here.lir.fingerprint
    assert [str(d) for d in apart.decisions] == [str(d) for d in here.decisions]
    assert str(apart.explain()).splitlines()[0] == str(here.explain()).splitlines()[0]
    with caplog.at_level("INFO", "rlx"):
        ChildSession("cpu", cache=tmp_path / "here").compile(make(), precision=precision)
    assert "cache hit" in caplog.text


def test_without_a_cache() -> None:
    session = ChildSession("cpu", cache=False)
    np.testing.assert_array_equal(run(session), run(Session("cpu", cache=False)))
    assert session.cached == 1


def test_the_parent_never_imports_the_compiler(tmp_path: Path) -> None:
    code = """
        import sys
        import numpy as np
        import rlx
        from rlx.runtime.child_session import ChildSession

        g = rlx.Graph("net")
        g.set_outputs([g.exp(g.input("x", [4]))])
        exe = ChildSession("cpu", cache=sys.argv[1] or False).compile(g)
        assert exe(np.zeros(4, np.float32))[0] == 1
        print([n for n in ("llvmlite", "rlx.pipeline", "rlx.passes.fuse") if n in sys.modules])
    """
    for cache in (str(tmp_path), ""):
        command = [PYTHON, "-c", textwrap.dedent(code), cache]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"[]\n"


def test_errors_are_those_of_a_compile_here() -> None:
    options = FusionOptions(force={"nothing": True})
    texts: list[str] = []
    for session in (Session("cpu", cache=False), ChildSession("cpu", cache=False)):
        with pytest.raises(rlx.Error, match="nothing") as caught:
            session.compile(net(), options=options)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_what_is_done_meanwhile_is_done_once() -> None:
    calls: list[int] = []
    session = ChildSession("cpu", cache=False, meanwhile=lambda: calls.append(1))
    run(session)
    run(session)
    assert calls == [1]


# -- children that are begun early -----------------------------------------------------------------


def test_a_child_is_begun_where_no_program_of_the_name_is_cached(
    tmp_path: Path, children: list[Any]
) -> None:
    session = ChildSession("cpu", cache=tmp_path)
    with session.expecting("net"):
        assert len(children) == 1
        run(session)
    with ChildSession("cpu", cache=tmp_path).expecting("net"):
        assert len(children) == 1
    with session.expecting("another"):
        assert len(children) == 2
    assert children[-1].returncode is not None


def test_none_is_begun_for_a_target_that_compiles_where_it_runs(children: list[Any]) -> None:
    session = ChildSession("reference", cache=False)
    with session.expecting("net"):
        run(session)
    assert not children


# -- whatever fails --------------------------------------------------------------------------------


def script(folder: Path, text: str, name: str = "python") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


GREETED = f"printf {GREETING.decode()!r}".replace("\n", r"\n")
OLDER = (
    f"exec {PYTHON} -P -c 'import sys; sys.path[:] = sys.argv[2:]; import rlx._version as v; "
    'v.__version__ = "0.0.0"; from rlx.runtime.compile_worker import main; main(sys.argv[1])\' '
    '"$4" "$@"'
)
FAILURES = {
    "no reason": "exit 3",
    "ended with code 3: sandboxed": "echo sandboxed >&2; exit 3",
    "code -9": f"{GREETED}; kill -9 $$",
    "code 0": "echo hello",
    "is no file of rlx": f"{GREETED}; read request; head -c 100000 /dev/zero; echo nonsense",
    "is damaged": f"{GREETED}; printf 'rlxfile\\001'; head -c 100 /dev/zero",
    "has not started in time": "exec sleep 1000",
    "has not answered in time": f"{GREETED}; exec sleep 1000",
}


def assert_compiled_here(why: str, log: pytest.LogCaptureFixture) -> None:
    with log.at_level("INFO", "rlx"):
        assert run(ChildSession("cpu", cache=False)).shape == (2, 3)
    assert "net: compiled in this process: " in log.text
    assert why in log.text


@pytest.mark.skipif(os.name != "posix", reason="executables are scripts")
@pytest.mark.parametrize("why", FAILURES)
def test_a_child_that_fails(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, FAILURES[why]))
    is_started = "started" not in why
    monkeypatch.setattr(compile_process, "START_SECONDS", PATIENCE_S if is_started else 0.1)
    monkeypatch.setattr(compile_process, "ANSWER_SECONDS", 0.1 if "answered" in why else PATIENCE_S)
    assert_compiled_here(why, caplog)


@pytest.mark.skipif(os.name != "posix", reason="executables are scripts")
def test_a_child_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, OLDER))
    assert_compiled_here("another request, rlx or machine", caplog)


@pytest.mark.parametrize(
    ("executable", "why"),
    [
        (None, "not run by a Python of its own"),
        ("", "not run by a Python of its own"),
        ("/usr/bin/application", "application is not called python"),
        ("/nowhere/python3", "No such file"),
        ("/nowhere\0/python3", "null byte"),
    ],
)
def test_a_program_that_is_not_python_is_not_started(
    executable: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    children: list[Any],
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert_compiled_here(why, caplog)
    assert not children


def test_a_frozen_program_is_not_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, children: list[Any]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert_compiled_here("not run by a Python of its own", caplog)
    assert not children


# -- the end of either -----------------------------------------------------------------------------


def test_an_interrupt_ends_the_child(children: list[Any]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ChildSession("cpu", cache=False, meanwhile=interrupted))
    assert [c.returncode for c in children] == [-signal.SIGKILL]


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """One that waits for a request, of a parent that is killed."""
    code = (
        "import sys; from rlx.runtime import compile_process as p; "
        f"c = p.CompileProcess({HERE!r}); print(c._child.pid, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([PYTHON, "-c", code], **pipes) as parent:  # pyright: ignore
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not is_running(child), "the end of the child")


def is_running(pid: int) -> bool:
    """A process that nobody waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_ends_while_it_compiles(children: list[Any]) -> None:
    """Where its parent ends, that is, its standard input; a compile that ends well exits with 0."""
    process = CompileProcess(HERE)
    child = children[0]
    request = {**graph_json(chain(3000)), "options": options_json(FusionOptions())}
    child.stdin.write((json.dumps(request) + "\n").encode())
    child.stdin.close()
    child.stdout.close()
    assert child.wait(PATIENCE_S) == 1
    process.end()
