"""Every op and block as a method. Written from the tables by `make docs`; do not edit."""

# pyright: reportOverlappingOverload=false, reportUnusedImport=false
# mypy: disable-error-code="overload-overlap"

from collections.abc import Sequence
from typing import Any, Literal, overload

from rlx.core.dim import Dim
from rlx.ir.mir import Graph, Node
from rlx.ir.operand_types import Array, DTypeLike, Operand, Symbol, Value


class _Ops:
    def item(self, *results: Operand | Sequence[Operand], index: int) -> Node:
        """One result of a node that has several."""
    def add(self, x: Operand, y: Operand, /) -> Node:
        """x + y; integers wrap."""
    def sub(self, x: Operand, y: Operand, /) -> Node:
        """x - y; integers wrap."""
    subtract = sub
    def mul(self, x: Operand, y: Operand, /) -> Node:
        """x · y; integers wrap."""
    multiply = mul
    def div(self, x: Operand, y: Operand, /) -> Node:
        """x / y. Integers truncate toward zero, and by zero give 0; the operator `/` makes them f32
        first.
        """
    divide = div
    def rem(self, x: Operand, y: Operand, /) -> Node:
        """What truncating division leaves; the sign is that of x. Integers by zero give 0."""
    fmod = rem
    def mod(self, x: Operand, y: Operand, /) -> Node:
        """What flooring division leaves; the sign is that of y. Integers by zero give 0."""
    remainder = mod
    def floor_div(self, x: Operand, y: Operand, /) -> Node:
        """⌊x / y⌋. Integers by zero give 0, floats x / 0."""
    floor_divide = floor_div
    def pow(self, x: Operand, y: Operand, /) -> Node:
        """x to the power y. Integers wrap; a negative power of one is 1, of -1 is ±1, else 0."""
    power = pow
    def maximum(self, x: Operand, y: Operand, /) -> Node:
        """The greater; NaN if one is NaN."""
    def minimum(self, x: Operand, y: Operand, /) -> Node:
        """The lesser; NaN if one is NaN."""
    def fma(self, x: Operand, y: Operand, z: Operand, /) -> Node:
        """x · y + z, rounded after each step."""
    def neg(self, x: Operand, /) -> Node:
        """-x; integers wrap."""
    negative = neg
    def abs(self, x: Operand, /) -> Node:
        """The magnitude of x; the least integer stays."""
    absolute = abs
    def sign(self, x: Operand, /) -> Node:
        """-1, 0 or 1; NaN stays."""
    def square(self, x: Operand, /) -> Node:
        """x · x."""
    def reciprocal(self, x: Operand, /) -> Node:
        """1 / x."""
    def clamp(self, x: Operand, /, min: float | None = None, max: float | None = None) -> Node:
        """x, but at least `min` and at most `max`; where they cross, `max`. NaN stays."""
    clip = clamp
    def sqrt(self, x: Operand, /) -> Node:
        """√x; NaN below 0."""
    def exp(self, x: Operand, /) -> Node:
        """eˣ."""
    def exp2(self, x: Operand, /) -> Node:
        """2ˣ."""
    def expm1(self, x: Operand, /) -> Node:
        """eˣ - 1, accurate near 0."""
    def log(self, x: Operand, /) -> Node:
        """The natural logarithm of x."""
    def log1p(self, x: Operand, /) -> Node:
        """log(1 + x), accurate near 0."""
    def log2(self, x: Operand, /) -> Node:
        """The logarithm of x to base 2."""
    def log10(self, x: Operand, /) -> Node:
        """The logarithm of x to base 10."""
    def sin(self, x: Operand, /) -> Node:
        """The sine of x."""
    def cos(self, x: Operand, /) -> Node:
        """The cosine of x."""
    def tan(self, x: Operand, /) -> Node:
        """The tangent of x."""
    def asin(self, x: Operand, /) -> Node:
        """The angle whose sine is x."""
    arcsin = asin
    def acos(self, x: Operand, /) -> Node:
        """The angle whose cosine is x."""
    arccos = acos
    def atan(self, x: Operand, /) -> Node:
        """The angle whose tangent is x."""
    arctan = atan
    def sinh(self, x: Operand, /) -> Node:
        """(eˣ - e⁻ˣ) / 2."""
    def cosh(self, x: Operand, /) -> Node:
        """(eˣ + e⁻ˣ) / 2."""
    def asinh(self, x: Operand, /) -> Node:
        """The number whose sinh is x."""
    arcsinh = asinh
    def acosh(self, x: Operand, /) -> Node:
        """The number whose cosh is x."""
    arccosh = acosh
    def atanh(self, x: Operand, /) -> Node:
        """The number whose tanh is x."""
    arctanh = atanh
    def floor(self, x: Operand, /) -> Node:
        """The whole number at or below x."""
    def ceil(self, x: Operand, /) -> Node:
        """The whole number at or above x."""
    def trunc(self, x: Operand, /) -> Node:
        """x without its fraction."""
    def round(self, x: Operand, /) -> Node:
        """The nearest whole number; ties go to the even one."""
    rint = round
    def rsqrt(self, x: Operand, /) -> Node:
        """1 / √x."""
    def atan2(self, y: Operand, x: Operand, /) -> Node:
        """The angle of the point (x, y), from -π to π."""
    arctan2 = atan2
    def erf(self, x: Operand, /) -> Node:
        """2/√π · ∫₀ˣ e^(-t²) dt."""
    def cast(self, x: Operand, /, to: DTypeLike) -> Node:
        """x as another dtype. Floats become integers by truncation that saturates, NaN becomes 0;
        integers wrap; a complex number keeps its real part; bool is "not zero". Floats round to
        the nearest, to bf16 by way of f32.
        """
    astype = cast
    def make_complex(self, re: Operand, im: Operand, /) -> Node:
        """The complex number with these parts."""
    def real(self, x: Operand, /) -> Node:
        """The real part."""
    def imag(self, x: Operand, /) -> Node:
        """The imaginary part."""
    def conj(self, x: Operand, /) -> Node:
        """x with its imaginary part negated."""
    conjugate = conj
    def equal(self, x: Operand, y: Operand, /) -> Node:
        """x = y. NaN equals nothing; the two zeros are equal."""
    def not_equal(self, x: Operand, y: Operand, /) -> Node:
        """x ≠ y."""
    def less(self, x: Operand, y: Operand, /) -> Node:
        """x < y; false with NaN."""
    def less_equal(self, x: Operand, y: Operand, /) -> Node:
        """x ≤ y; false with NaN."""
    def greater(self, x: Operand, y: Operand, /) -> Node:
        """x > y; false with NaN."""
    def greater_equal(self, x: Operand, y: Operand, /) -> Node:
        """x ≥ y; false with NaN."""
    def logical_and(self, x: Operand, y: Operand, /) -> Node:
        """Both."""
    def logical_or(self, x: Operand, y: Operand, /) -> Node:
        """One or both."""
    def logical_xor(self, x: Operand, y: Operand, /) -> Node:
        """One, but not both."""
    def logical_not(self, x: Operand, /) -> Node:
        """Not x."""
    def where(self, cond: Operand, x: Operand, y: Operand, /) -> Node:
        """x where `cond` holds, else y."""
    def is_nan(self, x: Operand, /) -> Node:
        """Is x not a number?"""
    isnan = is_nan
    def is_inf(self, x: Operand, /) -> Node:
        """Is x, or a part of it, infinite?"""
    isinf = is_inf
    def is_finite(self, x: Operand, /) -> Node:
        """Is x neither infinite nor NaN?"""
    isfinite = is_finite
    def bit_and(self, x: Operand, y: Operand, /) -> Node:
        """The bits set in both."""
    bitwise_and = bit_and
    def bit_or(self, x: Operand, y: Operand, /) -> Node:
        """The bits set in one or both."""
    bitwise_or = bit_or
    def bit_xor(self, x: Operand, y: Operand, /) -> Node:
        """The bits set in one, but not both."""
    bitwise_xor = bit_xor
    def bit_not(self, x: Operand, /) -> Node:
        """Every bit the other way."""
    bitwise_not = bit_not
    bitwise_invert = bit_not
    invert = bit_not
    def shift_left(self, x: Operand, y: Operand, /) -> Node:
        """x · 2ʸ, wrapping; 0 where y is the width or more, or negative."""
    left_shift = shift_left
    bitwise_left_shift = shift_left
    def shift_right(self, x: Operand, y: Operand, /) -> Node:
        """⌊x / 2ʸ⌋; where y is the width or more, or negative: -1 of a negative x, else 0."""
    right_shift = shift_right
    bitwise_right_shift = shift_right
    def bitcast(self, x: Operand, /, to: DTypeLike) -> Node:
        """The same bits read as a number of another dtype of the same width."""
    def relu(self, x: Operand, /) -> Node:
        """max(x, 0)."""
    def sigmoid(self, x: Operand, /) -> Node:
        """1 / (1 + e⁻ˣ), through e^-|x|, which does not overflow."""
    def tanh(self, x: Operand, /) -> Node:
        """The hyperbolic tangent."""
    def gelu(self, x: Operand, /) -> Node:
        """x · Φ(x) with the normal distribution's Φ: x/2 · (1 + erf(x/√2))."""
    def gelu_tanh(self, x: Operand, /) -> Node:
        """gelu by tanh: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    def silu(self, x: Operand, /) -> Node:
        """x · sigmoid(x)."""
    swish = silu
    def elu(self, x: Operand, /, alpha: float = 1.0) -> Node:
        """x above 0, else alpha · (eˣ - 1)."""
    def selu(self, x: Operand, /) -> Node:
        """elu, scaled so that mean 0 and variance 1 stay what they are."""
    def leaky_relu(self, x: Operand, /, alpha: float = 0.01) -> Node:
        """x from 0 on, else alpha · x."""
    def softplus(self, x: Operand, /) -> Node:
        """log(1 + eˣ), as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    def hard_sigmoid(
        self,
        x: Operand,
        /,
        alpha: float = 0.16666666666666666,
        beta: float = 0.5,
    ) -> Node:
        """alpha · x + beta, between 0 and 1. ONNX's own default is alpha = 0.2."""
    def hard_swish(self, x: Operand, /) -> Node:
        """x · hard_sigmoid(x)."""
    def mish(self, x: Operand, /) -> Node:
        """x · tanh(softplus(x))."""
    def softsign(self, x: Operand, /) -> Node:
        """x / (1 + |x|)."""
    def log_sigmoid(self, x: Operand, /) -> Node:
        """log sigmoid(x), as min(x, 0) - log(1 + e^-|x|), which does not overflow."""
    def celu(self, x: Operand, /, alpha: float = 1.0) -> Node:
        """x above 0, else alpha · (e^(x/alpha) - 1): elu with a slope that does not break at 0."""
    def thresholded_relu(self, x: Operand, /, alpha: float = 1.0) -> Node:
        """x above alpha, else 0."""
    def shrink(self, x: Operand, /, lambd: float = 0.5, bias: float = 0.0) -> Node:
        """x moved by `bias` towards 0 where it is farther than `lambd` from it, else 0. ONNX's names;
        without bias a hard shrink, with bias = lambd a soft one.
        """
    def prelu(self, x: Operand, slope: Operand, /) -> Node:
        """x from 0 on, else slope · x."""
    def erfc(self, x: Operand, /) -> Node:
        """1 - erf x, accurate where that is small."""
    def erfinv(self, x: Operand, /) -> Node:
        """The number whose erf is x: NaN outside of -1 to 1, infinite at them."""
    def lgamma(self, x: Operand, /) -> Node:
        """log |Γ(x)|; infinite at 0, -1, -2, … and both ends."""
    gammaln = lgamma
    def digamma(self, x: Operand, /) -> Node:
        """The slope of log Γ. NaN at -1, -2, … and -inf; at 0 infinite, with the other sign of x."""
    psi = digamma
    def cbrt(self, x: Operand, /) -> Node:
        """The cube root of x, of either sign."""
    def hypot(self, x: Operand, y: Operand, /) -> Node:
        """√(x² + y²), where the squares may overflow; infinite if one is, whatever the other."""
    def logit(self, x: Operand, /, eps: float | None = None) -> Node:
        """log(x / (1 - x)), the inverse of sigmoid; `eps` keeps x between eps and 1 - eps."""
    def xlogy(self, x: Operand, y: Operand, /) -> Node:
        """x · log y, and 0 where x is 0, unless y is NaN: terms of an entropy."""
    def logaddexp(self, x: Operand, y: Operand, /) -> Node:
        """log(eˣ + eʸ), without overflow."""
    def sinc(self, x: Operand, /) -> Node:
        """sin πx / πx, and 1 at 0."""
    def heaviside(self, x: Operand, at_zero: Operand, /) -> Node:
        """0 below 0, 1 above, `at_zero` at 0; NaN stays."""
    def angle(self, z: Operand, /) -> Node:
        """The angle of z, from -π to π."""
    def polar(self, r: Operand, theta: Operand, /) -> Node:
        """The number r e^(i theta)."""
    def complex_norm_sq(self, z: Operand, /) -> Node:
        """re² + im²: |z|² without the root."""
    def view_as_real(self, z: Operand, /) -> Node:
        """Real and imaginary parts, interleaved along a new last axis."""
    def view_as_complex(self, x: Operand, /) -> Node:
        """The complex numbers whose parts are interleaved along the last axis."""
    def bessel_j0(self, x: Operand, /) -> Node:
        """The Bessel function of the first kind, of order 0."""
    def bessel_j1(self, x: Operand, /) -> Node:
        """The Bessel function of the first kind, of order 1."""
    def bessel_y0(self, x: Operand, /) -> Node:
        """The Bessel function of the second kind, of order 0: NaN below 0, -inf at 0."""
    def bessel_y1(self, x: Operand, /) -> Node:
        """The Bessel function of the second kind, of order 1: NaN below 0, -inf at 0."""
    def spherical_bessel_j0(self, x: Operand, /) -> Node:
        """sin x / x, and 1 at 0."""
    def i0(self, x: Operand, /) -> Node:
        """The modified Bessel function of the first kind, of order 0: the shape of Kaiser windows."""
    def i1(self, x: Operand, /) -> Node:
        """The modified Bessel function of the first kind, of order 1."""
    def i0e(self, x: Operand, /) -> Node:
        """e^-|x| times i0."""
    def i1e(self, x: Operand, /) -> Node:
        """e^-|x| times i1."""
    def k0(self, x: Operand, /) -> Node:
        """The modified Bessel function of the second kind, of order 0: NaN below 0, inf at 0."""
    def k1(self, x: Operand, /) -> Node:
        """The modified Bessel function of the second kind, of order 1: NaN below 0, inf at 0."""
    def k0e(self, x: Operand, /) -> Node:
        """eˣ times k0."""
    def k1e(self, x: Operand, /) -> Node:
        """eˣ times k1."""
    def airy_ai(self, x: Operand, /) -> Node:
        """Airy's function Ai: it falls for x above 0 and oscillates below."""
    def poisson_pmf(self, k: Operand, rate: Operand, /) -> Node:
        """rateᵏ e^-rate / Γ(k + 1), of a rate above 0 and a k, whole or not, that is not below 0: the
        probability of k events where `rate` are expected.
        """
    def erfcx(self, x: Operand, /) -> Node:
        """e^(x²) erfc x, which neither underflows nor, for x above 0, overflows."""
    def log_ndtr(self, x: Operand, /) -> Node:
        """The logarithm of the normal distribution function, accurate in its lower tail."""
    def ndtri(self, p: Operand, /) -> Node:
        """The quantile of the normal distribution: the number that is undercut with probability p. NaN
        outside of 0 to 1, infinite at them.
        """
    def entr(self, x: Operand, /) -> Node:
        """-x · log x: 0 at 0, -inf below."""
    def xlog1py(self, x: Operand, y: Operand, /) -> Node:
        """x · log(1 + y), and 0 where x is 0, unless y is NaN."""
    def zeta(self, s: Operand, q: Operand, /) -> Node:
        """Hurwitz's zeta function, Σ (q + k)⁻ˢ over k from 0 on. Infinite for s = 1 and, past that, for
        q = 0, -1, …; NaN for s below 1, and for q below 0 unless s is whole.
        """
    def polygamma(self, x: Operand, /, n: int = 1) -> Node:
        """The n-th derivative of digamma, the 0-th itself; from the first on infinite at 0, -1, …."""
    def orthogonal_polynomial(
        self,
        x: Operand,
        n: Operand,
        /,
        family: Literal['chebyshev_t', 'chebyshev_u', 'chebyshev_v', 'chebyshev_w', 'hermite_h', 'hermite_he', 'laguerre_l', 'legendre_p'],
        shifted: bool = False,
    ) -> Node:
        """The polynomial of order n, a number without its fraction, of a family at x: Chebyshev's of
        four kinds, Hermite's (h, or he, the probabilists'), Laguerre's, Legendre's. 0 where n is below
        0. With `shifted`, at 2x - 1.
        """
    def igamma(self, a: Operand, x: Operand, /) -> Node:
        """The regularised lower incomplete gamma function P(a, x): the share of Γ(a)'s integral that is
        below x. NaN where a or x is below 0.
        """
    def igammac(self, a: Operand, x: Operand, /) -> Node:
        """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where that is
        small.
        """
    def gcd(self, x: Operand, y: Operand, /) -> Node:
        """The greatest number that divides both; 0 of zeros."""
    def lcm(self, x: Operand, y: Operand, /) -> Node:
        """The least positive number that both divide, wrapped; 0 if one is."""
    def nextafter(self, x: Operand, y: Operand, /) -> Node:
        """The float next to x in the direction of y; y where they are equal."""
    def frexp(self, x: Operand, /) -> tuple[Node, Node]:
        """m and n with x = m · 2ⁿ and 1/2 ≤ |m| < 1; x and 0 for 0, infinities and NaN."""
    def reshape(
        self,
        x: Operand,
        /,
        dims: int | Dim | Sequence[int | Dim],
        *more_dims: int | Dim,
    ) -> Node:
        """The values in row-major order, under other dims. One dim may be given as -1."""
    def transpose(
        self,
        x: Operand,
        /,
        perm: int | Sequence[int] | None = None,
        *more_perm: int,
    ) -> Node:
        """Axis i of the result is axis perm[i] of x; without `perm`, the axes in reverse."""
    permute_dims = transpose
    permute = transpose
    def expand(
        self,
        x: Operand,
        /,
        dims: int | Dim | Sequence[int | Dim],
        *more_dims: int | Dim,
    ) -> Node:
        """x broadcast to `dims`: dims of 1 and missing leading ones are repeated."""
    broadcast_to = expand
    def squeeze(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        *more_axes: int,
        axis: Sequence[int] | None = None,
    ) -> Node:
        """x without these axes of size 1; without `axes`, without all that are 1."""
    def expand_dims(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        *more_axes: int,
        axis: Sequence[int] | None = None,
    ) -> Node:
        """x with axes of size 1 added, so that these are their places in the result."""
    unsqueeze = expand_dims
    def narrow(self, x: Operand, /, axis: int, start: int | Dim, length: int | Dim) -> Node:
        """`length` entries of an axis, from `start`."""
    def slice(
        self,
        x: Operand,
        /,
        starts: Sequence[int | Dim],
        stops: Sequence[int | Dim],
        steps: Sequence[int] | None = None,
    ) -> Node:
        """x[starts:stops:steps] on every axis, as NumPy has it: negative bounds count from the back,
        and with a negative step a stop before -size goes on to the front.
        """
    def concat(self, *xs: Operand | Sequence[Operand], axis: int) -> Node:
        """The operands one after the other along an axis."""
    concatenate = concat
    def stack(self, *xs: Operand | Sequence[Operand], axis: int = 0) -> Node:
        """The operands one after the other along a new axis, the `axis`-th of the result."""
    def split(
        self,
        x: Operand,
        /,
        sizes: Sequence[int | Dim],
        axis: int = 0,
    ) -> tuple[Node, ...]:
        """x cut along an axis into parts of these sizes, one result each."""
    def pad(
        self,
        x: Operand,
        /,
        low: Sequence[int | Dim],
        high: Sequence[int | Dim],
        value: float = 0.0,
        mode: Literal['constant', 'edge', 'reflect', 'wrap'] = 'constant',
    ) -> Node:
        """x with `low` entries before and `high` after it on each axis: a value, the edge, the
        entries mirrored at the edge, or those of the other end.
        """
    def tile(
        self,
        x: Operand,
        /,
        repeats: int | Dim | Sequence[int | Dim],
        *more_repeats: int | Dim,
    ) -> Node:
        """x repeated along each axis."""
    def flip(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """x with these axes backwards; without `axes`, all of them."""
    reverse = flip
    def gather(self, x: Operand, indices: Operand, /, axis: int = 0) -> Node:
        """The entries of an axis at `indices`, whose dims take the place of the axis."""
    take = gather
    def embedding(self, table: Operand, ids: Operand, /) -> Node:
        """The rows of `table` at `ids`."""
    def take_along_axis(self, x: Operand, indices: Operand, /, axis: int = -1) -> Node:
        """For each place of `indices`, the entry of x with that index on the axis, and otherwise
        in the same place.
        """
    gather_elements = take_along_axis
    def scatter_add(
        self,
        x: Operand,
        indices: Operand,
        updates: Operand,
        /,
        axis: int = 0,
    ) -> Node:
        """x with `updates` added to the entries of an axis at `indices`, in their order; the
        counterpart of gather.
        """
    def one_hot(self, indices: Operand, /, depth: int, to: DTypeLike = ...) -> Node:
        """A row of `depth` per index: 1 at the index, else 0. An index out of range gives zeros."""
    def scatter(
        self,
        x: Operand,
        indices: Operand,
        updates: Operand,
        /,
        axis: int = 0,
        reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
    ) -> Node:
        """x with `updates` put into the entries of an axis at `indices`, or combined with them; the
        counterpart of gather.
        """
    def scatter_elements(
        self,
        x: Operand,
        indices: Operand,
        updates: Operand,
        /,
        axis: int = 0,
        reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
    ) -> Node:
        """x with each update put into, or combined with, the element that has its index on the axis
        and otherwise its own place; the counterpart of take_along_axis.
        """
    def gather_nd(self, x: Operand, indices: Operand, /, batch_dims: int = 0) -> Node:
        """For each row of `indices`, what x has at those coordinates. The first `batch_dims` axes
        belong together: each batch of indices reads its own part of x.
        """
    def scatter_nd(
        self,
        x: Operand,
        indices: Operand,
        updates: Operand,
        /,
        reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
    ) -> Node:
        """x with each update put into, or combined with, what is at the coordinates in its row of
        `indices`; the counterpart of gather_nd.
        """
    def tensor_scatter(
        self,
        cache: Operand,
        update: Operand,
        starts: Operand | None = None,
        /,
        *,
        axis: int = -2,
        mode: Literal['linear', 'circular'] = 'linear',
    ) -> Node:
        """The cache with `update` written over a run of `axis` that begins at `starts`, one place for
        each entry of axis 0, or at 0. A `circular` run goes on at the front where the axis ends, and
        its start may be anywhere; a linear one that leaves the axis is an error.
        """
    def sum(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The sum over `axes`, in the operand's dtype: integers wrap."""
    def prod(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The product over `axes`, in the operand's dtype: integers wrap."""
    def mean(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The sum over `axes` divided by their size; of nothing it is NaN. Floats and complex only:
        cast integers first, to the float that is meant.
        """
    def max(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        empty_ok: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The greatest element over `axes`; NaN wherever one is. An axis that turns out empty when
        the graph runs gives the identity: -inf, or the least integer.
        """
    def min(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        empty_ok: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The least element over `axes`; NaN wherever one is. An axis that turns out empty when the
        graph runs gives the identity: inf, or the greatest integer.
        """
    def any(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """Is an element over `axes` not zero? Of nothing: no."""
    def all(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """Is no element over `axes` zero? Of nothing: yes."""
    def log_sum_exp(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """log of the sum of exp(x) over `axes`, without overflow; of nothing, or of -inf, -inf."""
    logsumexp = log_sum_exp
    def softmax(self, x: Operand, /, axis: int = -1) -> Node:
        """exp(x - max) divided by its sum along `axis`. A row of -inf alone is NaN, as 0/0 is."""
    def log_softmax(self, x: Operand, /, axis: int = -1) -> Node:
        """The logarithm of softmax, without taking it of small numbers."""
    def argmax(self, x: Operand, /, keepdims: bool = False, *, axis: int | None = None) -> Node:
        """Where the greatest element along `axis` is, the first of equals; the first NaN if there is
        one. Without an axis, the index counts through all elements in order. An axis whose size
        is found while the graph runs, and is 0, gives the greatest i64, which is no index.
        """
    def argmin(self, x: Operand, /, keepdims: bool = False, *, axis: int | None = None) -> Node:
        """Where the least element along `axis` is, the first of equals; the first NaN if there is
        one. Without an axis, the index counts through all elements in order. An axis whose size
        is found while the graph runs, and is 0, gives the greatest i64, which is no index.
        """
    def top_k(
        self,
        x: Operand,
        /,
        k: int,
        axis: int = -1,
        largest: bool = True,
    ) -> tuple[Node, Node]:
        """The `k` greatest (or least) elements along `axis` in order, and where they were. Equals come
        by index; NaN counts as greater than all.
        """
    def cumsum(
        self,
        x: Operand,
        /,
        axis: int = -1,
        exclusive: bool = False,
        reverse: bool = False,
    ) -> Node:
        """The cumulative sum along `axis`; `exclusive` leaves each element out of its own sum,
        `reverse` runs from the end. Integers wrap. Sums of f32 are carried in f64, those of f64 with
        what their roundings lose: an error does not grow with the length.
        """
    def iota(self, dims: Sequence[int | Dim], axis: int, dtype: DTypeLike = ...) -> Node:
        """Each element's position along `axis`, counted from 0."""
    def extent(self, dim: int | Dim, dtype: DTypeLike = ...) -> Node:
        """The size `dim` as a value: what a formula over named dims comes to in this run."""
    def argsort(self, x: Operand, /, axis: int = -1, descending: bool = False) -> Node:
        """Where the elements along `axis` are, from the least to the greatest or the other way round;
        always stable. NaN counts as greater than all.
        """
    def sort(self, x: Operand, /, axis: int = -1, descending: bool = False) -> Node:
        """The elements along `axis` from the least to the greatest, or the other way round; always
        stable. NaN counts as greater than all.
        """
    def searchsorted(
        self,
        edges: Operand,
        values: Operand,
        /,
        side: Literal['left', 'right'] = 'left',
    ) -> Node:
        """How many edges are less than each value (`left`), or not greater (`right`): where it would
        stand among them in order. Edges need not be sorted; NaN counts as greater than all.
        """
    def cumprod(
        self,
        x: Operand,
        /,
        axis: int = -1,
        exclusive: bool = False,
        reverse: bool = False,
    ) -> Node:
        """The cumulative product along `axis`; `exclusive` leaves each element out of its own product,
        `reverse` runs from the end. Integers wrap; products of f32 are carried in f64.
        """
    def cummax(self, x: Operand, /, axis: int = -1, reverse: bool = False) -> Node:
        """The greatest element so far along `axis`; from a NaN on, NaN."""
    def cummin(self, x: Operand, /, axis: int = -1, reverse: bool = False) -> Node:
        """The least element so far along `axis`; from a NaN on, NaN."""
    def cum_log_sum_exp(self, x: Operand, /, axis: int = -1, reverse: bool = False) -> Node:
        """log of the cumulative sum of exp(x) along `axis`, without overflow; of f32 carried in f64."""
    def trilu(self, x: Operand, /, k: int = 0, upper: bool = True) -> Node:
        """The upper triangle of each matrix, from the k-th diagonal on, or the lower one, up to it;
        0 elsewhere. Diagonals count from the main one upwards.
        """
    def reverse_sequence(
        self,
        x: Operand,
        lengths: Operand,
        /,
        batch_axis: int = 1,
        time_axis: int = 0,
    ) -> Node:
        """Each sequence reversed up to its length, and as it is from there on."""
    def nonzero(
        self,
        x: Operand,
        /,
        at_most: int | Dim | None = None,
        *,
        extent: str = '',
    ) -> Node:
        """The coordinates of the elements that are not 0, in row-major order: a row per axis, a column
        per element. A scalar has no axes, so only the number of columns tells. Where it is known that
        fewer than all are not 0, `at_most` saves memory; finding more is an error.
        """
    def compress(
        self,
        x: Operand,
        condition: Operand,
        /,
        *,
        axis: int | None = None,
        extent: str = '',
    ) -> Node:
        """The entries of an axis for which `condition` holds; without an axis, of all elements in
        order. Where the condition is shorter than the axis, the rest is left out.
        """
    def unique(
        self,
        x: Operand,
        /,
        is_sorted: bool = True,
        equal_nan: bool = False,
        *,
        axis: int | None = None,
        extent: str = '',
    ) -> tuple[Node, Node, Node, Node]:
        """The different elements of x, or entries of an axis: their values, where each is first, which
        of them each element is, and how often each occurs. In order of value, or of where they are
        first. No NaN equals another, as in the Array API, unless `equal_nan` says so, as in ONNX.
        Without an axis the third result has the dims of x.
        """
    def arange(
        self,
        start: Operand,
        limit: Operand,
        delta: Operand,
        /,
        at_most: int | Dim | None = None,
        *,
        extent: str = '',
    ) -> Node:
        """start + i * delta for i = 0, 1, … as long as that is before `limit`. `at_most` bounds how
        many there may be: without it no memory can be planned. With a constant number, use iota.
        """
    range = arange
    def as_size(
        self,
        value: Operand,
        /,
        at_most: int | Dim | None = None,
        *,
        extent: str = '',
    ) -> Node:
        """A number as a size: [value, 0], which has no elements and takes no memory. What shapes follow
        from the number are made of that size. A negative number is an error, and so is one above
        `at_most`.
        """
    def same_size(self, found: Operand, wanted: Operand, /) -> Node:
        """0 where two sizes are equal, and an error where they are not: for sizes that a model takes to
        be equal, and that only data can tell. No size found at run time is repeated to be another's,
        not even 1: what a result is of would then depend on data.
        """
    def non_max_suppression(
        self,
        boxes: Operand,
        scores: Operand,
        /,
        max_output_boxes_per_class: int = 0,
        iou_threshold: float = 0.0,
        score_threshold: float | None = None,
        center_point_box: bool = False,
        *,
        extent: str = '',
    ) -> Node:
        """(batch, class, box) of the boxes that stay: for each batch and class the best score comes
        first, equals by index, and a box goes where it shares more than `iou_threshold` of its union
        with one that stays. Boxes are two corners (y, x, y, x), or with `center_point_box` centre and
        size (x, y, width, height). Scores must be above `score_threshold`; NaN never is.
        """
    def matmul(self, x: Operand, y: Operand, /) -> Node:
        """The matrix product over the last two axes; the axes before them broadcast. An operand of
        rank 1 is a row on the left, a column on the right, and leaves no axis behind.
        """
    mm = matmul
    def wide_matmul(self, x: Operand, y: Operand, /, to: DTypeLike) -> Node:
        """`matmul` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
    def einsum(self, *operands: Operand | Sequence[Operand], equation: str) -> Node:
        """Sums of products by NumPy's notation: each operand's axes named by letters, `...` for the
        axes before or between them. What the result does not name is summed; without `->` it names
        what occurs once, by the alphabet. Axes of one name have one size.
        """
    def dot_general(
        self,
        x: Operand,
        y: Operand,
        /,
        lhs_contract: Sequence[int],
        rhs_contract: Sequence[int],
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
    ) -> Node:
        """Products summed over the contracted axes, pair by pair, for each index of the batch axes.
        The result has the batch axes, then what is left of x, then what is left of y.
        """
    def layer_norm(
        self,
        x: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        axis: int = -1,
        eps: float = 1e-05,
    ) -> Node:
        """(x - mean) / sqrt(variance + eps) over the axes from `axis` to the last, then times scale,
        plus bias, where they are given: they have the dims of those axes.
        """
    def rms_norm(
        self,
        x: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        axis: int = -1,
        eps: float = 1e-06,
    ) -> Node:
        """x / sqrt(mean of squares + eps) over the axes from `axis` to the last, then times scale,
        plus bias, where they are given: they have the dims of those axes.
        """
    def group_norm(
        self,
        x: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        groups: int,
        eps: float = 1e-05,
    ) -> Node:
        """Layer norm of each of `groups` runs of channels (axis 1) with all that follows them, then
        times the channel's scale, plus its bias, where they are given.
        """
    def instance_norm(
        self,
        x: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        eps: float = 1e-05,
    ) -> Node:
        """Layer norm of each channel's image, then times the channel's scale, plus its bias, where
        they are given.
        """
    def layer_norm_2d(
        self,
        x: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        eps: float = 1e-06,
    ) -> Node:
        """Layer norm over the channels (axis 1) at each place of an image, then times the channel's
        scale, plus its bias, where they are given.
        """
    def batch_norm(
        self,
        x: Operand,
        scale: Operand,
        bias: Operand,
        mean: Operand,
        var: Operand,
        /,
        eps: float = 1e-05,
    ) -> Node:
        """(x - mean) / sqrt(var + eps) · scale + bias for each channel (axis 1), with the mean and the
        variance given: what a trained batch norm does when it is used.
        """
    def ada_layer_norm(
        self,
        x: Operand,
        shift: Operand,
        scale: Operand,
        /,
        eps: float = 1e-06,
    ) -> Node:
        """layer_norm(x) · (1 + scale) + shift over the last axis. Shift and scale, which a condition
        gives, broadcast to x: [batch, 1, n] for a whole sequence.
        """
    def gated_residual(self, x: Operand, gate: Operand, residual: Operand, /) -> Node:
        """residual + gate · x: what a block adds, as much as its gate lets through."""
    def lp_normalization(self, x: Operand, /, axis: int = -1, p: int = 2) -> Node:
        """x over its norm along an axis: Σ|x| for p = 1, √Σx² for p = 2; zeros where that is 0."""
    def local_response_norm(
        self,
        x: Operand,
        /,
        size: int,
        alpha: float = 0.0001,
        beta: float = 0.75,
        bias: float = 1.0,
    ) -> Node:
        """x / (bias + alpha/size · Σ x²)^beta, summed over `size` channels (axis 1) around each: of an
        even number, one more after it than before it. ONNX's LRN.
        """
    lrn = local_response_norm
    def mean_variance_normalization(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        eps: float = 1e-09,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """(x - mean) / (√variance + eps) over these axes together; without `axes`, over all. ONNX's
        are (0, 2, 3) unless it says others.
        """
    def attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        mask: Operand | None = None,
        /,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        masked_rows: Literal['zeros', 'nan'] = 'zeros',
    ) -> Node:
        """softmax(q·kᵀ · scale) · v for each head, with operands [batch, length, heads·depth] or
        [batch, heads, length, depth]. Query heads share the `kv_heads` in runs; v may have a depth of
        its own. `scale` is 1/√depth if not given; `softcap` c makes a score c·tanh(score/c), before
        masking.

        Query i stands at p = i + keys - queries. `causal` lets it see the keys up to p,
        `sliding_window` those from p - window to p; `custom` hides the keys whose mask ([batch, keys],
        or broadcast to [batch, heads, queries, keys]) is False or below 0.5; `bias` adds its mask to
        the scores. Under a mask, a query that sees no key, or only scores of -inf, gives
        `masked_rows`: zeros, or the NaN that a softmax of -inf alone is. Values at hidden keys must be
        finite: their weight is 0, not their product.
        """
    def rope(
        self,
        x: Operand,
        cos: Operand,
        sin: Operand,
        /,
        head_dim: int | None = None,
        n_rot: int | None = None,
        interleaved: bool = False,
    ) -> Node:
        """Pairs of elements rotated by their position's angle: (a, b) becomes (a·cos - b·sin,
        b·cos + a·sin). x is [..., length, heads·head_dim], with one head if `head_dim` is not given;
        cos and sin are [..., length, n_rot/2] and broadcast. In each head the first `n_rot` elements
        (all, if not given) turn and the rest are copied: element i pairs with i + n_rot/2, or, if
        `interleaved`, element 2i with 2i + 1.
        """
    def axial_rope_2d(
        self,
        x: Operand,
        /,
        end_x: int,
        end_y: int,
        head_dim: int,
        theta: float = 10000.0,
        repeat_factor: int = 1,
    ) -> Node:
        """rope by the column and the row of each place of an image: x is [..., end_y·end_x,
        heads·head_dim], row by row, `repeat_factor` times over. Of the neighbouring pairs of each
        head, the first half rotates by column · theta^(-4i/head_dim), the second by the row.
        """
    def conv(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
    ) -> Node:
        """Sums over windows of the zero-padded image against each kernel. Input and output channels
        are cut into `groups` that see only each other; `bias` is added per output channel. Integers
        wrap.
        """
    conv1d = conv
    conv2d = conv
    conv3d = conv
    def wide_conv(
        self,
        x: Operand,
        w: Operand,
        /,
        to: DTypeLike,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
    ) -> Node:
        """`conv` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
    def conv_transpose(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        output_padding: Sequence[int] = (),
        groups: int = 1,
    ) -> Node:
        """What conv's windows add up to: each element times the kernel [in, out per group, *kernel],
        laid where conv would have read it. `padding` is cut off; `output_padding` adds to the end, for
        a size that the stride alone cannot tell.
        """
    conv_transpose1d = conv_transpose
    conv_transpose2d = conv_transpose
    conv_transpose3d = conv_transpose
    def depthwise_conv1d_causal(
        self,
        x: Operand,
        w: Operand,
        state: Operand | None = None,
        /,
    ) -> Node:
        """y[t] = Σ w[j] · x[t - (k-1) + j] for each channel, x [batch, length, channels] and w
        [channels, k]: a step sees itself and the k - 1 before it. Those before the first are `state`
        [batch, k - 1, channels], or zeros; `causal_conv_state` gives the state of the next call.
        """
    def im2col(
        self,
        x: Operand,
        /,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
    ) -> Node:
        """[batch, channels · taps, windows]: what each window of the zero-padded image sees, as a
        column.
        """
    def col2im(
        self,
        x: Operand,
        /,
        image: Sequence[int | Dim],
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
    ) -> Node:
        """[batch, channels, *image] of columns as im2col gives them: where windows overlap, they add
        up; what lay in the padding is dropped. ONNX's Col2Im.
        """
    def deform_conv(
        self,
        x: Operand,
        w: Operand,
        offset: Operand,
        mask: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
        offset_groups: int = 1,
    ) -> Node:
        """conv whose taps move by `offset` [batch, offset_groups · taps · axes, *windows] and read
        linearly between elements, zeros outside; `mask` [batch, offset_groups · taps, *windows] weighs
        them. Channels in one of `offset_groups` share their offsets. ONNX's DeformConv, whose bias is
        an add.
        """
    def max_pool(
        self,
        x: Operand,
        /,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        ceil: bool = False,
    ) -> Node:
        """The greatest element of each window; padding never wins, a NaN does. A window without data
        gives the least value of the dtype.
        """
    max_pool1d = max_pool
    max_pool2d = max_pool
    max_pool3d = max_pool
    def max_pool_with_indices(
        self,
        x: Operand,
        /,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        ceil: bool = False,
        column_major: bool = False,
    ) -> tuple[Node, Node]:
        """max_pool, and where in the flattened x each greatest element is: the first of equals, or of
        NaNs; -1 for a window without data. With `column_major` (ONNX's storage_order 1) the first axis
        of an image counts fastest; batch and channels stay in front.
        """
    def max_unpool(
        self,
        x: Operand,
        indices: Operand,
        /,
        image: int | Dim | Sequence[int | Dim],
        *more_image: int | Dim,
    ) -> Node:
        """Zeros [batch, channels, *image] with the elements of x put at `indices` of the flattened
        result; where one occurs twice, the last counts. The inverse of max_pool_with_indices, but for
        the rest of each window.
        """
    def avg_pool(
        self,
        x: Operand,
        /,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        ceil: bool = False,
        count_include_pad: bool = False,
    ) -> Node:
        """The mean of each window. `count_include_pad` divides by padding too, though never by what
        `ceil` reaches past it. A window that counts nothing gives 0.
        """
    avg_pool1d = avg_pool
    avg_pool2d = avg_pool
    avg_pool3d = avg_pool
    def lp_pool(
        self,
        x: Operand,
        /,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        ceil: bool = False,
        p: float = 2.0,
    ) -> Node:
        """(Σ |x|^p)^(1/p) over each window; padding adds nothing."""
    def global_avg_pool(self, x: Operand, /) -> Node:
        """The mean of each channel's image; of an empty one it is NaN."""
    global_avg_pool2d = global_avg_pool
    def global_max_pool(self, x: Operand, /) -> Node:
        """The greatest element of each channel's image, or a NaN of it; of an empty one it is the
        least value of the dtype.
        """
    def global_lp_pool(self, x: Operand, /, p: float = 2.0) -> Node:
        """(Σ |x|^p)^(1/p) over each channel's image."""
    def resize(
        self,
        x: Operand,
        /,
        axes: Sequence[int] | None = None,
        sizes: Sequence[int | Dim] | None = None,
        scales: Sequence[float] | None = None,
        mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
        coordinate_mode: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel',
        nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor',
        cubic_coeff_a: float = -0.75,
        exclude_outside: bool = False,
        antialias: bool = False,
        roi: Sequence[float] | None = None,
        extrapolation_value: float = 0.0,
        *,
        axis: Sequence[int] | None = None,
    ) -> Node:
        """x with these axes, or the last ones, brought to `sizes`, or to the whole part of their size
        times `scales`; with both given, sizes say how many elements there are and scales where they are
        sampled. `nearest` copies, from places that are computed in f32, so that ties round as they do
        in runtimes; `linear` and `cubic` take floats and weigh 2 and 4 old elements per axis, or with
        `antialias`, where an axis shrinks, as many as fall together. `exclude_outside` gives no weight
        past the edge. `roi` has where the crop of `tf_crop_and_resize` starts on each axis, and then
        where it ends, as parts of the axis; what the crop has past the image is the extrapolation
        value. Axes of named sizes are resized by `nearest` and whole scales, which repeat elements.
        """
    def depth_to_space(
        self,
        x: Operand,
        /,
        block: int,
        order: Literal['DCR', 'CRD'] = 'DCR',
    ) -> Node:
        """Channels laid out as blocks of pixels, `block` by `block`. Channels count the places of a
        block first (`DCR`) or last (`CRD`).
        """
    def space_to_depth(
        self,
        x: Operand,
        /,
        block: int,
        order: Literal['DCR', 'CRD'] = 'DCR',
    ) -> Node:
        """Blocks of pixels, `block` by `block`, laid out as channels: undoes depth_to_space."""
    def grid_sample(
        self,
        x: Operand,
        grid: Operand,
        /,
        mode: Literal['nearest', 'linear', 'cubic'] = 'linear',
        padding: Literal['zeros', 'border', 'reflection'] = 'zeros',
        align_corners: bool = False,
    ) -> Node:
        """x [n, c, …] read where `grid` [n, …, coordinates] says, the last axis of x first: -1 and 1
        are the edges of the image, or with `align_corners` the centres of its outermost pixels.
        Halfway, `nearest` takes the even pixel. Outside are zeros, the border, or the image mirrored
        at its edges: a position there is moved inside, but for `cubic` the pixels that it is made of
        are, each separately.
        """
    def affine_grid(
        self,
        theta: Operand,
        /,
        sizes: Sequence[int],
        align_corners: bool = False,
    ) -> Node:
        """The grid that reads an image of `sizes` through the affine map `theta` [n, r, r + 1], whose
        last column is the shift; for grid_sample.
        """
    def roi_align(
        self,
        x: Operand,
        rois: Operand,
        batch_indices: Operand,
        /,
        output_size: Sequence[int] = ...,
        mode: Literal['avg', 'max'] = 'avg',
        sampling_ratio: int = 0,
        spatial_scale: float = 1.0,
        half_pixel: bool = True,
    ) -> Node:
        """Regions (x, y, x, y) of images cut into bins, and each bin the mean over points inside it,
        `sampling_ratio` squared or about one per pixel, each interpolated between four pixels. `max`
        is what ONNX says it is: the greatest of the points' pixels times their weights. Without
        `half_pixel`, pixel coordinates are those of their corners and regions are at least 1 wide.
        """
    def max_roi_pool(
        self,
        x: Operand,
        rois: Operand,
        batch_indices: Operand,
        /,
        output_size: Sequence[int],
        spatial_scale: float = 1.0,
    ) -> Node:
        """Regions (x, y, x, y) of images, their edges rounded to whole pixels and both inside, cut
        into bins that overlap where they do not come out even; each bin its greatest pixel, or 0
        where it has none. ONNX's rois carry the batch index in front.
        """
    def fft(
        self,
        x: Operand,
        /,
        inverse: bool = False,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The discrete Fourier transform along the last axis. Complex dtypes hold one number per
        element; real dtypes hold n real parts and then n imaginary parts, in and out.
        """
    def ifft(
        self,
        x: Operand,
        /,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The inverse transform along the last axis, of complex or real numbers, as NumPy's."""
    def rfft(
        self,
        x: Operand,
        /,
        n: int | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The first n // 2 + 1 bins of the transform of real numbers, cut or zero-padded to `n`."""
    def irfft(
        self,
        x: Operand,
        /,
        n: int | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The `n` real numbers whose `rfft` is `x`; without `n`, twice the bins less two. Bins are cut
        or zero-padded to n // 2 + 1; imaginary parts of the first and the middle bin do not count.
        """
    def stft(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        n_fft: int,
        hop: int,
        center: bool = False,
        pad: Literal['reflect', 'zeros'] = 'reflect',
    ) -> Node:
        """The real transform of each frame of `n_fft` points, one every `hop`, times `window`:
        [..., frames, n_fft // 2 + 1]. With `center`, frame i is centred on point i * hop: the signal
        gets n_fft // 2 more points at both ends, mirrored or zero.
        """
    def log_mel(self, spectrum: Operand, filters: Operand, /) -> Node:
        """Whisper's log-mel frames of a spectrum in block layout: log10 of the filtered power, at
        least 1e-10, at most 8 below the frame's greatest, then (v + 4) / 4.
        """
    def welch_peaks(self, spectrum: Operand, /, k: int, n_segments: int) -> Node:
        """The `k` strongest bins of a Welch estimate, as bin, power, bin, power, …, strongest first;
        of equals the lower bin. The estimate is the mean over each group of `n_segments` rows of the
        squared magnitude, one-sided: bins with a mirror image count twice. Slots past the last bin
        are 0.
        """
    def lstm(
        self,
        *operands: Operand | None,
        extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
        alphas: Sequence[float] = (),
        betas: Sequence[float] = (),
        clip: float | None = None,
        input_forget: bool = False,
        batch_first: bool = False,
    ) -> tuple[Node, Node, Node]:
        """The outputs [length, directions, batch, hidden], the last state and the last cell of
        i, o, f = σ(Wx + Rh + b + p·c), C = f·c + i·tanh(Wx + Rh + b), H = o·tanh(C), where o sees the
        new C. `input_forget` has f = 1 - i.
        """
    def gru(
        self,
        *operands: Operand | None,
        extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
        alphas: Sequence[float] = (),
        betas: Sequence[float] = (),
        clip: float | None = None,
        linear_before_reset: bool = False,
        batch_first: bool = False,
    ) -> tuple[Node, Node]:
        """The outputs [length, directions, batch, hidden] and the last state of
        z, r = σ(Wx + Rh + b), H = (1 - z)·tanh(Wx + R(r·h) + b) + z·h. With `linear_before_reset`,
        r weighs the product and its bias instead: r·(Rh + b).
        """
    def rnn(
        self,
        *operands: Operand | None,
        extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
        alphas: Sequence[float] = (),
        betas: Sequence[float] = (),
        clip: float | None = None,
        batch_first: bool = False,
    ) -> tuple[Node, Node]:
        """The outputs [length, directions, batch, hidden] and the last state of
        H = tanh(Wx + Rh + b).
        """
    def selective_scan(
        self,
        x: Operand,
        delta: Operand,
        a: Operand,
        b: Operand,
        c: Operand,
        state: Operand | None = None,
        /,
    ) -> tuple[Node, Node]:
        """Mamba's recurrence: h ← exp(Δ·A)·h + Δ·x·B and y = h·C at each step, for x and Δ [batch,
        length, width], A [width, n], B and C [batch, length, n]. Gives y and the last h [batch, width,
        n].
        """
    def mamba2(
        self,
        x: Operand,
        dt: Operand,
        a: Operand,
        b: Operand,
        c: Operand,
        state: Operand | None = None,
        /,
    ) -> tuple[Node, Node]:
        """Mamba-2's recurrence: S ← exp(dt·A)·S + dt·x⊗B and y = S·C at each step and head, for x
        [batch, length, heads, width], dt [batch, length, heads], one A per head, and B and C [batch,
        length, groups, n], which the heads of a group share. Gives y and the last S [batch, heads,
        width, n].
        """
    def gated_delta_net(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        g: Operand,
        beta: Operand,
        state: Operand | None = None,
        /,
        *,
        scale: float | None = None,
    ) -> tuple[Node, Node]:
        """The gated delta rule at each step and head: S ← exp(g)·S, d = (v - Sᵀk)·β, S ← S + k⊗d and
        o = Sᵀq·scale, with 1/√n if no scale is given. q and k are [batch, length, heads, n], v is
        [batch, length, heads, m]; g and β have one number per head, or g one per entry of k and β one
        per entry of v. Gives o and the last S [batch, heads, n, m].
        """
    def linear_attention(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        /,
        *extras: Operand | None,
        num_heads: int,
        kv_heads: int,
        rule: Literal['linear', 'gated', 'delta', 'gated_delta'] = 'gated_delta',
        scale: float | None = None,
    ) -> tuple[Node, Node]:
        """Attention without a softmax, which keeps a sum S of its past: at each step and head, S ← S +
        k⊗v and o = Sᵀq·scale, with 1/√n if no scale is given. A `gated` rule has an operand decay and
        first makes S exp(decay)·S; a `delta` rule has an operand β and adds k⊗(v - Sᵀk)·β in place of
        k⊗v. After these may come the S before the first step.

        q is [batch, length, num_heads·n], k and v are [batch, length, kv_heads·n] and [batch, length,
        kv_heads·m], and runs of query heads share theirs; decay has one number per head or per entry
        of k, β one per head or one for all. Gives o and the last S [batch, kv_heads, n, m]. ONNX's
        chunk_size changes no result, its scale 0 is none here, and a state that is wider than the
        rest means that all are computed in its dtype: cast them.
        """
    def causal_conv_state(
        self,
        x: Operand,
        state: Operand | None = None,
        /,
        *,
        size: int,
    ) -> Node:
        """The last `size` rows of [batch, length, channels] after those of `state`, or after zeros:
        what depthwise_conv1d_causal of `size` + 1 taps takes before the next part of a sequence.
        """
    def hann_window(
        self,
        length: int | Dim,
        periodic: bool = True,
        dtype: DTypeLike = ...,
    ) -> Node:
        """1/2 - 1/2 cos 2πt over t from 0 to 1; the end is left out where it is periodic, as spectra
        want it. A window of one point is 1, as SciPy's (ONNX has 0).
        """
    def hamming_window(
        self,
        length: int | Dim,
        periodic: bool = True,
        alpha: float = 0.54,
        dtype: DTypeLike = ...,
    ) -> Node:
        """alpha - (1 - alpha) cos 2πt. ONNX has alpha = 25/46."""
    def blackman_window(
        self,
        length: int | Dim,
        periodic: bool = True,
        dtype: DTypeLike = ...,
    ) -> Node:
        """0.42 - 0.5 cos 2πt + 0.08 cos 4πt."""
    def kaiser_window(
        self,
        length: int | Dim,
        periodic: bool = True,
        beta: float = 12.0,
        dtype: DTypeLike = ...,
    ) -> Node:
        """I₀(beta · √(1 - (2t - 1)²)) / I₀(beta)."""
    def fftfreq(self, n: int | Dim, d: float = 1.0, dtype: DTypeLike = ...) -> Node:
        """The frequency of each bin of a transform of `n` samples spaced `d`, as NumPy has it:
        from 0 up, then the negative ones; the middle bin of an even n is negative.
        """
    def rfftfreq(self, n: int | Dim, d: float = 1.0, dtype: DTypeLike = ...) -> Node:
        """The frequency of each bin of a transform of `n` real numbers: all are 0 or more."""
    def mel_weight_matrix(
        self,
        num_mel_bins: int,
        dft_length: int,
        sample_rate: int,
        lower_edge_hertz: float,
        upper_edge_hertz: float,
        dtype: DTypeLike = ...,
    ) -> Node:
        """ONNX's matrix from dft_length // 2 + 1 bins to mel bands, [bins, bands]: triangles whose
        corners are equal steps of 2595 log₁₀(1 + f / 700) apart, each moved down to a whole bin.
        """
    def mel_filters(
        self,
        sample_rate: float,
        n_fft: int,
        n_mels: int = 128,
        f_min: float = 0.0,
        f_max: float | None = None,
        scale: Literal['slaney', 'htk'] = 'slaney',
        norm: Literal['slaney', 'none'] = 'slaney',
        dtype: DTypeLike = ...,
    ) -> Node:
        """Librosa's filters from n_fft // 2 + 1 bins to mel bands, [bands, bins]: triangles over
        frequency whose corners are equal steps of the mel scale apart, up to half the sample rate.
        `slaney` norm gives each the same area; what log_mel takes.
        """
    def fftn(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The discrete Fourier transform over `axes`, of complex or real numbers."""
    def ifftn(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The inverse transform over `axes`, of complex or real numbers."""
    def rfftn(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The transform of real numbers over `axes`: of the last of them the first n // 2 + 1 bins."""
    def irfftn(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        n: int | None = None,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """The real numbers whose `rfftn` is x; `n` is their length on the last of `axes`, and without
        it twice the bins less two.
        """
    def fftshift(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """A spectrum with frequency 0 in the middle of `axes`."""
    def ifftshift(
        self,
        x: Operand,
        /,
        axes: int | Sequence[int] | None = None,
        *,
        axis: int | Sequence[int] | None = None,
    ) -> Node:
        """A spectrum with frequency 0 at the front of `axes` again: the inverse of fftshift."""
    def dct(
        self,
        x: Operand,
        /,
        kind: Literal[1, 2, 3, 4] = 2,
        axis: int = -1,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The discrete cosine transform of types 1 to 4 along `axis`, scaled as SciPy's: 2 Σ xₙ cos …
        without a norm, orthogonal with `ortho`.
        """
    def idct(
        self,
        x: Operand,
        /,
        kind: Literal[1, 2, 3, 4] = 2,
        axis: int = -1,
        norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    ) -> Node:
        """The inverse of `dct`: types 2 and 3 are each other's."""
    def frame(self, x: Operand, /, length: int, hop: int) -> Node:
        """Every `hop` points a frame of `length` points, as long as it fits: [..., frames, length]."""
    def overlap_add(self, x: Operand, /, hop: int) -> Node:
        """Frames, one every `hop` points, added up where they overlap: the counterpart of frame."""
    def psd(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        fs: float = 1.0,
        scaling: Literal['density', 'spectrum'] = 'density',
    ) -> Node:
        """The one-sided power spectrum of real numbers sampled at `fs`: |rfft(x · window)|², twice
        for bins with a mirror image, over fs · Σ window² (`density`, power per hertz) or over
        (Σ window)² (`spectrum`, power). Without a window, of ones.
        """
    def istft(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        n_fft: int,
        hop: int,
        center: bool = False,
        length: int | None = None,
    ) -> Node:
        """The signal whose `stft` with the same attributes is x: frames times `window` added up, over
        the sum of squared windows that cover a point; what none covers is 0. With `length`, the
        signal is cut or zero-padded to it.
        """
    def convolve(
        self,
        x: Operand,
        y: Operand,
        /,
        mode: Literal['full', 'same', 'valid'] = 'full',
    ) -> Node:
        """Σ x[i] · y[k - i] along the last axis; leading dims broadcast. `full` has every k with a
        term, `same` the middle of it, as long as x, and `valid` those with all terms.
        """
    def fft_convolve(
        self,
        x: Operand,
        y: Operand,
        /,
        mode: Literal['full', 'same', 'valid'] = 'full',
    ) -> Node:
        """What `convolve` gives, through transforms: for long signals of similar lengths."""
    def power_frames(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        n_fft: int,
        hop: int,
        center: bool = False,
        pad: Literal['reflect', 'zeros'] = 'reflect',
    ) -> Node:
        """The squared magnitude of the `stft`: [..., frames, n_fft // 2 + 1]."""
    def mean_power(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        n_fft: int,
        hop: int,
        center: bool = False,
        pad: Literal['reflect', 'zeros'] = 'reflect',
        one_sided: bool = False,
    ) -> Node:
        """The mean of `power_frames` over all frames: [..., n_fft // 2 + 1]. Half floats are rounded
        once, behind the mean. With `one_sided`, bins that have a mirror image count twice.
        """
    def mel_frames(
        self,
        x: Operand,
        filters: Operand,
        window: Operand | None = None,
        /,
        *,
        n_fft: int,
        hop: int,
        center: bool = False,
        pad: Literal['reflect', 'zeros'] = 'reflect',
    ) -> Node:
        """`power_frames` times `filters`: of each frame the power in every band. Half floats are
        rounded once, behind the product.
        """
    def fir(self, taps: Operand, x: Operand, /) -> Node:
        """y[t] = Σ taps[i] · x[t - i], with zeros before the signal."""
    def lfilter(
        self,
        b: Operand,
        a: Operand,
        x: Operand,
        zi: Operand | None = None,
        /,
    ) -> tuple[Node, Node]:
        """The recursive filter a₀ y[t] = Σ b[i] x[t - i] - Σ a[i] y[t - i], i > 0 in the second sum,
        in the transposed direct form II; and its last state. `zi` is the state to begin with, of
        max(nb, na) - 1 values per signal; without it, zeros.
        """
    def sosfilt(
        self,
        sos: Operand,
        x: Operand,
        zi: Operand | None = None,
        /,
    ) -> tuple[Node, Node]:
        """Filters of second order one after the other, each a row b₀ b₁ b₂ a₀ a₁ a₂ of `sos`; and
        their last states. `zi` are the states to begin with; without it, zeros.
        """
    def resample_poly(
        self,
        x: Operand,
        taps: Operand | None = None,
        /,
        *,
        up: int,
        down: int,
    ) -> Node:
        """The signal at up / down times its rate: `up - 1` zeros after every point, a filter of
        up · `taps`, centred, and then every `down`-th point. Without taps, SciPy's: a low pass of
        20 · max(up, down) + 1 of them under a Kaiser window of beta 5. At its own rate it is as it
        was, unfiltered.
        """
    def resample(self, x: Operand, /, num: int) -> Node:
        """The signal as `num` points of the same time, through its spectrum: bins are cut or added
        as zeros, as if the signal went on periodically.
        """
    def random_bits(
        self,
        counter: Operand,
        /,
        dims: Sequence[int | Dim],
        seed: int = 0,
        stream: int = 0,
    ) -> Node:
        """64 random bits per element, in row-major order: what NumPy's Philox of key (seed, stream)
        gives from this counter on.
        """
    def random_uniform(
        self,
        counter: Operand,
        /,
        dims: Sequence[int | Dim],
        low: float = 0.0,
        high: float = 1.0,
        seed: int = 0,
        stream: int = 0,
        dtype: DTypeLike = ...,
    ) -> Node:
        """low + (high - low) · u, with u the upper bits of a word per element: 53 of them for f64, as
        NumPy's generators have it, 24 for f32, 11 for f16, 8 for bf16. So u is below 1; rounding may
        still give `high`.
        """
    def random_normal(
        self,
        counter: Operand,
        /,
        dims: Sequence[int | Dim],
        mean: float = 0.0,
        scale: float = 1.0,
        seed: int = 0,
        stream: int = 0,
        dtype: DTypeLike = ...,
    ) -> Node:
        """mean + scale · √(-2 log(1 - u)) · cos 2πv (Box and Muller), with u and v from two words per
        element, one after the other: of 53 bits each for f64, else of 24.
        """
    def random_integers(
        self,
        counter: Operand,
        /,
        dims: Sequence[int | Dim],
        low: int,
        high: int,
        seed: int = 0,
        stream: int = 0,
        dtype: DTypeLike = ...,
    ) -> Node:
        """Whole numbers from `low` up to, but not including, `high`: the upper half of a word times
        their count, so that none is likelier than another by more than count / 2^64.
        """
    def bernoulli(
        self,
        p: Operand,
        counter: Operand,
        /,
        seed: int = 0,
        stream: int = 0,
        to: DTypeLike = ...,
    ) -> Node:
        """1 with probability p, else 0: whether a uniform number in p's dtype (f32 for half floats) is
        below p. NaN and numbers below 0 give 0, those above 1 give 1.
        """
    def top_k_filter(self, logits: Operand, /, k: int) -> Node:
        """All but the `k` greatest logits of a row left out, and none where it has no more than k."""
    def top_p_filter(self, logits: Operand, /, p: float) -> Node:
        """All left out but the likeliest tokens that together have a probability of `p`; the
        likeliest always stays.
        """
    def min_p_filter(self, logits: Operand, /, p: float) -> Node:
        """All left out that are less likely than `p` times the likeliest."""
    def repetition_penalty(self, logits: Operand, ids: Operand, /, penalty: float) -> Node:
        """The logits of tokens among `ids` made smaller: those above 0 divided by `penalty`, those
        below multiplied by it. An id out of range, such as -1, is none.
        """
    def sample(
        self,
        logits: Operand,
        counter: Operand,
        /,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stream: int = 0,
    ) -> Node:
        """A token per row: logits are divided by `temperature`, filtered by `top_k` (0: not),
        `top_p` and `min_p`, in this order, and one of the rest is drawn by its probability, as the
        greatest sum of logit and Gumbel noise from a word per logit. Temperature 0 takes the
        greatest logit, the first of equals.
        """
    def multinomial(
        self,
        logits: Operand,
        counter: Operand,
        /,
        count: int,
        seed: int = 0,
        stream: int = 0,
    ) -> Node:
        """`count` tokens per row, each drawn by its probability, whether drawn before or not; ONNX's
        Multinomial of log-probabilities, which need not add up to 1.
        """
    def hard_max(self, x: Operand, /, axis: int = -1) -> Node:
        """1 at the greatest element along `axis`, the first of equals, else 0."""
    def if_(
        self,
        pred: Operand,
        /,
        *captures: Operand | Sequence[Operand],
        then: Graph,
        else_: Graph,
        extent: str = '',
    ) -> tuple[Node, ...]:
        """One of two graphs applied to `captures`: `then` where `pred` is true. The other side does
        not run. Where their results differ in size, the sizes are those of the side that ran:
        `extent.0`, `extent.1` … in order.
        """
    def while_(
        self,
        *operands: Operand | Sequence[Operand],
        cond: Graph,
        body: Graph,
        max_iterations: int | None = None,
        num_bcasts: int = 0,
        num_rows: int = 0,
        at_most: int | Dim | None = None,
        extent: str = '',
    ) -> tuple[Node, ...]:
        """`body` applied to the carries for as long as `cond` of them is true, and at most
        `max_iterations` times. Carries keep dtype and rank, and their sizes but for those that the
        bodies' inputs name `extent.0`, `extent.1` …: those are what the step before made them. The last
        `num_bcasts` operands are no carries: both graphs see them as they are. The body's last
        `num_rows` results are stacked, a row for each step: `extent.rows` of them, and no more than
        `at_most`.
        """
    def scan(
        self,
        *operands: Operand | Sequence[Operand],
        body: Graph,
        length: int | Dim,
        num_carries: int,
        num_bcasts: int = 0,
        reverse: bool = False,
    ) -> tuple[Node, ...]:
        """`body` applied `length` times. Operands are the first carries, then what every step sees
        whole, then what each step sees one slice of, along the first axis. The body gives the next
        carries and the step's results; the op gives the last carries and the results stacked.
        `reverse` starts at the last slice.
        """
    def custom(
        self,
        *operands: Operand | Sequence[Operand],
        name: str,
        options: str = '{}',
    ) -> tuple[Node, ...]:
        """The op that `rlx.custom_op` registered under `name`, with options as a JSON object."""
    def nll_loss(
        self,
        x: Operand,
        labels: Operand,
        weights: Operand | None = None,
        /,
        *,
        axis: int = 1,
        reduction: Literal['none', 'mean', 'sum'] = 'mean',
        ignore_index: int | None = None,
    ) -> Node:
        """-x at the class that `labels` names, times that class's weight, for log-probabilities whose
        classes are on `axis`; labels have the dims of x without it. Where a label is `ignore_index`
        the loss is 0 and does not count; any other label that is no class is an error. `mean` divides
        by the sum of the weights that count, or by how many count, and is NaN where none does.
        """
    def softmax_cross_entropy(
        self,
        logits: Operand,
        labels: Operand,
        weights: Operand | None = None,
        /,
        *,
        axis: int = 1,
        reduction: Literal['none', 'mean', 'sum'] = 'mean',
        ignore_index: int | None = None,
    ) -> Node:
        """nll_loss of log_softmax(logits): the cross entropy of the classes' softmax and the labels.
        With reduction `none`, [n, classes] and [n] give the loss of each row. ONNX's second result,
        log_prob, is log_softmax of the logits on `axis`.
        """
    def stop_gradient(self, x: Operand, /) -> Node:
        """x, of which a derivative is taken to be zero."""
    def fused_matmul_bias_act(
        self,
        x: Operand,
        w: Operand,
        bias: Operand,
        /,
        activation: str | None = None,
    ) -> Node:
        """activation(x · w + bias). The bias is anything that broadcasts to the product: a row, or a
        whole residual.
        """
    def fused_conv_bias_act(
        self,
        x: Operand,
        w: Operand,
        bias: Operand,
        /,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
        activation: str | None = None,
    ) -> Node:
        """activation(conv(x, w, bias))."""
    def fused_swiglu(self, cat: Operand, /, gate_first: bool = False) -> Node:
        """silu(gate) · up, where the last axis of `cat` holds up and then gate; with `gate_first`,
        gate and then up.
        """
    def fused_residual_ln(
        self,
        x: Operand,
        residual: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        axis: int = -1,
        eps: float = 1e-05,
    ) -> Node:
        """layer_norm(x + residual, scale, bias)."""
    def fused_residual_rms_norm(
        self,
        x: Operand,
        residual: Operand,
        scale: Operand | None = None,
        bias: Operand | None = None,
        /,
        *,
        axis: int = -1,
        eps: float = 1e-06,
    ) -> Node:
        """rms_norm(x + residual, scale, bias)."""
    def fused_attention_block(
        self,
        hidden: Operand,
        qkv_w: Operand,
        out_w: Operand,
        /,
        *more: Operand | None,
        num_heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        has_bias: bool = False,
        has_rope: bool = False,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        masked_rows: Literal['zeros', 'nan'] = 'zeros',
        n_rot: int | None = None,
        interleaved: bool = False,
    ) -> Node:
        """Attention of [batch, length, width] with its projections: queries, keys and values from one
        product with `qkv_w` (their columns in this order), rotary positions, attention, and the
        product with `out_w`. After the weights come qkv_b and out_b if `has_bias`, cos and sin if
        `has_rope`, and the mask if its kind takes one.
        """
    def elementwise_region(self, *externals: Operand | Sequence[Operand], body: Graph) -> Node:
        """A graph of elementwise ops and constants that runs as one kernel: its inputs are the
        operands, by position, and broadcast as they do op by op.
        """
    def region(self, *externals: Operand | Sequence[Operand], body: Graph) -> Node:
        """Any graph that runs as one kernel: its inputs are the operands, by position."""
    def grouped_matmul(self, x: Operand, w: Operand, experts: Operand, /) -> Node:
        """Row i of x times the matrix of its expert, w[experts[i]]. An expert that does not exist is
        an error.
        """
    def lora_matmul(
        self,
        x: Operand,
        w: Operand,
        a: Operand,
        b: Operand,
        /,
        scale: float = 1.0,
    ) -> Node:
        """x · w + scale · (x · a) · b: a weight with a low-rank addition that is not merged into it.
        Integers take a whole scale.
        """
    def moe_route(
        self,
        logits: Operand,
        /,
        top_k: int,
        scoring: Literal['softmax', 'sigmoid'] = 'softmax',
        normalise: bool = True,
        scale: float = 1.0,
    ) -> tuple[Node, Node]:
        """The `top_k` experts of each row and their weights, the greatest first, equals by index.
        Scores are the softmax over all experts, or each expert's sigmoid; `normalise` divides the
        chosen ones by their sum, and `scale` multiplies them.
        """
    def moe_ffn(
        self,
        x: Operand,
        router: Operand,
        gate: Operand,
        up: Operand,
        down: Operand,
        /,
        top_k: int,
        scoring: Literal['softmax', 'sigmoid'] = 'softmax',
        normalise: bool = True,
        scale: float = 1.0,
        activation: str = 'silu',
    ) -> Node:
        """A feed-forward layer of experts: each row goes to the `top_k` that the router chooses, each
        gives (activation(row · gate) · (row · up)) · down, and their weighted sum is the result.
        """
    def block_dequantize(
        self,
        packed: Operand,
        scale: Operand,
        zero: Operand | None = None,
        /,
        *,
        packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
        block: int,
    ) -> Node:
        """(number - zero) · scale, where `block` numbers of a row share a scale and a zero point.
        Floats of eight bits have no zero point; a NaN among them stays one.
        """
    def dequant_matmul(
        self,
        x: Operand,
        packed: Operand,
        scale: Operand,
        zero: Operand | None = None,
        /,
        *,
        packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
        block: int,
    ) -> Node:
        """x · Wᵀ, where W is what `block_dequantize` gives. Half floats are multiplied in f32 and
        rounded once.
        """
    def dequant_grouped_matmul(
        self,
        x: Operand,
        packed: Operand,
        experts: Operand,
        scale: Operand,
        zero: Operand | None = None,
        /,
        *,
        packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
        block: int,
    ) -> Node:
        """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
    def block_quantize(
        self,
        x: Operand,
        /,
        packing: Literal['int8', 'int4', 'fp8_e4m3', 'fp8_e5m2'],
        block: int,
    ) -> tuple[Node, Node]:
        """Bytes and scales of which `block_dequantize` makes x again, up to rounding. The scale of
        `block` consecutive elements makes the greatest of them, in size, the greatest number of the
        packing; numbers are rounded to the nearest, ties to the even one, and none past the greatest.
        A block with a NaN or infinity in it comes back as NaN.
        """
    def gguf_dequantize(
        self,
        packed: Operand,
        /,
        scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
    ) -> Node:
        """The weights that rows of GGUF blocks hold; a row is the last axis, and whole blocks."""
    def gguf_matmul(
        self,
        x: Operand,
        packed: Operand,
        /,
        scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
    ) -> Node:
        """x · Wᵀ, where row i of W, the weights of output i, is row i of `packed`. Half floats
        are multiplied in f32 and rounded once.
        """
    def gguf_int8_matmul(
        self,
        x: Operand,
        packed: Operand,
        /,
        scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
        terms: int = 1,
    ) -> Node:
        """`gguf_matmul` of x rounded to bytes: each 32 elements of a row to multiples of their greatest
        size over 127, as `block_quantize` does; with more `terms`, x is the sum of so many such
        roundings, each of what those before left. Where weights are small integers with scales, sums
        of 32 products are exact then. The scales of the weights are finite.
        """
    def gguf_grouped_matmul(
        self,
        x: Operand,
        packed: Operand,
        experts: Operand,
        /,
        scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
    ) -> Node:
        """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
    def quantize_linear(
        self,
        x: Operand,
        scale: Operand,
        zero: Operand | None = None,
        /,
        *,
        axis: int = 1,
        block: int = 0,
        to: DTypeLike = ...,
        bits: int | None = None,
    ) -> Node:
        """round(x / scale) + zero, saturated to `to`; with `bits`, to the numbers of that many bits,
        so that ONNX's int4 is i8 with bits 4.
        """
    def dequantize_linear(
        self,
        x: Operand,
        scale: Operand,
        zero: Operand | None = None,
        /,
        *,
        axis: int = 1,
        block: int = 0,
    ) -> Node:
        """(x - zero) · scale."""
    def dynamic_quantize_linear(self, x: Operand, /) -> tuple[Node, Node, Node]:
        """x as u8, with the scale and the zero point that just cover its values and 0."""
    def fake_quantize(
        self,
        x: Operand,
        scale: Operand | None = None,
        /,
        *,
        bits: int = 8,
        axis: int | None = None,
        symmetric: bool = True,
    ) -> Node:
        """x rounded to what `bits` can say, as floats. The scale is given, or covers the values of
        all x, or of each index of `axis`. Symmetric means steps from -q to q with q = 2^(bits-1) - 1;
        else there are 2^bits - 1 steps between the least and the greatest value, or 0.
        """
    def matmul_integer(
        self,
        x: Operand,
        w: Operand,
        x_zero: Operand | None = None,
        w_zero: Operand | None = None,
        /,
    ) -> Node:
        """(x - x_zero) · (w - w_zero) of bytes, in i32. A zero point is one number, one per row of x
        or column of w, or anything that broadcasts.
        """
    def qlinear_matmul(
        self,
        x: Operand,
        x_scale: Operand,
        x_zero: Operand,
        w: Operand,
        w_scale: Operand,
        w_zero: Operand,
        y_scale: Operand,
        y_zero: Operand,
        /,
    ) -> Node:
        """The product of what x and w stand for, quantised by y_scale and y_zero, in y_zero's dtype:
        the i32 product times x_scale · w_scale / y_scale.
        """
    def quantized_matmul(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        /,
        *,
        x_zero: int = 0,
        w_zero: int = 0,
        out_zero: int = 0,
        multiplier: float = 1.0,
    ) -> Node:
        """((x - x_zero) · (w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
    def conv_integer(
        self,
        x: Operand,
        w: Operand,
        x_zero: Operand | None = None,
        w_zero: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
    ) -> Node:
        """`conv` of x - x_zero and w - w_zero, bytes, in i32: so padding stands for x_zero. w_zero is
        one number, or one per output channel.
        """
    def qlinear_conv(
        self,
        x: Operand,
        x_scale: Operand,
        x_zero: Operand,
        w: Operand,
        w_scale: Operand,
        w_zero: Operand,
        y_scale: Operand,
        y_zero: Operand,
        bias: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
    ) -> Node:
        """The convolution of what x and w stand for, quantised by y_scale and y_zero, in y_zero's
        dtype. The bias is added to the i32 sums.
        """
    def quantized_conv(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        /,
        *,
        stride: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
        groups: int = 1,
        x_zero: int = 0,
        w_zero: int = 0,
        out_zero: int = 0,
        multiplier: float = 1.0,
    ) -> Node:
        """(conv(x - x_zero, w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
    def cholesky(self, a: Operand, /, upper: bool = False) -> Node:
        """The lower triangle l with positive diagonal and a = l · lᴴ; of `upper`, u with a = uᴴ · u.
        Only that triangle of a is read, and of its diagonal the real part.
        """
    def qr(self, a: Operand, /, complete: bool = False) -> tuple[Node, Node]:
        """q and r with a = q · r: the columns of q orthonormal, r upper triangular with a diagonal
        that is real and not negative. q has min(m, n) columns, or m if `complete`.
        """
    def svd(self, a: Operand, /, full_matrices: bool = True) -> tuple[Node, Node, Node]:
        """u, s and vh with a = u · diag(s) · vh: s falling and not negative, the columns of u and the
        rows of vh orthonormal. In each column of u the greatest entry, the first of equals, is real
        and positive, and so it is in those rows of vh that have no column of u.
        """
    def svdvals(self, a: Operand, /) -> Node:
        """The singular values of a, falling."""
    def eigh(self, a: Operand, /, upper: bool = False) -> tuple[Node, Node]:
        """Eigenvalues of a Hermitian matrix, rising, and as columns its eigenvectors, orthonormal. In
        each the greatest entry, the first of equals, is real and positive. Only the lower (or upper)
        triangle of a is read, and of its diagonal the real part.
        """
    def solve(self, a: Operand, b: Operand, /, vectors: bool = False) -> Node:
        """The x with a · x = b. The stacks broadcast. With `vectors`, which a `b` of rank 1 implies,
        the last axis of b is one right side; else its last two are as many as it has columns.
        """
    def inverse(self, a: Operand, /) -> Node:
        """The matrix whose product with a is the identity."""
    inv = inverse
    def triangular_solve(
        self,
        a: Operand,
        b: Operand,
        /,
        left: bool = True,
        upper: bool = False,
        unit_diagonal: bool = False,
        transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
    ) -> Node:
        """The x with t · x = b, or x · t = b where not `left`. t is the lower (or upper) triangle of
        a, with ones on its diagonal if `unit_diagonal`, and then transposed, or the adjoint. Zeros on
        the diagonal divide as floats do.
        """
    def slogdet(self, a: Operand, /) -> tuple[Node, Node]:
        """The sign, or phase, of the determinant, and the logarithm of its magnitude: 0 and -inf for a
        singular matrix.
        """
    def det(self, a: Operand, /) -> Node:
        """The determinant; of an empty matrix 1."""
    def pinv(self, a: Operand, /, rtol: float | None = None) -> Node:
        """The pseudo-inverse: of each singular value its reciprocal, or 0 where it is at most `rtol`
        times the greatest. Without `rtol`, max(m, n) times the dtype's epsilon.
        """
    def trace(self, a: Operand, /, offset: int = 0) -> Node:
        """The sum of a diagonal: the main one, or `offset` columns to its right."""
    def outer(self, x: Operand, y: Operand, /) -> Node:
        """Every element of x times every element of y."""
    def cross(self, x: Operand, y: Operand, /, axis: int = -1) -> Node:
        """The cross product of vectors, the three entries along `axis`."""
    def lu_factor(self, a: Operand, /) -> tuple[Node, Node]:
        """l and u in one matrix, the ones on the diagonal of l left out, and the row that each row was
        swapped with, one after the other: a pivot is the first of its column of greatest |re| + |im|.
        A singular matrix has zeros on the diagonal of u; one that is not finite swaps nothing.
        """
    def pivots_to_permutation(self, pivots: Operand, /, size: int | Dim) -> Node:
        """The order that swaps give to `size` rows: row i with row pivots[i], one after the other. The
        rows of a in that order are l · u.
        """
    def lu_solve(
        self,
        lu: Operand,
        pivots: Operand,
        b: Operand,
        /,
        transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
    ) -> Node:
        """The x with a · x = b, or with the transpose or adjoint of a, of the factors that lu_factor
        gives. Zeros on the diagonal of u divide as floats do.
        """
    def cholesky_solve(self, factor: Operand, b: Operand, /, upper: bool = False) -> Node:
        """The x with a · x = b, of the factor that cholesky gives: a = l · lᴴ, or uᴴ · u."""
    def cholesky_inverse(self, factor: Operand, /, upper: bool = False) -> Node:
        """The inverse of the matrix whose factor cholesky gives."""
    def ldl_factor(self, a: Operand, /, hermitian: bool = False) -> tuple[Node, Node]:
        """l below d, in one lower triangle, and the pivots: of a = l · d · lᵀ, or lᴴ if `hermitian`.
        Only the lower triangle of a is read. A block of a singular matrix may be 0.
        """
    def ldl_solve(
        self,
        ld: Operand,
        pivots: Operand,
        b: Operand,
        /,
        hermitian: bool = False,
    ) -> Node:
        """The x with a · x = b, of the factors that ldl_factor gives. Blocks of 0 divide as floats do.
        Pivots that name no row are taken for the nearest that does.
        """
    def geqrf(self, a: Operand, /) -> tuple[Node, Node]:
        """r, whose diagonal has either sign, and below it the reflections whose product is q; then
        their factors tau. LAPACK's signs: a diagonal entry of r is opposed to what it replaces, unless
        there is nothing to reflect.
        """
    def householder_product(self, a: Operand, tau: Operand, /) -> Node:
        """The first columns of the product of reflections, in the order of their factors tau; as many
        as a has, which holds them as geqrf gives them.
        """
    def ormqr(
        self,
        a: Operand,
        tau: Operand,
        other: Operand,
        /,
        left: bool = True,
        transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
    ) -> Node:
        """q · other, or other · q where not `left`; q is the whole product of reflections, m by m, of
        real matrices transposed and of any the adjoint, where asked for.
        """
    def eig(self, a: Operand, /) -> tuple[Node, Node]:
        """Eigenvalues, by their real parts and then imaginary parts, rising, and as columns their
        eigenvectors, of length 1. In each the greatest entry, the first of equals, is real and
        positive.
        """
    def eigvals(self, a: Operand, /) -> Node:
        """The eigenvalues of a, in the order of eig."""
    def matrix_exp(self, a: Operand, /) -> Node:
        """e to the power of a matrix: 1 + a + a·a/2 + …. NaN where a is not finite."""
    def lstsq(self, a: Operand, b: Operand, /, rtol: float | None = None) -> Node:
        """The x of least length that minimises the length of a · x - b, column by column. Singular
        values up to `rtol` times the greatest are taken for 0, as by pinv.
        """
    def spd_exp(self, a: Operand, /) -> Node:
        """exp of a Hermitian matrix, which is positive definite; the inverse of spd_log."""
    def spd_log(self, a: Operand, /) -> Node:
        """The Hermitian logarithm of a positive definite matrix. NaN if it is not one."""
    def spd_sqrt(self, a: Operand, /) -> Node:
        """The positive definite root r of a positive definite matrix: a = r · r. NaN if it is none."""
    def spd_power(self, a: Operand, /, exponent: float) -> Node:
        """A positive definite matrix to any real power. NaN if it is not positive definite."""
    def tree_ensemble(
        self,
        x: Operand,
        threshold: Operand,
        feature: Operand,
        child: Operand,
        missing: Operand,
        root: Operand,
        weight: Operand,
        target: Operand | None = None,
        /,
        *,
        n_targets: int,
        span: int,
        aggregate: Literal['sum', 'average', 'min', 'max'] = 'sum',
    ) -> Node:
        """For each row of x the sum, average, least or greatest of what its trees give, in f64 and
        rounded once. A row at node i of the table goes on to node i + child[i] if x[feature[i]] ≤
        threshold[i], else to the one behind it; NaN goes to the first of them where missing[i], else
        to the second. Where child[i] is 0, i is leaf number feature[i] and gives its row of weights,
        one for each of `n_targets`; or its one weight to its target. Trees begin at their roots. No
        child is further than `span` from its node; tables that lead out of range are an error.
        """
    def append(
        self,
        x: Operand,
        rows: Operand,
        at: Operand,
        slots: Operand | None = None,
        /,
        *,
        axis: int = 0,
    ) -> Node:
        """x with `rows` written along an axis from the position `at` on. With a position for each entry
        of the first axis, entry b is written at at[b]; with `slots`, rows[b] go to entry slots[b].
        Rows that do not fit are an error. On a state it is written in place.
        """
    def assign(self, x: Operand, value: Operand, /) -> Node:
        """`value` in the place of x. On a state, the state is overwritten at the end of the call."""
    def cached_attention(
        self,
        q: Operand,
        keys: Operand,
        values: Operand,
        at: Operand,
        slots: Operand | None = None,
        key_scales: Operand | None = None,
        value_scales: Operand | None = None,
        /,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Node:
        """Causal attention of new queries [batch, queries, heads·depth] over cached keys and values
        [slots, capacity, heads·depth]. Row b reads entry slots[b], or entry b, and its queries stand at
        the positions from at[b] on, where `append` has written their own keys. What is behind them is
        not read, nor, with a `window`, what is further before a query. Caches may have another float
        dtype than queries, or be i8 with a scale for each 32 elements of a head,
        [slots, capacity, heads·depth / 32], by which they are multiplied. The rest is as in
        `attention`.
        """

class OpMethods(_Ops):
    def welch(
        self,
        x: Operand,
        window: Operand | None = None,
        /,
        *,
        length: int,
        hop: int,
        fs: float = 1.0,
        scaling: Literal['density', 'spectrum'] = 'density',
    ) -> Node:
        """Welch's estimate of the power spectrum: the mean of `psd` over frames of `length` points,
        one every `hop`.
        """

class BlockMethods(_Ops):
    def linear(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        *,
        activation: str | None = None,
    ) -> Node:
        """activation(x · w + bias)."""
    def linear_fused(
        self,
        x: Operand,
        w: Operand,
        bias: Operand,
        activation: str | None = None,
    ) -> Node:
        """activation(x · w + bias) as one op, whatever the policy."""
    def shared_linear_pair(
        self,
        x: Operand,
        first: Operand,
        second: Operand,
        slot: Literal[0, 1],
    ) -> Node:
        """x · first or x · second. Interning makes each product once, however often it is asked for."""
    def swiglu_ffn(self, x: Operand, up: Operand, gate: Operand, down: Operand) -> Node:
        """(silu(x · gate) ⊙ (x · up)) · down."""
    def geglu_ffn(self, x: Operand, up: Operand, gate: Operand, down: Operand) -> Node:
        """(gelu(x · gate) ⊙ (x · up)) · down."""
    def gelu_ffn(
        self,
        x: Operand,
        up: Operand,
        down: Operand,
        up_bias: Operand | None = None,
        down_bias: Operand | None = None,
        *,
        approximate: bool = False,
    ) -> Node:
        """gelu(x · up + up_bias) · down + down_bias; approximate is the tanh form."""
    def residual_rms_norm(
        self,
        x: Operand,
        residual: Operand,
        scale: Operand,
        bias: Operand | None = None,
        *,
        eps: float = 1e-06,
    ) -> Node:
        """rms_norm(x + residual) over the last axis."""
    def residual_layer_norm(
        self,
        x: Operand,
        residual: Operand,
        scale: Operand,
        bias: Operand,
        eps: float = 1e-05,
    ) -> Node:
        """layer_norm(x + residual) over the last axis."""
    def dequant_linear(
        self,
        x: Operand,
        packed: Operand,
        scale: Operand | None = None,
        zero: Operand | None = None,
        bias: Operand | None = None,
        *,
        scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
        run: int | None = None,
        activation: str | None = None,
    ) -> Node:
        """activation(x · Wᵀ + bias), where row i of `packed` holds the weights of output i: in one of
        GGUF's schemes, whose bytes say all, or as small numbers in runs of `run`, each with a scale
        and perhaps a zero point of its own.

        Direct is one product that unpacks; Fusable unpacks, then multiplies.
        """
    def moe_layer(
        self,
        x: Operand,
        router: Operand,
        gate: Operand,
        up: Operand,
        down: Operand,
        shared_gate: Operand | None = None,
        shared_up: Operand | None = None,
        shared_down: Operand | None = None,
        shared_router: Operand | None = None,
        *,
        top_k: int,
        scoring: Literal['softmax', 'sigmoid'] = 'softmax',
        normalise: bool = True,
        scale: float = 1.0,
        activation: str = 'silu',
    ) -> Node:
        """The weighted sum of what the `top_k` experts that the router chooses make of each row, each
        (activation(row · gate) ⊙ (row · up)) · down, and what the shared expert, if there is one,
        makes of every row: times sigmoid(row · shared_router), where that is given.

        Direct multiplies rows by the experts they chose alone; Fusable all rows by all experts, and
        selects, so that an expert that was not chosen does not matter, whatever it makes.
        """
    def causal_conv(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        *,
        activation: str | None = None,
    ) -> Node:
        """activation(Σ w[j] · x[t - (k-1) + j] + bias) for each channel: a step sees itself and the
        k - 1 before it; before the first are zeros.
        """
    def causal_conv_step(
        self,
        x: Operand,
        w: Operand,
        state: Operand,
        bias: Operand | None = None,
        *,
        activation: str | None = None,
    ) -> tuple[Node, Node]:
        """`causal_conv` that goes on after the k - 1 steps in `state`, and the state after it."""
    def gated_delta_net_layer(
        self,
        x: Operand,
        norm: Operand,
        w_qkv: Operand,
        w_gate: Operand,
        w_strength: Operand,
        w_decay: Operand,
        conv: Operand,
        a_log: Operand,
        dt_bias: Operand,
        out_norm: Operand,
        wo: Operand,
        conv_bias: Operand | None = None,
        conv_state: Operand | None = None,
        state: Operand | None = None,
        *,
        num_heads: int,
        key_heads: int | None = None,
        key_dim: int,
        eps: float = 1e-06,
    ) -> tuple[Node, Node, Node]:
        """A pre-norm layer of the gated delta rule, as in Qwen 3 Next, added to what went in, with the
        states of its convolution and of its heads after the last step; zeros before the first, where
        they are not given.

        h = rms_norm(x) gives queries, keys and values (columns of w_qkv in this order) through a
        causal convolution and silu; queries and keys have length 1. β = sigmoid(h · w_strength) and
        g = -exp(a_log) · softplus(h · w_decay + dt_bias). What comes out is normalised head by head,
        times silu(h · w_gate), times wo. Heads of values share the `key_heads` in runs.
        """
    def llama_decoder_block(
        self,
        x: Operand,
        attention_norm: Operand,
        wq: Operand,
        wk: Operand,
        wv: Operand,
        wo: Operand,
        cos: Operand,
        sin: Operand,
        ffn_norm: Operand,
        up: Operand,
        gate: Operand,
        down: Operand,
        mask: Operand | None = None,
        bq: Operand | None = None,
        bk: Operand | None = None,
        bv: Operand | None = None,
        bo: Operand | None = None,
        q_norm: Operand | None = None,
        k_norm: Operand | None = None,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int,
        eps: float = 1e-06,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'causal',
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        n_rot: int | None = None,
        interleaved: bool = False,
    ) -> Node:
        """A pre-norm decoder layer: attention over rotated heads, then a SwiGLU network, each added to
        what went in. Several query heads share a key head; nothing is repeated.

        Llama has no biases and no norms of heads, Qwen 2 has bq, bk and bv, Qwen 3 q_norm and k_norm.
        """
    transformer_block = llama_decoder_block
    qwen_decoder_block = llama_decoder_block
    def llama_decoder_step(
        self,
        x: Operand,
        attention_norm: Operand,
        wq: Operand,
        wk: Operand,
        wv: Operand,
        wo: Operand,
        cos: Operand,
        sin: Operand,
        ffn_norm: Operand,
        up: Operand,
        gate: Operand,
        down: Operand,
        past_k: Operand,
        past_v: Operand,
        mask: Operand | None = None,
        bq: Operand | None = None,
        bk: Operand | None = None,
        bv: Operand | None = None,
        bo: Operand | None = None,
        q_norm: Operand | None = None,
        k_norm: Operand | None = None,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int,
        eps: float = 1e-06,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'causal',
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        n_rot: int | None = None,
        interleaved: bool = False,
    ) -> tuple[Node, Node, Node]:
        """A decoder layer that goes on from cached keys and values, and returns the longer cache.

        `cos` and `sin` are those of the new positions; cached keys have been rotated by theirs.
        """
    qwen_decoder_step = llama_decoder_step
    def lm_head(
        self,
        x: Operand,
        norm: Operand,
        w: Operand,
        eps: float = 1e-06,
        softcap: float | None = None,
    ) -> Node:
        """The logits of every token: the norm of x, times w. `softcap` c makes one c·tanh(logit/c)."""
    def tied_lm_head(
        self,
        x: Operand,
        norm: Operand,
        table: Operand,
        eps: float = 1e-06,
        softcap: float | None = None,
    ) -> Node:
        """`lm_head` whose weight is the table that tokens were embedded with."""
    def conv_block(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        *,
        stride: Sequence[int] = ...,
        padding: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        groups: int = 1,
        activation: str | None = None,
    ) -> Node:
        """activation(conv2d(x, w) + bias)."""
    def conv_norm_block(
        self,
        x: Operand,
        w: Operand,
        scale: Operand,
        bias: Operand,
        mean: Operand,
        var: Operand,
        stride: Sequence[int] = ...,
        padding: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        groups: int = 1,
        eps: float = 1e-05,
        activation: str | None = None,
    ) -> Node:
        """activation(batch_norm(conv2d(x, w))). Direct folds the norm into the weights."""
    def encoder_block(
        self,
        x: Operand,
        wq: Operand,
        bq: Operand,
        wk: Operand,
        bk: Operand,
        wv: Operand,
        bv: Operand,
        wo: Operand,
        bo: Operand,
        attention_scale: Operand,
        attention_bias: Operand,
        up: Operand,
        up_bias: Operand,
        down: Operand,
        down_bias: Operand,
        ffn_scale: Operand,
        ffn_bias: Operand,
        mask: Operand | None = None,
        *,
        num_heads: int,
        eps: float = 1e-12,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
        window: int | None = None,
        approximate: bool = False,
    ) -> Node:
        """A post-norm encoder layer as in BERT: attention, then a GELU network, each added to what
        went in and normalised. `approximate` is GELU's tanh form.
        """
    bert_layer = encoder_block
    def bert_embeddings(
        self,
        ids: Operand,
        tokens: Operand,
        positions: Operand,
        scale: Operand,
        bias: Operand,
        kinds: Operand | None = None,
        kind_table: Operand | None = None,
        places: Operand | None = None,
        *,
        eps: float = 1e-12,
    ) -> Node:
        """layer_norm of the sum of each token's embedding, that of its place and that of its kind.
        Places, [batch, seq] or [seq], are 0, 1, … if not given; then no sequence may be longer than
        there are positions. Kinds are all 0 if not given, though there is a table for them.
        """
    def pooler(self, x: Operand, w: Operand, bias: Operand | None = None) -> Node:
        """tanh(row · w + bias) of each sequence's first row, which there must be."""
    def attention_block(
        self,
        x: Operand,
        scale: Operand,
        bias: Operand,
        wq: Operand,
        wk: Operand,
        wv: Operand,
        wo: Operand,
        memory: Operand | None = None,
        mask: Operand | None = None,
        bq: Operand | None = None,
        bk: Operand | None = None,
        bv: Operand | None = None,
        bo: Operand | None = None,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        eps: float = 1e-05,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
        window: int | None = None,
        softcap: float | None = None,
    ) -> Node:
        """x + attention(layer_norm(x)): over itself, or, as decoders of speech do, over `memory`."""
    def mlp_block(
        self,
        x: Operand,
        scale: Operand,
        bias: Operand,
        up: Operand,
        down: Operand,
        up_bias: Operand | None = None,
        down_bias: Operand | None = None,
        *,
        eps: float = 1e-05,
        approximate: bool = False,
    ) -> Node:
        """x + gelu(layer_norm(x) · up + up_bias) · down + down_bias."""
    def prenorm_encoder_block(
        self,
        x: Operand,
        attention_scale: Operand,
        attention_bias: Operand,
        wq: Operand,
        wk: Operand,
        wv: Operand,
        wo: Operand,
        ffn_scale: Operand,
        ffn_bias: Operand,
        up: Operand,
        down: Operand,
        mask: Operand | None = None,
        bq: Operand | None = None,
        bk: Operand | None = None,
        bv: Operand | None = None,
        bo: Operand | None = None,
        up_bias: Operand | None = None,
        down_bias: Operand | None = None,
        *,
        approximate: bool = False,
        num_heads: int,
        kv_heads: int | None = None,
        eps: float = 1e-05,
        mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
        window: int | None = None,
        softcap: float | None = None,
    ) -> Node:
        """An `attention_block` over itself, then an `mlp_block`: a layer of a vision transformer, and
        of Whisper's encoder, whose keys have no bias.
        """
    vision_encoder_block = prenorm_encoder_block
    audio_encoder_block = prenorm_encoder_block
    def patch_embedding(
        self,
        x: Operand,
        w: Operand,
        bias: Operand | None = None,
        first: Operand | None = None,
        positions: Operand | None = None,
    ) -> Node:
        """Images as rows: non-overlapping patches of p × q pixels, each times w; before them `first`,
        the row of the class; then the positions are added. Pixels past the last whole patch are left
        out.
        """
    def audio_stem(
        self,
        x: Operand,
        w1: Operand,
        b1: Operand,
        w2: Operand,
        b2: Operand,
        positions: Operand | None = None,
        *,
        stride: int = 2,
        approximate: bool = False,
    ) -> Node:
        """Spectra [batch, bands, time] as rows, as in Whisper: two convolutions of odd width, each
        through GELU, the second with a stride; then the positions are added.
        """
    def log_mel_spectrogram(
        self,
        signal: Operand,
        window: Operand,
        filters: Operand,
        n_fft: int,
        hop: int,
        center: bool = True,
        pad: Literal['reflect', 'constant'] = 'reflect',
    ) -> Node:
        """Log-mel frames of a signal: windowed runs of `n_fft` samples, one every `hop`, transformed
        and filtered. With `center`, frame i is centred on sample i · hop: the ends are padded.
        """
    def welch(
        self,
        signal: Operand,
        window: Operand | None = None,
        *,
        k: int,
        n_fft: int,
        hop: int,
    ) -> Node:
        """The `k` strongest bins of the mean power of all segments, as (bin, power) pairs."""