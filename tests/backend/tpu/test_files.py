"""Programs of jax in files and in the cache: the same results, without tracing them again."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.engine.trace import Traced
from rlx.ir.mir import Graph
from rlx.ops.op import Array
from rlx.runtime.session import Session

pytest.importorskip("jax", reason="programs of target tpu are jax's: pip install 'rlx[tpu]'")

from rlx.backends.tpu import files


def model(rows: Any = 4) -> Graph:
    """A product by weights that the Prologue scales, and columns of it that are looked up."""
    g = Graph("filed")
    x, at = g.input("x", rlx.Shape([rows, 8])), g.input("at", rlx.Shape([3], "i64"))
    w = g.mul(g.param("w", rlx.Shape([8, 5])), g.constant(np.float32(0.5)))
    y = g.matmul(x, w)
    g.set_outputs({"y": y, "picked": g.gather(y, at, axis=1)})
    return g


def given(rows: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, 8)).astype(np.float32), np.array([4, 0, 2])


PARAMS: Mapping[str, Array] = {
    "w": np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
}


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refused(self: Traced, *arrays: Any) -> Any:
        raise AssertionError("a function is traced again")

    monkeypatch.setattr(Traced, "__call__", refused)
    return monkeypatch


def executable(folder: Path) -> Any:
    return rlx.load(folder / "filed.rlx")


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.skipif(find_spec("flatbuffers") is None, reason="jax.export writes by flatbuffers")
def test_a_file_has_what_was_exported(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    exe = rlx.compile(model(), "tpu:cpu", params=PARAMS, cache=False)
    expected = exe(*given())
    exe.save(tmp_path / "filed.rlx")
    request.getfixturevalue("no_tracing")
    opened = executable(tmp_path)
    assert same(opened(*given()), expected)
    opened.set_params({"w": PARAMS["w"] * 2})
    assert same(opened(*given()), [e * 2 for e in expected])


@pytest.mark.skipif(find_spec("flatbuffers") is None, reason="jax.export writes by flatbuffers")
def test_one_file_is_for_all_platforms(tmp_path: Path) -> None:
    from jax import export

    from rlx.core.sections import Sections

    rlx.compile(model(), "tpu:cpu", params=PARAMS, cache=False).save(tmp_path / "filed.rlx")
    file = Sections.open(tmp_path / "filed.rlx")
    rows = file.head["program"]["functions"]
    assert len(rows) == 2
    for i in range(len(rows)):
        found = export.deserialize(bytearray(file.section(f"function {i}")))
        assert found.platforms == files.PLATFORMS


@pytest.mark.skipif(find_spec("flatbuffers") is None, reason="jax.export writes by flatbuffers")
def test_sizes_that_were_called_are_in_the_file_and_others_are_traced(
    tmp_path: Path, no_tracing: pytest.MonkeyPatch
) -> None:
    no_tracing.undo()
    exe = rlx.compile(model(rlx.Dim("rows", 1)), "tpu:cpu", params=PARAMS, cache=False)
    expected = {rows: exe(*given(rows)) for rows in (4, 6)}
    exe.save(tmp_path / "filed.rlx")
    traced: list[Mapping[str, int]] = []
    whole = Traced.__call__

    def noted(self: Traced, *arrays: Any) -> Any:
        traced.append(self.sizes)
        return whole(self, *arrays)

    no_tracing.setattr(Traced, "__call__", noted)
    opened = executable(tmp_path)
    assert all(same(opened(*given(rows)), made) for rows, made in expected.items())
    assert not traced
    opened(*given(5))
    assert traced == [{"rows": 5}]


@pytest.mark.skipif(find_spec("flatbuffers") is None, reason="jax.export writes by flatbuffers")
def test_what_fails_on_data_says_so_from_a_file(tmp_path: Path) -> None:
    rlx.compile(model(), "tpu:cpu", params=PARAMS, cache=False).save(tmp_path / "filed.rlx")
    opened = executable(tmp_path)
    with pytest.raises(rlx.Error, match=r"gather.*out of range"):
        opened(given()[0], np.array([0, 5, 1]))


def test_without_flatbuffers_one_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = rlx.compile(model(), "tpu:cpu", params=PARAMS, cache=False)
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(rlx.UnsupportedError, match="pip install flatbuffers"):
        exe.save(tmp_path / "filed.rlx")


def test_a_cached_program_is_loaded_as_it_was_compiled(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = Session("tpu:cpu", cache=tmp_path).compile(model(), params=PARAMS)
    expected = first(*given())
    request.getfixturevalue("no_tracing")
    again = Session("tpu:cpu", cache=tmp_path).compile(model(), params=PARAMS)
    assert same(again(*given()), expected)
    with pytest.raises(rlx.Error, match=r"gather.*out of range"):
        again(given()[0], np.array([0, 5, 1]))


# -- inputs that a call may consume ----------------------------------------------------------------


def appended() -> Graph:
    """A cache with one row replaced, and a sum of it."""
    g = Graph("appended")
    cache, row = g.input("cache", rlx.Shape([16, 8])), g.input("row", rlx.Shape([1, 8]))
    more = g.concat(g.narrow(cache, axis=0, start=1, length=15), row, axis=0)
    g.set_outputs({"cache": more, "sum": g.sum(more, axes=(0,))})
    return g


def test_a_donated_cache_is_written_over(tmp_path: Path) -> None:
    import jax.numpy as jnp

    exe: Any = rlx.compile(appended(), "tpu:cpu", donate=["cache"], cache=False)
    assert exe.code_facts().aliased_bytes == 16 * 8 * 4
    cache = np.arange(128, dtype=np.float32).reshape(16, 8)
    row = np.ones((1, 8), np.float32)
    expected = rlx.compile(appended(), "reference")(cache, row)
    assert same(exe(cache, row), expected)
    own = jnp.asarray(cache)
    made = exe(own, jnp.asarray(row))
    assert own.is_deleted()
    assert same(made, expected)
    exe.save(tmp_path / "filed.rlx")
    own = jnp.asarray(cache)
    assert same(executable(tmp_path)(own, jnp.asarray(row)), expected)
    assert own.is_deleted()


def test_what_is_donated_must_be_an_input_of_a_target_that_takes_it() -> None:
    with pytest.raises(rlx.Error, match="no input 'w' to donate"):
        rlx.compile(appended(), "tpu:cpu", donate=["w"], cache=False)
    with pytest.raises(rlx.UnsupportedError, match="out="):
        rlx.compile(appended(), "reference", donate=["cache"])
