"""The option `precision`: what it changes, what it leaves, and what is said about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.passes.options import Precision
from rlx.runtime.request_keys import request_key

RNG = np.random.default_rng(3)
X = RNG.normal(size=(5, 128)).astype(np.float32)
PARAMS = {
    "w": RNG.normal(size=(128, 96)).astype(np.float32),
    "b": RNG.normal(size=96).astype(np.float32),
    "v": RNG.normal(size=(96, 64)).astype(np.float32),
}


def model() -> rlx.Graph:
    g = rlx.Graph("two_products")
    x = g.input("x", rlx.Shape([5, 128]))
    w, b, v = (g.param(k, rlx.Shape(a.shape)) for k, a in PARAMS.items())
    h = ops.relu(ops.add(ops.matmul(x, w), b))
    g.set_outputs([ops.softmax(ops.matmul(h, v), axis=-1)])
    return g


def compiled(precision: str | None, **more: Any) -> Any:
    given = {"target": "cpu", "params": PARAMS, "cache": False, **more}
    return rlx.compile(model(), precision=precision, **given)


def products(exe: Any, what: str) -> list[rlx.Decision]:
    return [d for d in exe.decisions if d.what == what]


@pytest.mark.parametrize("text", ["", "fp8", "int8:", "int8:block=0", "int8:block=-1", "bf16:",
                                  "int8:rows=3", "bf16:block=32", "int8:block=x"])  # fmt: skip
def test_an_unknown_precision_is_refused(text: str) -> None:
    with pytest.raises(rlx.Error, match=r"precision .*Use 'bf16', 'int8'"):
        rlx.compile(model(), "reference", precision=text)


def test_what_is_asked_for_is_read() -> None:
    assert Precision.of("bf16") == Precision("bf16")
    assert Precision.of("int8:block=32") == Precision("int8", 32)


def test_it_is_part_of_the_key() -> None:
    target = rlx.Target.of("cpu")
    asked = [None, "bf16", "int8", "int8:block=32"]
    keys = {request_key(model(), target, rlx.FusionOptions(precision=p)) for p in asked}
    assert len(keys) == 4


def bound(precision: str) -> np.ndarray:
    """How far x · w may be off: each operand by 2⁻⁹ of its size in bf16, each weight by half of
    1/127 of the greatest that shares its scale; and 128 roundings of f32."""
    x, w = abs(X.astype(np.float64)), abs(PARAMS["w"].astype(np.float64))
    sums = 128 * 2.0**-24 * (x @ w)
    if precision == "bf16":
        return sums + (2 * 2.0**-9 + 2.0**-18) * (x @ w)
    run = 32 if ":" in precision else 128
    scale = w.reshape(-1, run, 96).max(axis=1, keepdims=True) / 127
    return sums + x @ np.broadcast_to(1.001 * scale / 2, (128 // run, run, 96)).reshape(128, 96)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8:block=32"])
@pytest.mark.parametrize("target", ["cpu", "cpu:avx2", "reference"])
def test_a_product_is_as_near_as_its_operands(target: str, precision: str) -> None:
    g = rlx.Graph("product")
    g.set_outputs([ops.matmul(g.input("x", rlx.Shape(X.shape)),
                              g.param("w", rlx.Shape(PARAMS["w"].shape)))])  # fmt: skip
    given = {"params": {"w": PARAMS["w"]}, "cache": False}
    got = rlx.compile(g, target, precision=precision, **given)(X)
    off = abs(got - X.astype(np.float64) @ PARAMS["w"])
    assert got.dtype == np.float32
    assert (off <= bound(precision)).all()
    assert off.max() > 1e-3  # which f32 would not be


def convolutions() -> rlx.Graph:
    """One that is summed over channels, with what follows it, and one of each channel by itself."""
    g = rlx.Graph("convolutions")
    x, w, v = (g.input(n, rlx.Shape(d)) for n, d in IMAGES.items())
    b = g.constant(np.linspace(-1, 1, 20, dtype=np.float32))
    y = ops.relu(ops.conv(x, w, b, padding=(1, 1, 1, 1), stride=(2, 1)))
    g.set_outputs([y, ops.conv(y, v, groups=20)])
    return g


IMAGES = {"x": (2, 17, 9, 10), "w": (20, 17, 3, 3), "v": (20, 1, 3, 3)}


@pytest.mark.parametrize("target", ["cpu", "cpu:avx2", "reference"])
def test_a_convolution_is_as_near_as_its_operands(target: str) -> None:
    """2 · 2⁻⁹ for the operands, and 2⁻²⁴ for each of 153 additions, of the sum of sizes."""
    arrays = [RNG.normal(size=d).astype(np.float32) for d in IMAGES.values()]
    graph, plain = convolutions(), rlx.compile(convolutions(), "reference", cache=False)
    exe = rlx.compile(graph, target, precision="bf16", cache=False)
    (got, _), (want, _) = exe(*arrays), plain(*arrays)
    (size, _) = plain(*map(abs, arrays))
    off = abs(got - want)
    assert (off <= (2 * 2.0**-9 + 2.0**-18 + 153 * 2.0**-24) * (size + 2)).all()
    assert off.max() > 1e-3  # which f32 would not be
    taken, refused = sorted(products(exe, "bf16_product"), key=lambda d: not d.verdict)
    assert taken.verdict
    assert refused.reason.startswith("its reduction has length 9")


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8:block=32"])
def test_bits_do_not_depend_on_threads(precision: str) -> None:
    found = {compiled(precision, threads=n)(X).tobytes() for n in (1, 2, 3)}
    assert len(found) == 1


def test_every_product_is_a_decision_with_its_reason() -> None:
    taken = products(compiled("bf16"), "bf16_product")
    assert len(taken) == 2
    assert all(d.verdict and d.kind == "precision" and "sums in f32" in d.reason for d in taken)
    per_block = products(compiled("int8:block=32"), "int8_product")
    assert all("32 weights" in d.reason for d in per_block)


def test_a_decision_can_be_turned() -> None:
    first, second = products(compiled("bf16"), "bf16_product")
    options = rlx.FusionOptions(force={first.id: False, second.id: False})
    exe = compiled("bf16", options=options)
    assert exe(X).tobytes() == compiled(None)(X).tobytes()


def test_what_cannot_be_packed_says_why() -> None:
    g = rlx.Graph("apart")
    x, y = g.input("x", rlx.Shape([8, 100])), g.input("y", rlx.Shape([100, 64]))
    w, few = g.param("w", rlx.Shape([100, 64])), g.param("few", rlx.Shape([100, 2]))
    g.set_outputs([ops.matmul(x, v) for v in (y, w, few)])
    exe = rlx.compile(g, "reference", precision="int8:block=32")
    reasons = sorted(d.reason for d in products(exe, "int8_product"))
    assert [r.split(":")[0] for r in reasons] == [
        "it has 200 weights, fewer than 4096",
        "its reduction of length 100 is no multiple of the block 32",
        "its right operand is no weight",
    ]


def test_short_sums_stay_in_f32() -> None:
    """Positions times rates, as rotary tables are made: bf16 would lose their last digits."""
    g = rlx.Graph("positions")
    at, rates = g.input("at", rlx.Shape([300, 1])), g.param("rates", rlx.Shape([1, 32]))
    g.set_outputs([ops.matmul(at, rates)])
    exe = rlx.compile(g, "cpu", precision="bf16", cache=False)
    (one,) = products(exe, "bf16_product")
    assert (one.verdict, one.reason) == (False, "its reduction has length 1, below 16")


def test_products_inside_branches_are_rounded_too() -> None:
    body = rlx.Graph("body")
    body.set_outputs([ops.matmul(body.input("c", rlx.Shape([4, 64])),
                                 body.input("w", rlx.Shape([64, 64])))])  # fmt: skip
    g = rlx.Graph("branch")
    x, w = g.input("x", rlx.Shape([4, 64])), g.param("w", rlx.Shape([64, 64]))
    flag = g.input("flag", rlx.Shape([], "bool"))
    branch = g.node("if", [flag, x, w], {"then": body, "else": body})
    g.set_outputs([g.node("item", [branch], {"index": 0})])
    exe = rlx.compile(g, "cpu", precision="bf16", cache=False)
    assert any(d.verdict for d in products(exe, "bf16_product"))
