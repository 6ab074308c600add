"""Movement: where values go. Slices are static, so that XLA sees them as such."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax

TABLE.derived("iota", "extent", "trilu", "one_hot")


@TABLE.call("reshape")
def reshape(x: Any, *, dims: Sequence[int]) -> Any:
    return x.reshape(_ints(dims))


@TABLE.call("transpose")
def transpose(x: Any, *, perm: Sequence[int]) -> Any:
    return lax.transpose(x, tuple(perm))


@TABLE.call("expand")
def expand(x: Any, *, dims: Sequence[int]) -> Any:
    return jnp.broadcast_to(x, _ints(dims))


@TABLE.call("squeeze")
def squeeze(x: Any, *, axes: Sequence[int]) -> Any:
    return lax.squeeze(x, tuple(axes))


@TABLE.call("expand_dims")
def expand_dims(x: Any, *, axes: Sequence[int]) -> Any:
    return lax.expand_dims(x, tuple(axes))


@TABLE.call("narrow")
def narrow(x: Any, *, axis: int, start: int, length: int) -> Any:
    first = int(start)
    return lax.slice_in_dim(x, first, first + int(length), axis=axis)


@TABLE.call("slice")
def slice_(
    x: Any, *, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None
) -> Any:
    """A negative step is the slice forwards, then reversed."""
    bounds = zip(_ints(starts), _ints(stops), steps or (1,) * x.ndim)
    taken = [range(size)[slice(*axis)] for size, axis in zip(x.shape, bounds)]
    forwards = [r if r.step > 0 else r[::-1] for r in taken]
    made = lax.slice(
        x,
        [r.start if len(r) else 0 for r in forwards],
        [r[-1] + 1 if len(r) else 0 for r in forwards],
        [r.step for r in forwards],
    )
    backwards = tuple(a for a, r in enumerate(taken) if r.step < 0)
    return lax.rev(made, backwards) if backwards else made


@TABLE.call("concat")
def concat(*xs: Any, axis: int) -> Any:
    return lax.concatenate(xs, axis)


@TABLE.call("stack")
def stack(*xs: Any, axis: int) -> Any:
    return jnp.stack(xs, axis)


@TABLE.call("split")
def split(x: Any, *, sizes: Sequence[int], axis: int) -> tuple[Any, ...]:
    ends = itertools.accumulate(_ints(sizes))
    return tuple(lax.slice_in_dim(x, b - n, b, axis=axis) for b, n in zip(ends, _ints(sizes)))


@TABLE.call("pad")
def pad(
    x: Any, *, low: Sequence[int], high: Sequence[int], value: float = 0.0, mode: str = "constant"
) -> Any:
    widths = list(zip(_ints(low), _ints(high)))
    if mode != "constant":
        return jnp.pad(x, widths, mode=mode) if x.ndim else x
    fill = np.asarray(value).astype(x.dtype)
    return lax.pad(x, fill, [(a, b, 0) for a, b in widths])


@TABLE.call("tile")
def tile(x: Any, *, repeats: Sequence[int]) -> Any:
    return jnp.tile(x, _ints(repeats))


@TABLE.call("flip")
def flip(x: Any, *, axes: Sequence[int]) -> Any:
    return lax.rev(x, tuple(axes))


def _ints(dims: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(d) for d in dims)
