"""The same model, weights and tokens on other runtimes, where they are installed."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.peers import PEERS
from bench.workload import Workload
from bench.workloads.minilm import minilm, published_params
from demo.encoder import Array, Encoder

RIVALS = ("onnxruntime", "torch")
ROUNDS, ROUND_S = 15, 0.04
Call = Callable[[], Any]


def timed(encoder: Encoder, text: str, threads: int) -> dict[str, tuple[float, float]]:
    """Runtime → milliseconds for the vector of one text, and how far it is from rlx's."""
    ids, mask, kinds = encoder.tokens([text])
    ours = encoder.exe(ids, mask, kinds)
    calls: dict[str, Call] = {"rlx": lambda: encoder.exe(ids, mask, kinds)}
    apart = {"rlx": 0.0}
    if installed():
        workload = _workload(ids, mask)
        for name in installed():
            runner = _prepared(name, workload, threads)
            calls[name] = runner.call
            apart[name] = float(np.abs(_unit(runner.arrays(runner.call())[0]) - ours).max())
    return {name: (ms, apart[name]) for name, ms in _in_turns(calls).items()}


def installed() -> list[str]:
    return [name for name in RIVALS if not PEERS[name].missing()]


def _workload(ids: Array, mask: Array) -> Workload:
    made = minilm(*ids.shape, published_params())
    return replace(made, name=f"demo_{ids.shape[1]}", inputs=(ids, mask))


def _prepared(name: str, workload: Workload, threads: int) -> Any:
    """Ready to call; what exporters have to say of their own matters is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            if PEERS[name].needs_onnx:
                from bench.prepare import export

                export(workload)
            return PEERS[name].prepare(workload, threads)
        finally:
            logging.disable(logging.NOTSET)


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _in_turns(calls: Mapping[str, Call]) -> dict[str, float]:
    """The median milliseconds of a call; turns alternate, so that what slows one slows all."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(_turn(call))
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def _turn(call: Call) -> float:
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
