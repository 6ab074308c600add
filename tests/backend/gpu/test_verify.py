"""The verifier: right programs pass, and each planted fault is named with its node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.check.form import FORMS
from rlx.program.errors import ProgramError
from rlx.program.nodes import Region, Value
from rlx.program.parse import KINDS, parse
from rlx.program.program import Program
from rlx.program.tensor_map import OuterDim
from rlx.program.text import text
from rlx.program.types import TileType, Type
from rlx.program.uniformity import Uniformity, Varies
from rlx.program.verify import Limits, verify
from tests.backend.gpu import kernels
from tests.backend.gpu.test_programs import PROGRAMS

F32, F16, BF16, I32, BOOL = DType.F32, DType.F16, DType.BF16, DType.I32, DType.BOOL


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_pass(name: str) -> None:
    assert verify(PROGRAMS[name]) is PROGRAMS[name]


def refused(program: Program, why: str, limits: Limits | None = None) -> None:
    with pytest.raises(ProgramError, match=re.escape(why)) as caught:
        verify(program, limits)
    assert str(caught.value).startswith(f"program {program.name}")


def planted(make: Callable[[Builder], object], **sizes: int) -> Program:
    b = Builder("planted", **{"block": 32, **sizes})
    make(b)
    return b.program()


# -- types ----------------------------------------------------------------------------------------


def node(kind: type[ir.Node], args: tuple[Value, ...], results: tuple[Value, ...], **attrs: object):
    return kind(args=args, results=results, **attrs)  # pyright: ignore[reportCallIssue]


def with_node(
    kind: type[ir.Node], given: tuple[Type, ...], made: tuple[Type, ...], **attrs: object
) -> Program:
    """A program with one node, of scalars."""
    b = Builder("planted", block=32)
    b.input("x", F32)
    b.output("y", F32)
    b.shared("s", F32, 64)
    args = tuple(b.scalar(f"a{i}", t).value for i, t in enumerate(given))  # pyright: ignore[reportArgumentType]
    b.add(node(kind, args, tuple(Value(t) for t in made), **attrs))
    return b.program()


A, B, C = TileType("a", 16, 16, BF16), TileType("b", 16, 8, BF16), TileType("c", 16, 8, F32)
TYPES = {
    "add": (ir.Binary, (F32, I32), (F32,), {"op": "add"}, "it takes 2 of one dtype"),
    "bits of floats": (ir.Binary, (F32, F32), (F32,), {"op": "and"}, "and is for integers"),
    "sum of truths": (ir.Binary, (BOOL, BOOL), (BOOL,), {"op": "add"}, "truth values have no add"),
    "complex": (ir.Binary, (DType.C64, DType.C64), (DType.C64,), {"op": "add"}, "are two values"),
    "compare": (ir.Compare, (F32, F32), (F32,), {"op": "lt"}, "it takes 2 of one dtype"),
    "floor": (ir.Unary, (I32,), (I32,), {"op": "floor"}, "floor is for floats"),
    "not": (ir.Unary, (F32,), (F32,), {"op": "not"}, "not is for integers"),
    "call": (ir.Call, (F16,), (F16,), {"function": "exp"}, "exp is for f32 and f64"),
    "unknown": (ir.Call, (F32,), (F32,), {"function": "gamma"}, "there is no function gamma"),
    "arity": (ir.Call, (F32,), (F32,), {"function": "pow"}, "it takes 2 of one dtype"),
    "fast": (ir.Call, (F32,), (F32,), {"function": "erf", "accuracy": "fast"}, "no fast form"),
    "select": (ir.Select, (I32, F32, F32), (F32,), {}, "its first argument is a truth value"),
    "sides": (ir.Select, (BOOL, F32, I32), (F32,), {}, "convert one"),
    "bitcast": (ir.Bitcast, (F32,), (F16,), {}, "have no common bits"),
    "constant": (ir.Const, (), (I32,), {"value": 1.5}, "1.5 is no i32"),
    "truth": (ir.Const, (), (BOOL,), {"value": 1}, "1 is no bool"),
    "index": (ir.Load, (F32,), (F32,), {"buffer": "x"}, "its index is f32"),
    "mask": (ir.Load, (I32, I32), (F32,), {"buffer": "x"}, "its mask is i32"),
    "element": (ir.Load, (I32,), (I32,), {"buffer": "x"}, "elements are f32"),
    "width": (ir.Load, (I32,), (F32,) * 3, {"buffer": "x"}, "a power of two up to 4"),
    "bytes": (ir.Load, (I32,), (F32,) * 8, {"buffer": "x"}, "a power of two up to 4"),
    "store": (ir.Store, (I32, I32), (), {"buffer": "y"}, "elements are f32"),
    "float atomic": (ir.Atomic, (I32, F32), (), {"buffer": "y", "op": "add"}, "order of arrival"),
    "copied": (ir.AsyncCopy, (I32, I32), (), {"memory": "s", "buffer": "x", "width": 3}, "4, 8 or"),
    "group": (ir.Reduce, (F32,), (F32,), {"op": "add", "scope": "warp", "width": 12}, "of 12"),
    "scatter": (ir.ReduceScatter, (F32,) * 3, (F32,), {"op": "add", "width": 32}, "3 values over"),
    "lanes": (ir.Shuffle, (F32,), (F32,), {"mask": 32}, "no other lane"),
    "tile dtype": (ir.TileFill, (F32,), (TileType("a", 16, 16, F32),), {}, "are not of f32"),
    "tile size": (ir.TileFill, (F32,), (TileType("c", 12, 8, F32),), {}, "no whole number of 8x8"),
    "tile load": (ir.TileLoad, (I32,), (A,), {"memory": "s", "pitch": 16}, "convert first"),
    "tile roles": (ir.TileMul, (A, A, C), (C,), {}, "is no tile b"),
    "tile shapes": (ir.TileMul, (A, TileType("b", 8, 8, BF16), C), (C,), {}, "the inner sizes"),
    "tile pack": (ir.TilePack, (F32,) * 3, (C,), {}, "a thread holds 4 of f32"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    kind, given, made, attrs, why = TYPES[name]
    refused(with_node(kind, given, made, **attrs), why)


def test_values_are_made_once_before_their_uses() -> None:
    b = Builder("planted", block=32)
    late = Value(I32)
    b.add(node(ir.Unary, (late,), (Value(I32),), op="neg"))
    refused(b.program(), "node 0 (unary op=neg): it uses a value that is not made before")
    b = Builder("planted", block=32)
    x = b.thread.value
    b.add(node(ir.Const, (), (x,), value=1))
    refused(b.program(), "it makes a value that was made before")


def test_regions_fit_their_node() -> None:
    b = Builder("planted", block=32)
    x, truth = b.const(1.0, F32).value, b.const(True, BOOL).value
    both = (Region((), (), (x,)), Region())
    b.add(ir.If(args=(truth,), results=(Value(F32),), regions=both))
    refused(b.program(), "its two regions yield what differs")
    b = Builder("planted", block=32)
    low, x = b.const(0, I32).value, b.const(1.0, F32).value
    body = Region((Value(I32), Value(F32)), (), ())
    b.add(ir.For(args=(low, low, low, x), results=(Value(F32),), regions=(body,)))
    refused(b.program(), "what it carries, yields and results in differs")
    b = Builder("planted", block=32)
    hidden = Value(F32)
    yields = Region((), (), (hidden,))
    truth = b.const(True, BOOL).value
    b.add(ir.If(args=(truth,), results=(Value(F32),), regions=(yields, yields)))
    refused(b.program(), "a region yields a value that it does not see")


# -- sizes, names, rights, bounds -----------------------------------------------------------------


def test_sizes() -> None:
    refused(planted(lambda b: None, block=2048), "a block has 2048 threads")
    refused(planted(lambda b: None, cluster=32), "a cluster has 32 blocks")
    refused(planted(lambda b: b.barrier("warp"), block=48), "it needs whole warps")
    refused(Builder("p", block=32, grid=(5,), cluster=2).program(), "5 blocks are no clusters of 2")
    large = planted(lambda b: b.shared("s", F32, 60_000))
    refused(large, "shared memory of 240000 bytes, and a block has 232448")
    small = planted(lambda b: b.shared("s", F32, 5_000))
    refused(small, "shared memory of 20000 bytes", Limits(shared_bytes=16384))


def test_names_and_rights() -> None:
    refused(with_node(ir.Load, (I32,), (F32,), buffer="z"), "elements are bool")
    refused(with_node(ir.MbarrierWait, (I32, I32), (), mbarrier="m"), "has no mbarrier m")
    refused(with_node(ir.Load, (I32,), (F32,), buffer="y"), "buffer y is only written")
    refused(with_node(ir.Store, (I32, F32), (), buffer="x"), "buffer x is only read")
    refused(
        with_node(ir.Atomic, (I32, F32), (), buffer="y", op="max"), "an atomic reads buffer y, too"
    )

    def twice(b: Builder) -> None:
        b.input("x", F32)
        b.shared("x", F32, 4)

    refused(planted(twice), "two arguments or arrays are called x")


def test_bounds_of_shared_memory() -> None:
    def store(index: int) -> Callable[[Builder], object]:
        def make(b: Builder) -> None:
            b.shared("s", F32, 64)[b.thread * 2 + index] = 1.0

        return make

    verify(planted(store(0)))
    verify(planted(store(10)))  # some threads are inside, and a branch may let only those come
    refused(planted(store(64)), "its index is 64 to 126, and s has 64 elements")
    refused(planted(store(-63)), "its index is -63 to -1")

    def tile(b: Builder) -> None:
        b.tile_load(A, b.shared("s", BF16, 128), 0, 16)

    refused(planted(tile), "its tile reaches 256 elements, and s has 128")


# -- control flow ---------------------------------------------------------------------------------


def in_branch(make: Callable[[Builder], object], condition: str) -> Program:
    def build(b: Builder) -> None:
        conditions = {
            "thread": lambda: b.thread < 5,
            "warp": lambda: b.warp < 1,
            "block": lambda: b.block_index() < 3,
            "rank": lambda: b.rank < 1,
            "loaded": lambda: b.input("x", I32)[b.thread] < 0,
            "reduced": lambda: b.block_reduce("max", b.thread) < 5,
            "warp reduced": lambda: b.warp_reduce("max", b.thread) < 5,
        }
        with b.when(conditions[condition]()):
            make(b)

    return planted(build, block=64, cluster=2, grid=(4,))  # pyright: ignore[reportArgumentType]


DIVERGENT = {
    "barrier": (lambda b: b.barrier(), {"thread", "warp", "loaded", "warp reduced"}),
    "warp barrier": (lambda b: b.barrier("warp"), {"thread", "loaded"}),
    "cluster barrier": (
        lambda b: b.barrier("cluster"),
        {"thread", "warp", "loaded", "warp reduced", "rank", "block", "reduced"},
    ),
    "reduction": (
        lambda b: b.block_reduce("add", b.lane),
        {"thread", "warp", "loaded", "warp reduced"},
    ),
    "warp reduction": (lambda b: b.warp_reduce("add", b.lane), {"thread", "loaded"}),
    "tile": (lambda b: b.tile_load(C, b.shared("s", F32, 128), 0, 8), {"thread", "loaded"}),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVERGENT)
def test_threads_that_wait_for_each_other_share_their_control_flow(name: str) -> None:
    make, wrong = DIVERGENT[name]
    for condition in ("thread", "warp", "block", "rank", "loaded", "reduced", "warp reduced"):
        program = in_branch(make, condition)
        if condition in wrong:
            refused(program, "must all come here, and the control flow around it differs")
        else:
            verify(program)


def test_loops_share_their_bounds() -> None:
    def loop(b: Builder, low: object) -> None:
        with b.loop(low, 64, 32):  # pyright: ignore[reportArgumentType]
            b.barrier()

    verify(planted(lambda b: loop(b, b.block_index())))
    refused(planted(lambda b: loop(b, b.thread)), "must all come here")

    def carried(b: Builder) -> None:
        """Uniform at first; from the second step on it differs."""
        flag = b.variable(True, BOOL)
        with b.loop(0, 4, carry=[flag]):
            with b.when(flag):
                b.barrier()
            flag.set(b.thread < 3)

    refused(planted(carried), "must all come here")

    def repeated(b: Builder) -> None:
        left = b.variable(b.thread)
        with b.repeat([left]) as again:
            again.when(left > 0)
            b.barrier()
            left.set(left - 1)

    refused(planted(repeated), "must all come here")


def test_values_of_branches_are_as_uniform_as_their_condition() -> None:
    b = Builder("p", block=32)
    total = b.variable(0, I32)
    with b.when(b.thread < 3, carry=[total]):
        total.set(1)
    assert Uniformity(b.program()).values[total.value] is Varies.THREAD


# -- asynchronous copies and dependent launch -----------------------------------------------------


def test_copies_are_waited_for() -> None:
    refused(kernels.tile_gemm(64, wait=False), "it reads left, which is still being copied; wait")
    refused(kernels.tile_gemm(64, barrier=False), "still being copied; use a barrier")

    def only_copied(b: Builder) -> None:
        b.async_copy(b.shared("s", F32, 128), b.thread * 4, b.input("x", F32), b.thread * 4, 4)

    refused(planted(only_copied), "nothing waits for this copy")

    def uncommitted(b: Builder) -> None:
        s = b.shared("s", F32, 128)
        b.async_copy(s, b.thread * 4, b.input("x", F32), b.thread * 4, 4)
        b.async_wait(0)
        b.barrier()
        b.output("y", F32)[b.thread] = s[b.thread]

    refused(planted(uncommitted), "commit the copies")


def test_mbarriers_are_initialised_expected_and_waited_for() -> None:
    refused(kernels.cluster_sum(wait=False), "nothing waits for mbarrier bar")

    def make(b: Builder, initialise: bool, expects: bool) -> None:
        bar, s = b.mbarrier("bar"), b.shared("s", F32, 4)
        if initialise:
            b.mbarrier_init(bar, 1)
        b.mbarrier_arrive(bar, expected_bytes=4 if expects else 0)
        b.push(s, 0, [1.0], 0, bar)
        b.mbarrier_wait(bar, 0)

    verify(planted(lambda b: make(b, True, True)))
    refused(planted(lambda b: make(b, False, True)), "mbarrier bar is never initialised")
    refused(planted(lambda b: make(b, True, False)), "no arrival expects them")


def warpgroup(make: Callable[[Builder, object], object] | None = None, **change: int) -> Program:
    """A product of four warps, with something wrong."""
    given = {"block": 128, "columns": 16, "depth": 64, "rows": 16, **change}
    b = Builder("planted", block=given["block"])
    arrays = [
        b.shared(n, BF16, 4096, is_swizzled=not change.get("plain")) for n in ("left", "right")
    ]
    if make is not None:
        make(b, arrays[0])
    c = b.tile_fill(TileType("c", given["rows"], given["columns"], F32))
    b.warpgroup_mul(c, arrays[0], 0, arrays[1], 0, given["depth"])
    return b.program()


def test_products_of_four_warps() -> None:
    verify(warpgroup())
    refused(warpgroup(block=96), "groups of four warps")
    refused(warpgroup(depth=24), "with depth 24")
    refused(warpgroup(rows=32), "use tiles of 16 rows")
    refused(warpgroup(plain=1), "swizzled arrays of half floats")

    def stored(b: Builder, memory: object) -> None:
        memory[b.thread] = 0.0  # pyright: ignore[reportIndexIssue]

    refused(warpgroup(stored), "add a proxy fence behind this")


def under_way(**change: bool) -> Program:
    """Two asynchronous products after each other, with something wrong."""
    b = Builder("planted", block=128)
    left, right = (b.shared(n, BF16, 4096, is_swizzled=True) for n in ("left", "right"))
    zero = b.tile_fill(TileType("c", 16, 64, F32))
    total = b.warpgroup_mul(zero, left, 0, right, 0, 64, is_async=True)
    again = zero if change.get("twice") else total
    total = b.warpgroup_mul(again, left, 0, right, 0, 64, panels=(0, 4096), is_async=True)
    b.warpgroup_wait(1 if change.get("early") else 0)
    b.output("y", F32)[b.thread] = b.tile_elements(total)[0]
    if change.get("odd"):
        b.register_limit(100, is_more=True)
    return b.program()


def test_asynchronous_products() -> None:
    verify(under_way())
    refused(under_way(early=True), "sums of a product that is under way")
    refused(under_way(twice=True), "used elsewhere, too")
    refused(under_way(odd=True), "use a multiple of 8")


def test_left_operands_in_registers() -> None:
    def make(b: Builder, kind: TileType, columns: int) -> None:
        right = b.shared("right", BF16, 4096, is_swizzled=True)
        c = b.tile_fill(TileType("c", 16, columns, F32))
        b.warpgroup_mul_tiles(c, [b.tile_fill(kind)] * 2, right, 0, panel=2048)

    def product(kind: TileType, columns: int = 64) -> Program:
        b = Builder("planted", block=128)
        make(b, kind, columns)
        return b.program()

    verify(product(TileType("a", 16, 16, BF16)))
    refused(product(TileType("a", 16, 16, DType.F16)), "its left operand is tiles a16x16.bf16")
    refused(product(TileType("a", 16, 32, BF16)), "one for 16 inner positions")
    refused(product(TileType("a", 16, 16, BF16), 264), "use tiles of 16 rows")


def test_products_are_waited_for_in_their_order() -> None:
    def made(pending: int, first: bool) -> Program:
        b = Builder("planted", block=128)
        arrays = [b.shared(n, BF16, 4096, is_swizzled=True) for n in ("left", "right")]
        y, tile = b.output("y", F32), TileType("c", 16, 16, F32)
        given = (arrays[0], 0, arrays[1], 0, 64)
        sums = [b.warpgroup_mul(b.tile_fill(tile), *given, is_async=True) for _ in range(2)]
        b.warpgroup_wait(pending)
        y[b.thread] = b.tile_elements(sums[0 if first else 1])[0]
        b.warpgroup_wait(0)
        return b.program()

    verify(made(1, first=True))
    verify(made(0, first=False))
    refused(made(1, first=False), "a product that is under way")
    refused(made(2, first=True), "a product that is under way")


def test_boxes_have_a_place_in_every_outer_dim() -> None:
    def made(places: int) -> Program:
        b = Builder("planted", block=32)
        x, memory = b.input("x", F32), b.shared("memory", F32, 256)
        box = b.tensor_map("box", x, (16, 16), (16, 16), outer=[OuterDim(3, 256)])
        bar = b.mbarrier("bar")
        b.mbarrier_init(bar, 1)
        b.mbarrier_arrive(bar, expected_bytes=1024)
        b.bulk_copy(memory, 0, box, 0, 0, bar, 0, [0] * places)
        b.mbarrier_wait(bar, 0)
        return b.program()

    verify(made(1))
    refused(made(0), "a box of box has 1 outer places")
    refused(made(2), "a box of box has 1 outer places")


def test_dependent_launch() -> None:
    def make(b: Builder, order: str) -> None:
        x, w, y = b.input("x", F32), b.constant("w", F32), b.output("y", F32)
        b.release_dependents()
        early = (x if order == "reads" else w)[b.thread]
        if order == "writes":
            y[b.thread] = early
        if order != "never":
            b.wait_dependencies()
        y[b.thread] = x[b.thread] + early

    verify(planted(lambda b: make(b, "right")))
    refused(planted(lambda b: make(b, "reads")), "it reads x before the kernels before are done")
    refused(planted(lambda b: make(b, "writes")), "it writes before the kernels before are done")
    refused(planted(lambda b: make(b, "never")), "never waits for those before")


def test_all_faults_are_errors_that_name_the_program() -> None:
    """A program from a file may hold anything."""
    broken = replace(kernels.scaled(), grid=(1, 1, 1), block=0)
    refused(broken, "a block has 0 threads")


# -- programs from files --------------------------------------------------------------------------


def test_every_kind_of_node_has_a_form() -> None:
    assert set(FORMS) == set(KINDS.values())


@pytest.mark.parametrize(
    ("kind", "args", "results", "attrs", "why"),
    [
        (ir.Bitcast, (), (F32,), {}, "it has 0 arguments; give it 1"),
        (ir.Binary, (F32, F32), (), {"op": "add"}, "it has 0 results"),
        (ir.Binary, (F32, F32), (F32,), {"op": "hypot"}, "its op is 'hypot'; use one of"),
        (ir.Shuffle, (F32,), (F32,), {"mask": 1.5}, "its mask is 1.5"),
        (ir.Position, (), (I32,), {"of": "block", "dim": 3}, "no dimension 3"),
        (ir.Store, (I32, BOOL), (), {"buffer": "y", "has_mask": True}, "it stores no value"),
        (ir.SharedLoad, (I32,), (F32,), {"memory": "s", "is_remote": True}, "and its rank"),
        (ir.TileLoad, (I32,), (C,), {"memory": "s", "pitch": 0}, "its pitch is 0"),
        (ir.MbarrierInit, (I32,), (), {"mbarrier": "m", "arrivals": 0}, "never completes"),
    ],
)
def test_the_form_of_nodes(
    kind: type[ir.Node],
    args: tuple[Type, ...],
    results: tuple[Type, ...],
    attrs: dict[str, object],
    why: str,
) -> None:
    refused(with_node(kind, args, results, **attrs), why)


def mutated(written: str, rng: np.random.Generator) -> str:
    """A few words of a text deleted, doubled, or put where others were."""
    words = re.split(r"(\s+|[(),=:])", written)
    for _ in range(int(rng.integers(1, 4))):
        at, other = rng.integers(0, len(words), 2)
        words[at] = ("", words[at] * 2, words[other])[int(rng.integers(3))]
    return "".join(words)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_damaged_text_is_an_error_or_a_program(name: str) -> None:
    """Never another exception: a program from a file may hold anything."""
    rng = np.random.default_rng(len(name))
    written = text(PROGRAMS[name])
    outcomes = {"error": 0, "program": 0}
    for _ in range(60):
        try:
            verify(parse(mutated(written, rng)))
            outcomes["program"] += 1
        except rlx.Error:
            outcomes["error"] += 1
    assert outcomes["error"] > 20
