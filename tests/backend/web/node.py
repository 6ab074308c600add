"""Exported models run by node, whose WebAssembly is that of Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.browser.web import Array, received, sent
from tests.patience import PATIENCE_S

RUNNER = Path(__file__).parent / "runner.js"
MIN_VERSION = 18
"""The first with Blob, Response and WebAssembly SIMD."""


def missing() -> str | None:
    """Why there is no node that runs them."""
    node = shutil.which("node")
    if node is None:
        return "node is not installed"
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    version = int(found.strip().removeprefix("v").partition(".")[0])
    return None if version >= MIN_VERSION else f"node {version} is older than {MIN_VERSION}"


def answered(folder: Path, calls: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """What the model of a folder says to calls, each `inputs` and perhaps `options`."""
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copyfile(RUNNER, folder / RUNNER.name)
    request = json.dumps({"folder": str(folder), "options": options, "calls": list(calls)})
    command = ["node", str(folder / RUNNER.name)]
    done = subprocess.run(
        command, input=request, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def outputs(
    folder: Path, dtypes: Mapping[str, Any], calls: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """What calls give."""
    found = answered(folder, [{"inputs": sent(c)} for c in calls])
    assert "error" not in found, found["error"]
    return [received(_whole(c), dtypes) for c in found["calls"]]


def _whole(call: Mapping[str, Any]) -> Mapping[str, Any]:
    assert "error" not in call, call["error"]
    return call["outputs"]
