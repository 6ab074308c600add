"""The workloads' words in torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
F: Any = torch.nn.functional

abs = torch.abs
sqrt = torch.sqrt
tanh = torch.tanh
log10 = torch.log10
where = torch.where
swapped = torch.transpose
stacked = torch.stack
concat = torch.cat
linear = F.linear
silu = F.silu
relu = F.relu
gelu = F.gelu
at_least = torch.clamp_min
at_most = torch.clamp_max


def layer_norm(x: Any, g: Any, b: Any, eps: float) -> Any:
    return F.layer_norm(x, (x.shape[-1],), g, b, eps)


def rms_norm(x: Any, g: Any, eps: float) -> Any:
    return F.rms_norm(x, (x.shape[-1],), g, eps)


def gelu_tanh(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def embedding(table: Any, ids: Any) -> Any:
    return F.embedding(ids, table)


def attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)


def keys_seen(mask: Any) -> Any:
    return mask[:, None, None, :] != 0


def as_float(mask: Any) -> Any:
    return mask.to(torch.float32)


def repeated_heads(x: Any, times: int) -> Any:
    batch, heads, length, depth = x.shape
    spread = x[:, :, None].expand(batch, heads, times, length, depth)
    return spread.reshape(batch, heads * times, length, depth)


def conv(x: Any, w: Any, stride: int, padding: int) -> Any:
    return F.conv2d(x, w, None, stride, padding)


def batch_norm(x: Any, g: Any, b: Any, m: Any, v: Any, eps: float) -> Any:
    return F.batch_norm(x, m, v, g, b, False, 0.0, eps)


def max_pool(x: Any) -> Any:
    return F.max_pool2d(x, 3, 2, 1)


def image_mean(x: Any) -> Any:
    return x.mean((2, 3))


def frames(x: Any, length: int, hop: int) -> Any:
    return x.unfold(-1, length, hop)


def reflected(x: Any, margin: int) -> Any:
    return F.pad(x[:, None], (margin, margin), mode="reflect")[:, 0]


def power(x: Any) -> Any:
    made = torch.fft.rfft(x)
    return made.real * made.real + made.imag * made.imag


def top_k(x: Any, k: int) -> Any:
    return tuple(torch.topk(x, k))
