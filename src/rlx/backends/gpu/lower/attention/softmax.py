"""The softmax of rows of scores, tile of keys by tile.

    m' = max(m, scores)     f = exp(m - m')     w = exp(score - m')     l' = l · f + Σ w

What is subtracted is 0 where all scores so far are -inf, so that their weights are 0 and not NaN; a
score of NaN or inf makes its row NaN, as the form says.

Results of half precision take exponentials of base 2, one instruction, with log₂ e in the factor of
the scores; f32 corrects them for what that factor rounds off; f64 takes the precise ones. A bias
may be the least number, which log₂ e would make -inf, so with one the factor comes after the
subtraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.gpu.lower.attention.frame import FAR, Frame, Row, vector_width
from rlx.core.dtype import DType
from rlx.kernel.attention import Bias, MaskOperand, Positional, Visibility
from rlx.program.values import Var, Variable

INF = float("inf")
LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453
LOG2_E_REST = 1.9259629911266175e-08
"""What f32 leaves of log₂ e."""
LEAST_EXPONENT = -150.0
"""Its exponential is 0 in f32, as that of -inf."""


class State:
    """Of a row: the greatest score so far, and this thread's part of the sum of the weights."""

    def __init__(self, most: Variable, total: Variable) -> None:
        self.most, self.total = most, total

    @property
    def carried(self) -> list[Variable]:
        return [self.most, self.total]


class Softmax:
    """The arithmetic of one form of attention."""

    def __init__(self, frame: Frame, *, is_scaled: bool) -> None:
        """`is_scaled`: the queries were multiplied by the scale already."""
        form = frame.form
        self.frame, self.b, self.form, self.dtype = frame, frame.b, form, form.sums
        self.is_fast = form.dtype.compute is not form.dtype
        self.scale = 1.0 if is_scaled else form.scale
        self.is_plain = form.softcap is None and not isinstance(form.mask, Bias) and self.scale > 0
        """Is the factor of the scores taken with the exponential's argument?"""
        self.unit = LOG2_E if self.is_fast else 1.0
        self.factor = self.scale * self.unit if self.is_plain else self.unit

    def state(self) -> State:
        b = self.b
        return State(b.variable(-INF, self.dtype), b.variable(0.0, self.dtype))

    # -- scores ----------------------------------------------------------------------------------

    def score(self, s: Var) -> Var:
        """A sum of products as a score, or a multiple of it that the exponential takes."""
        if self.is_plain:
            return s
        cap = self.form.softcap
        if cap is not None and self.is_fast:
            return self._capped(s, cap)
        s = s if self.scale == 1.0 else s * self.scale
        return s if cap is None else self.b.call("tanh", s * (1 / cap)) * cap

    def _capped(self, s: Var, cap: float) -> Var:
        """c tanh(x / c) = c - 2 c / (1 + 2^(x · 2 log₂ e / c)), with two special functions. Near 0
        it is off by what is nothing beside c, and of a score the absolute error counts."""
        b = self.b
        power = b.call("exp2", s * (2 * LOG2_E * self.scale / cap), fast=True)
        return b.fma(b.call("reciprocal", power + 1.0, fast=True), -2 * cap, cap)

    def masked(self, s: Var, mask: Var) -> Var:
        """The score under an element of the mask operand."""
        if isinstance(self.form.mask, Bias):
            return s + mask.to(self.dtype)
        wide = mask.to(mask.dtype.compute)
        shown = wide if mask.dtype is DType.BOOL else ~(wide < 0.5)
        return s.where(shown, -INF)

    def bounds(self, row: Row, first: Var) -> tuple[Var, Var | None]:
        """The least and greatest columns, in a tile whose first key is given, that a row sees by
        its position: those of keys that are there."""
        high, low = self.frame.keys - 1 - first, None
        if isinstance(self.form.mask, Positional):
            distance = self.frame.position(row) - first
            high = high.min(distance)
            if self.form.mask.window is not None:
                low = distance - min(self.form.mask.window, FAR)
        return high, low

    def shown(self, s: Var, column: Var, bounds: tuple[Var, Var | None]) -> Var:
        high, low = bounds
        inside = column <= high
        inside = inside if low is None else inside & (column >= low)
        return s.where(inside, -INF)

    # -- weights ---------------------------------------------------------------------------------

    def base(self, most: Var) -> Var:
        """What is subtracted from the scores."""
        zero = self.b.const(0.0, self.dtype)
        if self.is_plain and self.factor != 1.0:
            return zero.where(most.eq(-INF), most * self.factor)
        return zero.where(most.eq(-INF), most)

    def weight(self, s: Var, base: Var) -> Var:
        """exp(s - base)."""
        b = self.b
        if self.is_plain and self.factor != 1.0:
            x = b.fma(s, self.factor, -base)
        else:
            x = s - base
            x = x if self.factor == 1.0 else x * self.factor
        if self.is_fast:
            return b.call("exp2", x, fast=True)
        return self._exp(x) if self.dtype is DType.F32 else b.call("exp", x)

    def _exp(self, x: Var) -> Var:
        """2^h · (1 + l ln 2), where h + l is x log₂ e: to two units in the last place, with one
        special function. x is at most 0, and below the limit the power is 0."""
        b = self.b
        x = x.max(LEAST_EXPONENT)
        high = x * LOG2_E
        low = b.fma(x, LOG2_E_REST, b.fma(x, LOG2_E, -high))
        power = b.call("exp2", high, fast=True)
        return b.fma(power, low * LN2, power)

    def update(self, state: State, scores: Sequence[Var], width: int) -> tuple[list[Var], Var]:
        """The weights of a thread's scores of a row that `width` neighbouring threads hold, and
        the factor that corrects the sums so far."""
        return self.weights(state, scores, self.b.warp_reduce("max", self.top(scores), width))

    def top(self, scores: Sequence[Var]) -> Var:
        return tree(scores, Var.max)

    def weights(self, state: State, scores: Sequence[Var], top: Var) -> tuple[list[Var], Var]:
        """The same, where the greatest score of all threads that hold the row is known."""
        b = self.b
        most = state.most.max(top)
        base = self.base(most)
        factor = self.weight(state.most, base)
        weights = [self.weight(s, base) for s in scores]
        state.total.set(b.fma(state.total, factor, tree(weights, Var.__add__)))
        state.most.set(most)
        return weights, factor

    def share(self, total: Var) -> Var:
        """What weighted sums are multiplied by: one over the sum of the weights. Without any, rows
        give zeros where the form says so, and where there are no keys at all."""
        is_none = total.eq(0.0)
        if not self.form.gives_zeros:
            is_none = is_none & self.frame.number(self.form.keys).eq(0)
        one = self.b.const(1.0, self.dtype)
        given = one.where(is_none, total)
        return self.b.call("reciprocal", given, fast=True) if self.is_fast else one / given


class MaskLoads:
    """Elements of the mask operand of one tile of keys, each loaded once."""

    def __init__(self, frame: Frame, first: Var) -> None:
        self.frame, self.first = frame, first
        self.known: dict[object, list[Var]] = {}
        assert isinstance(frame.form.mask, MaskOperand)
        self.mask = frame.form.mask
        self.varies = self.mask.layout.strides[1] != 0 or self.mask.layout.strides[2] != 0
        """Do rows have masks of their own?"""
        self.width = vector_width(self.mask.layout, self.mask.dtype, 2 * self.mask.dtype.itemsize)

    def element(self, row: Row, column: Var) -> Var:
        return self._loaded(row, column, 1)[0]

    def pair(self, row: Row, column: Var) -> list[Var]:
        """An element in an even column, and the next one."""
        if self.width == 2:
            return self._loaded(row, column, 2)
        return [self.element(row, column), self.element(row, column + 1)]

    def _loaded(self, row: Row, column: Var, width: int) -> list[Var]:
        frame, layout = self.frame, self.mask.layout
        assert frame.mask is not None
        own = (row.query.value, row.member.value) if self.varies else ()
        key = (*own, column.value, width)
        if key not in self.known:
            place = self.first + column
            inside = place < frame.keys
            inside = inside & row.is_inside if self.varies else inside
            at = frame.of_row(layout, row) + frame.times(place, layout.strides[3])
            self.known[key] = frame.b.load(frame.mask, at, width, mask=inside)
        return self.known[key]


def has_mask_operand(frame: Frame) -> bool:
    return isinstance(frame.form.mask, Visibility | Bias)


def tree(values: Sequence[Var], combine: Callable[[Var, Var], Var]) -> Var:
    """Neighbours first."""
    given = list(values)
    while len(given) > 1:
        paired = [combine(a, b) for a, b in zip(given[::2], given[1::2])]
        given = paired + given[len(paired) * 2 :]
    return given[0]
