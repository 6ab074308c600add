"""Fourier transforms as calls of mlx, which has complex64 only: doubles are the host's."""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.calls import Site
from rlx.backends.mlx.calls.elementwise import make_complex
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType

SINGLE = frozenset({DType.F16, DType.BF16, DType.F32, DType.C64})


@TABLE.call("fft", dtypes=SINGLE)
def fft(x: Any, *, inverse: bool, norm: str) -> Any:
    if 0 in x.shape:
        return x
    transform = mx.fft.ifft if inverse else mx.fft.fft
    if x.dtype == mx.complex64:
        return transform(x, norm=norm)
    n = x.shape[-1] // 2
    made = transform(make_complex(x[..., :n], x[..., n:]), norm=norm)
    return mx.concatenate([mx.real(made), mx.imag(made)], -1)


@TABLE.call("ifft", dtypes=SINGLE)
def ifft(x: Any, *, norm: str) -> Any:
    return fft(x.astype(mx.complex64), inverse=True, norm=norm)


@TABLE.call("rfft", dtypes=SINGLE)
def rfft(x: Any, *, n: int | None, norm: str, site: Site) -> Any:
    if 0 in site.result.static_dims or 0 in x.shape:
        return mx.zeros(site.result.static_dims, mx.complex64)
    return mx.fft.rfft(x, n, norm=norm)


@TABLE.call("irfft", dtypes=SINGLE)
def irfft(x: Any, *, n: int | None, norm: str, site: Site) -> Any:
    if 0 in site.result.static_dims or 0 in x.shape:
        return mx.zeros(site.result.static_dims, mx.float32)
    return mx.fft.irfft(x, n, norm=norm)
