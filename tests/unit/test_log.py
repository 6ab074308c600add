"""What the logger `rlx` says of compiles and of the cache, and what `rlx cache why` does."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx
from rlx.core.disk_cache import Cache
from rlx.runtime.asking import PER_CALL, asked


def net(width: int = 4) -> rlx.Graph:
    g = rlx.Graph("net")
    g.set_outputs([g.relu(g.input("x", [2, width]))])
    return g


def compiled(cache: Path, log: pytest.LogCaptureFixture, graph: rlx.Graph, **how: object) -> str:
    log.clear()
    with log.at_level("INFO", "rlx"):
        rlx.compile(graph, cache=cache, **how)  # pyright: ignore
    return log.text


def test_compiles_and_the_cache_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = compiled(tmp_path, caplog, net())
    assert "net: compiled for cpu in " in first
    assert "cache miss: no program of 'net'" in first
    assert "net: cache hit, opened for cpu in " in compiled(tmp_path, caplog, net())
    other = compiled(tmp_path, caplog, net(), precision="bf16")
    assert "options differs" in other
    assert "precision=bf16, cached is precision=None" in other
    assert "model differs" in compiled(tmp_path, caplog, net(5))


def test_the_cache_is_asked_without_compiling(tmp_path: Path) -> None:
    path, cache = tmp_path / "net.ir", Cache.of(tmp_path / "cache", {})
    assert cache is not None
    rlx.save(net(), path)
    ((is_hit, why),) = asked(path, "cpu", None, cache)
    assert (is_hit, "no program of 'net'" in why) == (False, True)
    assert not cache.entries()
    rlx.compile(path, "cpu", cache=cache)
    assert asked(path, "cpu", None, cache)[0][0]
    text = path.read_text().replace("relu", "silu")
    path.write_text(text)
    assert "model differs" in asked(path, "cpu", None, cache)[0][1]
    assert PER_CALL
