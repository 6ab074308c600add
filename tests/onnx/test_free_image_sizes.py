"""Convolutional nets whose images have a free height and width: one program for all sizes.

Random nets of strided, padded and dilated convolutions, pools that round up or down, resizes, and
joins with what was before, against the same net read for one size and evaluated with NumPy:
`python -m tests.onnx.test_free_image_sizes FIRST LAST` tries more of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rlx
from rlx.frontends.onnx.model import Model, from_proto
from rlx.ir.interpret import evaluate

SIZES = ((16, 16), (37, 64), (64, 33), (48, 80), (95, 31), (1, 7), (128, 96))
RTOL, ATOL = 1e-4, 1e-4
"""Sums of up to some hundred products of numbers near 1, in another order, through six layers."""


@dataclass(slots=True)
class Net:
    """Nodes and weights of a random net; of each image its channels and how often it was halved."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list[Any])
    weights: list[Any] = field(default_factory=list[Any])
    images: list[tuple[str, int, int]] = field(default_factory=lambda: [("x", 3, 0)])

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def array(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def conv(self) -> None:
        x, channels, halved = self.images[-1]
        kernel, stride, dilation = self.pick(1, 3, 3, 5), self.pick(1, 1, 2, 3), self.pick(1, 1, 2)
        is_depthwise = channels > 3 and self.pick(True, False, False)
        made = channels if is_depthwise else self.pick(4, 8, 16)
        groups = channels if is_depthwise else 1
        dims = (made, channels // groups, kernel, kernel)
        scale = (kernel * kernel * channels / groups) ** -0.5
        w = self.array((self.rng.standard_normal(dims) * scale).astype(np.float32))
        b = self.array(self.rng.standard_normal(made).astype(np.float32))
        pads = [int(p) for p in self.rng.integers(0, dilation * (kernel - 1) + 1, 4)]
        y = self.node(
            "Conv", [x, w, b], strides=[stride] * 2, pads=pads, dilations=[dilation] * 2,
            group=groups,
        )  # fmt: skip
        self.images.append((self.activation(y), made, halved + (stride == 2)))

    def halving(self) -> None:
        """As residual nets and detectors halve images: rounded up."""
        x, channels, halved = self.images[-1]
        w = self.array((self.rng.standard_normal((8, channels, 3, 3)) / 5).astype(np.float32))
        y = self.node("Conv", [x, w], strides=[2, 2], pads=[1, 1, 1, 1])
        self.images.append((self.activation(y), 8, halved + 1))

    def pool(self) -> None:
        x, channels, halved = self.images[-1]
        op, stride = self.pick("MaxPool", "AveragePool"), self.pick(1, 2, 3)
        kernel = self.pick(2, 3)
        how: dict[str, Any] = {"count_include_pad": self.pick(0, 1)} if op[0] == "A" else {}
        pads = [int(p) for p in self.rng.integers(0, kernel, 4)]
        y = self.node(
            op, [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads,
            ceil_mode=self.pick(0, 1), **how,
        )  # fmt: skip
        self.images.append((y, channels, halved + (stride == 2)))

    def resize(self) -> None:
        """By a factor, or to the size of an image before."""
        x, channels, halved = self.images[-1]
        mode = self.pick("nearest", "linear")
        rounds = "asymmetric" if mode == "nearest" else self.pick("half_pixel", "asymmetric")
        how = {"mode": mode, "coordinate_transformation_mode": rounds, "nearest_mode": "floor"}
        if self.pick(True, False):
            by = self.array(np.array([1, 1, 2, 2], np.float32))
            y = self.node("Resize", [x, "", by], **how)
        else:
            like, more, halved = self.pick(*self.images)
            last = self.node("Slice", [self.node("Shape", [like]), *map(self.array, _LAST)])
            first = self.node("Slice", [self.node("Shape", [x]), *map(self.array, _FIRST)])
            y = self.node("Resize", [x, "", "", self.node("Concat", [first, last], axis=0)], **how)
            if self.pick(True, False):
                y, channels = self.node("Concat", [y, like], axis=1), channels + more
        self.images.append((y, channels, halved))

    def joined(self) -> None:
        """The halved image doubled again, beside what it was, as U-nets have it."""
        x, channels, halved = self.images[-1]
        before = [i for i in self.images if i[2] == halved - 1]
        if not before or not self._is_chain():
            return self.conv()
        y = self.node(
            "Resize", [x, "", self.array(np.array([1, 1, 2, 2], np.float32))], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        other, more, _ = before[-1]
        y = self.node("Concat", [y, other], axis=1)
        self.images.append((y, channels + more, halved - 1))
        return None

    def _is_chain(self) -> bool:
        """Are all images halved ones of the first, rounded up? Else doubling need not undo it."""
        convs = [n for n in self.nodes if n.op_type in ("Conv", "MaxPool", "AveragePool")]
        attrs = [{a.name: list(a.ints) for a in n.attribute} for n in convs]
        return all(a.get("pads") == [1, 1, 1, 1] and "dilations" not in a for a in attrs)

    def activation(self, x: str) -> str:
        op = self.pick("Relu", "Sigmoid", "")
        return self.node(op, [x]) if op else x


_LAST = (np.array([2]), np.array([4]))
_FIRST = (np.array([0]), np.array([2]))


def net(seed: int) -> ModelProto:
    made = Net(np.random.default_rng(seed))
    layers = (made.conv, made.conv, made.pool, made.resize)
    if seed % 2:  # halved and doubled again: sizes that are multiples
        made.halving()
        made.halving()
        made.joined()
    for _ in range(4):
        made.pick(*layers)()
    last, channels, _ = made.images[-1]
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
        for n, dims in (("x", ["batch", 3, "h", "w"]), (last, ["batch", channels, None, None]))
    ]
    graph = helper.make_graph(made.nodes, f"net{seed}", infos[:1], infos[1:], made.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


def expected(model: Model, x: Any) -> Any:
    """Of the model read for this one size, by NumPy; an error where it has no meaning."""
    read = model.by_shapes().specialised([x])
    return evaluate(read.graph, {"x": x, **read.params})[0]


def check(seed: int) -> int:
    """How many sizes were right; an image that the net has no meaning for is refused."""
    model = from_proto(net(seed))
    assert not model.is_static, model.why_static
    exe = rlx.compile(model, threads=1)
    rng, right = np.random.default_rng(seed), 0
    for batch, (h, w) in enumerate(SIZES):
        x = rng.standard_normal((1 + batch % 2, 3, h, w)).astype(np.float32)
        try:
            want = expected(model, x)
        except rlx.Error:
            with pytest.raises(rlx.Error):
                exe(x)
            continue
        np.testing.assert_allclose(exe(x), want, RTOL, ATOL, err_msg=f"{seed}: {h}×{w}")
        right += 1
    return right


@pytest.mark.parametrize("seed", range(4))
def test_one_program_for_all_sizes(seed: int) -> None:
    assert check(seed) > 0


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        print(number, check(number), flush=True)
