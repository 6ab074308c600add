"""GGUF's formats as integers with scales: the same weights, to the bit, as the formats give."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.ops.quant.block_arrays import decoded
from rlx.ops.quant.gguf_codes import BLOCK, CODES, Codes, Factor
from rlx.ops.quant.gguf_formats import SCHEMES

FLOATS = {"f32", "f16", "bf16"}


def per_weight(codes: Codes, factor: Factor, blocks: np.ndarray) -> np.ndarray:
    values = decoded(codes.format_of(factor.value, codes.groups), blocks)
    return np.repeat(values, codes.group, axis=-1)


@pytest.mark.parametrize("scheme", CODES)
def test_codes_are_the_format(scheme: str) -> None:
    """scale · (level − zero) + offset, for any bytes, infinite scales too."""
    codes = CODES[scheme]
    rng = np.random.default_rng(len(scheme))
    blocks = rng.integers(0, 256, (64, codes.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        code = decoded(codes.format_of(codes.code, codes.weights), blocks)
        levels = decoded(codes.format_of(codes.with_levels().code, codes.weights), blocks)
        got = per_weight(codes, codes.scale, blocks) * (levels.astype(int) - codes.zero).astype("f")
        if codes.offset is not None:
            got = got + per_weight(codes, codes.offset, blocks)
        want = decoded(SCHEMES[scheme], blocks)
    assert code.dtype == levels.dtype == np.uint8
    assert code.max() < 1 << codes.bits
    assert levels.max() <= codes.most
    np.testing.assert_array_equal(got, want)


def test_every_scheme_of_integers_has_codes() -> None:
    assert set(SCHEMES) - set(CODES) == FLOATS
    assert all(c.weights % BLOCK == 0 and BLOCK % c.group == 0 for c in CODES.values())
