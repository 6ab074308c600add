"""A feed-forward layer with a norm and a residual, from blocks; and what was fused."""

from __future__ import annotations

import numpy as np

import rlx


def layer(width: int, hidden: int) -> rlx.HirModule:
    m = rlx.HirModule("layer", rlx.FusionPolicy.FUSABLE)
    x = m.input("x", ["tokens", width])
    scale = m.param("scale", [width])
    up, gate = m.param("up", [width, hidden]), m.param("gate", [width, hidden])
    down = m.param("down", [hidden, width])
    normed = m.rms_norm(x, scale)
    m.set_outputs([x + m.swiglu_ffn(normed, up, gate, down)])
    return m


def main() -> None:
    exe = rlx.compile(layer(256, 1024))
    rng = np.random.default_rng(0)
    exe.set_params({
        name: rng.normal(size=shape.dims).astype(np.float32) / 16
        for name, shape in exe.params.items()
    })  # fmt: skip
    for tokens in (1, 128):
        y = exe(rng.normal(size=(tokens, 256)).astype(np.float32))
        print(tokens, "tokens:", y.shape, exe.memory(tokens=tokens).arena_bytes, "bytes of arena")
    print(exe.explain())


if __name__ == "__main__":
    main()
