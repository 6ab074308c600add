"""Models that benches and tests share."""

from __future__ import annotations

import numpy as np

import rlx
from rlx.core.dim import Dim

WIDTH, HEADS, KV_HEADS, FFN = 768, 12, 4, 2048


def chain(nodes: int) -> rlx.Graph:
    """A chain of elementwise nodes."""
    g = rlx.Graph(f"chain{nodes}")
    y = g.input("x", rlx.Shape([1024], "f32"))
    for i in range(nodes):
        y = g.node(("exp", "neg", "tanh", "abs", "sin")[i % 5], (y,))
    g.set_outputs([y])
    return g


def transformer(
    layers: int,
    seq: int | Dim,
    *,
    width: int = WIDTH,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    ffn: int = FFN,
    policy: rlx.FusionPolicy = rlx.FusionPolicy.DIRECT,
) -> rlx.HirModule:
    """Llama-style decoder blocks."""
    head = width // heads
    m = rlx.HirModule(f"llama{layers}", policy)
    x = m.input("x", rlx.Shape([1, seq, width]))
    cos = m.input("cos", rlx.Shape([seq, head // 2]))
    sin = m.input("sin", rlx.Shape([seq, head // 2]))
    for i in range(layers):
        dims = {
            "attention_norm": (width,),
            "wq": (width, width),
            "wk": (width, kv_heads * head),
            "wv": (width, kv_heads * head),
            "wo": (width, width),
            "ffn_norm": (width,),
            "up": (width, ffn),
            "gate": (width, ffn),
            "down": (ffn, width),
        }
        p = {k: m.param(f"layer{i}.{k}", rlx.Shape(d)) for k, d in dims.items()}
        x = m.llama_decoder_block(
            x,
            p["attention_norm"],
            p["wq"],
            p["wk"],
            p["wv"],
            p["wo"],
            cos,
            sin,
            p["ffn_norm"],
            p["up"],
            p["gate"],
            p["down"],
            num_heads=heads,
            kv_heads=kv_heads,
            head_dim=head,
            eps=1e-5,
        )
    m.set_outputs([x])
    return m


def welch(*, with_spectrum: bool, batch: int = 8192, n_fft: int = 256) -> rlx.Graph:
    """Segments minus themselves, transformed, and the peaks of the averaged power."""
    g = rlx.Graph("welch")
    segments = g.input("segments", rlx.Shape([batch * 2, n_fft]))
    imaginary = g.sub(segments, segments)
    spectrum = g.fft(g.concat([segments, imaginary], axis=1))
    peaks = g.welch_peaks(spectrum, k=16, n_segments=2)
    g.set_outputs([spectrum] if with_spectrum else [peaks])
    return g


def random_values(
    leaves: dict[str, rlx.Shape], seed: int = 0, **sizes: int
) -> dict[str, np.ndarray]:
    """Small random numbers for inputs or params."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape.bind(sizes).static_dims) * 0.1).astype(shape.dtype.numpy)
        for name, shape in leaves.items()
    }
