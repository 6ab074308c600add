"""The workloads by name, with arrays that every process of a run shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import cache
from bench.workload import Array, Workload
from bench.workloads import dense, llama, minilm, resnet, spectral


def minilm_params() -> Mapping[str, Array]:
    """The trained weights where their package is installed, else random ones."""
    if minilm.has_published_weights():
        return cache.arrays("minilm-trained", minilm.published_params)
    return cache.arrays("minilm-random", minilm.random_params)


def _llama_params() -> Mapping[str, Array]:
    return cache.arrays("llama", llama.llama_params)


def _minilm(batch: int, length: int) -> Callable[[], Workload]:
    return lambda: minilm.minilm(batch, length, minilm_params())


WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "A_mlp": dense.mlp,
    "B_tiny": dense.tiny,
    "C_1x16": _minilm(1, 16),
    "C_1x128": _minilm(1, 128),
    "C_8x128": _minilm(8, 128),
    "C_32x128": _minilm(32, 128),
    "D_prefill": lambda: llama.prefill(_llama_params()),
    "D_decode": lambda: llama.decode(_llama_params()),
    "E_resnet18": lambda: resnet.resnet(cache.arrays("resnet18", resnet.resnet_params)),
    "F_welch": spectral.welch,
    "F_logmel": spectral.logmel,
    "G_softmax": dense.softmax,
    "G_chain": dense.chain,
    "G_layernorm": dense.layernorm,
}


def chosen(only: str | None) -> list[str]:
    """Names that begin as asked: "A,C1x128" is A_mlp and C_1x128; None is all."""
    if only is None:
        return list(WORKLOADS)
    asked = [part.replace("_", "").lower() for part in only.split(",")]
    names = [n for n in WORKLOADS if any(n.replace("_", "").lower().startswith(a) for a in asked)]
    if not names:
        raise SystemExit(f"no workload is called {only!r}; there are: {', '.join(WORKLOADS)}")
    return names
