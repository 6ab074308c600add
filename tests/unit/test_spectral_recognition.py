"""Welch estimates and mel features in drawn spellings are one kernel that stores no spectrum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import sides_of
from rlx.passes.context import Context
from rlx.passes.simplify import simplify
from tests.effort import tries

BATCH, FRAMES, HOP = 2, 5, 4
Forms = dict[str, Callable[[], Node]]


class Spelling:
    """One way to write a computation: each step draws its form, and the name says which."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw((11, seed))
        self.n = self.draw.choice((8, 9, 16))
        self.bins = self.n // 2 + 1
        self.graph = Graph("spelled")
        self.name: list[str] = []

    def pick(self, forms: Forms) -> Node:
        name = self.draw.choice([*forms])
        self.name.append(name)
        return forms[name]()

    # -- frames ----------------------------------------------------------------------------------

    def rows(self) -> Node:
        """[batch, frames, n], windowed."""
        n, g = self.n, self.graph
        x = g.input("x", Shape([BATCH, (FRAMES - 1) * HOP + n]))
        frames = ops.frame(x, length=n, hop=HOP)
        w = g.param("w", Shape([n]))
        flat = ops.reshape(frames, dims=(BATCH * FRAMES, n))
        back = {"dims": (BATCH, FRAMES, n)}
        return self.pick(
            {
                "window": lambda: ops.mul(frames, w),
                "window first": lambda: ops.mul(w, frames),
                "window of rank 3": lambda: ops.mul(frames, ops.reshape(w, dims=(1, 1, n))),
                "scaled window": lambda: ops.mul(ops.mul(frames, 0.5), ops.mul(w, 2.0)),
                "window of flat rows": lambda: ops.reshape(ops.mul(flat, w), **back),
                "scaled frames": lambda: ops.div(ops.mul(ops.mul(frames, w), 4.0), 4.0),
                "complex": lambda: ops.real(
                    ops.mul(ops.cast(frames, to=DType.C64), ops.cast(w, to=DType.C64))
                ),
            }
        )

    # -- spectra ---------------------------------------------------------------------------------

    def spectrum(self, y: Node) -> Node:
        half = {"axis": -1, "start": 0, "length": self.bins}
        zeros = self.graph.constant(np.zeros(y.shape.dims, np.float32))
        longer = ops.pad(y, low=(0, 0, 0), high=(0, 0, 3), value=0.0)
        return self.pick(
            {
                "rfft": lambda: ops.rfft(y),
                "rfft of n": lambda: ops.rfft(longer, n=self.n),
                "orthonormal": lambda: ops.mul(ops.rfft(y, norm="ortho"), complex(self.n**0.5)),
                "half of fft": lambda: ops.narrow(ops.fft(ops.cast(y, to=DType.C64)), **half),
                "half of fft, 0j": lambda: ops.narrow(ops.fft(ops.make_complex(y, zeros)), **half),
            }
        )

    def power(self, y: Node) -> Node:
        """[batch, frames, bins]"""
        n, bins = self.n, self.bins
        if self.draw.coin(0.2):
            self.name.append("split complex")
            spectrum = ops.fft(ops.concat([y, ops.mul(y, 0.0)], axis=2))
            re, im = (ops.narrow(spectrum, axis=2, start=s, length=bins) for s in (0, n))
            return ops.add(ops.mul(re, re), ops.mul(im, im))
        if self.draw.coin(0.2):
            self.name.append("half of power")
            whole = ops.square(ops.abs(ops.fft(ops.cast(y, to=DType.C64))))
            return ops.narrow(whole, axis=2, start=0, length=bins)
        z = self.spectrum(y)
        re, im = ops.real(z), ops.imag(z)
        pairs = ops.view_as_real(z)
        first, second = (ops.narrow(pairs, axis=3, start=i, length=1) for i in (0, 1))
        swapped = ops.transpose(z, perm=(0, 2, 1))
        return self.pick(
            {
                "norm": lambda: ops.complex_norm_sq(z),
                "abs squared": lambda: ops.square(ops.abs(z)),
                "abs to the 2": lambda: ops.pow(ops.abs(z), 2.0),
                "abs by abs": lambda: ops.mul(ops.abs(z), ops.abs(z)),
                "parts": lambda: ops.add(ops.mul(re, re), ops.mul(im, im)),
                "parts turned round": lambda: ops.add(ops.square(im), ops.pow(re, 2.0)),
                "root": lambda: ops.square(ops.sqrt(ops.add(ops.square(re), ops.square(im)))),
                "conjugate": lambda: ops.real(ops.mul(ops.conj(z), z)),
                "abs of conjugate": lambda: ops.abs(ops.mul(z, ops.conj(z))),
                "sum of pairs": lambda: ops.sum(ops.square(pairs), axes=(3,)),
                "parts of pairs": lambda: ops.reshape(
                    ops.add(ops.square(first), ops.square(second)), dims=z.shape.dims
                ),
                "of bins by frames": lambda: ops.transpose(
                    ops.square(ops.abs(swapped)), perm=(0, 2, 1)
                ),
            }
        )

    # -- means -----------------------------------------------------------------------------------

    def doubled(self, p: Node) -> Node:
        """One-sided: bins with a mirror image twice."""
        last, end = p.rank - 1, self.bins - (1 if self.n % 2 == 0 else 0)
        spans = [(0, 1), (1, end), (end, self.bins)][: 3 if end < self.bins else 2]
        first, middle, *rest = (ops.narrow(p, axis=last, start=a, length=b - a) for a, b in spans)
        sides = sides_of(self.n, np.float32)
        return self.pick(
            {
                "concat": lambda: ops.concat([first, ops.mul(middle, 2.0), *rest], axis=last),
                "concat of sums": lambda: ops.concat(
                    [first, ops.add(middle, middle), *rest], axis=last
                ),
                "vector": lambda: ops.mul(p, sides),
                "select": lambda: ops.where(sides == 1, p, ops.mul(2.0, p)),
            }
        )

    def estimate(self) -> Node:
        """scipy doubles complex numbers, each segment's, and takes the real part later."""
        y = self.rows()
        how = self.draw.choice(("before", "behind", "complex"))
        self.name.append(how)
        if how == "complex":
            z = self.spectrum(y)
            p = self.doubled_complex(ops.mul(ops.conj(z), z))
            columns = ops.transpose(ops.real(ops.mul(p, complex(0.5))), perm=(0, 2, 1))
            return ops.mul(ops.mean(columns, axes=(2,)), 2.0)
        p = self.power(y)
        if how == "before":
            return self.mean(self.doubled(p))
        return self.doubled(self.mean(p))

    def doubled_complex(self, p: Node) -> Node:
        end = self.bins - (1 if self.n % 2 == 0 else 0)
        parts = [(0, 1, 1), (1, end, 2), (end, self.bins, 1)]
        made = [
            ops.narrow(p, axis=2, start=a, length=b - a) * complex(k)
            if k > 1
            else ops.narrow(p, axis=2, start=a, length=b - a)
            for a, b, k in parts
            if b > a
        ]
        return ops.concat(made, axis=2)

    def mean(self, p: Node) -> Node:
        return self.pick(
            {
                "mean": lambda: ops.mean(p, axes=(1,)),
                "sum over count": lambda: ops.div(ops.sum(p, axes=(1,)), float(FRAMES)),
                "sum times share": lambda: ops.mul(ops.sum(p, axes=(1,)), 1.0 / FRAMES),
                "mean of columns": lambda: ops.mean(ops.transpose(p, perm=(0, 2, 1)), axes=(2,)),
                "scaled": lambda: ops.mean(ops.mul(ops.div(p, 2.0), 2.0), axes=(1,)),
            }
        )

    def mel(self) -> Node:
        filters = self.graph.param("f", Shape([self.bins, 3]))
        p = self.power(self.rows())
        flat = ops.reshape(p, dims=(BATCH * FRAMES, self.bins))
        columns = ops.transpose(p, perm=(0, 2, 1))
        return self.pick(
            {
                "product": lambda: ops.matmul(p, filters),
                "flat": lambda: ops.reshape(ops.matmul(flat, filters), dims=(BATCH, FRAMES, 3)),
                "filters first": lambda: ops.transpose(
                    ops.matmul(ops.transpose(filters, perm=(1, 0)), columns), perm=(0, 2, 1)
                ),
                "einsum": lambda: ops.einsum(p, filters, equation="btf,fm->btm"),
                "einsum of columns": lambda: ops.einsum(columns, filters, equation="bft,fm->btm"),
                "filters of rank 3": lambda: ops.matmul(p, ops.expand_dims(filters, axes=(0,))),
            }
        )


def checked(spelling: Spelling, made: Node, only: set[str]) -> None:
    """It is these ops after simplification, with the value of a plain computation in f64."""
    spelling.graph.set_outputs([made])
    simple = simplify(spelling.graph, Context.of("cpu"))
    steps = [n.op for n in simple.order() if not n.is_leaf]
    left = {
        op
        for op in steps
        if op not in {"reshape", "transpose", "mul", "div", "expand", "reciprocal"}
    }
    assert left == only, f"{' · '.join(spelling.name)}: {steps}"
    rng = np.random.default_rng(1)
    values = {
        n.attrs["name"]: np.abs(rng.normal(size=n.shape.static_dims)).astype(np.float32)
        for n in spelling.graph.leaves
    }
    expected = plain(spelling, values)
    for graph in (spelling.graph, simple):
        [y] = evaluate(graph, values)
        np.testing.assert_allclose(y, expected, rtol=2e-4, atol=1e-4 * expected.max())


def plain(spelling: Spelling, values: dict[str, Any]) -> Any:
    n, x = spelling.n, values["x"].astype(np.float64)
    frames = np.stack([x[:, i * HOP : i * HOP + n] for i in range(FRAMES)], axis=1)
    power = np.abs(np.fft.rfft(frames * values["w"])) ** 2
    if "f" in values:
        return power @ values["f"]
    return power.mean(axis=1) * sides_of(n, np.float64)


@pytest.mark.parametrize("seed", range(tries(30, 400)))
def test_a_welch_estimate_is_one_kernel(seed: int) -> None:
    spelling = Spelling(seed)
    checked(spelling, spelling.estimate(), {"mean_power"})


@pytest.mark.parametrize("seed", range(tries(30, 400)))
def test_mel_features_are_one_kernel(seed: int) -> None:
    spelling = Spelling(1000 + seed)
    checked(spelling, spelling.mel(), {"mel_frames"})


@pytest.mark.parametrize("zeros", ["constant", "x - x", "0 · x", "pad"])
@pytest.mark.parametrize("windowed", [True, False])
def test_log_mel_of_rows_is_one_product(zeros: str, windowed: bool) -> None:
    g = Graph("log mel")
    x, f = g.input("x", Shape([4, 16])), g.param("f", Shape([3, 9]))
    rows = ops.mul(x, np.hanning(16).astype(np.float32)) if windowed else x
    imaginary: Forms = {
        "constant": lambda: g.constant(np.zeros((4, 16), np.float32)),
        "x - x": lambda: ops.sub(rows, rows),
        "0 · x": lambda: ops.mul(rows, 0.0),
    }
    if zeros == "pad":
        both = ops.pad(rows, low=(0, 0), high=(0, 16), value=0.0)
    else:
        both = ops.concat([rows, imaginary[zeros]()], axis=1)
    g.set_outputs([ops.log_mel(ops.fft(both), f)])
    simple = simplify(g, Context.of("cpu"))
    found = [n.op for n in simple.order()]
    assert "mel_frames" in found
    assert not {"fft", "log_mel", "pad", "concat"} & set(found)
    rng = np.random.default_rng(2)
    values = {"x": rng.normal(size=(4, 16)).astype(np.float32), "f": rng.random((3, 9), np.float32)}
    [after], [before] = evaluate(simple, values), evaluate(g, values)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def tables(n: int) -> list[Any]:
    """Cosines and sines as weights, with a window folded into them."""
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(n // 2 + 1)) / n
    window = np.hamming(n)[:, None]
    return [(window * part).astype(np.float32) for part in (np.cos(angles), -np.sin(angles))]


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("how", ["products", "product", "convolution", "convolutions"])
def test_a_window_and_a_transform_in_weights_are_read_as_such(how: str, n: int) -> None:
    g, count = Graph("weights"), n // 2 + 1
    x = g.input("x", Shape([BATCH, (FRAMES - 1) * HOP + n]))
    both, axis = np.concatenate(tables(n), axis=1), 1 if "convolution" in how else 2
    if "convolution" in how:
        weights = np.ascontiguousarray(both.T[:, None])
        wide = ops.reshape(x, dims=(BATCH, 1, x.shape.dims[1]))
        z = ops.conv(wide, weights, stride=(HOP,))
        halves = [ops.conv(wide, w, stride=(HOP,)) for w in np.split(weights, 2)]
    else:
        frames = ops.frame(x, length=n, hop=HOP)
        z, halves = ops.matmul(frames, both), [ops.matmul(frames, t) for t in tables(n)]
    if not how.endswith("s"):
        halves = [ops.narrow(z, axis=axis, start=s, length=count) for s in (0, count)]
    power = ops.add(*(ops.square(h) for h in halves))
    power = ops.transpose(power, perm=(0, 2, 1)) if axis == 1 else power
    g.set_outputs([ops.matmul(power, g.param("f", Shape([count, 3])))])
    simple = simplify(g, Context.of("cpu"))
    assert [n.op for n in simple.order() if n.op in ("conv", "matmul", "mel_frames")] == [
        "mel_frames"
    ]
    rng = np.random.default_rng(4)
    values = {n.attrs["name"]: rng.random(n.shape.static_dims, np.float32) for n in g.leaves}
    [after], [before] = evaluate(simple, values), evaluate(g, values)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_weights_that_are_nearly_a_transform_stay_weights() -> None:
    g = Graph("nearly")
    frames = ops.frame(g.input("x", Shape([2, 40])), length=8, hop=HOP)
    cosines, sines = tables(8)
    sines[3, 2] *= 1.001
    g.set_outputs([ops.add(*(ops.square(ops.matmul(frames, t)) for t in (cosines, sines)))])
    assert "power_frames" not in [n.op for n in simplify(g, Context.of("cpu")).order()]


def test_reals_that_are_repeated_as_complex_numbers_are_settled() -> None:
    g = Graph("repeated")
    x = g.input("x", Shape([1, 4]))
    g.set_outputs([ops.expand(ops.cast(x, to=DType.C64), dims=(3, 4))])
    simple = simplify(g, Context.of("cpu"))
    assert [n.op for n in simple.order()] == ["input", "cast", "expand"]
