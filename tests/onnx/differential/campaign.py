"""Batches of draws judged in child processes, and the report on them."""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlx.fuzz.workers import Lost, each
from tests.onnx.differential.building import model_of
from tests.onnx.differential.drawing import BATCH, Key, Node, drawn
from tests.onnx.differential.judging import Verdict, judge
from tests.onnx.differential.running import (
    Outcome,
    Ran,
    Refused,
    by_onnxruntime,
    by_reference,
    by_rlx,
)

LIMIT_S = 240.0
"""Of a batch on a busy machine; only one that hangs takes as long."""


@dataclass(frozen=True, slots=True)
class Job:
    """Draws of one operator, from one number on."""

    key: Key
    first: int
    count: int
    seed: int
    targets: tuple[str, ...] = ("reference", "cpu")
    has_peer: bool = True
    """Is onnxruntime asked? It is not where it took its process along."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one draw."""

    key: Key
    number: int
    opset: int
    verdict: Verdict
    target: str
    elements: int
    """How large the case is."""
    peer: str
    """What onnxruntime did: ran, absent or rejects."""


def work(job: Job) -> list[Judged]:
    """All draws of a job on every target; a fault of a page is a finding, too."""
    try:
        nodes = [drawn(job.key, job.first + i, job.seed) for i in range(job.count)]
        model_of(nodes)
        return _judge_all(job, nodes)
    except Exception as error:
        told = traceback.format_exc(limit=-1).replace("\n", " ")
        broken = Verdict("page", f"{type(error).__name__} {told}")
        return [Judged(job.key, job.first, 0, broken, "", 0, "absent")]


def _judge_all(job: Job, nodes: Sequence[Node]) -> list[Judged]:
    references = [by_reference(n) for n in nodes]
    peers = [by_onnxruntime(n) if job.has_peer else _NO_PEER for n in nodes]
    found: list[Judged] = []
    for target in job.targets:
        for i, (node, made) in enumerate(zip(nodes, _together(nodes, target))):
            verdict = judge(node, made, references[i], peers[i])
            if verdict.is_finding:  # by itself it may be right, which is worse
                verdict = _alone(node, target, verdict, references[i], peers[i])
            found.append(_judged(job, i, node, verdict, target, peers[i]))
    return found


def _alone(node: Node, target: str, found: Verdict, reference: Outcome, peer: Outcome) -> Verdict:
    alone = judge(node, by_rlx([node], target), reference, peer)
    return alone if alone.is_finding else Verdict("batched", f"only in a batch: {found.reason}")


_NO_PEER = Refused("absent", "onnxruntime ended the process")


def _judged(
    job: Job, number: int, node: Node, verdict: Verdict, target: str, peer: Outcome
) -> Judged:
    size = sum(o.array.size + o.rank for o in node.operands if o is not None)
    did = peer.kind if isinstance(peer, Refused) else "ran"
    number += job.first
    return Judged(job.key, number, node.opset, verdict, target, size + len(node.attrs), did)


def _together(nodes: Sequence[Node], target: str) -> list[Outcome]:
    """The outcomes of one model of all the nodes; of each by itself where that does not run."""
    whole = by_rlx(nodes, target) if len(nodes) > 1 else None
    if not isinstance(whole, Ran):
        return [by_rlx([n], target) for n in nodes]
    values = iter(whole.values)
    return [Ran(tuple(next(values) for _ in range(n.outputs))) for n in nodes]


def run(jobs: Sequence[Job], workers: int) -> Iterator[list[Judged]]:
    """The verdicts on every job. One that ends its process is done again draw by draw, and what
    still does, without onnxruntime."""
    for job, got in zip(jobs, each(work, jobs, workers, LIMIT_S)):
        yield _again(job) if isinstance(got, Lost) else got


def _again(job: Job) -> list[Judged]:
    singles = [replace(job, first=job.first + i, count=1) for i in range(job.count)]
    found: list[Judged] = []
    for single, got in zip(singles, each(work, singles, 1, LIMIT_S)):
        if isinstance(got, Lost):
            alone = [replace(single, has_peer=False)]
            got = next(iter(each(work, alone, 1, LIMIT_S)))
        if isinstance(got, Lost):
            lost = Verdict("crashed", got.reason)
            got = [Judged(job.key, single.first, 0, lost, "cpu", 0, "absent")]
        found += got
    return found


def jobs_of(
    keys: Sequence[Key], draws: int, seed: int, targets: tuple[str, ...], first: int = 0
) -> list[Job]:
    return [
        Job(key, at, min(BATCH, first + draws - at), seed, targets)
        for key in keys
        for at in range(first, first + draws, BATCH)
    ]


# -- the report -----------------------------------------------------------------------------------


class Report:
    """What was found, operator by operator."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.words: dict[Key, Counter[str]] = {key: Counter() for key in keys}
        self.peers: dict[Key, Counter[str]] = {key: Counter() for key in keys}
        self.findings: dict[tuple[Key, str], list[Judged]] = defaultdict(list)
        self.explained: Counter[tuple[str, str]] = Counter()
        self.invalid: Counter[tuple[str, str]] = Counter()
        self.since = time.monotonic()

    def add(self, judged: Sequence[Judged]) -> list[Judged]:
        """Count them in; the findings that are the first of their kind."""
        new: list[Judged] = []
        for each_ in judged:
            self.words[each_.key][each_.verdict.word] += 1
            self.peers[each_.key][each_.peer] += 1
            if each_.verdict.is_finding:
                known = self.findings[each_.key, signature(each_)]
                new += [] if known else [each_]
                known.append(each_)
            elif each_.verdict.word == "invalid":
                self.invalid[each_.key[1], signature(each_)] += 1
            elif each_.verdict.word == "explained":
                self.explained[each_.key[1], each_.verdict.reason] += 1
        return new

    @property
    def num_findings(self) -> int:
        return sum(map(len, self.findings.values()))

    def smallest(self) -> list[tuple[Judged, int]]:
        """Of each kind of finding the smallest case, and how many there are of it."""
        found = sorted(self.findings.items(), key=lambda kind: kind[0])
        return [(min(cases, key=lambda j: j.elements), len(cases)) for _, cases in found]


def signature(judged: Judged) -> str:
    """The same for findings that are one defect, as far as their text shows: no numbers in it."""
    text = re.sub(r"n\d+_[a-z0-9_]+|-?\d[\d.e+-]*|nan|inf|\[[^]]*\]", "#", judged.verdict.reason)
    return f"{judged.verdict.word} {text[:90]}"
