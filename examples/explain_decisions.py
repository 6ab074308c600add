"""Every fusion is a decision with an id: reverse one, compare the plans, and time both."""

from __future__ import annotations

import numpy as np

import rlx


def main() -> None:
    g = rlx.Graph("mlp")
    x, w, b = g.input("x", [64, 256]), g.param("w", [256, 256]), g.param("b", [256])
    g.set_outputs([g.gelu(g.mm(x, w) + b)])
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(256, 256)).astype(np.float32), "b": np.ones(256, np.float32)}

    exe = rlx.compile(g, params=params)
    for decision in exe.decisions:
        print(f"{'taken' if decision.verdict else 'refused'}: {decision.what}: {decision.reason}")

    fused = next(d for d in exe.decisions if d.what == "fuse_matmul_bias_act")
    options = rlx.FusionOptions(force={fused.id: False})
    unfused = rlx.compile(g, options=options, params=params)
    print(rlx.explain.diff(exe.explain(), unfused.explain()))

    data = rng.normal(size=(64, 256)).astype(np.float32)
    assert np.allclose(unfused(data), exe(data), atol=1e-4)  # another order of the same sums
    print(exe.measure([data], most=2, seconds=0.05))


if __name__ == "__main__":
    main()
