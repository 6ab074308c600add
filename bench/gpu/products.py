"""`python -m bench.gpu.products [MxNxK[:epilogue]] …`: every schedule that is considered for a
product of half floats, predicted and measured.

Each schedule's result is compared with torch's in f32 before it is timed. What the constants of the
predictions are fitted to, and how far from the best the choice is, are the last lines.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from rlx import ops
from rlx.backends.cuda.assemble import THREADS, linked, print_code
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.gpu.device import Code
from rlx.backends.gpu.lower.contraction.launch import AnySchedule, candidates, emit, predicted
from rlx.backends.gpu.schedule.product import Product, product_of
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.contract import contraction
from rlx.kernel.refusal import Refusal
from rlx.program.verify import verify

SHAPES = (
    "8192x1152x384:bias", "8192x384x384:bias", "8192x1536x384:gelu", "8192x384x1536:bias",
    "4096x4096x1024:tanh", "4096x1024x4096:bias", "2048x1152x384:bias", "2048x384x1536:residual",
    "2048x1536x384:gelu", "512x768x768:bias", "1024x2048x2048:none", "128x1536x384:gelu",
    "128x1152x384:bias", "128x384x384:bias", "128x384x1536:bias", "64x1024x1024:none",
    "256x768x768:gelu", "32x4096x1024:bias",
)  # fmt: skip
"""What constants are fitted to."""
OTHERS = (
    "3000x1000x500:bias", "1536x3072x768:gelu", "256x1024x4096:residual", "16384x512x512:bias",
    "640x2560x640:tanh", "5000x320x320:none", "1024x8192x2048:none", "384x384x384:bias",
)  # fmt: skip
"""What choices are judged by."""
TOLERANCE = 6e-3
"""Of ‖y - y'‖ / ‖y'‖ where operands and results are rounded to 8 bits."""
REPEATS, ROUNDS = 20, 5
SLOWEST = 2.5
"""Schedules that are predicted to take longer than the best by this are not measured."""
MOST = 32
"""Schedules of a shape that are."""


@dataclass(frozen=True)
class Shape3:
    """Rows, columns, inner positions, and what follows."""

    rows: int
    columns: int
    inner: int
    epilogue: str

    @classmethod
    def parse(cls, text: str) -> Shape3:
        dims, _, epilogue = text.partition(":")
        rows, columns, inner = map(int, dims.split("x"))
        return cls(rows, columns, inner, epilogue or "none")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.inner}:{self.epilogue}"

    @property
    def dims(self) -> list[tuple[int, ...]]:
        """Of the operands: rows, weights as [out, in], a bias, a residual."""
        found: list[tuple[int, ...]] = [(self.rows, self.inner), (self.columns, self.inner)]
        if self.epilogue != "none":
            found.append((self.columns,))
        if self.epilogue == "residual":
            found.append((self.rows, self.columns))
        return found


def product(shape: Shape3, dtype: str) -> Product:
    """The product as selection gives it to schedules."""
    shapes = [Shape(d, dtype) for d in shape.dims]
    body, whole = Graph("body"), Graph("whole")
    body.set_outputs([_value(shape, [body.input(f"v{i}", s) for i, s in enumerate(shapes)])])
    node = whole.node(
        "region", [whole.input(f"v{i}", s) for i, s in enumerate(shapes)], {"body": body}
    )
    layouts = [[Layout.contiguous(s.dims) for s in of] for of in (shapes, node.shapes)]
    made = product_of(contraction(node, *layouts))
    if isinstance(made, Refusal):
        raise SystemExit(made.reason)
    return made


def _value(shape: Shape3, given: Sequence[Node]) -> Node:
    x, w, *rest = given
    made = ops.matmul(x, ops.transpose(w, perm=(1, 0)))
    for operand in rest:
        made = ops.add(made, operand)
    activations: dict[str, Callable[[Node], Node]] = {"gelu": ops.gelu, "tanh": ops.gelu_tanh}
    return activations[shape.epilogue](made) if shape.epilogue in activations else made


def _torch_value(torch: Any, shape: Shape3, given: Sequence[Any]) -> Any:
    f = torch.nn.functional
    x, w, *rest = given
    made = f.linear(x, w, *rest[:1])
    if shape.epilogue == "residual":
        return made + rest[1]
    if shape.epilogue in ("gelu", "tanh"):
        return f.gelu(made, approximate="tanh" if shape.epilogue == "tanh" else "none")
    return made


@dataclass
class Measured:
    """A schedule's cycles as predicted, and its microseconds."""

    shape: Shape3
    schedule: AnySchedule
    predicted: float
    time: float = float("nan")
    error: float = float("nan")
    registers: int = 0
    spilled: int = 0
    """Bytes of local memory of a thread."""
    note: str = ""


def _printed(way: tuple[Shape3, str, AnySchedule, str], architecture: Architecture) -> Code:
    shape, dtype, schedule, name = way
    return print_code(verify(emit(product(shape, dtype), schedule, name)), architecture)


class Bench:
    """Products on one device."""

    def __init__(self, torch: Any, dtype: str) -> None:
        self.torch, self.dtype = torch, dtype
        self.device = CudaDevice()
        self.queue = self.device.queue()
        self.machine = self.device.machine
        self.pool = ProcessPoolExecutor(None, get_context("fork"))
        """Programs are written by processes: the interpreter has one lock."""

    def run(self, shape: Shape3) -> tuple[list[Measured], float]:
        """All schedules of a shape, and torch's time."""
        torch = self.torch
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[self.dtype]
        draw = lambda d: torch.randn(*d, device="cuda")
        given = [draw(d) for d in shape.dims]
        given[1] *= shape.inner**-0.5
        given = [x.to(kind) for x in given]
        want = _torch_value(torch, shape, [x.float() for x in given])
        made = product(shape, self.dtype)
        constants = frozenset(range(1, 3 if shape.epilogue != "none" else 2))
        found = self._ways(shape, made, constants)
        loaded = self._loaded(found)
        for one, kernel in zip(found, loaded):
            if kernel is not None:
                found_resources = self.device.resources(kernel)
                one.registers, one.spilled = found_resources.registers, found_resources.local_bytes
                self._measure(one, kernel, given, want)
        return found, self._torch_time(lambda: _torch_value(torch, shape, given))

    def _ways(self, shape: Shape3, made: Product, constants: frozenset[int]) -> list[Measured]:
        every = [
            Measured(shape, w, predicted(made, w, self.machine))
            for w in candidates(made, self.machine, constants)
        ]
        best = min(m.predicted for m in every)
        near = [m for m in every if m.predicted <= SLOWEST * best]
        return sorted(near, key=lambda m: m.predicted)[:MOST]

    def _loaded(self, found: Sequence[Measured]) -> list[Any]:
        architecture = self.device.generation.architecture
        every = [(m.shape, self.dtype, m.schedule, f"k{i}") for i, m in enumerate(found)]
        codes = list(self.pool.map(_printed, every, [architecture] * len(every)))
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                made = list(pool.map(partial(linked, self.device.context), codes))
            return [self.device.load(c) for c in made]
        except Error:
            return [self._one(c, m) for c, m in zip(codes, found)]

    def _one(self, code: Code, way: Measured) -> Any:
        try:
            return self.device.load(linked(self.device.context, code))
        except Error as error:
            way.note = str(error)[-300:]
            return None

    def _measure(self, one: Measured, kernel: Any, given: Sequence[Any], want: Any) -> None:
        torch = self.torch
        out = torch.full(want.shape, float("nan"), device="cuda", dtype=given[0].dtype)
        memory = {f"x{i}": x.data_ptr() for i, x in enumerate(given)} | {"y0": out.data_ptr()}
        addresses = [memory[n] for n in kernel.code.buffers]
        torch.cuda.synchronize()
        self.queue.launch(kernel, addresses, {})
        self.queue.wait()
        one.error = float((out.float() - want).norm() / want.norm())
        if not one.error <= TOLERANCE:
            one.note = "WRONG"
            return

        def many() -> None:
            for _ in range(REPEATS):
                self.queue.launch(kernel, addresses, {})

        graph = self.queue.record(many)
        graph.replay()
        times = [self.queue.time_ns(graph.replay) for _ in range(ROUNDS)]
        one.time = statistics.median(times) / REPEATS / 1e3
        graph.close()

    def _torch_time(self, call: Callable[[], Any]) -> float:
        torch = self.torch
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                call()
        times: list[float] = []
        for _ in range(ROUNDS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e3 / REPEATS)
        return statistics.median(times)


def lines(found: Sequence[Measured], torch_time: float, shown: int) -> Iterator[str]:
    """The fastest ones, and the choice."""
    timed = sorted((m for m in found if m.time == m.time), key=lambda m: m.time)
    for m in found:
        if m.note:
            yield f"  {m.note} {m.error:.1e} {m.schedule.text}"
    if not timed:
        return
    choice, best = found[0], timed[0]
    shape = best.shape
    flops = 2e-6 * shape.rows * shape.columns * shape.inner
    yield (
        f"{shape}: best {best.time:.2f} us ({flops / best.time:.0f} TF), choice {choice.time:.2f} "
        f"({choice.time / best.time:.2f}), torch {torch_time:.2f} ({choice.time / torch_time:.2f})"
    )
    for m in timed[:shown]:
        mark = "*" if m is choice else " "
        yield (
            f" {mark}{m.time:8.2f} us  predicted {m.predicted:9.0f} cycles  {m.registers:3} "
            f"registers{f' {m.spilled} B spilled' if m.spilled else ''}  {m.schedule.text}"
        )
    if choice not in timed[:shown]:
        yield f" *{choice.time:8.2f} us  predicted {choice.predicted:9.0f}  {choice.schedule.text}"


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.gpu.products", description=__doc__)
    parser.add_argument("shapes", nargs="*", help="MxNxK with :none, bias, residual, gelu, tanh")
    parser.add_argument("--others", action="store_true", help="the shapes that judge choices")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--shown", type=int, default=6, help="schedules of a shape that are shown")
    args = parser.parse_args()
    import torch

    bench = Bench(torch, args.dtype)
    with torch.inference_mode():
        for text in args.shapes or (OTHERS if args.others else SHAPES):
            found, torch_time = bench.run(Shape3.parse(text))
            print("\n".join(lines(found, torch_time, args.shown)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
