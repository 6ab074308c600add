"""What runs leave behind: one JSON file each, and the page made from the newest of each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent / "results"


def save(name: str, made: dict[str, Any]) -> Path:
    """Write a run's numbers."""
    ROOT.mkdir(exist_ok=True)
    path = ROOT / f"{name}.json"
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return path


def load(name: str) -> dict[str, Any] | None:
    path = ROOT / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def runs() -> list[dict[str, Any]]:
    """Runs of workloads, the oldest first."""
    found = [json.loads(p.read_text()) for p in sorted(ROOT.glob("*.json"))]
    return sorted((r for r in found if "lines" in r), key=lambda r: r["date"])
