"""What compiling does is in proportion to the nodes, whatever the graph's structure.

Work is counted, not timed: function calls of all passes, the plan, kernel selection and the writing
of code; LLVM text, which has no long function, as LLVM takes longer than linear time for one.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest

import rlx
from bench.compile_growth import TARGETS, Laps, compiled
from bench.graph_families import FAMILIES
from rlx.backends.cpu.isa import isa
from rlx.backends.cpu.program.module import Assembled, assembled
from rlx.backends.registry import find_backend
from rlx.ir.text import read, show
from rlx.ir.verify import verify
from rlx.pipeline import CompilePipeline
from tests.effort import IS_THOROUGH, tries

CALLS = (
    *("concat_of_inputs", "wide_split", "slices_of_concat", "outputs"),
    *(("branches", "parallel_chains", "states", "training") if IS_THOROUGH else ()),
)
CALL_TARGETS = TARGETS if IS_THOROUGH else ("cpu", "mlx")
CASES = [
    *(
        (family, target)
        for family in CALLS
        for target in (TARGETS if IS_THOROUGH else ("cpu", "mlx"))
    ),
    *((family, "cpu") for family in FAMILIES if IS_THOROUGH and family not in CALLS),
]
FEW = {"free_parts": 160, "grid": 160, "growing_concat": 160}
"""Nodes from which on kernels are as large as they may be; 40 suffice for other families."""
TEXTS = ("norms", "concat_of_inputs", "outputs", "tree_of_inputs")
MOST_CALLS, MOST_TEXT = 1.35, 1.35
"""A node's share at four times the nodes, to that at first: what is done once counts for less."""
LONGEST_FUNCTION = 600_000
"""Letters: a kernel of 64 operands in as many pieces."""


def calls_of(work: Callable[[], object]) -> int:
    """The function calls that it makes."""
    profile = cProfile.Profile()
    profile.runcall(work)
    stats: Any = pstats.Stats(profile)
    return stats.total_calls


def native(family: str, nodes: int) -> Assembled:
    """The text of a family's program on the CPU."""
    backend: Any = find_backend("cpu")
    lir = CompilePipeline(backend.target()).compile(FAMILIES[family](nodes)).lir
    return assembled(backend.program(lir), isa("avx2"))


def written(family: str, nodes: int, target: str) -> None:
    """All that a target's compile does before LLVM, a driver or an engine compiles."""
    if target == "cpu":
        native(family, nodes)
        return
    graph = FAMILIES[family](nodes)
    assert isinstance(graph, rlx.Graph)
    compiled(graph, target, Laps())


@pytest.mark.parametrize(("family", "target"), CASES)
def test_calls_are_in_proportion_to_nodes(family: str, target: str) -> None:
    few = FEW.get(family, 40)
    written(family, 4 * few, target)  # what is computed once per process, such as facts of dims
    first, second = (calls_of(lambda n=n: written(family, n, target)) for n in (few, 4 * few))
    assert second <= 4 * MOST_CALLS * first


@pytest.mark.parametrize("family", TEXTS)
def test_native_text_is_in_proportion_to_nodes_and_in_short_functions(family: str) -> None:
    few = 130
    programs = [native(family, n) for n in (few, 2 * few)]
    texts = [[f.text for f in (*p.kernels, *p.subprograms)] for p in programs]
    first, second = (sum(map(len, each)) for each in texts)
    assert second <= 2 * MOST_TEXT * first
    assert max(map(len, texts[1])) <= LONGEST_FUNCTION


@pytest.mark.parametrize("family", ["states", "versions", "training"])
def test_calls_that_verify_states_are_in_proportion_to_nodes(family: str) -> None:
    graphs = [FAMILIES[family](nodes) for nodes in (120, 480)]
    first, second = (calls_of(lambda g=g: verify(g)) for g in graphs)
    assert second <= 4 * MOST_CALLS * first


def test_the_prologue_lists_what_each_step_reads_and_not_all_that_it_follows_from() -> None:
    """A chain over weights: the transitive sets are quadratic in its length."""
    g = rlx.Graph("prologue")
    total = g.param("w", [4, 8])
    for i in range(300):
        total = g.softmax(g.matmul(total, g.param(f"w{i}", [8, 8])))
    g.set_outputs([g.add(g.input("x", [4, 8]), total)])
    backend: Any = find_backend("cpu")
    made = assembled(backend.program(CompilePipeline("cpu").compile(g).lir), isa("avx2"))
    assert len(made.prologue) >= 300
    assert sum(len(p.params) + len(p.steps) for p in made.prologue) <= 4 * len(made.prologue)


def test_functions_of_a_program_share_one_table_of_its_arguments() -> None:
    main = native("slices_of_concat", 60).main
    assert main.output_indices is main.output_indices
    assert main.external_indices is main.external_indices


def test_a_name_for_a_measured_size_takes_as_many_calls_as_the_first() -> None:
    few, many = (FAMILIES["measured"](nodes) for nodes in (40, 640))
    first, second = (calls_of(lambda g=g: g.extents.fresh("nonzero")) for g in (few, many))
    assert second <= MOST_CALLS * first


@pytest.mark.parametrize("target", ("reference", "mlx", "tpu") if IS_THOROUGH else ("tpu",))
def test_calls_are_in_proportion_to_the_depth_of_bodies(target: str) -> None:
    compiled(_nested(7, False), target, Laps())  # what is computed once per process
    deep = [_nested(depth, False) for depth in (7, 28)]  # the text form holds 32
    first, second = (calls_of(lambda g=g: compiled(g, target, Laps())) for g in deep)
    assert second <= 4 * MOST_CALLS * first


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("depth", [10, 40])
def test_a_value_concatenated_with_itself_over_and_over_has_few_operands(
    target: str, depth: int
) -> None:
    g = rlx.Graph("doubled")
    x = g.input("x", [rlx.Dim("n", 1, 8)])
    for _ in range(depth):
        x = g.concat([x, x], axis=0)
    g.set_outputs([x])
    made = CompilePipeline(target).optimize(g).graph
    assert sum(len(node.inputs) for node in made.order()) <= 64 * depth / 4


def test_concats_that_grow_list_no_more_operands_than_a_kernel_takes() -> None:
    made = CompilePipeline("cpu").optimize(FAMILIES["growing_concat"](450)).graph
    assert max(len(node.inputs) for node in made.order()) <= 64


@pytest.mark.parametrize("branches", [False, True])
def test_bodies_that_nest_too_deep_are_refused_where_they_are_built(branches: bool) -> None:
    """No RecursionError, at any depth."""
    with pytest.raises(rlx.GraphError, match=r"nest more than \d+ deep. Flatten"):
        _nested(400, branches)
    backend: Any = find_backend("cpu")
    lir = CompilePipeline("cpu").compile(_nested(80, branches)).lir
    with pytest.raises(rlx.Error, match=r"nest more than \d+ deep. Flatten"):
        backend.program(lir)


def _nested(depth: int, branches: bool) -> rlx.Graph:
    g = _body(None, branches)
    for _ in range(depth):
        g = _body(g, branches)
    return g


def _body(inner: rlx.Graph | None, branches: bool) -> rlx.Graph:
    g = rlx.Graph("body")
    y = g.tanh(g.input("x", [4]))
    if inner is not None and branches:
        y = g.if_(g.greater(g.sum(y), 0.0), y, then=inner, else_=_body(None, False))[0]
    elif inner is not None:
        y = g.scan(y, body=inner, length=2, num_carries=1)[0]
    g.set_outputs([y])
    return g


@pytest.mark.parametrize("family", ["diamond", "fibonacci", "unread"])
def test_deep_graphs_compile_without_recursion(family: str) -> None:
    graph = FAMILIES[family](tries(1500, 5000))
    lir = CompilePipeline("cpu").compile(graph).lir
    assert str(read(show(lir.mir.graph))) == str(lir.mir.graph)
