"""E: ResNet-18 on one image, its batch norms as they are after training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import rlx
from bench.workload import Array, Maker, Workload, bytes_of
from bench.workloads.dense import declared, shaped
from rlx import ops

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Size:
    """The channels of each stage, and of what goes in and out."""

    stages: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 1000
    image: int = 224

    @property
    def stem(self) -> int:
        return self.stages[0]


RESNET = Size()


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution with its norm: its name, channels, kernel, stride and image."""

    name: str
    made: int
    given: int
    kernel: int
    stride: int
    image: int

    @property
    def flops(self) -> float:
        return 2.0 * self.made * self.given * self.kernel**2 * (self.image // self.stride) ** 2


def convolutions(size: Size) -> Iterator[Conv]:
    yield Conv("stem", size.stem, 3, 7, 2, size.image)
    given, image = size.stem, size.image // 4
    for i, made in enumerate(size.stages):
        for j in range(2):
            stride = 2 if i > 0 and j == 0 else 1
            yield Conv(f"s{i}b{j}c1", made, given, 3, stride, image)
            yield Conv(f"s{i}b{j}c2", made, made, 3, 1, image // stride)
            if stride != 1:
                yield Conv(f"s{i}b{j}ds", made, given, 1, stride, image)
            given, image = made, image // stride


def _network(x: Any, p: Any, size: Size, convolved: Any, relu: Any, pooled: Any) -> Any:
    """The layers up to the mean over the image, in whatever the three functions make."""
    x = pooled(relu(convolved(x, "stem", 2, 3)))
    for i in range(len(size.stages)):
        for j in range(2):
            name, stride = f"s{i}b{j}", 2 if i > 0 and j == 0 else 1
            y = convolved(relu(convolved(x, f"{name}c1", stride, 1)), f"{name}c2", 1, 1)
            x = relu((convolved(x, f"{name}ds", stride, 0) if stride != 1 else x) + y)
    return x


def resnet_function(size: Size) -> Any:
    def function(k: Any, p: Any, x: Any) -> Any:
        def convolved(x: Any, name: str, stride: int, padding: int) -> Any:
            made = k.conv(x, p[f"{name}.cw"], stride, padding)
            return k.batch_norm(made, *(p[f"{name}.{c}"] for c in "gbmv"), EPS)

        made = _network(x, p, size, convolved, k.relu, k.max_pool)
        return k.linear(k.image_mean(made), p["fc.w"], p["fc.b"])

    return function


def resnet_model(params: Mapping[str, Array], x: Array, size: Size) -> rlx.HirModule:
    m = rlx.HirModule("resnet18")
    image, p = m.input("x", shaped(x)), declared(m, params)

    def convolved(x: Any, name: str, stride: int, padding: int) -> Any:
        made = ops.conv(x, p[f"{name}.cw"], stride=(stride, stride), padding=(padding,) * 4)
        return ops.batch_norm(made, *(p[f"{name}.{c}"] for c in "gbmv"), eps=EPS)

    def pooled(x: Any) -> Any:
        return ops.max_pool(x, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))

    made = ops.mean(_network(image, p, size, convolved, ops.relu, pooled), axes=(2, 3))
    m.set_outputs([m.linear(made, p["fc.w"], p["fc.b"])])
    return m


def resnet_params(size: Size = RESNET) -> dict[str, Array]:
    make = Maker(11)
    params: dict[str, Array] = {}
    for c in convolutions(size):
        dims, scale = (c.made, c.given, c.kernel, c.kernel), (2 / c.given) ** 0.5 / c.kernel
        params[f"{c.name}.cw"] = make.normal(*dims, scale=scale)
        params[f"{c.name}.g"] = make.near_one(c.made)
        params[f"{c.name}.b"] = make.normal(c.made, scale=0.1)
        params[f"{c.name}.m"] = make.normal(c.made, scale=0.1)
        params[f"{c.name}.v"] = abs(make.normal(c.made, scale=0.1)) + 1
    params["fc.w"] = make.weight(size.classes, size.stages[-1])
    params["fc.b"] = make.normal(size.classes, scale=0.1)
    return params


def resnet(params: Mapping[str, Array], size: Size = RESNET) -> Workload:
    x = Maker(12).normal(1, 3, size.image, size.image)
    flops = sum(c.flops for c in convolutions(size)) + 2.0 * size.stages[-1] * size.classes
    return Workload(
        "E_resnet18", f"ResNet-18, 1×{size.image}²", resnet_function(size),
        lambda given: resnet_model(given, x, size), params, (x,), flops=flops,
        reads=bytes_of(params, (x,)), writes=4.0 * size.classes, tolerance=1e-3, has_images=True,
    )  # fmt: skip
