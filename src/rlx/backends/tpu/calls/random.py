"""Random bits by our own definition, so that they are equal on every target: Philox 4x64-10, whose
128-bit products are made of halves of 32 bits. The numbers made of them are lowered to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.ops.math.random import LOW_HALF, MASK, MULTIPLIERS, ROUNDS, WEYL

WORD = np.uint64


def _high(x: Any, factor: int) -> Any:
    """The upper 64 bits of x · factor."""
    half = WORD(32)
    x_low, x_high = x & WORD(LOW_HALF), x >> half
    f_low, f_high = WORD(factor & LOW_HALF), WORD(factor >> 32)
    middle = x_high * f_low + ((x_low * f_low) >> half)
    other = x_low * f_high + (middle & WORD(LOW_HALF))
    return x_high * f_high + (middle >> half) + (other >> half)


def _block(low: Any, carry: Any, seed: int, stream: int) -> list[Any]:
    """The four words of each block."""
    words, key = (
        [low, carry, jnp.zeros_like(low), jnp.zeros_like(low)],
        [seed & MASK, stream & MASK],
    )
    for _ in range(ROUNDS):
        highs = [_high(words[0], MULTIPLIERS[0]), _high(words[2], MULTIPLIERS[1])]
        lows = [words[0] * WORD(MULTIPLIERS[0]), words[2] * WORD(MULTIPLIERS[1])]
        words = [
            highs[1] ^ words[1] ^ WORD(key[0]),
            lows[1],
            highs[0] ^ words[3] ^ WORD(key[1]),
            lows[0],
        ]
        key = [(k + w) & MASK for k, w in zip(key, WEYL)]
    return words


@TABLE.call("random_bits")
def random_bits(counter: Any, *, dims: tuple[Any, ...], seed: int, stream: int) -> Any:
    sizes = tuple(int(d) for d in dims)
    count = math.prod(sizes)
    ahead = lax.iota(WORD, -(-count // 4)) + WORD(1)
    low = counter.astype(WORD) + ahead
    carry = (low < ahead).astype(WORD)
    words = jnp.stack(_block(low, carry, seed, stream), -1)
    return words.reshape(-1)[:count].reshape(sizes)
