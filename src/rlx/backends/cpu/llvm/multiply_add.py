"""Multiply-adds that need not be rounded once: sums of products, and steps of polynomials."""

from __future__ import annotations

import re

from rlx.backends.cpu.llvm.values import Vec, fma
from rlx.program.nodes import Number

RELAXED = "wasm.relaxed.madd"
_RELAXED_CALL = re.compile(
    rf"^  (%\w+) = call (<[^>]+>) @llvm\.{re.escape(RELAXED)}\.\w+"
    r"\(<[^>]+> ([^,]+), <[^>]+> ([^,]+), <[^>]+> ([^,)]+)\)$",
    re.MULTILINE,
)


def multiply_add(x: Vec, y: Vec | Number, z: Vec | Number) -> Vec:
    """x · y + z, fused where that is one instruction."""
    return x.fma(x.like(y), x.like(z)) if x.is_float and x.code.isa.has_fma else x * y + z


def relaxed_multiply_add(x: Vec, y: Vec, z: Vec) -> Vec:
    """The same with WebAssembly's relaxed instruction, where there is one: for functions that have
    no comparisons of floats, as `compile_units.py` compiles them with relaxed SIMD."""
    isa = x.code.isa
    if isa.has_relaxed_fma and x.is_float and x.code.lanes == isa.lanes(x.dtype):
        return x.call(RELAXED, y, z)
    return multiply_add(x, y, z)


def without_relaxed(text: str) -> str:
    """Functions with relaxed multiply-adds as they are where there are none. LLVM ends the process
    where one is left over."""
    text = "\n".join(x for x in text.split("\n") if not (x.startswith("declare ") and RELAXED in x))
    made = _RELAXED_CALL.sub(r"  \1.product = fmul \2 \3, \4\n  \1 = fadd \2 \1.product, \5", text)
    assert RELAXED not in made, "a relaxed multiply-add in another form"
    return made


def near_fma(x: Vec, y: Vec | Number, z: Vec | Number) -> Vec:
    """x · y + z rounded once; twice where maths are not fused, as once takes many instructions."""
    return multiply_add(x, y, z) if x.code.isa.maths == "unfused" else fma(x, y, z)
