"""The rows of a measurement, written as they are measured: a run that is killed loses none of them,
and the next one of the same program, sizes and machine goes on after them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rlx._version import __version__
from rlx.core.disk_cache import Cache
from rlx.cost.calibrate import machine
from rlx.explain.measured import Measured

if TYPE_CHECKING:
    from rlx.runtime.executable import Executable

Row = tuple[Measured, float]
"""What was measured, and the nanoseconds of a call meanwhile."""


@dataclass(slots=True)
class Journal:
    """A note in the cache, removed once the measurement is complete."""

    cache: Cache | None = None
    """None where nothing is to be written."""
    name: str = ""
    rows: dict[tuple[str, ...], Row] = field(default_factory=dict[tuple[str, ...], Row])
    """By the decisions that were reversed together; at first those of earlier runs."""

    @classmethod
    def of(
        cls, exe: Executable, sizes: Mapping[str, int], seconds: float, cache: Cache | None
    ) -> Journal:
        """With what an earlier run left of the same measurement."""
        facts = [exe.lir.fingerprint, sorted(sizes.items()), exe.threads, seconds, machine()]
        key = hashlib.sha256(repr([*facts, __version__]).encode()).hexdigest()
        name = f"measure-{key[:32]}.json"
        text = cache.note(name) if cache is not None else None
        return cls(cache, name, _parsed(text or "[]"))

    @property
    def path(self) -> str:
        return "" if self.cache is None else str(self.cache.folder / self.name)

    def add(self, row: Measured, call_ns: float) -> None:
        self.rows[row.ids] = row, call_ns
        if self.cache is not None:
            held = [{**asdict(m), "call_ns": call_ns} for m, call_ns in self.rows.values()]
            self.cache.write_note(self.name, json.dumps(held))

    def complete(self) -> None:
        if self.cache is not None:
            self.cache.drop_note(self.name)


def _parsed(text: str) -> dict[tuple[str, ...], Row]:
    """Nothing where the text is not one of ours."""
    try:
        rows = [_row(dict(each)) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        return {}
    return {row[0].ids: row for row in rows}


def _row(held: dict[str, Any]) -> Row:
    call_ns = float(held.pop("call_ns"))
    if held.keys() != {f.name for f in fields(Measured)}:
        raise KeyError("another release's row")
    held["ids"], held["where"] = tuple(held["ids"]), tuple(held["where"])
    return Measured(**held), call_ns
