"""Convolution, spectral and control ops against plain loops and worked numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim, evaluate
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape
from rlx.ir import interpret
from rlx.ir.mir import Graph
from rlx.ir.text import read, show
from rlx.ops.op import lookup

F32 = DType.F32
RNG = np.random.default_rng(7)


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


# -- convolution ----------------------------------------------------------------------------------


def plain_conv2d(x, w, bias, stride, padding, dilation, groups):
    """One output at a time, in f64."""
    top, left, bottom, right = padding
    n, _, height, width = x.shape
    o, i, kh, kw = w.shape
    rows = (height + top + bottom - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    columns = (width + left + right - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, o, rows, columns))
    for b, q, r, s in itertools.product(range(n), range(o), range(rows), range(columns)):
        group = q // (o // groups)
        for k, u, v in itertools.product(range(i), range(kh), range(kw)):
            a = r * stride[0] - top + u * dilation[0]
            e = s * stride[1] - left + v * dilation[1]
            if 0 <= a < height and 0 <= e < width:
                y[b, q, r, s] += float(x[b, group * i + k, a, e]) * float(w[q, k, u, v])
        y[b, q, r, s] += 0 if bias is None else bias[q]
    return y


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("has_bias", [True, False])
def test_conv2d_is_the_plain_loop(groups, has_bias):
    x, w = normal(2, 4, 6, 5), normal(4, 4 // groups, 3, 2)
    bias = normal(4) if has_bias else None
    geometry = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": groups}
    got = ops.conv2d(x, w, bias, **geometry)
    want = plain_conv2d(x, w, bias, **geometry)
    # at most 24 products: 25 roundings of eps times terms that are below 20
    np.testing.assert_allclose(got, want, rtol=0, atol=25 * 2**-23 * 20)


def test_conv2d_has_floor_division_dims():
    h = Dim("h", 3, 512)
    x, w = Shape([rlx.sym.BATCH, 3, h, 32], F32), Shape([8, 3, 3, 3], F32)
    made = lookup("conv2d")(x, w, stride=(2, 2), padding=(1, 1, 1, 1))
    assert made.dims[0] == rlx.sym.BATCH
    for size in (3, 4, 17, 512):
        concrete = lookup("conv2d")(
            Shape([1, 3, size, 32], F32), w, stride=(2, 2), padding=(1, 1, 1, 1)
        )
        assert evaluate(made.dims[2], {"h": size}) == concrete.dims[2]


@pytest.mark.parametrize("op", ["conv2d", "max_pool2d", "avg_pool2d", "stft"])
def test_strided_windows_lower_over_named_dims(op):
    """The lowering holds for every size in the range: slices are proved to be inside."""
    n = Dim("n", 8, 64)
    g = Graph("open")
    if op == "stft":
        operands, attrs = [g.input("x", Shape([n], F32))], {"n_fft": 8, "hop": 3}
    else:
        operands = [g.input("x", Shape([1, 2, n, 9], F32))]
        attrs = {"stride": (2, 3), "padding": (1, 0, 1, 0)}
        if op == "conv2d":
            operands.append(g.input("w", Shape([4, 2, 3, 3], F32)))
        else:
            attrs |= {"kernel": (3, 2)}
    decl = lookup(op)
    node = g.node(decl, operands, attrs)
    g.set_outputs([node, *decl.lowered(operands, node.attrs)])
    for size in (8, 9, 10, 11):
        dims = [s.shape.bind({"n": size}).static_dims for s in operands]
        values = {o.attrs["name"]: normal(*d) for o, d in zip(operands, dims)}
        whole, lowered = interpret.evaluate(g, values)
        # at most 18 products of numbers below 5
        np.testing.assert_allclose(lowered, whole, rtol=0, atol=19 * 2**-23 * 25)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "reason"),
    [
        ([1, 4, 5, 5], [4, 3, 3, 3], {}, "4 channels"),
        ([1, 4, 5, 5], [3, 2, 3, 3], {"groups": 2}, "2 groups do not divide"),
        ([1, 4, 2, 5], [3, 4, 3, 3], {}, "spans 3, but the padded axis 2 is 2"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"stride": (0, 1)}, "stride"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"padding": (1, 1)}, "padding"),
        ([1, 4, 5, 5], [3, 4, 3, 3], {"dilation": (1, -1)}, "dilation"),
        ([1, 4, 5, 5], [3, 4, 0, 3], {}, "kernel"),
        ([4, 5, 5], [3, 4, 1, 3], {}, "expected 3 dims, as operand 0"),
    ],
)
def test_conv2d_refuses_what_does_not_fit(x, w, attrs, reason):
    with pytest.raises(GraphError, match=reason):
        lookup("conv2d")(Shape(x, F32), Shape(w, F32), **attrs)


def test_pools_by_hand():
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    most = ops.max_pool2d(x, kernel=(2, 2), stride=(2, 2))
    np.testing.assert_array_equal(most[0, 0], [[6, 8], [14, 16]])
    mean = ops.avg_pool2d(x, kernel=(2, 2), stride=(2, 2))
    np.testing.assert_array_equal(mean[0, 0], [[3.5, 5.5], [11.5, 13.5]])
    np.testing.assert_array_equal(ops.global_avg_pool2d(x), [[[[8.5]]]])
    with_pads = {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    inside = ops.avg_pool2d(x, **with_pads)
    np.testing.assert_array_equal(inside[0, 0, 0], [1, 2.5, 4])
    counted = ops.avg_pool2d(x, **with_pads, count_include_pad=True)
    np.testing.assert_array_equal(counted[0, 0, 0], [0.25, 1.25, 1])


def test_ceil_adds_a_window_but_not_one_without_data():
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    kwargs = {"kernel": (1, 2), "stride": (1, 2)}
    assert ops.max_pool2d(x, **kwargs).shape == (1, 1, 1, 2)
    np.testing.assert_array_equal(ops.max_pool2d(x, **kwargs, ceil=True)[0, 0, 0], [1, 3, 4])
    # the last window has one element of data and one past the padding, which never counts
    mean = ops.avg_pool2d(x, **kwargs, ceil=True, count_include_pad=True)
    np.testing.assert_array_equal(mean[0, 0, 0], [0.5, 2.5, 4])
    # a window that would start in the padding after the data is not there
    padded = {"kernel": (1, 2), "stride": (1, 2), "padding": (0, 0, 0, 1)}
    assert ops.max_pool2d(x[..., :4], **padded, ceil=True).shape == (1, 1, 1, 2)


def test_max_pool_of_integers_and_nan():
    x = np.full((1, 1, 2, 2), -100, np.int8)
    got = ops.max_pool2d(x, kernel=(2, 2), padding=(1, 1, 1, 1))
    np.testing.assert_array_equal(got, np.full((1, 1, 3, 3), -100))
    y = np.array([[[[1, np.nan]]]], np.float32)
    assert np.isnan(ops.max_pool2d(y, kernel=(1, 2))).all()


def test_pool_padding_is_less_than_the_window():
    with pytest.raises(GraphError, match="padding"):
        lookup("max_pool2d")(Shape([1, 1, 4, 4]), kernel=(2, 2), padding=(2, 0, 0, 0))


# -- spectral -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
def test_fft_has_numpys_meaning_in_block_layout(norm, inverse):
    x = normal(3, 14)
    z = x[:, :7].astype(np.complex128) + 1j * x[:, 7:]
    want = (np.fft.ifft if inverse else np.fft.fft)(z, norm=norm)
    got = ops.fft(x, inverse=inverse, norm=norm)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.concatenate([want.real, want.imag], -1).astype("f4"))
    plain = ops.fft(z.astype(np.complex64), inverse=inverse, norm=norm)
    assert plain.dtype == np.complex64
    # the operand was rounded to c64: one rounding of each of 7 terms, scaled by at most 1
    np.testing.assert_allclose(plain, want, rtol=0, atol=8 * 2**-23 * np.abs(z).sum(-1).max())


def test_fft_and_back_is_the_signal():
    x = normal(2, 10)
    # two transforms, each rounded once; sums of 5 terms
    np.testing.assert_allclose(ops.fft(ops.fft(x), inverse=True), x, atol=8 * 2**-23 * 10)


def test_fft_of_an_odd_length_is_an_error():
    with pytest.raises(GraphError, match="not even"):
        ops.fft(normal(3, 7))
    with pytest.raises(GraphError, match="not even"):
        lookup("fft")(Shape([Dim("n")], F32))
    n = Dim("n")
    assert lookup("fft")(Shape([2 * n], F32)).dims == (2 * n,)


@pytest.mark.parametrize("n", [None, 1, 4, 7, 12])
def test_rfft_and_irfft_are_numpys(n):
    x = normal(2, 9)
    spectrum = ops.rfft(x, n=n)
    assert spectrum.dtype == np.complex64
    wide = np.fft.rfft(x.astype(np.float64), n)
    np.testing.assert_array_equal(spectrum, wide.astype(np.complex64))
    back = ops.irfft(spectrum, n=n)
    assert back.dtype == np.float32
    want = np.fft.irfft(spectrum.astype(np.complex128), n)
    np.testing.assert_array_equal(back, want.astype(np.float32))


def test_ifft_takes_real_and_complex_numbers():
    x = normal(5)
    np.testing.assert_array_equal(ops.ifft(x), np.fft.ifft(x.astype("f8")).astype(np.complex64))


def test_a_transform_of_nothing_is_an_error():
    with pytest.raises(GraphError, match="at least one"):
        ops.rfft(normal(2, 0))
    with pytest.raises(GraphError, match="at least one"):
        ops.irfft(np.zeros((2, 1), np.complex64))


def test_stft_is_the_transform_of_each_frame():
    x, window = normal(2, 20), np.hanning(8).astype(np.float32)
    got = ops.stft(x, window, n_fft=8, hop=3)
    assert got.shape == (2, 5, 5)
    for i in range(5):
        frame = x[:, 3 * i : 3 * i + 8].astype("f8") * window
        np.testing.assert_array_equal(got[:, i], np.fft.rfft(frame).astype(np.complex64))
    centred = ops.stft(x, n_fft=8, hop=4, center=True)
    mirrored = np.pad(x, [(0, 0), (4, 4)], mode="reflect")
    np.testing.assert_array_equal(centred, ops.stft(mirrored, n_fft=8, hop=4))
    with pytest.raises(GraphError, match="longer than the signal"):
        ops.stft(x, n_fft=32, hop=4)


def test_log_mel_by_hand():
    """n_fft 4: bins 0, 1, 2; powers 1, 100, 0; two bands, of which the second is silent."""
    spectrum = np.array([1, 0, 0, 9, 0, 10, 0, 9], np.float32)
    filters = np.array([[1, 0.5, 0], [0, 0, 1]], np.float32)
    loud, silent = np.log10(51.0), np.log10(51.0) - 8
    got = ops.log_mel(spectrum, filters)
    np.testing.assert_allclose(got, [(loud + 4) / 4, (silent + 4) / 4], rtol=4 * 2**-23)
    floor = ops.log_mel(np.zeros((1, 8), np.float32), filters)
    np.testing.assert_allclose(floor, np.full((1, 2), (-10 + 4) / 4), rtol=4 * 2**-23)
    with pytest.raises(GraphError, match="bins"):
        ops.log_mel(spectrum, filters[:, :2])


def test_welch_peaks_by_hand():
    """n_fft 4, two segments: mean powers 4, 2·1, 9 over bins 0, 1, 2; only the middle doubles."""
    segment = np.array([[2, 1, 3, 7, 0, 0, 0, 7]], np.float32)
    got = ops.welch_peaks(np.vstack([segment, segment]), k=2, n_segments=2)
    np.testing.assert_array_equal(got, [[2, 9, 0, 4]])
    wide = ops.welch_peaks(np.vstack([segment, segment]), k=5, n_segments=2)
    np.testing.assert_array_equal(wide, [[2, 9, 0, 4, 1, 2, 0, 0, 0, 0]])


def test_welch_ties_go_to_the_lower_bin():
    flat = np.zeros((1, 16), np.float32)
    np.testing.assert_array_equal(
        ops.welch_peaks(flat, k=3, n_segments=1), [[0, 0, 1, 0, 2, 0]]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "attrs", "reason"),
    [
        ([4, 7], {"k": 1, "n_segments": 2}, "not even"),
        ([5, 8], {"k": 1, "n_segments": 2}, "whole groups"),
        ([4, 8], {"k": 0, "n_segments": 2}, "at least 1"),
        ([4, 8], {"k": 1, "n_segments": 0}, "at least 1"),
        ([4, 8, 2], {"k": 1, "n_segments": 2}, "2 dims"),
        ([4, 0], {"k": 1, "n_segments": 2}, "at least one point"),
    ],
)
def test_welch_refuses(dims, attrs, reason):
    with pytest.raises(GraphError, match=reason):
        lookup("welch_peaks")(Shape(dims, F32), **attrs)


def test_what_syncs_and_what_ends():
    for name in ("log_mel", "welch_peaks", "custom"):
        assert lookup(name).syncs_host
    assert lookup("welch_peaks").is_epilogue
    assert not lookup("fft").syncs_host


# -- branches and loops ---------------------------------------------------------------------------


def once(g: Graph, **values: np.ndarray) -> list[np.ndarray]:
    """The outputs, after a trip through text."""
    assert read(show(g)) == g
    return interpret.evaluate(read(show(g)), values)


def test_only_the_taken_side_runs():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], DType.I64))
    table = np.arange(4, dtype=np.int64)
    y = rlx.cond(p, lambda i: ops.gather(table, i, axis=0), lambda i: i + 1, x)
    g.set_outputs([y])
    far = np.array([5, 6, 7])
    np.testing.assert_array_equal(once(g, p=np.array(False), x=far)[0], far + 1)
    with pytest.raises(Error, match="gather"):
        once(g, p=np.array(True), x=far)


def test_a_branch_that_could_fail_is_not_made_a_select():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], DType.I64))
    table = np.arange(4, dtype=np.int64)
    node = rlx.cond(p, lambda i: ops.gather(table, i, axis=0), lambda i: i + 1, x).inputs[0]
    with pytest.raises(UnsupportedError, match="gather"):
        node.decl.lowered(node.inputs, node.attrs)


def test_sides_must_agree_and_the_error_names_both():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], F32))
    with pytest.raises(GraphError, match=r"then gives \(f32\[3\]\), but else gives \(f32\[1\]\)"):
        rlx.cond(p, lambda x: x, lambda x: x[:1], x)
    with pytest.raises(GraphError, match="expected one bool"):
        rlx.cond(x, lambda x: x, lambda x: x, x)


def test_closing_over_an_outer_node_says_to_pass_it():
    g = Graph("outer")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], F32))
    y = g.input("y", Shape([3], F32))
    for closure in (lambda v: v + y, lambda v: y, lambda v: y * 2.0):
        with pytest.raises(GraphError, match=r"(?i)pass it as an argument"):
            rlx.cond(p, closure, lambda v: v, x)


def test_while_counts_and_stops():
    g = Graph("loop")
    n, x = g.input("n", Shape([], DType.I64)), g.input("x", Shape([2], F32))
    i, y, _ = rlx.while_loop(
        lambda i, y, n: i < n, lambda i, y, n: (i + 1, y * 2.0, n), g.constant(np.int64(0)), x, n
    )
    g.set_outputs([i, y])
    count, doubled = once(g, n=np.array(5), x=np.array([1, 3], np.float32))
    assert count == 5
    np.testing.assert_array_equal(doubled, [32, 96])
    assert once(g, n=np.array(-1), x=np.zeros(2, np.float32))[0] == 0


def test_while_is_bounded_by_max_iterations_and_only_then_written_out():
    def loop(most):
        g = Graph("loop")
        x = g.input("x", Shape([], DType.I32))
        made = rlx.while_loop(lambda v: v > 0, lambda v: v - 3, x, max_iterations=most)
        g.set_outputs([made])
        return g, made.inputs[0]

    g, _ = loop(2)
    assert once(g, x=np.array(100, np.int32))[0] == 94
    for most, reason in ((None, "max_iterations"), (65, "limit")):
        node = loop(most)[1]
        with pytest.raises(UnsupportedError, match=reason):
            node.decl.lowered(node.inputs, node.attrs)


def test_carries_keep_their_shape_and_dtype():
    g = Graph("loop")
    x = g.input("x", Shape([3], F32))
    with pytest.raises(GraphError, match=r"carry 0 is f32\[3\], but body returns f32\[2\]"):
        rlx.while_loop(lambda v: ops.any(v > 0), lambda v: v[:2], x)
    with pytest.raises(GraphError, match="expected one bool"):
        rlx.while_loop(lambda v: v > 0, lambda v: v, x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan_is_a_loop_over_slices(length, reverse):
    x, w = normal(length, 3), normal(3)
    g = Graph("scan")
    a = g.input("x", Shape([length, 3], F32))
    b, c = g.input("w", Shape([3], F32)), g.input("c", Shape([3], F32))
    last, (ys, doubles) = rlx.scan_loop(
        lambda carry, v, factor: (carry * factor + v, (carry, v + v)), c, a, (b,), reverse=reverse
    )
    g.set_outputs([last, ys, doubles])
    got = once(g, x=x, w=w, c=np.ones(3, np.float32))
    carry, rows = np.ones(3, np.float32), np.zeros((length, 3), np.float32)
    for t in reversed(range(length)) if reverse else range(length):
        rows[t], carry = carry, carry * w + x[t]
    np.testing.assert_array_equal(got[0], carry)
    np.testing.assert_array_equal(got[1], rows)
    np.testing.assert_array_equal(got[2], x + x)


def test_scan_over_a_named_length():
    t = Dim("t", 0, 100)
    g = Graph("scan")
    x = g.input("x", Shape([t, 2], F32))
    total, sums = rlx.scan_loop(lambda c, v: (c + v, c + v), np.zeros(2, np.float32), x)
    g.set_outputs([total, sums])
    assert sums.shape == Shape([t, 2], F32)
    for length in (0, 1, 7):
        rows = np.ones((length, 2), np.float32)
        total, sums = once(g, x=rows)
        np.testing.assert_array_equal(total, [length, length])
        np.testing.assert_array_equal(sums, np.cumsum(rows, 0))


def test_scan_without_xs_needs_a_length():
    with pytest.raises(GraphError, match="length"):
        rlx.scan_loop(lambda c, x: (c, None), np.float32(1), None)
    last, ys = rlx.scan_loop(lambda c, x: (c + c, None), np.float32(1), None, length=10)
    assert last == 1024
    assert ys is None


def test_scan_checks_operands():
    body = Graph("body")
    body.set_outputs([body.input("c", Shape([2], F32))])
    c, xs = Shape([2], F32), Shape([4, 2], F32)
    with pytest.raises(GraphError, match="leading dim"):
        lookup("scan")(c, xs, body=body, length=3, num_carries=1)
    with pytest.raises(GraphError, match="takes"):
        lookup("scan")(c, xs, body=body, length=4, num_carries=1)
    with pytest.raises(GraphError, match="not among"):
        lookup("scan")(c, body=body, length=4, num_carries=2)


def test_a_body_has_no_params():
    body = Graph("body")
    x, w = body.input("x", Shape([2], F32)), body.param("w", Shape([2], F32))
    body.set_outputs([x + w])
    with pytest.raises(GraphError, match="param 'w'"):
        lookup("if")(Shape([], DType.BOOL), Shape([2], F32), then=body, else_=body)


def test_loops_run_on_arrays_too():
    assert rlx.while_loop(lambda v: v < 100, lambda v: v * 3, np.int64(1)) == 243
    assert rlx.cond(np.array(True), lambda v: v + 1, lambda v: v - 1, np.int64(1)) == 2


# -- custom ops -----------------------------------------------------------------------------------


def triple(x: np.ndarray, *, by: float = 3.0) -> np.ndarray:
    return x * np.asarray(by, x.dtype)


def same_shape(x: Shape, *, by: float = 3.0) -> Shape:
    return x


def test_a_custom_op_builds_runs_and_reads_back():
    op = rlx.custom_op("test_c.triple", triple, same_shape)
    assert rlx.custom_op("test_c.triple", triple, same_shape) == op
    g = Graph("custom")
    x = g.input("x", Shape([2], F32))
    g.set_outputs([op(x, by=2.0)])
    np.testing.assert_array_equal(once(g, x=np.ones(2, np.float32))[0], [2, 2])
    np.testing.assert_array_equal(op(np.ones(2, np.float32)), [3, 3])


def test_a_custom_name_means_one_thing():
    rlx.custom_op("test_c.once", triple, same_shape)
    with pytest.raises(Error, match="already registered"):
        rlx.custom_op("test_c.once", lambda x: x, same_shape)


def test_an_unknown_custom_name_in_text_is_a_graph_error():
    text = 'mir "t" {\n %0 = input(name="x", shape=f32[]) : f32[]\n' \
           ' %1 = custom(%0, name="never.seen") : (f32[],)\n return %0\n}'  # fmt: skip
    with pytest.raises(GraphError, match=r"3: .*never\.seen"):
        read(text)


def test_whatever_a_custom_function_raises_is_an_rlx_error():
    def broken(*given: object) -> object:
        raise KeyError("oops")

    op = rlx.custom_op("test_c.broken_rule", triple, broken)
    with pytest.raises(GraphError, match="oops"):
        op(np.ones(2, np.float32))
    run = rlx.custom_op("test_c.broken_run", broken, same_shape)
    with pytest.raises(Error, match="oops"):
        run(np.ones(2, np.float32))
    wrong = rlx.custom_op("test_c.wrong_rule", triple, lambda x: 3)
    with pytest.raises(GraphError, match=r"expected a rlx\.Shape"):
        wrong(np.ones(2, np.float32))
