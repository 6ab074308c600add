"""Recurrent and state-space layers against ONNX's cases, the formulas of its specification one
number at a time, SciPy's filters, closed forms, and torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import signal

from rlx import ops
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.op import lookup
from tests.sources.onnx_cases import OnnxCase, on_cases
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "lstm": "ONNX's test cases and reference of LSTM; its formulas, one number at a time; torch",
    "gru": "ONNX's test cases and reference of GRU; its formulas, one number at a time; torch",
    "rnn": "ONNX's test cases and reference of RNN; its formulas, one number at a time",
    "selective_scan": "scipy.signal.lfilter, of one filter per state where Δ is constant",
    "mamba2": "the attention-like dual form of the same layer",
    "gated_delta_net": "products of the matrices I - β·k·kᵀ that the rule stands for",
    "linear_attention": "ONNX's test cases and reference of LinearAttention",
    "causal_conv_state": "slices of the whole sequence, in test_convolution.py",
}
RNG = np.random.default_rng(5)
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
ORDER = ("bias", "lengths", "initial_h", "initial_c", "peepholes")


# -- ONNX's cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_onnx_cases(name: str):
    on_cases(name, name.upper())(lambda case: agrees(name, case))()


def agrees(name: str, case: OnnxCase) -> None:
    order = ORDER if name == "lstm" else ORDER[:3]
    given = [(e, x) for e, x in zip(order, case.inputs[3:]) if x is not None]
    direction = case.attrs.get("direction", "forward")
    made = lookup(name)(
        *case.inputs[:3], *(x for _, x in given), extras=tuple(e for e, _ in given),
        direction=direction, batch_first=bool(case.attrs.get("layout", 0)),
    )  # fmt: skip
    asked = [(m, want) for m, want in zip(made, case.outputs) if want is not None]
    assert asked
    for got, want in asked:
        # a few steps of sums of at most 5 products, through tanh, in f32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# -- the formulas ---------------------------------------------------------------------------------

FUNCTIONS = {
    "relu": lambda x, a, b: max(x, 0),
    "tanh": lambda x, a, b: math.tanh(x),
    "sigmoid": lambda x, a, b: 1 / (1 + math.exp(-x)),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: x if x >= 0 else a * x,
    "thresholded_relu": lambda x, a, b: x if x > a else 0,
    "scaled_tanh": lambda x, a, b: a * math.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: min(max(a * x + b, 0), 1),
    "elu": lambda x, a, b: x if x >= 0 else a * (math.exp(x) - 1),
    "softsign": lambda x, a, b: x / (1 + abs(x)),
    "softplus": lambda x, a, b: math.log(1 + math.exp(x)),
}


class Plain:
    """One direction of a layer, one number at a time, as ONNX writes it."""

    def __init__(self, name, w, r, extras, functions, clip, own):
        self.name, self.w, self.r, self.extras = name, w, r, extras
        self.functions, self.clip, self.own = functions, clip, own
        self.hidden = r.shape[1]
        zeros = np.zeros(2 * GATES[name] * self.hidden)
        self.wb, self.rb = np.split(extras.get("bias", zeros), 2)
        self.p = np.split(extras.get("peepholes", np.zeros(3 * self.hidden)), 3)

    def act(self, index, value):
        value = value if self.clip is None else min(max(value, -self.clip), self.clip)
        function, alpha, beta = self.functions[index]
        return FUNCTIONS[function](value, alpha, beta)

    def part(self, gate, j, x, h):
        row = gate * self.hidden + j
        return self.w[row] @ x + self.r[row] @ h + self.wb[row] + self.rb[row]

    def step(self, x, h, c):
        new = [getattr(self, self.name)(j, x, h, c) for j in range(self.hidden)]
        return np.array([n[0] for n in new]), np.array([n[1] for n in new])

    def lstm(self, j, x, h, c):
        i = self.act(0, self.part(0, j, x, h) + self.p[0][j] * c[j])
        f = 1 - i if self.own else self.act(0, self.part(2, j, x, h) + self.p[2][j] * c[j])
        new = f * c[j] + i * self.act(1, self.part(3, j, x, h))
        o = self.act(0, self.part(1, j, x, h) + self.p[1][j] * new)
        return o * self.act(2, new), new

    def gru(self, j, x, h, c):
        z = self.act(0, self.part(0, j, x, h))
        r = np.array([self.act(0, self.part(1, k, x, h)) for k in range(self.hidden)])
        row = 2 * self.hidden + j
        if self.own:
            past = r[j] * (self.r[row] @ h + self.rb[row])
        else:
            past = self.r[row] @ (r * h) + self.rb[row]
        new = self.act(1, self.w[row] @ x + past + self.wb[row])
        return (1 - z) * new + z * h[j], 0.0

    def rnn(self, j, x, h, c):
        return self.act(0, self.part(0, j, x, h)), 0.0

    def run(self, xs, h, c, reverse):
        """xs [length, inputs] of one row of the batch."""
        ys = np.zeros((len(xs), self.hidden))
        for t in reversed(range(len(xs))) if reverse else range(len(xs)):
            h, c = self.step(xs[t], h, c)
            ys[t] = h
        return ys, h, c


def plain(name, x, w, r, extras, direction, activations, alphas, betas, clip, own, batch_first):
    """All of a layer; `own` is input_forget or linear_before_reset."""
    extras = dict(extras)
    if batch_first:
        x = x.swapaxes(0, 1)
        extras |= {k: v.swapaxes(0, 1) for k, v in extras.items() if k.startswith("initial")}
    (length, batch, _), (directions, _, hidden) = x.shape, r.shape
    y = np.zeros((length, directions, batch, hidden))
    last = [np.zeros((directions, batch, hidden)) for _ in range(2)]
    every = list(zip(activations, alphas, betas))
    count = len(every) // directions
    for d, n in itertools.product(range(directions), range(batch)):
        own_extras = {k: v[d] for k, v in extras.items() if k in ("bias", "peepholes")}
        layer = Plain(name, w[d], r[d], own_extras, every[d * count :], clip, own)
        steps = int(extras["lengths"][n]) if "lengths" in extras else length
        zero = np.zeros((directions, batch, hidden))
        h, c = (extras.get(k, zero)[d, n] for k in ("initial_h", "initial_c"))
        reverse = direction == "reverse" or d == 1
        y[:steps, d, n], last[0][d, n], last[1][d, n] = layer.run(x[:steps, n], h, c, reverse)
    if batch_first:
        return y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last)
    return y, *last


def draw_layer(name: str, length: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    direction = RNG.choice(["forward", "reverse", "bidirectional"])
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[name]
    batch, inputs, hidden = 3, 2, 2
    batch_first = bool(RNG.integers(2))
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    outer = (batch, length) if batch_first else (length, batch)
    known = {
        "bias": RNG.normal(size=(directions, 2 * gates * hidden)),
        "lengths": RNG.integers(0, length + 1, batch).astype(np.int32),
        "initial_h": RNG.normal(size=state),
        "initial_c": RNG.normal(size=state),
        "peepholes": RNG.normal(size=(directions, 3 * hidden)),
    }
    order = ORDER if name == "lstm" else ORDER[:3]
    extras = {k: known[k] for k in order if RNG.integers(2)}
    count = {"lstm": 3, "gru": 2, "rnn": 1}[name] * directions
    attrs = {
        "direction": str(direction),
        "batch_first": batch_first,
        "activations": tuple(str(a) for a in RNG.choice(list(FUNCTIONS), count)),
        "alphas": tuple(float(a) for a in RNG.uniform(0.1, 1, count)),
        "betas": tuple(float(b) for b in RNG.uniform(0.1, 1, count)),
        "clip": RNG.choice([None, 0.7]),
        "extras": tuple(extras),
    }
    own = {"lstm": "input_forget", "gru": "linear_before_reset"}.get(name)
    attrs |= {own: bool(RNG.integers(2))} if own else {}
    x = RNG.normal(size=(*outer, inputs))
    w = RNG.normal(size=(directions, gates * hidden, inputs))
    r = RNG.normal(size=(directions, gates * hidden, hidden))
    return [x, w, r, *extras.values()], attrs


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("length", [0, 1, 4])
def test_layers_are_onnxs_formulas(name, length):
    for _ in range(12):
        operands, attrs = draw_layer(name, length)
        given = dict(attrs)
        extras = dict(zip(given.pop("extras"), operands[3:]))
        own = given.pop("input_forget", given.pop("linear_before_reset", False))
        want = plain(name, *operands[:3], extras, **given, own=own)
        made = lookup(name)(*operands, **attrs)
        for got, expected in zip(made, want):
            # four steps of a dozen roundings in f64, which no activation here magnifies much
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12, err_msg=str(attrs))


def test_activations_that_are_left_out_are_onnxs():
    x, w, r = RNG.normal(size=(3, 2, 2)), RNG.normal(size=(1, 8, 2)), RNG.normal(size=(1, 8, 2))
    told = ops.lstm(x, w, r, activations=("sigmoid", "tanh", "tanh"))
    for a, b in zip(told, ops.lstm(x, w, r)):
        np.testing.assert_array_equal(a, b)
    soft = ops.rnn(x, w[:, :2], r[:, :2], activations=("hard_sigmoid",))
    hard = ops.rnn(
        x, w[:, :2], r[:, :2], activations=("hard_sigmoid",), alphas=(0.2,), betas=(0.5,)
    )
    np.testing.assert_array_equal(soft[0], hard[0])


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"extras": ("bias",)}, "do not name the 0 operands"),
        ({"extras": ("peepholes",)}, "do not name"),
        ({"activations": ("tanh",)}, "activations: expected 2"),
        ({"clip": -1.0}, "clip"),
        ({"direction": "bidirectional"}, r"expected \[2, 6, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused(attrs, reason):
    with pytest.raises(GraphError, match=reason):
        lookup("gru")(Shape([3, 1, 2]), Shape([1, 6, 2]), Shape([1, 6, 2]), **attrs)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("both", [False, True])
def test_torch_agrees(name, both):
    """A second source, whose gates have another order: i f g o, and r z n after a linear reset."""
    torch = pytest.importorskip("torch", reason="torch is installed for tests that ask for it")
    kind = torch.nn.LSTM if name == "lstm" else torch.nn.GRU
    layer = kind(3, 4, bidirectional=both, batch_first=True, dtype=torch.float64)
    order = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}[name]

    def turned(key: str) -> np.ndarray:
        found = [layer.state_dict()[key + s].numpy() for s in ("", "_reverse")[: 1 + both]]
        parts = [np.split(v, len(order)) for v in found]
        return np.stack([np.concatenate([p[i] for i in order]) for p in parts])

    x = RNG.normal(size=(2, 5, 3))
    w, r, bw, br = map(turned, ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    attrs = {"linear_before_reset": True} if name == "gru" else {}
    y, *last = lookup(name)(
        x, w, r, np.concatenate([bw, br], axis=1), extras=("bias",), batch_first=True,
        direction="bidirectional" if both else "forward", **attrs,
    )  # fmt: skip
    with torch.no_grad():
        want, states = layer(torch.tensor(x))
    states = states if isinstance(states, tuple) else (states,)
    close = {"rtol": 0, "atol": 1e-14}  # five steps of bounded numbers in f64
    np.testing.assert_allclose(y.reshape(2, 5, -1), want.numpy(), **close)
    for got, state in zip(last, states):
        np.testing.assert_allclose(got.swapaxes(0, 1), state.numpy(), **close)


# -- state spaces ---------------------------------------------------------------------------------


def test_selective_scan_is_a_filter_where_its_steps_are_alike():
    """h[t] = a·h[t-1] + Δ·B·x[t] with fixed a = exp(Δ·A), Δ and B: a filter of one pole."""
    x, rates = RNG.normal(size=(2, 9, 3)), -RNG.random((3, 4))
    time, into, out = RNG.random(3), RNG.normal(size=4), RNG.normal(size=(2, 9, 4))
    first = RNG.normal(size=(2, 3, 4))
    delta, b = np.broadcast_to(time, x.shape), np.broadcast_to(into, (2, 9, 4))
    got, last = ops.selective_scan(x, delta, rates, b, out, first)
    want, ends = np.zeros(x.shape), np.zeros(first.shape)
    for n, h, k in itertools.product(range(2), range(3), range(4)):
        pole = math.exp(time[h] * rates[h, k])
        line, _ = signal.lfilter(
            [time[h] * into[k]], [1, -pole], x[n, :, h], zi=[pole * first[n, h, k]]
        )
        want[n, :, h] += line * out[n, :, k]
        ends[n, h, k] = line[-1]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)  # nine steps in f64
    np.testing.assert_allclose(last, ends, rtol=0, atol=1e-13)


def mamba_operands(length: int) -> list[np.ndarray]:
    """x, dt, A, B, C and a state of 4 heads in 2 groups."""
    return [
        RNG.normal(size=(2, length, 4, 3)), RNG.random((2, length, 4)), -RNG.random(4),
        RNG.normal(size=(2, length, 2, 5)), RNG.normal(size=(2, length, 2, 5)),
        RNG.normal(size=(2, 4, 3, 5)),
    ]  # fmt: skip


def test_mamba2_is_its_dual_form():
    """y = (L ∘ C·Bᵀ)·(dt·x) + decay·S·C, where L[t, s] is the decay from step s to step t."""
    x, dt, a, b, c, first = mamba_operands(7)
    got, last = ops.mamba2(x, dt, a, b, c, first)
    b, c = (np.repeat(v, 2, axis=2) for v in (b, c))
    log = np.cumsum(dt * a, axis=1)
    steps = np.tril(np.ones((7, 7)))[None, :, :, None]
    decay = np.exp(log[:, :, None] - log[:, None]) * steps
    scores = np.einsum("bthn,bshn->btsh", c, b) * decay
    want = np.einsum("btsh,bshp->bthp", scores, dt[..., None] * x)
    want += np.einsum("bth,bhpn,bthn->bthp", np.exp(log), first, c)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)  # sums of 35 products in f64
    ends = np.einsum("bsh,bshp,bshn->bhpn", decay[:, -1] * dt, x, b)
    ends += np.exp(log[:, -1])[..., None, None] * first
    np.testing.assert_allclose(last, ends, rtol=0, atol=1e-12)


def delta_operands(length: int, wide: bool) -> list[np.ndarray]:
    """q, k, v, g, beta and a state."""
    lead = (2, length, 3)
    unit = [RNG.normal(size=(*lead, 4)) for _ in range(2)]
    unit = [u / np.linalg.norm(u, axis=-1, keepdims=True) for u in unit]
    g = -RNG.random((*lead, 4) if wide else lead)
    beta = RNG.random((*lead, 5) if wide else lead)
    return [*unit, RNG.normal(size=(*lead, 5)), g, beta, RNG.normal(size=(2, 3, 4, 5))]


@pytest.mark.parametrize("wide", [False, True])
def test_gated_delta_net_is_a_product_of_matrices(wide):
    """Column m of S is mapped by (I - β·k·kᵀ)·exp(g), plus β·k·v: affine maps, composed."""
    q, k, v, g, beta, first = delta_operands(6, wide)
    got, last = ops.gated_delta_net(q, k, v, g, beta, first)
    for n, h, m in itertools.product(range(2), range(3), range(5)):
        column = first[n, h, :, m]
        for t in range(6):
            strength = beta[n, t, h, m] if wide else beta[n, t, h]
            key = k[n, t, h]
            matrix = np.eye(4) - strength * np.outer(key, key)
            decay = np.exp(g[n, t, h]) * np.ones(4)
            column = matrix @ (decay * column) + strength * v[n, t, h, m] * key
            want = q[n, t, h] @ column / 2
            np.testing.assert_allclose(got[n, t, h, m], want, rtol=0, atol=1e-13)  # f64
        np.testing.assert_allclose(last[n, h, :, m], column, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["selective_scan", "mamba2", "gated_delta_net"])
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_sequence_may_be_cut_anywhere(name, cut):
    """Also into nothing and the whole: a state goes from one part to the next."""
    if name == "selective_scan":
        x, delta, rates = RNG.normal(size=(2, 5, 3)), RNG.random((2, 5, 3)), -RNG.random((3, 4))
        operands = [x, delta, rates, *RNG.normal(size=(2, 2, 5, 4))]
    else:
        made = mamba_operands(5) if name == "mamba2" else delta_operands(5, wide=False)
        operands = made[:5]
    op = lookup(name)
    whole, last = op(*operands)
    halves = [
        [o if o.shape[:2] != (2, 5) else o[:, part] for o in operands]
        for part in (slice(cut), slice(cut, None))
    ]
    first, state = op(*halves[0])
    second, end = op(*halves[1], state)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)
    np.testing.assert_array_equal(end, last)


# -- linear attention -----------------------------------------------------------------------------


def linear(inputs: list[Any], attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """As ONNX's node, whose operands stand in another order."""
    q, k, v, state, decay, beta = [*inputs, *[None] * 6][:6]
    given = [x for x in (decay, beta, state) if x is not None]
    return ops.linear_attention(
        q, k, v, *given, num_heads=attrs["q_num_heads"], kv_heads=attrs["kv_num_heads"],
        rule=attrs.get("update_rule", "gated_delta"), scale=attrs.get("scale") or None,
    )  # fmt: skip


@on_cases("linear_attention", "LinearAttention")
def test_linear_attention_cases(case: OnnxCase):
    made = linear(case.inputs, case.attrs)
    for got, want in zip(made, case.outputs):
        if want is not None:
            # half of the last place of a half, or few steps of sums of few products in f32
            tolerance = 1e-5 if want.dtype == np.float32 else 2e-3
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_linear_attention_is_onnx_s(rule, wide, scale):
    lead, kv, n, m = (2, 5), 2, 4, 3
    q, k, v = (RNG.normal(size=(*lead, w)) / 2 for w in (6 * n, kv * n, kv * m))
    state = RNG.normal(size=(2, kv, n, m)) if wide else None
    decay = -RNG.random((*lead, kv * n if wide else kv)) if "gated" in rule else None
    beta = RNG.random((*lead, 1 if wide else kv)) if "delta" in rule else None
    inputs = [None if x is None else x.astype(np.float32) for x in (q, k, v, state, decay, beta)]
    attrs = {"q_num_heads": 6, "kv_num_heads": kv, "update_rule": rule, "scale": scale}
    want = run_onnx("LinearAttention", inputs, attrs, 2)
    for got, one in zip(linear(inputs, attrs), want, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-5)  # 5 steps of 4 products in f32


def test_linear_attention_takes_what_its_rule_asks_for():
    x, h = np.zeros((1, 2, 4), np.float32), {"num_heads": 2, "kv_heads": 2}
    with pytest.raises(GraphError, match="takes decay and beta"):
        ops.linear_attention(x, x, x, **h)
    with pytest.raises(GraphError, match="takes neither"):
        ops.linear_attention(x, x, x, x, x, rule="linear", **h)
    with pytest.raises(GraphError, match="must divide"):
        ops.linear_attention(x, x, x, rule="linear", num_heads=2, kv_heads=4)
    with pytest.raises(GraphError, match="operand 1"):
        ops.linear_attention(x, x[..., :2], x, rule="linear", **h)
