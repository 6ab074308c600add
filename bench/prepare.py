"""What must be on disk before peers start: the exact results, and models as ONNX files.

`python -m bench.prepare NAME [--onnx]`, a process of its own so that its memory goes with it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import cache
from bench.workload import Workload
from bench.workloads import WORKLOADS


def path_of(workload: Workload) -> Path:
    """Where the workload's ONNX file is."""
    return cache.ROOT / "onnx" / f"{workload.key}.onnx"


def export(workload: Workload) -> None:
    """Write the workload's ONNX file unless it is there."""
    from bench.dialects.for_torch import torch
    from bench.peers.torch_peer import module_of

    path = path_of(workload)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.onnx")
    with torch.inference_mode():
        inputs = tuple(torch.tensor(a) for a in workload.inputs)
        how = {"dynamo": True, "external_data": False, "opset_version": 20, "verbose": False}
        torch.onnx.export(module_of(workload), inputs, str(part), **how)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--onnx", action="store_true")
    asked = parser.parse_args()
    workload = WORKLOADS[asked.name]()
    cache.exact(workload)
    if asked.onnx:
        export(workload)


if __name__ == "__main__":
    main()
