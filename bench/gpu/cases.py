"""The workloads of the GPU page: the same function for torch and as a graph of rlx.

Linear weights are [out, in] in both, as torch has them. A case is made on the device, so that
large weights are drawn there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from bench.workloads.resnet import EPS, RESNET, convolutions
from rlx import ops

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A computation to time."""

    name: str
    dtype: str
    about: str
    params: Callable[[Any], Params]
    """Torch tensors on the device, of a `Maker`."""
    inputs: Callable[[Any], tuple[Any, ...]]
    torch: Callable[[Any, Params], Callable[..., Any]]
    """The function of the inputs, of the module torch and the params."""
    rlx: Callable[[Params, tuple[Any, ...]], Any]
    """The graph, of leaves by name: what `declared` gives."""
    goal: float
    """The ratio to torch's best that is wanted."""
    floor_us: float
    """What bytes at 4.19 TB/s, or flops at 733 TFLOP/s, take at least."""
    tolerance: float = 2e-2
    """Of ‖y - y'‖ / ‖y'‖ against the same function in f32: some layers of products whose operands
    are rounded to 8 bits."""


class Maker:
    """Draws tensors on the device."""

    def __init__(self, torch: Any, dtype: Any, seed: int = 0) -> None:
        self.torch, self.dtype = torch, dtype
        self.generator = torch.Generator("cuda").manual_seed(seed)

    def normal(self, *dims: int, scale: float = 1.0) -> Any:
        drawn = self.torch.randn(*dims, device="cuda", generator=self.generator)
        return (drawn * scale).to(self.dtype)

    def weight(self, out: int, given: int) -> Any:
        return self.normal(out, given, scale=given**-0.5)

    def near_one(self, *dims: int) -> Any:
        return (1 + 0.1 * self.normal(*dims).float()).to(self.dtype)

    def tokens(self, words: int, *dims: int) -> Any:
        return self.torch.randint(0, words, dims, device="cuda", generator=self.generator)


def _floor(flops: float = 0.0, size: float = 0.0) -> float:
    return max(flops / 733e6, size / 4.19e6)


def _linear(x: Any, w: Any, b: Any = None) -> Any:
    """x · wᵀ + b."""
    made = ops.matmul(x, ops.transpose(w, perm=(1, 0)))
    return made if b is None else ops.add(made, b)


# -- products -------------------------------------------------------------------------------------


def mlp() -> Case:
    def params(make: Maker) -> Params:
        return {
            "w1": make.weight(4096, 1024),
            "b1": make.normal(4096, scale=0.1),
            "w2": make.weight(1024, 4096),
            "b2": make.normal(1024, scale=0.1),
        }

    def torch(t: Any, p: Params) -> Any:
        f = t.nn.functional
        return lambda x: f.linear(
            f.gelu(f.linear(x, p["w1"], p["b1"]), approximate="tanh"), p["w2"], p["b2"]
        )

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        return _linear(ops.gelu_tanh(_linear(x[0], p["w1"], p["b1"])), p["w2"], p["b2"])

    return Case(
        "mlp", "bf16", "4096×1024 → 4096 → 1024", params, lambda m: (m.normal(4096, 1024),),
        torch, graph, 0.86, _floor(2 * 2 * 4096 * 4096 * 1024.0),
    )  # fmt: skip


def tiny() -> Case:
    sizes = ((64, 64), (64, 64), (8, 64))

    def params(make: Maker) -> Params:
        found: Params = {}
        for i, (out, given) in enumerate(sizes):
            found |= {f"w{i}": make.weight(out, given), f"b{i}": make.normal(out, scale=0.1)}
        return found

    def torch(t: Any, p: Params) -> Any:
        f = t.nn.functional

        def run(x: Any) -> Any:
            x = f.relu(f.linear(x, p["w0"], p["b0"]))
            return f.linear(f.relu(f.linear(x, p["w1"], p["b1"])), p["w2"], p["b2"])

        return run

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        h = ops.relu(_linear(x[0], p["w0"], p["b0"]))
        return _linear(ops.relu(_linear(h, p["w1"], p["b1"])), p["w2"], p["b2"])

    return Case(
        "tiny", "f32", "1×64, three layers", params, lambda m: (m.normal(1, 64),),
        torch, graph, 0.80, 5.0, 1e-5,
    )  # fmt: skip


# -- encoder --------------------------------------------------------------------------------------

WIDTH, HEADS, HIDDEN, LAYERS = 384, 12, 1536, 6


def _encoder_params(make: Maker) -> Params:
    found: Params = {}
    shapes = {"qkv": (3 * WIDTH, WIDTH), "o": (WIDTH, WIDTH), "a": (HIDDEN, WIDTH)}
    for i in range(LAYERS):
        for name, (out, given) in {**shapes, "b": (WIDTH, HIDDEN)}.items():
            found[f"{i}.{name}.w"] = make.weight(out, given)
            found[f"{i}.{name}.b"] = make.normal(out, scale=0.1)
        for name in ("n1", "n2"):
            found[f"{i}.{name}.w"] = make.near_one(WIDTH)
            found[f"{i}.{name}.b"] = make.normal(WIDTH, scale=0.1)
    return found


def _encoder_torch(t: Any, p: Params) -> Any:
    f = t.nn.functional

    def layer(x: Any, i: int) -> Any:
        batch, length, _ = x.shape
        packed = f.linear(x, p[f"{i}.qkv.w"], p[f"{i}.qkv.b"])
        q, k, v = packed.view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + f.linear(mixed, p[f"{i}.o.w"], p[f"{i}.o.b"])
        x = f.layer_norm(x, (WIDTH,), p[f"{i}.n1.w"], p[f"{i}.n1.b"])
        raised = f.gelu(f.linear(x, p[f"{i}.a.w"], p[f"{i}.a.b"]))
        x = x + f.linear(raised, p[f"{i}.b.w"], p[f"{i}.b.b"])
        return f.layer_norm(x, (WIDTH,), p[f"{i}.n2.w"], p[f"{i}.n2.b"])

    def run(x: Any) -> Any:
        for i in range(LAYERS):
            x = layer(x, i)
        return x

    return run


def _encoder_graph(p: Params, given: tuple[Any, ...]) -> Any:
    (x,) = given
    dims = x.shape.dims
    for i in range(LAYERS):
        packed = _linear(x, p[f"{i}.qkv.w"], p[f"{i}.qkv.b"])
        q, k, v = (ops.narrow(packed, axis=2, start=j * WIDTH, length=WIDTH) for j in range(3))
        mixed = ops.attention(q, k, v, num_heads=HEADS)
        x = ops.add(x, _linear(mixed, p[f"{i}.o.w"], p[f"{i}.o.b"]))
        x = ops.layer_norm(x, p[f"{i}.n1.w"], p[f"{i}.n1.b"], eps=1e-5)
        raised = ops.gelu(_linear(x, p[f"{i}.a.w"], p[f"{i}.a.b"]))
        x = ops.add(x, _linear(raised, p[f"{i}.b.w"], p[f"{i}.b.b"]))
        x = ops.layer_norm(x, p[f"{i}.n2.w"], p[f"{i}.n2.b"], eps=1e-5)
    assert x.shape.dims == dims
    return x


def encoder(batch: int, goal: float) -> Case:
    rows = batch * 128.0
    flops = LAYERS * rows * (2 * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) + 4 * 128 * WIDTH)
    return Case(
        f"encoder_{batch}x128", "bf16", f"MiniLM-shaped encoder, {batch}×128", _encoder_params,
        lambda m: (m.normal(batch, 128, WIDTH),), _encoder_torch, _encoder_graph, goal,
        40.0 if batch == 1 else _floor(flops),
    )  # fmt: skip


# -- decoder --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Llama:
    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    words: int = 32000

    @property
    def depth(self) -> int:
        return self.width // self.heads

    @property
    def weights(self) -> float:
        kv = self.kv_heads * self.depth
        each = 2 * self.width**2 + 2 * self.width * kv + 3 * self.width * self.hidden
        return float(self.layers * each)

    def params(self, make: Maker) -> Params:
        kv = self.kv_heads * self.depth
        found: Params = {"emb": make.normal(self.words, self.width)}
        for i in range(self.layers):
            shapes = {
                "q": (self.width, self.width), "k": (kv, self.width), "v": (kv, self.width),
                "o": (self.width, self.width), "g": (self.hidden, self.width),
                "u": (self.hidden, self.width), "d": (self.width, self.hidden),
            }  # fmt: skip
            found |= {f"{i}.{n}": make.weight(*dims) for n, dims in shapes.items()}
            found |= {f"{i}.{n}": make.near_one(self.width) for n in ("n1", "n2")}
        found["n"] = make.near_one(self.width)
        found["head"] = make.weight(self.words, self.width)
        return found

    def inputs(self, make: Maker, length: int, past: int) -> tuple[Any, ...]:
        turns = [make.normal(length, self.depth // 2) for _ in range(2)]
        dims = 1, past, self.kv_heads * self.depth
        kept = [make.normal(*dims) for _ in range(2 * self.layers)] if past else []
        return (make.tokens(self.words, 1, length), *turns, *kept)

    def torch(self, t: Any, p: Params) -> Any:
        f = t.nn.functional

        def norm(x: Any, w: Any) -> Any:
            return f.rms_norm(x, (self.width,), w, 1e-5)

        def turned(x: Any, cos: Any, sin: Any) -> Any:
            a, b = x.chunk(2, -1)
            return t.cat((a * cos - b * sin, b * cos + a * sin), -1)

        def layer(x: Any, i: int, cos: Any, sin: Any, past: tuple[Any, ...]) -> Any:
            batch, length, _ = x.shape
            y = norm(x, p[f"{i}.n1"])
            q, k, v = (
                f.linear(y, p[f"{i}.{n}"]).view(batch, length, h, self.depth).transpose(1, 2)
                for n, h in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
            )
            q, k = turned(q, cos, sin), turned(k, cos, sin)
            if past:
                k, v = t.cat((past[0], k), 2), t.cat((past[1], v), 2)
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=not past, enable_gqa=True)
            x = x + f.linear(mixed.transpose(1, 2).reshape(x.shape), p[f"{i}.o"])
            y = norm(x, p[f"{i}.n2"])
            raised = f.silu(f.linear(y, p[f"{i}.g"])) * f.linear(y, p[f"{i}.u"])
            return x + f.linear(raised, p[f"{i}.d"])

        def run(ids: Any, cos: Any, sin: Any, *kept: Any) -> Any:
            x = f.embedding(ids, p["emb"])
            apart = [a.view(1, -1, self.kv_heads, self.depth).transpose(1, 2) for a in kept]
            for i in range(self.layers):
                x = layer(x, i, cos, sin, tuple(apart[2 * i : 2 * i + 2]))
            return f.linear(norm(x[:, -1:], p["n"]), p["head"])

        return run

    def graph(self, p: Params, given: tuple[Any, ...]) -> Any:
        """Heads stay packed, as rlx has them: nothing is transposed."""
        ids, cos, sin, *kept = given
        x = ops.embedding(p["emb"], ids)
        _, length, width = x.shape.dims
        heads = {"num_heads": self.heads, "kv_heads": self.kv_heads}
        for i in range(self.layers):
            y = ops.rms_norm(x, p[f"{i}.n1"], eps=1e-5)
            q, k, v = (_linear(y, p[f"{i}.{n}"]) for n in "qkv")
            q, k = (ops.rope(a, cos, sin, head_dim=self.depth) for a in (q, k))
            if kept:
                k = ops.concat([kept[2 * i], k], axis=1)
                v = ops.concat([kept[2 * i + 1], v], axis=1)
            mixed = ops.attention(q, k, v, mask_kind="causal", **heads)
            x = ops.add(x, _linear(mixed, p[f"{i}.o"]))
            y = ops.rms_norm(x, p[f"{i}.n2"], eps=1e-5)
            raised = ops.mul(ops.silu(_linear(y, p[f"{i}.g"])), _linear(y, p[f"{i}.u"]))
            x = ops.add(x, _linear(raised, p[f"{i}.d"]))
        last = ops.narrow(x, axis=1, start=length - 1, length=1)
        assert width == self.width
        return _linear(ops.rms_norm(last, p["n"], eps=1e-5), p["head"])


def decode() -> Case:
    size = Llama()
    read = 2 * (size.weights + size.words * size.width + size.layers * 2 * 1023 * 512.0)
    return Case(
        "decode", "bf16", "llama-1B, one token after 1023", size.params,
        lambda m: size.inputs(m, 1, 1023), size.torch, size.graph, 0.38, _floor(size=read), 3e-2,
    )  # fmt: skip


def prefill() -> Case:
    size = Llama()
    flops = 2 * 1024 * size.weights + size.layers * 2.0 * 1024 * 1024 * size.width
    return Case(
        "prefill", "bf16", "llama-1B, 1×1024", size.params, lambda m: size.inputs(m, 1024, 0),
        size.torch, size.graph, 0.82, _floor(flops), 3e-2,
    )  # fmt: skip


# -- bound by memory ------------------------------------------------------------------------------


def _none(make: Maker) -> Params:
    return {}


def chain() -> Case:
    def torch(t: Any, p: Params) -> Any:
        def run(y: Any) -> Any:
            for _ in range(3):
                y = t.tanh(y * 1.01 + 0.5) * t.sigmoid(y) - 0.1
            return y

        return run

    def graph(p: Params, given: tuple[Any, ...]) -> Any:
        (y,) = given
        for _ in range(3):
            raised = ops.tanh(ops.add(ops.mul(y, 1.01), 0.5))
            y = ops.sub(ops.mul(raised, ops.sigmoid(y)), 0.1)
        return y

    return Case(
        "chain", "bf16", "12 ops on 8192²", _none, lambda m: (m.normal(8192, 8192),),
        torch, graph, 0.24, _floor(size=4.0 * 8192**2),
    )  # fmt: skip


def softmax() -> Case:
    return Case(
        "softmax", "bf16", "rows of 8192²", _none, lambda m: (m.normal(8192, 8192),),
        lambda t, p: lambda x: t.softmax(x, -1), lambda p, x: ops.softmax(x[0], axis=-1),
        0.32, _floor(size=4.0 * 8192**2),
    )  # fmt: skip


def residual_norm() -> Case:
    dims = 16384, 4096

    def torch(t: Any, p: Params) -> Any:
        return lambda x, r: t.nn.functional.layer_norm(x + r, (4096,), p["w"], p["b"])

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        return ops.layer_norm(ops.add(*x), p["w"], p["b"], eps=1e-5)

    return Case(
        "residual_norm", "bf16", "residual and layer norm of 16384×4096",
        lambda m: {"w": m.near_one(4096), "b": m.normal(4096, scale=0.1)},
        lambda m: (m.normal(*dims), m.normal(*dims)), torch, graph, 0.54,
        _floor(size=6.0 * math.prod(dims)),
    )  # fmt: skip


# -- signals --------------------------------------------------------------------------------------


def _hann(length: int) -> Any:
    turns = 2 * np.pi * np.arange(length) / length
    return (0.5 - 0.5 * np.cos(turns)).astype(np.float32)


def welch() -> Case:
    def torch(t: Any, p: Params) -> Any:
        def run(x: Any) -> Any:
            framed = x.unfold(-1, 512, 256) * p["window"]
            return t.fft.rfft(framed).abs().square().mean(1).topk(16, -1)[0]

        return run

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        framed = ops.mul(ops.frame(x[0], length=512, hop=256), p["window"])
        power = ops.mean(ops.complex_norm_sq(ops.rfft(framed)), axes=(1,))
        return ops.top_k(power, k=16)[0]

    return Case(
        "welch", "f32", "1024×4096 by 512, top 16",
        lambda m: {"window": m.torch.from_numpy(_hann(512)).cuda()},
        lambda m: (m.normal(1024, 4096),), torch, graph, 0.17, 10.0, 1e-5,
    )  # fmt: skip


def log_mel() -> Case:
    from bench.workloads.spectral import mel_filters

    def params(make: Maker) -> Params:
        on = {"window": _hann(400), "mel": mel_filters(80, 400)}
        return {k: make.torch.from_numpy(np.ascontiguousarray(v)).cuda() for k, v in on.items()}

    def torch(t: Any, p: Params) -> Any:
        def run(x: Any) -> Any:
            spectrum = t.stft(x, 400, 160, window=p["window"], center=True, return_complex=True)
            power = p["mel"] @ spectrum.abs().square()
            return power.clamp(min=1e-10).log10().transpose(1, 2)

        return run

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        spectrum = ops.stft(x[0], p["window"], n_fft=400, hop=160, center=True)
        power = _linear(ops.complex_norm_sq(spectrum), p["mel"])
        return ops.log10(ops.clamp(power, min=1e-10))

    return Case(
        "log_mel", "f32", "256×16000, 80 bands", params, lambda m: (m.normal(256, 16000),),
        torch, graph, 0.35, _floor(size=4.0 * (256 * 16000 + 256 * 101 * 80)), 1e-4,
    )  # fmt: skip


# -- images ---------------------------------------------------------------------------------------


def resnet(batch: int = 64) -> Case:
    def params(make: Maker) -> Params:
        found: Params = {}
        for c in convolutions(RESNET):
            scale = (2 / c.given) ** 0.5 / c.kernel
            found[f"{c.name}.cw"] = make.normal(c.made, c.given, c.kernel, c.kernel, scale=scale)
            found[f"{c.name}.g"] = make.near_one(c.made)
            found[f"{c.name}.b"] = make.normal(c.made, scale=0.1)
            found[f"{c.name}.m"] = make.normal(c.made, scale=0.1)
            found[f"{c.name}.v"] = make.near_one(c.made).abs()
        found["fc.w"] = make.weight(RESNET.classes, RESNET.stages[-1])
        found["fc.b"] = make.normal(RESNET.classes, scale=0.1)
        return found

    def layers(x: Any, convolved: Any, relu: Any, pooled: Any) -> Any:
        x = pooled(relu(convolved(x, "stem", 2, 3)))
        for i in range(len(RESNET.stages)):
            for j in range(2):
                name, stride = f"s{i}b{j}", 2 if i > 0 and j == 0 else 1
                y = convolved(relu(convolved(x, f"{name}c1", stride, 1)), f"{name}c2", 1, 1)
                x = relu((convolved(x, f"{name}ds", stride, 0) if stride != 1 else x) + y)
        return x

    def torch(t: Any, p: Params) -> Any:
        f = t.nn.functional
        weights = {
            k: v.to(memory_format=t.channels_last) if k.endswith(".cw") else v for k, v in p.items()
        }

        def convolved(x: Any, name: str, stride: int, padding: int) -> Any:
            made = f.conv2d(x, weights[f"{name}.cw"], None, stride, padding)
            g, b, m, v = (p[f"{name}.{c}"] for c in "gbmv")
            return f.batch_norm(made, m, v, g, b, eps=EPS)

        def run(x: Any) -> Any:
            x = x.to(memory_format=t.channels_last)
            made = layers(x, convolved, f.relu, lambda y: f.max_pool2d(y, 3, 2, 1))
            return f.linear(made.mean((2, 3)), p["fc.w"], p["fc.b"])

        return run

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        def convolved(x: Any, name: str, stride: int, padding: int) -> Any:
            made = ops.conv(x, p[f"{name}.cw"], stride=(stride, stride), padding=(padding,) * 4)
            return ops.batch_norm(made, *(p[f"{name}.{c}"] for c in "gbmv"), eps=EPS)

        def pooled(y: Any) -> Any:
            return ops.max_pool(y, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))

        made = ops.mean(layers(x[0], convolved, ops.relu, pooled), axes=(2, 3))
        return _linear(made, p["fc.w"], p["fc.b"])

    flops = batch * sum(c.flops for c in convolutions(RESNET))
    return Case(
        "resnet18", "bf16", f"{batch}×224²", params, lambda m: (m.normal(batch, 3, 224, 224),),
        torch, graph, 0.75, _floor(flops), 5e-2,
    )  # fmt: skip


# -- attention ------------------------------------------------------------------------------------


def attention(batch: int, length: int, depth: int) -> Case:
    heads, kv_heads = 32, 8

    def inputs(make: Maker) -> tuple[Any, ...]:
        return tuple(make.normal(batch, h, length, depth) for h in (heads, kv_heads, kv_heads))

    def torch(t: Any, p: Params) -> Any:
        f = t.nn.functional
        return lambda q, k, v: f.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )

    def graph(p: Params, x: tuple[Any, ...]) -> Any:
        return ops.attention(*x, mask_kind="causal", num_heads=heads, kv_heads=kv_heads)

    flops = 2.0 * batch * heads * length * length * depth
    return Case(
        f"attention_{batch}x{length}_d{depth}", "bf16",
        f"causal, {batch}×{length}, 32/8 heads of {depth}", _none, inputs, torch, graph, 1.0,
        _floor(flops),
    )  # fmt: skip


def cases() -> Iterator[Case]:
    yield from (decode(), prefill(), encoder(1, 0.47), encoder(64, 0.60), tiny(), mlp())
    yield from (chain(), softmax(), residual_norm(), welch(), log_mel(), resnet())
    yield from (attention(b, n, d) for b, n in ((8, 1024), (1, 8192)) for d in (64, 128))


def graph_of(case: Case, params: Mapping[str, Any], inputs: tuple[Any, ...]) -> rlx.Graph:
    """The case as a graph of rlx, for tensors of these shapes."""
    g = rlx.Graph(case.name)
    p = {k: g.param(k, _shape(v)) for k, v in params.items()}
    x = tuple(g.input(f"x{i}", _shape(v)) for i, v in enumerate(inputs))
    g.set_outputs([case.rlx(p, x)])
    return g


NAMES = {"torch.bfloat16": "bf16", "torch.float32": "f32", "torch.int64": "i64"}


def _shape(tensor: Any) -> rlx.Shape:
    return rlx.Shape(tuple(tensor.shape), NAMES[str(tensor.dtype)])
