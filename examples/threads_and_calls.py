"""Thread counts, calls in flight, reused outputs. Bits do not depend on any of them."""

from __future__ import annotations

import numpy as np

import rlx


def main() -> None:
    g = rlx.Graph("product")
    x, w = g.input("x", [512, 512]), g.param("w", [512, 512])
    g.set_outputs([g.tanh(g.mm(x, w))])
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(512, 512)).astype(np.float32) for _ in range(2))

    exe = rlx.compile(g, threads=2, params={"w": b})
    expected = exe(a)
    with rlx.threads(1):
        assert np.array_equal(exe(a), expected)

    first, second = exe.submit(a), exe.submit(-a)  # calls that are under way
    assert np.array_equal(first.result(), expected)
    print("of the second:", second.result().sum())

    out = np.empty_like(expected)
    for _ in range(3):
        exe(a, out=out)
    assert np.array_equal(out, expected)


if __name__ == "__main__":
    main()
