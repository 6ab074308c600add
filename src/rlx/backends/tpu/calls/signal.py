"""Fourier transforms in the dtype of their operands: XLA's own are those of a library."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax

TABLE.derived(
    "hann_window",
    "hamming_window",
    "blackman_window",
    "fftfreq",
    "rfftfreq",
)


def _is_complex(x: Any) -> bool:
    return np.dtype(x.dtype).kind == "c"


@TABLE.call("fft")
def fft(x: Any, *, inverse: bool, norm: str) -> Any:
    """Of real dtypes: all real parts, then all imaginary parts."""
    if not x.size:
        return x
    transform = jnp.fft.ifft if inverse else jnp.fft.fft
    if _is_complex(x):
        return transform(x, norm=norm)
    n = x.shape[-1] // 2
    made = transform(lax.complex(x[..., :n], x[..., n:]), norm=norm)
    return jnp.concatenate([jnp.real(made), jnp.imag(made)], -1)


@TABLE.call("ifft")
def ifft(x: Any, *, norm: str, site: Site) -> Any:
    z = x.astype(site.result.dtype.numpy)
    return jnp.fft.ifft(z, norm=norm) if x.size else z


@TABLE.call("rfft")
def rfft(x: Any, *, n: int | None, norm: str, site: Site) -> Any:
    dims = site.result.static_dims
    return jnp.fft.rfft(x, n, norm=norm) if x.size else jnp.zeros(dims, np.complex64)


@TABLE.call("irfft")
def irfft(x: Any, *, n: int | None, norm: str, site: Site) -> Any:
    dims = site.result.static_dims
    return jnp.fft.irfft(x, n, norm=norm) if x.size else jnp.zeros(dims, np.float32)
