"""What a search tries: the launches of a call that may be other programs, and at which sizes.

Launches are tried at the sizes that the plan was made for. Where a kernel has several alternatives,
by buckets of its sizes, each is tried at sizes of its own; those of the plan come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product as every_pair

from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.runtime.lay_out import span_of
from rlx.backends.gpu.runtime.routine import Span
from rlx.backends.gpu.runtime.trial import Problem
from rlx.backends.gpu.task import Choice, GpuTask, Launch
from rlx.core.dim import Dim, evaluate, lower_bound, symbols_of, upper_bound
from rlx.core.extent import ceiling
from rlx.ir.lir import Phase
from rlx.kernel.program.program import KernelProgram, KernelSequence, ProgramStep
from rlx.kernel.program.schedule import Buffer

LEAST_SHARE = 0.01
"""Of what all launches at the same sizes are predicted to take, for one to be tried."""
MAX_SIZES = 1024
"""Sizes that are looked at for those of each alternative."""
Sizes = Mapping[str, int]


def largest(program: KernelProgram) -> list[Problem]:
    """The launches that are worth it, once each: at the plan's sizes first, then at others; those
    that take most of a call before the others."""
    found: dict[object, tuple[Problem, int]] = {}
    totals: dict[object, float] = {}
    for problem in problems_of(program):
        known, count = found.get(problem.launch.key, (problem, 0))
        found[problem.launch.key] = known, count + 1
        at = _key(known.sizes)
        totals[at] = totals.get(at, 0.0) + problem.launch.predicted_ns
    usual = _key(program.lir.plan.representative)
    shares = [(p, n * p.launch.predicted_ns / totals[_key(p.sizes)]) for p, n in found.values()]
    large = [(p, share) for p, share in shares if share >= LEAST_SHARE]
    ranked = sorted(large, key=lambda pair: (_key(pair[0].sizes) != usual, -pair[1]))
    return [p for p, _ in ranked]


def _key(sizes: Sizes) -> object:
    return tuple(sorted(sizes.items()))


def problems_of(program: KernelProgram) -> Iterator[Problem]:
    """Every launch of a call that has other programs, in all alternatives of its kernel."""
    alternatives: dict[Buckets, dict[int, Sizes]] = {}
    for top in program.main.calls:
        for step in top.within():
            if isinstance(step.lowering, KernelSequence):
                for launch, sizes in _launches(step.lowering.schedule.tasks, program, alternatives):
                    problem = problem_of(launch, step, program, sizes) if launch.others else None
                    yield from () if problem is None else (problem,)


def _launches(
    tasks: Sequence[GpuTask], program: KernelProgram, known: dict[Buckets, dict[int, Sizes]]
) -> Iterator[tuple[Launch, Sizes]]:
    usual = program.lir.plan.representative
    for task in tasks:
        if isinstance(task, Launch):
            yield task, usual
        elif isinstance(task, Choice):
            if task.buckets not in known:
                known[task.buckets] = sizes_of_alternatives(task.buckets, usual)
            for number, sizes in known[task.buckets].items():
                yield from ((launch, sizes) for launch in task.alternatives[number])


def sizes_of_alternatives(buckets: Buckets, usual: Sizes) -> dict[int, Sizes]:
    """Alternative → sizes at which a call takes it: the usual ones for the one that these take, and
    first; for another the greatest powers of two up to them, for which it was chosen."""
    symbols = symbols_of(buckets.sizes)
    if any(s.name not in usual for s in symbols):
        return {}
    found = {buckets.at(lambda d: evaluate(d, usual)): usual}
    totals: dict[int, int] = {}
    for sizes in _smaller(symbols, usual):
        number = buckets.at(lambda d, at=sizes: evaluate(d, at))
        total = sum(evaluate(d, sizes) for d in buckets.sizes)
        if found.get(number) is not usual and total > totals.get(number, 0):
            found[number], totals[number] = sizes, total
    return found


def _smaller(symbols: Sequence[Dim], usual: Sizes) -> Iterator[Sizes]:
    """All sizes whose symbols are powers of two, up to the usual ones."""
    ranges = [_powers(s, usual[s.name]) for s in symbols]
    count = 1
    for each in ranges:
        count *= len(each)
    for values in every_pair(*ranges) if count <= MAX_SIZES else ():
        yield {**usual, **{s.name: v for s, v in zip(symbols, values)}}


def _powers(symbol: Dim, usual: int) -> list[int]:
    low, high = lower_bound(symbol), upper_bound(symbol)
    most = usual if high is None else min(usual, high)
    powers = (1 << i for i in range(max(1, most).bit_length()))
    return [p for p in powers if low <= p <= most] or [usual]


def problem_of(
    launch: Launch, step: ProgramStep, program: KernelProgram, sizes: Sizes | None = None
) -> Problem | None:
    """What a launch of a step is tried on; nothing where a size is known in a call alone, or there
    is nothing to do."""
    at = program.lir.plan.representative if sizes is None else sizes
    ends = {n: _end(span_of(step, b), at) for n, b in zip(launch.names, launch.buffers)}
    known = {name: end for name, end in ends.items() if end}
    if len(known) < len(ends):
        return None
    named = zip(launch.names, launch.buffers)
    weights = frozenset(name for name, b in named if _is_weight(b, step, program))
    return Problem(launch, at, known, weights)


def _is_weight(buffer: Buffer, step: ProgramStep, program: KernelProgram) -> bool:
    if buffer.kind != "operand":
        return buffer.kind == "packed"
    node = step.operands[buffer.index].node
    return program.main.plan.phases.get(node) is Phase.PROLOGUE and node.op != "input"


def _end(span: Span, sizes: Sizes) -> int | None:
    """The bytes up to the last element that a layout reaches; none where it has no elements, or
    where that is known in a call alone."""
    layout = span.layout
    every = [ceiling(d) for d in (*layout.dims, *layout.strides, layout.offset)]
    if any(s.name not in sizes for s in symbols_of(every)):
        return None
    *rest, offset = (evaluate(d, sizes) for d in every)
    dims, strides = rest[: len(layout.dims)], rest[len(layout.dims) :]
    if 0 in dims:
        return None
    last = offset + sum((d - 1) * s for d, s in zip(dims, strides) if s > 0)
    return (last + 1) * span.itemsize
