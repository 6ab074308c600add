"""SIMT programs: what the builder makes, and their text."""

from __future__ import annotations

import pytest

import rlx
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.parse import KINDS, parse
from rlx.program.program import shared_offsets
from rlx.program.text import text
from tests.backend.gpu import kernels

F32, I32 = DType.F32, DType.I32
PROGRAMS = {
    "scaled": kernels.scaled(),
    "softmax": kernels.softmax(),
    "transpose": kernels.transpose(),
    "gemm": kernels.gemm(21, 13),
    "tile_gemm": kernels.tile_gemm(64),
    "cluster_sum": kernels.cluster_sum(),
    "scan": kernels.scan(),
    "pipeline": kernels.pipeline(37),
    "warpgroup_gemm": kernels.warpgroup_gemm(96),
    "pipelined_gemm": kernels.pipelined_gemm(200),
    "warpgroup_values": kernels.warpgroup_values(2, 90, 80),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_read_back(name: str) -> None:
    written = text(PROGRAMS[name])
    assert text(parse(written)) == written


def test_the_text_of_a_kernel() -> None:
    assert text(kernels.scaled()) == (
        "program scaled\n"
        "  dim n in 0..\n"
        "  grid ((n + 63)//64), 1, 1\n"
        "  block 64\n"
        "  cluster 1\n"
        "  warp 32\n"
        "  buffer x f32 read n\n"
        "  buffer y f32 write n\n"
        "  scalar %0: i32 n = n\n"
        "body\n"
        "  %1: i32 = position() of=block dim=0\n"
        "  %2: i32 = const() value=64\n"
        "  %3: i32 = binary(%1, %2) op=mul\n"
        "  %4: i32 = position() of=thread dim=0\n"
        "  %5: i32 = binary(%3, %4) op=add\n"
        "  %6: bool = compare(%5, %0) op=lt\n"
        "  if(%6)\n"
        "    region\n"
        "      %7: f32 = load(%5) buffer=x hint=\n"
        "      %8: f32 = const() value=2.0\n"
        "      %9: f32 = binary(%7, %8) op=mul\n"
        "      %10: f32 = const() value=1.0\n"
        "      %11: f32 = binary(%9, %10) op=add\n"
        "      store(%5, %11) buffer=y has_mask=false hint=\n"
        "    region\n"
        "end\n"
    )


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("", "no SIMT program"),
        ("program p\nbody\n", "does not end"),
        ("program p\n  frame 3\nbody\nend\n", "line 2: a program has no such line"),
        ("program p\nbody\n  %0: f32 = sing()\nend\n", "line 3: it is no node"),
        ("program p\nbody\n  %0: f32 = const()\nend\n", "its attributes are value"),
        ("program p\nbody\n  barrier(%7) scope=block\nend\n", "%7 is not made before"),
        ("program p\n  grid n, 1, 1\nbody\nend\n", "n is no dim"),
        ("program p\n  block many\nbody\nend\n", "line 2"),
        ("program p\n  buffer x f32 borrowed\nbody\nend\n", "borrowed is no access"),
        ("program p\nbody\n  %0: f33 = const() value=1.0\nend\n", "f33"),
    ],
)
def test_broken_text_is_an_error(broken: str, why: str) -> None:
    with pytest.raises(rlx.Error, match=why):
        parse(broken)


def test_every_kind_of_node_has_a_name_of_its_own() -> None:
    kinds = [k for k in vars(ir).values() if isinstance(k, type) and issubclass(k, ir.Node)]
    kinds.remove(ir.Node)
    assert len(KINDS) == len(kinds) > 40
    assert {type(n) for p in PROGRAMS.values() for n in p.nodes} <= set(KINDS.values())


def test_equal_nodes_are_made_once_where_they_are_seen() -> None:
    b = Builder("p", block=32)
    y = b.output("y", I32)
    assert (b.thread * 3).value is (b.thread * 3).value
    with b.when(b.thread < 4):
        inner = b.thread * 5
    assert (b.thread * 5).value is not inner.value
    y[b.thread] = b.thread * 5
    assert sum(isinstance(n, ir.Binary) for n in b.program().nodes) == 3


def test_integers_of_constants_are_computed() -> None:
    b = Builder("p", block=32)
    x = b.thread
    assert ((x * 1 + 0) - 0).value is x.value
    assert b.number_of((b.const(6, I32) * 7).value) == 42
    assert b.number_of((x * 0).value) == 0
    assert b.number_of((b.const(2**31 - 1, I32) + 1).value) == -(2**31)


def test_nodes_may_be_put_in_front_of_an_open_region() -> None:
    b = Builder("p", block=32)
    y = b.output("y", I32)
    with b.loop(0, 4) as i:
        inside = b.suspend(0)
        twice = b.thread * 2
        b.resume(inside)
        y[i] = twice
    kinds = [type(n).__name__ for n in b.program().body.nodes]
    assert kinds.index("Binary") < kinds.index("For")


def test_shared_memory_is_aligned() -> None:
    b = Builder("p", block=32)
    b.shared("a", F32, 3)
    b.shared("b", DType.BF16, 64, is_swizzled=True)
    b.mbarrier("m", 2)
    program = b.program()
    assert shared_offsets(program) == {"a": 0, "b": 1024, "m": 1152}
    assert program.shared_bytes == 1168


def test_unknown_functions_and_loose_branches_are_errors() -> None:
    b = Builder("p", block=32)
    with pytest.raises(rlx.Error, match="no function 'gamma'"):
        b.call("gamma", b.const(1.0, F32))
    with pytest.raises(rlx.Error, match="follows no when"), b.otherwise():
        pass
    total = b.variable(0, I32)
    with pytest.raises(rlx.Error, match="does not end"), b.repeat([total]):
        total += 1
