"""Programs for WebAssembly run by node: a process that loads them and calls them."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.wasm.export import wasm_plan
from rlx.core.errors import Error
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph
from rlx.ops.op import Array
from rlx.pipeline import CompilePipeline
from tests.patience import PATIENCE_S

SCRIPT = Path(__file__).with_name("run.mjs")
RELAXED = "--experimental-wasm-relaxed-simd"
"""What node 20 has relaxed SIMD by; later versions take it and have it anyway."""


def why_not() -> str:
    """What is missing to run programs; "" where nothing is."""
    return "" if shutil.which("node") else "node is not installed, which runs WebAssembly"


class Engine:
    """A process of node; programs in it have numbers."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rlx-wasm-")
        self.folder = Path(self._folder.name)
        self._numbers = itertools.count()
        self._node = subprocess.Popen(
            ["node", RELAXED, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **said: Any) -> dict[str, Any]:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(f"{json.dumps(said)}\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        found = json.loads(line) if line else {"error": "node has ended"}
        if "error" in found:
            raise Error(found["error"])
        return found

    def program(
        self, lir: LirModule, params: Mapping[str, Array], kind: str = "simd"
    ) -> WasmProgram:
        return WasmProgram(self, next(self._numbers), lir, params, kind)

    def close(self) -> None:
        assert self._node.stdin is not None
        self._node.stdin.close()
        self._node.wait(PATIENCE_S)
        assert self._node.stdout is not None
        self._node.stdout.close()
        self._folder.cleanup()


class WasmProgram:
    """A model in an engine."""

    def __init__(
        self, engine: Engine, number: int, lir: LirModule, params: Mapping[str, Array], kind: str
    ) -> None:
        self._engine, self._number, self._params = engine, number, params
        self.interface = Interface.planned(lir)
        file = bytearray()

        def add(raw: bytes) -> int:
            file.extend(bytes(-len(file) % 64) + raw)
            return len(file) - len(raw)

        made = wasm_plan(lir, params, add)
        shapes = [s for _, s in self.interface.outputs]
        plan = {
            **made.json,
            "numInputs": len(self.interface.inputs),
            "numOutputs": len(shapes),
            "outputRanks": [s.rank for s in shapes],
            "outputItems": [s.dtype.itemsize for s in shapes],
        }
        module, weights = engine.folder / "module.wasm", engine.folder / "weights.bin"
        module.write_bytes(made.modules[kind])
        weights.write_bytes(bytes(file))
        load = {"plan": plan, "module": str(module), "weights": str(weights)}
        engine.ask(id=number, load=load)

    def run(self, inputs: Sequence[Array], repeats: int = 0) -> list[Array]:
        return self.timed(inputs, repeats)[0]

    def timed(self, inputs: Sequence[Array], repeats: int) -> tuple[list[Array], list[float]]:
        """The outputs, and the milliseconds of calls again."""
        sizes = self.interface.bind(self._params, inputs)
        raws = [np.ascontiguousarray(a).tobytes() for a in self.interface.checked(inputs, sizes)]
        ends = list(itertools.accumulate(map(len, raws)))
        folder = self._engine.folder
        (folder / "inputs.bin").write_bytes(b"".join(raws))
        said = self._engine.ask(
            id=self._number,
            inputs=str(folder / "inputs.bin"),
            outputs=str(folder / "outputs.bin"),
            spans=[[end - len(raw), len(raw)] for end, raw in zip(ends, raws)],
            sizes=sizes,
            repeats=repeats,
        )
        data, at, found = (folder / "outputs.bin").read_bytes(), 0, list[Array]()
        for dims, (_, shape) in zip(said["dims"], self.interface.outputs):
            dtype = shape.dtype.numpy
            size = int(np.prod(dims)) * dtype.itemsize
            found.append(np.frombuffer(data[at : at + size], dtype).reshape(dims))
            at += size
        return found, said["times"]

    def drop(self) -> None:
        self._engine.ask(id=self._number, drop=True)


def outputs(
    engine: Engine, graph: Graph, values: Mapping[str, Array], kind: str = "simd"
) -> list[Array]:
    """What a graph gives for values of its inputs and params."""
    lir = CompilePipeline(CpuBackend("wasm").target()).compile(graph).lir
    params = {n.attrs["name"]: np.asarray(values[n.attrs["name"]]) for n in graph.params}
    program = engine.program(lir, params, kind)
    try:
        return program.run([np.asarray(values[n.attrs["name"]]) for n in graph.inputs])
    finally:
        program.drop()
