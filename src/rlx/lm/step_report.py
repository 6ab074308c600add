"""Where the time and the bytes of a language model's step go: `lm.explain()`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlx.core.errors import Error
from rlx.core.other_load import OtherLoad
from rlx.explain.build import ops_of, report_of
from rlx.explain.memory_floor import floor_of, read_gb_s
from rlx.explain.report import Report
from rlx.explain.trace import OF_REPORT, Trace
from rlx.explain.with_measurements import call_ns, with_times
from rlx.frontends.gguf.caches import CacheFormat
from rlx.frontends.gguf.model import load as load_gguf
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Node
from rlx.lm.decoder import SessionDecoder
from rlx.lm.engine import LONE_CHUNK
from rlx.lm.slots import Part
from rlx.ops.op import Array
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline

if TYPE_CHECKING:
    from rlx.backends.base import Backend
    from rlx.cost.target import Target
    from rlx.pipeline import CompileResult

Step: TypeAlias = tuple[int, int, int]
"""Tokens of each of some sequences, behind so many cached ones."""
ATTENTION, EMBEDDING, HEAD, NORMS, REST = "attention", "embedding", "head", "norms", "others"
BY_WEIGHT = {
    r"\.attn_(q|k|v|qkv|output)\.(weight|bias)$": "attention projections",
    r"\.ffn_(gate|up|down)\.(weight|bias)$": "MLP",
    r"^rotary\.": ATTENTION,
    r"^output\.(weight|bias)$": HEAD,
}
BY_OP = {
    "cached_attention": ATTENTION, "append": ATTENTION, "rope": ATTENTION, "rms_norm": NORMS,
}  # fmt: skip
SEED = 0
NO_DECISIONS = (
    "cost model: decisions of language models are not reversed; the step and its kernels were timed"
)


class StepReports:
    """Reports of one step of a decoder: so many tokens of each of some sequences, behind a number
    of cached tokens. Times are of a session of its own, whose slots are filled."""

    def __init__(
        self, decoder: Any, vocabulary: int, context: int, tokens: int, sequences: int, depth: int
    ) -> None:
        _check(tokens, sequences, depth, context)
        if not isinstance(decoder, SessionDecoder):
            raise Error(
                "caches are arguments of a call on this target, as it has no sessions. Explain the "
                "program of the file: lm.executable.explain()."
            )
        self._decoder, self._executable = decoder, decoder.executable
        self._vocabulary = vocabulary
        self._tokens, self._sequences, self._depth = tokens, sequences, depth

    def planned(self) -> Report:
        """What is known without running it."""
        loaded, step = self._executable.loaded, (self._tokens, self._sequences, self._depth)
        return _report(loaded.result, loaded.backend, self._executable.source, step)

    def measured(self, seconds: float) -> Report:
        """Kernels timed in an instrumented build, calls and the bandwidth beside it."""
        report, (session, inputs) = self.planned(), self._filled()
        load = OtherLoad()
        gb_s = read_gb_s(self._executable.backend, _moved(report))
        times = session.profile(inputs, seconds=seconds, cached_rows=self._depth)
        took = call_ns(lambda: session(*inputs), seconds)
        timed = with_times(report, self._executable, times, took, load.cores())
        return replace(timed, timings={**timed.timings, "read_gb_s": gb_s, "gate": NO_DECISIONS})

    def trace(self) -> Trace:
        """A step, kernel by kernel: that of the median time of some."""
        session, inputs = self._filled()
        return session.trace(inputs, calls=OF_REPORT).median_call()

    def _filled(self) -> tuple[Any, list[Array]]:
        """A session whose slots hold random tokens, and what a step is given behind them."""
        decoder, rng = self._decoder.fresh(self._sequences), np.random.default_rng(SEED)
        ids = rng.integers(0, self._vocabulary, self._depth).tolist()
        for slot in range(self._sequences):
            for start in range(0, self._depth, LONE_CHUNK):
                decoder.step([Part(slot, ids[start : start + LONE_CHUNK], [])])
        rows = rng.integers(0, self._vocabulary, (self._sequences, self._tokens)).tolist()
        return decoder.session, decoder.inputs(rows, [self._tokens - 1], range(self._sequences))


def planned_step(
    path: Path, target: Target, step: Step, context: int, cached: CacheFormat
) -> tuple[Report, BufferPlan]:
    """The report of a step on a target whose device is not here: tokens, sequences and depth."""
    model = load_gguf(path, None, at_most=context, caches="session", cached=cached)
    _check(*step, model.context)
    options = FusionOptions(sizes=_sizes(step))
    result = CompilePipeline(target, options=options).compile(model.graph)
    return _report(result, None, model, step), result.lir.plan


def _report(result: CompileResult, backend: Backend | None, model: Any, step: Step) -> Report:
    tokens, sequences, depth = step
    sizes = _sizes(step)
    report = report_of(result, (), backend, sizes=sizes, model=model, cached_rows=depth)
    named = zip(report.kernels, _parts(result.lir.plan))
    return replace(
        report,
        step={"tokens": tokens, "sequences": sequences, "depth": depth},
        kernels=tuple(replace(k, part=p) for k, p in named),
    )


def _sizes(step: Step) -> dict[str, int]:
    tokens, sequences, _ = step
    return {"batch": sequences, "seq": tokens, "rows": 1, "slots": sequences}


def _check(tokens: int, sequences: int, depth: int, context: int) -> None:
    if min(tokens, sequences) < 1 or depth < 0:
        raise Error(f"tokens={tokens}, sequences={sequences}, depth={depth}: at least 1, 1 and 0.")
    if tokens + depth > context:
        raise Error(
            f"{tokens:,} tokens behind {depth:,} are more than the context of {context:,}. Load "
            "the model with a larger context=."
        )


def _moved(report: Report) -> int:
    whole = floor_of(report)
    return whole.weight_bytes + whole.state_bytes


def _parts(plan: BufferPlan) -> list[str]:
    """The part of a layer that each step of a schedule belongs to: that of its weights, or of its
    ops; else that of what it reads, or of what reads it."""
    found = {node: _part(node, plan) for node in plan.schedule}
    for order, near in ((plan.schedule, _producers(plan)), (plan.schedule[::-1], _readers(plan))):
        for node in order:
            found[node] = found[node] or next((found[n] for n in near[node] if found[n]), "")
    return [part or REST for part in found.values()]


def _part(node: Node, plan: BufferPlan) -> str:
    roots = [plan.root(i) for i in node.inputs]
    names = [n.attrs["name"] for n in roots if n.op == "param"]
    ops = ops_of(node)
    if "token_embd.weight" in names:  # the head's as well, where the two are tied
        return EMBEDDING if "gather" in ops else HEAD
    by_weight = (p for name in names for key, p in BY_WEIGHT.items() if re.search(key, name))
    return next(by_weight, next((BY_OP[op] for op in ops if op in BY_OP), ""))


def _producers(plan: BufferPlan) -> dict[Node, list[Node]]:
    steps = set(plan.schedule)
    roots = {n: [plan.root(i) for i in n.inputs] for n in plan.schedule}
    return {n: [r for r in held if r in steps] for n, held in roots.items()}


def _readers(plan: BufferPlan) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {n: [] for n in plan.schedule}
    for node, producers in _producers(plan).items():
        for each in producers:
            found[each].append(node)
    return found
