"""What computes a language model's tokens: rlx, llama.cpp, openvino-genai; each loads the same
`.gguf` file and is asked for the rate of a workload."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlx.lm.bench import Workload, measured
from rlx.lm.slots import Part, Slots

REPETITIONS = 2
"""Of a workload in a turn, after one that is not counted."""


class Runner(Protocol):
    """A loaded model."""

    def rate(self, test: Workload) -> float:
        """Tokens a second."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a model is loaded with."""

    path: Path
    threads: int
    context: int
    sequences: int


@dataclass(frozen=True, slots=True)
class OfSlots:
    """The rates of slots, by the workloads of `rlx lm-bench`."""

    slots: Slots
    vocabulary: int

    def rate(self, test: Workload) -> float:
        return next(measured(self.slots, self.vocabulary, [test], REPETITIONS)).mean


def ours(setting: Setting) -> Runner:
    import rlx

    lm = rlx.lm.load(
        setting.path, context=setting.context, slots=setting.sequences, threads=setting.threads
    )
    return OfSlots(lm.decoder, len(lm.tokenizer.texts))


def llama_cpp(setting: Setting) -> Runner:
    found = _LlamaCpp(setting)
    return OfSlots(found, found.vocabulary)


class _LlamaCpp:
    """llama.cpp's sequences as slots, with its defaults for all but the number of threads."""

    def __init__(self, setting: Setting) -> None:
        self._lib: Any = importlib.import_module("llama_cpp")
        self._quiet = self._lib.llama_log_callback(lambda *_: None)
        self._lib.llama_log_set(self._quiet, ctypes.c_void_p())
        self._lib.llama_backend_init()
        model = self._lib.llama_model_load_from_file(
            os.fsencode(setting.path), self._lib.llama_model_default_params()
        )
        how = self._lib.llama_context_default_params()
        how.n_ctx, how.n_seq_max = setting.context * setting.sequences, setting.sequences
        how.n_threads = how.n_threads_batch = setting.threads
        how.n_batch = max(how.n_batch, setting.sequences * how.n_ubatch)
        self._context = self._lib.llama_init_from_model(model, how)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self.vocabulary = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(model))
        self._lengths = [0] * setting.sequences
        self._batch = self._lib.llama_batch_init(how.n_batch, 0, 1)
        shape = (how.n_batch,)
        self._columns = [
            np.ctypeslib.as_array(getattr(self._batch, name), shape)
            for name in ("token", "pos", "logits")
        ]

    @property
    def count(self) -> int:
        return len(self._lengths)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def step(self, parts: Sequence[Part]) -> list[Any]:
        """All tokens in one batch. Logits are computed, and left where they are."""
        count = 0
        for part in parts:
            count = self._added(part, count)
        self._batch.n_tokens = count
        if self._lib.llama_decode(self._context, self._batch):
            raise RuntimeError("llama.cpp could not decode a batch")
        self._lib.llama_synchronize(self._context)
        return []

    def _added(self, part: Part, start: int) -> int:
        end, length = start + len(part.tokens), self._lengths[part.slot]
        token, position, logits = self._columns
        token[start:end] = part.tokens
        position[start:end] = np.arange(length, length + len(part.tokens))
        logits[start:end] = 0
        logits[[start + row for row in part.rows]] = 1
        for i in range(start, end):
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, part.slot
        self._lengths[part.slot] += len(part.tokens)
        return end

    def keeps(self, slot: int, length: int) -> int:
        return min(length, self._lengths[slot])

    def truncate(self, slot: int, length: int) -> None:
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_seq_rm(memory, slot, length, -1)
        self._lengths[slot] = min(self._lengths[slot], length)

    def copy(self, source: int, target: int, length: int) -> None:
        raise AssertionError("no workload copies sequences")


class _OpenVino:
    """openvino-genai's pipeline, with its defaults for all but the number of threads, and prompts
    that are never the same: rates are those that it measures of itself."""

    def __init__(self, setting: Setting) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        how = {"INFERENCE_NUM_THREADS": setting.threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = self._genai.LLMPipeline(str(setting.path), "CPU", **how)
        self._tokens = np.random.default_rng(1)

    def rate(self, test: Workload) -> float:
        self._metrics(test)
        found = [self._seconds(test) for _ in range(REPETITIONS)]
        return test.tokens / (sum(found) / len(found))

    def _seconds(self, test: Workload) -> float:
        metrics = self._metrics(test)
        if test.is_prompt:
            return metrics.get_ttft().mean / 1e3
        return test.tokens * metrics.get_tpot().mean / 1e3

    def _metrics(self, test: Workload) -> Any:
        """Of an answer: its first token ends a prompt, each after it is a step of decoding."""
        if test.sequences > 1 or (test.is_prompt and test.depth):
            raise ValueError(f"{test.name} is not measured on openvino-genai")
        how = self._genai.GenerationConfig()
        how.max_new_tokens, how.ignore_eos = 1 if test.is_prompt else test.tokens + 1, True
        return self._pipeline.generate(self._prompt(test), how).perf_metrics

    def _prompt(self, test: Workload) -> Any:
        tensor = importlib.import_module("openvino").Tensor
        count = test.tokens if test.is_prompt else max(test.depth, 1)
        ids = self._tokens.integers(1000, 20000, (1, count))
        return self._genai.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))


RUNNERS: dict[str, Callable[[Setting], Runner]] = {
    "rlx": ours,
    "llama.cpp": llama_cpp,
    "openvino-genai": _OpenVino,
}
PACKAGES = {"llama.cpp": "llama-cpp-python", "openvino-genai": "openvino-genai"}
_MODULES = {"llama.cpp": "llama_cpp", "openvino-genai": "openvino_genai"}


def installed(name: str) -> bool:
    return name not in _MODULES or importlib.util.find_spec(_MODULES[name]) is not None


def version(name: str) -> str:
    """Of the package that brings it; where it is only on the path, of the module."""
    try:
        return importlib.metadata.version(PACKAGES.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(_MODULES[name]), "__version__", ""))
