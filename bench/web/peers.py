"""The folder that a page is served from: exported models, ONNX files, and onnxruntime-web."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import rlx
from bench import cache
from bench.prepare import export, path_of
from bench.workload import Workload

PEER = "onnxruntime-web@1.30.0"
HERE = Path(__file__).parent


def peer_folder(given: Path | None) -> Path:
    """Where the files of onnxruntime-web are; npm installs them into the cache if nothing is
    given."""
    if given is not None:
        return given
    root = cache.ROOT / "npm"
    dist = root / "node_modules" / "onnxruntime-web" / "dist"
    if not dist.exists():
        root.mkdir(parents=True, exist_ok=True)
        print(f"installing {PEER} into {root}")
        subprocess.run(["npm", "install", "--silent", "--prefix", str(root), PEER], check=True)
    return dist


def page_folder(root: Path, workloads: list[Workload], peer: Path) -> None:
    """All that the page fetches."""
    (root / "ort").symlink_to(peer.resolve(), target_is_directory=True)
    shutil.copyfile(HERE / "bench.js", root / "bench.js")
    (root / "index.html").write_text("<!doctype html><title>bench</title>")
    for workload in workloads:
        if not path_of(workload).exists():
            export(workload)
        (root / f"{workload.name}.onnx").symlink_to(path_of(workload).resolve())
        params = workload.rlx_params()
        rlx.export_web(workload.model(params), root / workload.name, params=params)
