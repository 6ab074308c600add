"""What the measurements of rlx alone share: options, rows with limits, and where they go."""

from __future__ import annotations

import argparse
import datetime
from dataclasses import asdict, dataclass

from bench import page, results_file


@dataclass(frozen=True, slots=True)
class Check:
    """A measured value, and the limit it should keep if there is one."""

    what: str
    value: float
    unit: str
    limit: float | None = None

    def __str__(self) -> str:
        mark = "    " if self.limit is None else "ok  " if self.value <= self.limit else "OVER"
        limit = "" if self.limit is None else f" (limit {self.limit:g} {self.unit})"
        return f"{mark} {self.what}: {self.value:.3g} {self.unit}{limit}"


def parser(about: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--target", default="cpu")
    made.add_argument("--dry", action="store_true", help="print only, write nothing")
    return made


def report(name: str, rows: list[Check], asked: argparse.Namespace) -> int:
    """Print the rows and keep them; 1 where a limit is passed."""
    for row in rows:
        print(row)
    if not asked.dry:
        results_file.save(name, {"measured": now(), "rows": [asdict(r) for r in rows]})
        page.write()
    return int(any(r.limit is not None and r.value > r.limit for r in rows))


def now() -> str:
    return datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
