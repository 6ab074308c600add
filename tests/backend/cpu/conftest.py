"""Tests that name an instruction set run on this machine's and, of the others that it has, on one:
which one differs from case to case. `make test-thorough` runs them on all."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from rlx.backends.cpu.isa import ISAS, host
from tests.effort import IS_THOROUGH

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IS_THOROUGH:
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if HERE in item.path.parents and (isa := _other_isa(item)):
            groups.setdefault(item.nodeid.replace(isa, ""), []).append(item)
    out = {i for key, group in groups.items() for i in group if i is not _chosen(key, group)}
    config.hook.pytest_deselected(items=[i for i in items if i in out])
    items[:] = [i for i in items if i not in out]


def _other_isa(item: pytest.Item) -> str:
    """The instruction set that a case names; "" where it names none, or this machine's."""
    callspec = getattr(item, "callspec", None)
    given: dict[str, Any] = callspec.params if callspec else {}
    found = given.get("isa", given.get("target", ""))
    name = str(getattr(found, "name", found)).rsplit(":", 1)[-1]
    return name if name in ISAS and name != host().name else ""


def _chosen(key: str, group: list[pytest.Item]) -> pytest.Item:
    return group[zlib.crc32(key.encode()) % len(group)]
