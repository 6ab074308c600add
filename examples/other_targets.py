"""One model on every target: where a package or device is missing, the error says which."""

from __future__ import annotations

import numpy as np

import rlx

TARGETS = ("reference", "cpu", "cuda", "rocm", "wgpu", "metal", "mlx", "tpu")


def main() -> None:
    g = rlx.Graph("scores")
    x, w = g.input("x", [3, 4]), g.param("w", [4, 2])
    g.set_outputs([g.softmax(g.mm(x, w), axis=-1)])
    params = {"w": np.arange(8, dtype=np.float32).reshape(4, 2)}
    data = np.eye(3, 4, dtype=np.float32)

    expected = rlx.compile(g, "reference", params=params)(data)
    for target in TARGETS:
        try:
            result = rlx.compile(g, target, params=params)(data)
        except rlx.Error as error:
            print(f"{target}: {error}")
        else:
            assert np.allclose(result, expected, rtol=1e-5)  # another order of four terms
            print(f"{target}: agrees")


if __name__ == "__main__":
    main()
