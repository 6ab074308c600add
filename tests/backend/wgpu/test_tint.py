"""Tint takes what the printer writes: each form of kernel, each dtype, all constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlx.backends.wgpu.wgsl.printer import module_of
from rlx.core.dtype import DType
from rlx.ops import op as table
from rlx.program.functions import FUNCTIONS
from tests.backend.gpu import kernels, laws
from tests.backend.wgpu import test_arithmetic as cases
from tests.backend.wgpu.tint import errors, modules, reason_to_skip

F32, I32 = DType.F32, DType.I32
OPS = ("non_max_suppression", "softmax", "attention", "sort", "matmul", "cumsum", "rfft")
"""Kernels with barriers in loops, those of a length that only data decides among them."""
LARGEST = float(np.finfo(np.float32).max)


def arithmetic() -> Iterator[str]:
    """All operations, and those of constants that no constant expression may have."""
    bits = ("add", "mul", "min", "and", "div", "rem", "shl", "shr")
    for dtype in cases.INTEGERS:
        named = cases.binaries(*bits) | cases.unaries("neg", "not", "abs")
        yield module_of(cases.program([dtype] * 2, list(named.values()), dtype, 64)).source()
    for dtype in cases.ALL:
        made = [lambda v, _, to=to: v.to(to).to(F32) for to in cases.ALL]
        yield module_of(cases.program([dtype], made, F32, 64)).source()
    made = [lambda x, y, n=n: cases.called(n, x, y) for n in FUNCTIONS]
    yield module_of(cases.program([F32, F32], made, F32, 64)).source()
    values = (np.nan, np.inf, -np.inf, -0.0, 1e-45, LARGEST, -LARGEST)
    made = [lambda x, _, v=v: x.builder.const(v, F32) for v in values]
    made += [
        lambda x, _: x.builder.const(1e38, F32) * x.builder.const(1e38, F32),
        lambda x, _: (x.to(I32) // x.builder.const(0, I32)).to(F32),
        lambda x, _: (x.to(I32) << x.builder.const(40, I32)).to(F32),
        lambda x, _: x.builder.const(1e30, F32).to(I32).to(F32),
    ]
    yield module_of(cases.program([F32], made, F32, 64)).source()


def kernel_texts() -> Iterator[str]:
    for program in (kernels.softmax(), kernels.transpose(), kernels.scan(), kernels.gemm(21, 13)):
        module = module_of(replace(program, warp=1))
        yield module.source()
        yield module.source(module.merged)
    for name in OPS:
        found = (a for n in range(9) for a in laws.drawn(table.lookup(name), n, 1))
        wide = {"float64", "complex128"}
        made = next(a for a in found if not wide & {str(v.dtype) for v in a.values.values()})
        yield from (m.source() for m in modules(made.graph))


DIVERGENT = """@compute @workgroup_size(8) fn k(@builtin(local_invocation_index) i: u32)
{ if (i > 3u) { workgroupBarrier(); } }"""


@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
def test_tint_takes_every_module() -> None:
    """And not a barrier that some threads do not come to."""
    found, *others = errors([DIVERGENT, *arithmetic(), *kernel_texts()])
    assert "uniform control flow" in found
    wrong = [said for said in others if said]
    assert len(others) > len(OPS)
    assert not wrong, wrong[0]
