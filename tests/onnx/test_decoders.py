"""Decoders with a KV cache, as exporters write them, are one program for all tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.frontends.onnx.model import from_proto
from tests.effort import tries
from tests.onnx.decoders import DEPTH, HEADS, KINDS, VOCABULARY, WIDTH, decoder

STEPS = tries(12, 200)
RNG = np.random.default_rng(8)


@pytest.mark.parametrize("name", KINDS)
def test_no_token_is_compiled_for(name: str) -> None:
    kind = KINDS[name]
    proto = decoder(kind)
    loaded = from_proto(proto)
    assert not loaded.is_static, loaded.why_static
    targets = ["reference", "cpu"][: tries(1, 2)]
    exes = [rlx.compile(loaded, target) for target in targets]
    empty = np.zeros((2, HEADS, 0, DEPTH), kind.dtype)
    caches: dict[str, Any] = {f"past.{i}.{n}": empty for i in range(kind.layers) for n in "kv"}
    if kind.has_cross:
        caches["encoded"] = RNG.normal(size=(2, 3, WIDTH)).astype(kind.dtype)
    for step in range(STEPS):
        inputs = {"ids": RNG.integers(0, VOCABULARY, (2, 1 if step else 4)), **caches}
        results = [exe.run(inputs) for exe in exes]
        if step % (STEPS - 1) == 0:
            expected: Any = dict(zip(results[0], ReferenceEvaluator(proto).run(None, inputs)))
            for result in results:
                check(result, expected, kind.dtype)
        made = results[0]
        caches |= {n.replace("present", "past"): a for n, a in made.items() if n != "scores"}
    assert all(len(exe.programs) == 1 for exe in exes)


def check(made: Any, expected: Any, dtype: Any) -> None:
    """Within what sums of WIDTH products round, and one step of a quantised scale."""
    for name, array in made.items():
        assert array.shape == expected[name].shape
        bound = 60 * float(np.finfo(dtype).eps) * (1 + np.abs(expected[name]).max())
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=bound)
