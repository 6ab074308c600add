"""Times peers side by side: a process each, stopped unless it is its turn, in many short rounds.

What slows the machine for a while slows the turns of a round alike, so that ratios are taken
within rounds; and nothing of a peer that waits, such as threads that spin, costs the others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.machine import await_quiet
from bench.peers import OURS, PEERS, Peer

SLOW = 25
"""A peer this many times slower than the fastest takes part in one round only."""

READY_SECONDS, TURN_SECONDS = 600.0, 300.0
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is done."""

    rounds: int = 7
    seconds: float = 0.3
    threads: int = 2
    target: str = "cpu"
    patience: float = 5.0
    precision: str = ""
    """What products are carried out in; nothing for single precision."""


@dataclass(slots=True)
class Row:
    """A peer on a workload: its turns, or why there are none."""

    peer: str
    why: str = ""
    setup: dict[str, Any] = field(default_factory=dict[str, Any])
    turns: list[list[float]] = field(default_factory=list[list[float]])


@dataclass(slots=True)
class Measured:
    """A workload's rows, and how idle the machine was before each round."""

    workload: str
    rows: list[Row]
    idle: list[float]


class Failed(Exception):
    """A worker that said why, or died without a word."""


class Worker:
    """A peer's process and all that it starts, as a group that can be stopped."""

    def __init__(self, module: str, what: Sequence[str], plan: Plan, **more: str) -> None:
        limits = dict.fromkeys(THREAD_LIMITS, str(plan.threads))
        command = [sys.executable, "-m", module, *what]
        command += ["--threads", str(plan.threads), "--target", plan.target]
        command += ["--precision", plan.precision] if plan.precision else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **limits, **more}, start_new_session=True,
        )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """Send it to the whole group, unless that has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def heard(self, seconds: float) -> dict[str, Any]:
        """The next thing the worker says."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            raise Failed(f"said nothing for {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"ended with code {self._process.wait()}")
        said = json.loads(line)
        if "failed" in said:
            raise Failed(said["failed"])
        return said

    def turn(self, seconds: float) -> list[float]:
        """Nanoseconds per call over one turn."""
        return self.answer(str(seconds))["ns"]

    def answer(self, line: str) -> dict[str, Any]:
        """What a line makes the worker say; it runs only meanwhile."""
        assert self._process.stdin is not None
        self.signal(signal.SIGCONT)
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        try:
            return self.heard(TURN_SECONDS)
        finally:
            self.signal(signal.SIGSTOP)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()


def prepare(workload: str, peers: Iterable[Peer]) -> None:
    """What the workers read from disk."""
    needs = ["--onnx"] if any(p.needs_onnx and not p.excuse(workload) for p in peers) else []
    command = [sys.executable, "-m", "bench.prepare", workload, *needs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{workload} cannot be prepared:\n{done.stderr[-2000:]}")


def measure(workload: str, peers: list[str], plan: Plan, tell: Callable[[str], None]) -> Measured:
    """All rounds of one workload."""
    rows = [Row(name) for name in peers]
    result = Measured(workload, rows, [])
    prepare(workload, [PEERS[name] for name in peers])
    with ExitStack() as stack:
        running: list[tuple[Row, Worker]] = []
        for row in rows:
            tell(f"{workload}: {row.peer} is set up")
            worker = _started(row, workload, plan, stack)
            if worker is not None:
                running.append((row, worker))
        for i in range(plan.rounds):
            result.idle.append(await_quiet(plan.patience))
            _round(i, running, plan, lambda name, i=i: tell(f"{workload}: round {i + 1}, {name}"))
    return result


def _started(row: Row, workload: str, plan: Plan, stack: ExitStack) -> Worker | None:
    """The row's worker, ready and stopped; if there is none, the row says why."""
    peer = PEERS[row.peer]
    row.why = peer.excuse(workload, plan.precision)
    if row.why:
        return None
    worker = Worker("bench.worker", (peer.name, workload), plan, **peer.environment)
    stack.callback(worker.end)
    try:
        row.setup = worker.heard(READY_SECONDS)
    except Failed as error:
        row.why = str(error)
        return None
    worker.signal(signal.SIGSTOP)
    return worker


def _round(
    index: int, running: list[tuple[Row, Worker]], plan: Plan, tell: Callable[[str], None]
) -> None:
    """A turn for everyone, beginning with another one each time."""
    fastest = min((row.setup["one_s"] for row, _ in running), default=0.0)
    start = index % max(len(running), 1)
    for row, worker in running[start:] + running[:start]:
        is_slow = row.setup["one_s"] > max(SLOW * fastest, plan.seconds)
        if row.why or (is_slow and row.turns and row.peer not in OURS):
            continue
        tell(row.peer)
        try:
            row.turns.append(worker.turn(plan.seconds))
        except (Failed, BrokenPipeError) as error:
            row.why = str(error)


class Progress:
    """One line that says what is going on, on a terminal; nothing elsewhere but the steps."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start = total, 0, time.perf_counter()
        self._is_terminal = sys.stderr.isatty()

    def tell(self, what: str) -> None:
        if self._is_terminal:
            passed = time.perf_counter() - self._start
            bar = "█" * self._done + "░" * (self._total - self._done)
            print(f"\r\033[K{bar} {passed:4.0f} s  {what}", end="", file=sys.stderr, flush=True)

    def finished(self, what: str) -> None:
        self._done += 1
        if not self._is_terminal:
            print(f"{self._done}/{self._total} {what}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def present(asked: str | None, target: str = "cpu") -> list[str]:
    """The peers to run: those asked for, or all of a target."""
    beside = [n for n, p in PEERS.items() if n in OURS or target.partition(":")[0] == p.target]
    names = beside if asked is None else asked.split(",")
    if unknown := [n for n in names if n not in PEERS]:
        raise SystemExit(f"no peer is called {unknown[0]!r}; there are: {', '.join(PEERS)}")
    return names
