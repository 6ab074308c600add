"""Functions of WGSL's prelude: what a kernel calls and the language lacks, printed where it is
called.

Two facts decide how they are written. Compilers may assume that there are no NaN, may reassociate,
and do: `x != x` is false on two adapters and `(x + y) - x` is y on one; so NaN are found by their
bits, and a sum that must be rounded goes through `rounded`, which no compiler sees through. And
half floats are rounded by integer arithmetic: `pack2x16float` rounds as the driver likes, and one
adapter makes NaN of what is too large.

Nothing branches: `||` and `&&` do, and one compiler takes time that is exponential in branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlx.backends.wgpu.wgsl.wide import WIDE_HELPERS

WORD = re.compile(r"\b[a-z_]\w*(?=\()")

HELPERS: dict[str, str] = {
    "f32_of": "fn f32_of(bits: u32) -> f32 { return bitcast<f32>(bits); }",
    "rounded": """var<private> zero: u32;
fn rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }""",
    "is_nan": "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }",
    "min_f32": "fn min_f32(x: f32, y: f32) -> f32 { return select(y, x, (x < y) | is_nan(x)); }",
    "max_f32": "fn max_f32(x: f32, y: f32) -> f32 { return select(y, x, (x > y) | is_nan(x)); }",
    # one adapter's exponentials and logarithms are numbers where their arguments are not
    "exp_f32": "fn exp_f32(x: f32) -> f32 { return select(exp(x), x, is_nan(x)); }",
    "exp2_f32": "fn exp2_f32(x: f32) -> f32 { return select(exp2(x), x, is_nan(x)); }",
    "log_f32": "fn log_f32(x: f32) -> f32 { return select(log(x), x, is_nan(x)); }",
    # below 2⁻¹⁴ the digits are shifted to multiples of 2⁻²⁴; above, the exponent is moved by 112
    "f16_bits": """fn f16_bits(x: f32) -> u32 {
 let bits = bitcast<u32>(x);
 let size = bits & 0x7fffffffu;
 let shift = min(126u - min(size >> 23u, 112u), 31u);
 let full = (size & 0x7fffffu) | 0x800000u;
 let kept = full >> shift;
 let lost = full & ((1u << shift) - 1u);
 let half = 1u << (shift - 1u);
 let up = (lost > half) | ((lost == half) & ((kept & 1u) == 1u));
 let normal = (size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u;
 var made = select(normal, kept + select(0u, 1u, up), size < 0x38800000u);
 made = select(made, 0x7c00u, size >= 0x47800000u);
 made = select(made, 0x7e00u, size > 0x7f800000u);
 return ((bits >> 16u) & 0x8000u) | made;
}""",
    "f16_value": "fn f16_value(bits: u32) -> f32 { return unpack2x16float(bits).x; }",
    "native_f16": "fn native_f16(x: f32) -> f32 { return f32(f16(x)); }",
    "to_f16": "fn to_f16(x: f32) -> f32 { return f16_value(f16_bits(x)); }",
    "bf16_bits": """fn bf16_bits(x: f32) -> u32 {
 let bits = bitcast<u32>(x);
 let up = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
 return select(up, (bits >> 16u) | 0x40u, is_nan(x));
}""",
    "bf16_value": "fn bf16_value(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }",
    "to_bf16": "fn to_bf16(x: f32) -> f32 { return bf16_value(bf16_bits(x)); }",
    **WIDE_HELPERS,
}


def called(lines: Iterable[str]) -> list[str]:
    """The helpers that lines call, those that they call themselves included, callees first."""
    found: dict[str, None] = {}
    for line in lines:
        for name in WORD.findall(line):
            _add(name, found)
    return [HELPERS[name] for name in found]


def _add(name: str, found: dict[str, None]) -> None:
    if name not in HELPERS or name in found:
        return
    for inner in WORD.findall(HELPERS[name]):
        if inner != name:
            _add(inner, found)
    found[name] = None
