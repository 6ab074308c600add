"""Vision networks as torchvision defines them, small, with random weights; a tagger, a detector."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation(inplace=True)] if activation else []))


# -- ResNet ---------------------------------------------------------------------------------------
class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv_norm(inputs, outputs, 3, stride)
        self.conv2 = conv_norm(outputs, outputs, activation=None)
        self.relu = nn.ReLU(inplace=True)
        is_same = stride == 1 and inputs == outputs
        self.down = None if is_same else conv_norm(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 96), classes: int = 10) -> None:
        super().__init__()
        self.stem = conv_norm(3, widths[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        last = widths[0]
        for i, width in enumerate(widths):
            blocks += [Residual(last, width, 1 if i == 0 else 2), Residual(width, width, 1)]
            last = width
        self.layers = nn.Sequential(*blocks)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(self.pool(self.stem(x)))
        return self.head(torch.flatten(self.average(y), 1))


# -- MobileNetV3 and EfficientNet -----------------------------------------------------------------
class Squeeze(nn.Module):
    def __init__(self, channels: int, hidden: int, gate: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.average = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.gate, self.activation = gate, activation

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.activation(self.fc1(self.average(x)))))


class Inverted(nn.Module):
    """An inverted residual: expand, depthwise, squeeze, project."""

    def __init__(
        self, inputs: int, outputs: int, expand: int, kernel: int, stride: int,
        activation: type[nn.Module], gate: type[nn.Module] | None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = [conv_norm(inputs, hidden, 1, activation=activation)]
        layers.append(conv_norm(hidden, hidden, kernel, stride, hidden, activation))
        if gate is not None:
            layers.append(Squeeze(hidden, max(hidden // 4, 4), gate(), nn.ReLU(inplace=True)))
        layers.append(conv_norm(hidden, outputs, 1, activation=None))
        self.body = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


class MobileNetV3(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        hard = nn.Hardswish
        self.features = nn.Sequential(
            conv_norm(3, 16, 3, 2, activation=hard),
            Inverted(16, 16, 1, 3, 1, nn.ReLU, nn.Hardsigmoid),
            Inverted(16, 24, 4, 3, 2, nn.ReLU, None),
            Inverted(24, 24, 3, 3, 1, nn.ReLU, None),
            Inverted(24, 40, 4, 5, 2, hard, nn.Hardsigmoid),
            Inverted(40, 40, 6, 5, 1, hard, nn.Hardsigmoid),
            conv_norm(40, 96, 1, activation=hard),
        )
        self.head = nn.Sequential(
            nn.Linear(96, 64),
            hard(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(64, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.head(torch.flatten(y, 1))


class EfficientNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        silu = nn.SiLU
        self.features = nn.Sequential(
            conv_norm(3, 16, 3, 2, activation=silu),
            Inverted(16, 16, 1, 3, 1, silu, nn.Sigmoid),
            Inverted(16, 24, 6, 3, 2, silu, nn.Sigmoid),
            Inverted(24, 24, 6, 3, 1, silu, nn.Sigmoid),
            Inverted(24, 40, 6, 5, 2, silu, nn.Sigmoid),
            conv_norm(40, 80, 1, activation=silu),
        )
        self.drop, self.head = nn.Dropout(0.2, inplace=True), nn.Linear(80, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.head(self.drop(torch.flatten(y, 1)))


# -- ConvNeXt -------------------------------------------------------------------------------------
class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


class ConvNeXt(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (24, 48, 96), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 4, 4)
        stages: list[nn.Module] = []
        for i, width in enumerate(widths):
            if i:
                stages.append(nn.Conv2d(widths[i - 1], width, 2, 2))
            stages += [ConvNeXtBlock(width), ConvNeXtBlock(width)]
        self.stages = nn.Sequential(*stages)
        self.norm, self.head = nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((-2, -1))))


# -- Swin -----------------------------------------------------------------------------------------
class WindowAttention(nn.Module):
    """Attention in windows, shifted by rolling the image."""

    def __init__(self, width: int, heads: int, window: int, shift: int, side: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, window * window, window * window) * 0.1)
        self.register_buffer("mask", self._mask(side) if shift else None)

    def _mask(self, side: int) -> Tensor:
        """Tokens that rolling brought together do not see each other."""
        zones = torch.zeros(1, side, side, 1)
        cuts = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for i, rows in enumerate(cuts):
            for j, columns in enumerate(cuts):
                zones[:, rows, columns] = i * 3 + j
        flat = self._windows(zones).squeeze(-1)
        return (flat[:, None] != flat[:, :, None]).float() * -100.0

    def _windows(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        y = x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5)
        return y.reshape(-1, n * n, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n, heads = self.window, self.heads
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = self._windows(x)
        q, k, v = self.qkv(y).reshape(-1, n * n, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
        scores = (q * (c // heads) ** -0.5) @ k.transpose(-2, -1) + self.bias
        if self.mask is not None:
            count = self.mask.shape[0]
            scores = scores.view(b, count, heads, n * n, n * n) + self.mask[None, :, None]
            scores = scores.view(-1, heads, n * n, n * n)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n * n, c)
        y = self.project(y).view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(b, h, w, c)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class SwinBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int, shift: int, side: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, shift, side)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = (
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, 2 * width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    def __init__(self, side: int = 32, width: int = 24, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        half = side // 2
        self.stage1 = nn.Sequential(*(SwinBlock(width, 3, 4, s, half) for s in (0, 2)))
        self.merge = PatchMerging(width)
        self.stage2 = nn.Sequential(*(SwinBlock(2 * width, 6, 4, s, half // 2) for s in (0, 2)))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stage1(self.stem(x).permute(0, 2, 3, 1))
        return self.head(self.norm(self.stage2(self.merge(y))).mean((1, 2)))


# -- U-Net, YOLO, LSTM tagger --------------------------------------------------------------------
class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (12, 24, 48), classes: int = 3) -> None:
        super().__init__()
        double = lambda a, b: nn.Sequential(conv_norm(a, b), conv_norm(b, b))
        self.downs = nn.ModuleList(double(a, b) for a, b in zip((3, *widths), widths))
        turned = list(reversed(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairwise(turned))
        self.joins = nn.ModuleList(double(2 * b, b) for b in turned[1:])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, down in enumerate(self.downs):
            x = down(x if i == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skip in zip(self.ups, self.joins, reversed(kept[:-1])):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class C2f(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.start = conv_norm(inputs, outputs, 1, activation=nn.SiLU)
        self.body = nn.Sequential(
            conv_norm(half, half, activation=nn.SiLU), conv_norm(half, half, activation=nn.SiLU)
        )
        self.end = conv_norm(3 * half, outputs, 1, activation=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.start(x).chunk(2, 1)
        return self.end(torch.cat([a, b, b + self.body(b)], 1))


class Yolo(nn.Module):
    """A detector in YOLO's manner: two scales, boxes as distributions over distances."""

    BINS = 8

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(
            conv_norm(3, 16, 3, 2, activation=nn.SiLU), conv_norm(16, 32, 3, 2, activation=nn.SiLU)
        )
        self.p3 = C2f(32, 32)
        self.down = conv_norm(32, 64, 3, 2, activation=nn.SiLU)
        self.p4 = C2f(64, 64)
        self.join = C2f(96, 32)
        out = 4 * self.BINS + classes
        self.heads = nn.ModuleList((nn.Conv2d(32, out, 1), nn.Conv2d(64, out, 1)))
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        low = self.p3(self.stem(x))
        high = self.p4(self.down(low))
        low = self.join(
            torch.cat([functional.interpolate(high, scale_factor=2.0, mode="nearest"), low], 1)
        )
        found = [
            self._boxes(head(y), stride) for head, y, stride in zip(self.heads, (low, high), (4, 8))
        ]
        return torch.cat(found, 1)

    def _boxes(self, y: Tensor, stride: int) -> Tensor:
        b, _, h, w = y.shape
        flat = y.flatten(2).transpose(1, 2)
        sides, scores = flat.split((4 * self.BINS, self.classes), -1)
        distances = sides.reshape(b, h * w, 4, self.BINS).softmax(-1) @ self.bins
        rows = torch.arange(h, dtype=y.dtype) + 0.5
        columns = torch.arange(w, dtype=y.dtype) + 0.5
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1).reshape(1, -1, 2)
        low, high = grid - distances[..., :2], grid + distances[..., 2:]
        return torch.cat([(low + high) / 2 * stride, (high - low) * stride, scores.sigmoid()], -1)


class Tagger(nn.Module):
    def __init__(self, words: int = 50, tags: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 24)
        self.lstm = nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(40, tags)

    def forward(self, ids: Tensor) -> Any:
        rows, _ = self.lstm(self.embed(ids))
        return self.head(rows).log_softmax(-1)
