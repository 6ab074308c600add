"""Cases of blocks: operands, attributes, and what must come out, stated in plain NumPy.

Sizes given by name are dims of that name; SIZES says how large they are when bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rlx
from rlx import FusionPolicy, HirModule
from rlx.ir.interpret import evaluate

F64 = rlx.DType.F64
FUSABLE = FusionPolicy.FUSABLE
# Spellings differ in the order of sums of up to 16 terms, a few deep: some tens of roundings.
# Norms and softmax keep values near 1, so 1e-12 is more than 4,000 roundings of an f64.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
SIZES = {"b": 2, "s": 5, "p": 3, "t": 4}
Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """Operands of a block, what it is given beside them, and what must come out."""

    block: str
    operands: tuple[Dims | None, ...]
    """None stands for one that is left out."""
    meaning: Callable[..., Any]
    """Of the operands; by keyword it takes the attributes that it asks for."""
    attrs: dict[str, Any] = field(default_factory=dict)
    positive: frozenset[int] = frozenset()
    """Operands that must not be negative, such as a variance."""
    whole: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Operands that are no floats: their dtype, and what their numbers are below."""

    def dtype(self, index: int, other: Any = F64) -> Any:
        return rlx.DType.of(self.whole[index][0]) if index in self.whole else other

    def expected(self, values: list[Any]) -> list[np.ndarray]:
        return as_list(self.meaning(*values))

    def __str__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.block}-{len(self.operands)}-{values}"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


def rms_norm(x, scale, bias=0.0, *, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale + bias


def layer_norm(x, scale, bias, *, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * scale + bias


def conv(x, w, bias=None, *, stride=(1, 1), padding=(0, 0, 0, 0), groups=1):
    """One output number at a time."""
    top, left, bottom, right = padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    o, i, kh, kw = w.shape
    rows = (padded.shape[2] - kh) // stride[0] + 1
    columns = (padded.shape[3] - kw) // stride[1] + 1
    made = np.zeros((x.shape[0], o, rows, columns))
    for c, r, k in np.ndindex(o, rows, columns):
        first, y, z = c * groups // o * i, r * stride[0], k * stride[1]
        window = padded[:, first : first + i, y : y + kh, z : z + kw]
        made[:, c, r, k] = (window * w[c]).sum((1, 2, 3)) + (0 if bias is None else bias[c])
    return made


def conv_norm(x, w, scale, bias, mean, var):
    scale, bias, mean, var = (v[:, None, None] for v in (scale, bias, mean, var))
    return (conv(x, w) - mean) / np.sqrt(var + 1e-5) * scale + bias


def frames(x, n_fft, hop):
    count = (x.shape[-1] - n_fft) // hop + 1
    return np.stack([x[..., i * hop : i * hop + n_fft] for i in range(count)], -2)


def log_mel(x, window, filters, *, is_centred):
    """Whisper's: powers filtered, in tens, no more than 8 below the loudest band."""
    x = np.pad(x, [(0, 0), (4, 4)], mode="reflect") if is_centred else x
    power = np.abs(np.fft.rfft(frames(x, 8, 3) * window)) ** 2
    mel = np.log10(np.maximum(power @ filters.T, 1e-10))
    return (np.maximum(mel, mel.max(-1, keepdims=True) - 8) + 4) / 4


def welch(x, window=1.0):
    """The 3 strongest bins of segments of 8, one every 4."""
    power = (np.abs(np.fft.rfft(frames(x, 8, 4) * window)) ** 2).mean(-2)
    power[:, 1:4] *= 2
    strongest = np.argsort(-power, -1)[:, :3]
    pairs = np.stack([strongest, np.take_along_axis(power, strongest, -1)], -1)
    return pairs.reshape(len(x), 6)


def sized(dim: int | str, sizes: Mapping[str, int]) -> Any:
    """A dim, or the sum of the dims that it names, where their sizes are not known."""
    return dim if isinstance(dim, int) else sum(sizes.get(d, rlx.Dim(d)) for d in dim.split("+"))


def built(
    case: Case,
    policy: FusionPolicy = FusionPolicy.DIRECT,
    sizes: Mapping[str, int] | None = None,
    dtype: Any = F64,
) -> HirModule:
    """A module of the one block, over named dims or over their sizes."""
    module = HirModule(case.block, policy)

    def given(i: int, dims: Dims | None) -> Any:
        if dims is None:
            return None
        known = [sized(d, sizes or {}) for d in dims]
        return module.input(f"v{i}", rlx.Shape(known, case.dtype(i, dtype)))

    nodes = [given(i, dims) for i, dims in enumerate(case.operands)]
    made = getattr(module, case.block)(*nodes, **case.attrs)
    module.set_outputs(as_list(made))
    return module


def arrays(case: Case, sizes: Mapping[str, int] = SIZES) -> list[Any]:
    rng = np.random.default_rng(7)

    def drawn(i: int, dims: Dims | None) -> Any:
        if dims is None:
            return None
        known = [sized(d, sizes) for d in dims]
        if i in case.whole:
            dtype, below = case.whole[i]
            return rng.integers(0, below, size=known).astype(rlx.DType.of(dtype).numpy)
        values = rng.normal(size=known)
        return np.abs(values) if i in case.positive else values

    return [drawn(i, dims) for i, dims in enumerate(case.operands)]


def inputs(values: list[Any]) -> dict[str, np.ndarray]:
    """What a module of `built` takes."""
    return {f"v{i}": v for i, v in enumerate(values) if v is not None}


def results(module: HirModule, case: Case, sizes: Mapping[str, int] = SIZES) -> list[np.ndarray]:
    return evaluate(module.lower().graph, inputs(arrays(case, sizes)))


def as_list(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]
