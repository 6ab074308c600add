"""Files: written through what is no regular one, and read so that later changes do not count."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.__main__ import main
from rlx.core.files import HeldFile, opened, writing
from rlx.explain.trace import Trace
from tests.patience import PATIENCE_S

# -- writing ---------------------------------------------------------------------------------------


def put(path: Path, data: bytes) -> None:
    with writing(path) as file:
        file.write(data)


def test_a_regular_file_is_replaced_at_once_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    put(path, b"one")
    path.chmod(0o640)
    with path.open("rb") as before:
        put(path, b"two")
        assert before.read() == b"one"
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "f"
    put(path, b"one")

    def fails() -> None:
        with writing(path) as file:
            file.write(b"two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_stays_a_link(tmp_path: Path, is_dangling: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if not is_dangling:
        target.write_bytes(b"old")
    link.symlink_to("target")
    put(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()


def read_all(fifo: Path) -> Callable[[], bytes]:
    """A reader at the other end, and what it has got."""
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()

    def joined() -> bytes:
        reader.join(30)
        return got[0]

    return joined


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def is_fifo(path: Path) -> bool:
    return stat.S_ISFIFO(path.lstat().st_mode)


def test_a_pipe_is_written_to(fifo: Path) -> None:
    got = read_all(fifo)
    put(fifo, b"through")
    assert got() == b"through"
    assert is_fifo(fifo)


def test_a_device_is_written_to_also_through_a_link(tmp_path: Path) -> None:
    reader, writer = os.openpty()
    link = tmp_path / "device"
    link.symlink_to(os.ttyname(writer))
    put(link, b"line\n")
    assert os.read(reader, 100).startswith(b"line")
    assert stat.S_ISCHR(os.stat(os.ttyname(writer)).st_mode)
    assert link.is_symlink()
    os.close(reader)
    os.close(writer)


def test_a_name_of_an_open_file_is_written_to(tmp_path: Path) -> None:
    """What `-o /dev/stdout > file` means: the file that is open, not one in its place."""
    with (tmp_path / "f").open("w+b") as file:
        put(Path(f"/dev/fd/{file.fileno()}"), b"here")
        assert file.read() == b"here"


@pytest.mark.parametrize(
    ("path", "why"),
    [("", "not empty"), (None, "not empty"), (5, "not empty"), (b"x", "not empty"),
     (".", "a folder"), ("no/such/folder/f", "No such file"), ("a\0b", "not empty")],
)  # fmt: skip
def test_a_path_that_cannot_be_written_is_an_error(
    path: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rlx.Error, match=why):
        put(path, b"")  # pyright: ignore[reportArgumentType]
    with pytest.raises(rlx.Error, match=why):
        Trace("t", "cpu", ()).save(path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(rlx.Error, match=why):
        program().save(path)  # pyright: ignore[reportArgumentType]
    assert not list(tmp_path.iterdir())


def program(width: int = 4) -> rlx.Executable:
    g = rlx.Graph("net")
    x, w = g.input("x", rlx.Shape([2, width])), g.param("w", rlx.Shape([width]))
    g.set_outputs([g.mul(x, w)])
    return rlx.compile(g, "cpu", params={"w": np.ones(width, np.float32)})


VERBS = {
    "compile": ["compile", "net.ir", "-o"],
    "trace": ["trace", "net.ir", "--calls", "1", "-o"],
    "html": ["explain", "net.ir", "-t", "cuda", "--html"],
    "svg": ["explain", "net.ir", "-t", "cuda", "--svg"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_writes_through(
    verb: str, fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    g = rlx.Graph("net")
    g.set_outputs([g.exp(g.input("x", rlx.Shape([2])))])
    Path("net.ir").write_text(str(g))
    Path("link").symlink_to("target")
    got = read_all(fifo)
    assert main([*VERBS[verb], str(fifo)]) == 0
    whole = got()
    assert main([*VERBS[verb], "link"]) == 0
    assert is_fifo(fifo)
    assert Path("link").is_symlink()
    assert len(whole) > 100
    assert Path("target").read_bytes()[:7] == whole[:7]


def test_results_are_written_through(
    fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    g = rlx.Graph("net")
    g.set_outputs({"fifo": g.exp(g.input("x", rlx.Shape([2])))})
    Path("net.ir").write_text(str(g))
    fifo.rename("fifo.npy")
    got = read_all(Path("fifo.npy"))
    assert main(["run", "net.ir", "-o", "."]) == 0
    assert got().startswith(b"\x93NUMPY")
    assert is_fifo(Path("fifo.npy"))


# -- reading ---------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_file_when_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    file = opened(path)
    first = file[10:20]
    assert len(file) == 200
    assert file[190:].tobytes() == bytes(range(190, 200))
    path.write_bytes(b"")
    assert first.tobytes() == bytes(range(10, 20))
    assert first.readonly
    for start in (0, 150):
        with pytest.raises(rlx.Error, match="has changed since it was opened"):
            file.read(start, start + 10)


def test_a_file_that_was_overwritten_is_not_read_further(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    os.utime(path, ns=(1, 1))
    file = opened(path)
    with path.open("r+b") as other:
        other.write(b"other")
    with pytest.raises(rlx.Error, match="has changed"):
        file.read(50, 60)


def test_more_than_there_is_memory_for_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr("rlx.core.memory_limits.memory_bytes", lambda: 999)
    with pytest.raises(
        rlx.Error, match="f: what is read of it takes 1,000 bytes, and this machine has 999"
    ):
        opened(path)[:]
    assert opened(path)[1:].tobytes() == bytes(999)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    before = len(os.listdir("/proc/self/fd"))
    files: list[HeldFile] = [opened(tmp_path / "f") for _ in range(20)]
    del files
    assert len(os.listdir("/proc/self/fd")) == before


AFTER = """
import os, sys
from pathlib import Path
import numpy as np, rlx
model, data, how = sys.argv[1:]
loaded = rlx.load(model)
exe = loaded if isinstance(loaded, rlx.Executable) else rlx.compile(loaded)
x = np.ones(next(iter(exe.inputs.values())).static_dims, np.float32)
assert (exe(x) == 2).all()
if how == "cut":
    os.truncate(data, 0)
else:
    with open(data, "r+b") as file:
        file.write(bytes(os.path.getsize(data)))
assert (exe(x) == 2).all()
exe.set_params({next(iter(exe.params)): np.full(WIDTH, 3, np.float32)})
assert (exe(x) == 3).all()
if not isinstance(loaded, rlx.Executable):
    assert (rlx.compile(loaded)(x) == 2).all()
print("right")
"""
WIDTH = 1 << 19
"""Weights of 2 MiB, so that files are large ones."""


def onnx_file(folder: Path, is_external: bool) -> tuple[Path, Path]:
    onnx = pytest.importorskip("onnx", reason="the file is an ONNX one")
    node = onnx.helper.make_node("Mul", ["x", "w"], ["y"])
    values = [onnx.helper.make_tensor_value_info(n, 1, [1, WIDTH]) for n in "xy"]
    weights = onnx.numpy_helper.from_array(np.full(WIDTH, 2, np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [weights])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    proto.ir_version = 10
    path = folder / "m.onnx"
    onnx.save(proto, path, save_as_external_data=is_external, location="m.data")
    return path, folder / "m.data" if is_external else path


def rlx_file(folder: Path) -> tuple[Path, Path]:
    g = rlx.Graph("net")
    x, w = g.input("x", rlx.Shape([1, WIDTH])), g.param("w", rlx.Shape([WIDTH]))
    g.set_outputs([g.mul(x, w)])
    exe = rlx.compile(g, "cpu", params={"w": np.full(WIDTH, 2, np.float32)})
    exe.save(folder / "m.rlx")
    return folder / "m.rlx", folder / "m.rlx"


@pytest.mark.parametrize("how", ["cut", "overwritten"])
@pytest.mark.parametrize("kind", ["onnx", "external", "rlx"])
def test_what_happens_to_a_file_later_changes_nothing(kind: str, how: str, tmp_path: Path) -> None:
    """In a process of its own: bytes that are read after a cut end one with SIGBUS."""
    made = rlx_file(tmp_path) if kind == "rlx" else onnx_file(tmp_path, kind == "external")
    script = AFTER.replace("WIDTH", str(WIDTH))
    command = [sys.executable, "-c", script, *map(str, made), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_tensors_of_a_safetensors_file_stay_what_they_were(tmp_path: Path) -> None:
    from rlx.frontends.safetensors.reader import read_tensors

    header = b'{"w":{"dtype":"F32","shape":[524288],"data_offsets":[0,2097152]}}'
    path = tmp_path / "model.safetensors"
    data = np.full(WIDTH, 2, np.float32).tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    found = read_tensors(path)["w"]
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert (found == 2).all()
