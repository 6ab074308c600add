"""The default number of threads: what is asked for, cores, quotas of control groups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import rlx
from rlx.backends.cpu.runtime.thread_count import cpu_quota, usual_threads


def quota(folder: Path, membership: str, files: dict[str, str]) -> float:
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_quota(folder / "groups", folder / "membership")


@pytest.mark.parametrize(
    ("membership", "files", "want"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "400000 100000\n", "cpu.max": "max 100000"}, 4.0),
        ("0::/../outside\n", {"cpu.max": "100000 100000\n"}, 1.0),
        ("4:cpu,cpuacct:/a\n1:name=x:/\n",
         {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
         0.5),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000"},
         math.inf),
        ("0::/a\n", {"a/cpu.max": "what\n"}, math.inf),
        ("", {}, math.inf),
    ],
)  # fmt: skip
def test_quotas(tmp_path: Path, membership: str, files: dict[str, str], want: float) -> None:
    assert quota(tmp_path, membership, files) == want


def test_the_environment_counts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usual_threads({"RLX_THREADS": "3", "OMP_NUM_THREADS": "5"})[0] == 3
    assert usual_threads({"OMP_NUM_THREADS": "5,2"}) == (5, "OMP_NUM_THREADS says so")
    usual = usual_threads({})
    assert usual_threads({"OMP_NUM_THREADS": "many"}) == usual
    with pytest.raises(rlx.Error, match="RLX_THREADS is 'two'"):
        usual_threads({"RLX_THREADS": "two"})
    place = "rlx.backends.cpu.runtime.thread_count"
    monkeypatch.setattr(f"{place}._cores_here", lambda _: 8)
    for allowed, want in ((3.7, 3), (0.5, 1), (math.inf, 8), (16.0, 8)):
        monkeypatch.setattr(f"{place}.cpu_quota", lambda *_, n=allowed: n)
        assert usual_threads({})[0] == want
