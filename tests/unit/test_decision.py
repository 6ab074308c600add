"""Decisions: the rules that give a verdict, and ids that survive everything unrelated."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.decision import Candidate, Decision, DecisionLog
from rlx.cost.gate import FusionBenefit
from rlx.cost.profile import benefit_of, compute_profile
from rlx.cost.target import Target
from rlx.ir.mir import Graph, Node, Origin
from rlx.passes.context import Context
from rlx.passes.options import FusionOptions

WGPU = Target.of("wgpu")  # asks for 10,000 ns; a launch is 3,000


def _layers(count: int, names: Callable[[int], str] = "layer{}".format) -> tuple[Graph, list[Node]]:
    """relu(x·w + b), again and again; every layer is built by the same line."""
    g = Graph("net")
    x, relus = g.input("x", Shape([4, 8])), []
    for i in range(count):
        w = g.param(f"{names(i)}.w", Shape([8, 8]))
        b = g.param(f"{names(i)}.b", Shape([8]))
        x = g.relu(g.add(g.matmul(x, w), b))
        relus.append(x)
    g.set_outputs([x])
    return g, relus


def _ask(log: DecisionLog, *nodes: Node, benefit: FusionBenefit | None = None) -> Decision:
    return log.decide(Candidate("fuse_it", nodes, benefit or FusionBenefit(launches_saved=1)))


def _node() -> Node:
    return _layers(1)[1][0]


# -- verdicts -------------------------------------------------------------------------------------


def test_no_worse_in_anything_is_taken_below_the_threshold() -> None:
    made = _ask(DecisionLog(WGPU), _node())
    assert made.predicted_ns == 3_000 < WGPU.gate.min_gain_ns
    assert made.verdict
    assert made.reason == "saves 1 launch, and costs nothing"


def test_a_trade_must_gain_what_the_gate_asks() -> None:
    node, traffic = _node(), -1000  # 10 ns at 100 GB/s, 5 ns within the cache
    log = DecisionLog(WGPU)
    little = log.decide(Candidate("a", (node,), FusionBenefit(3, 0, 0, traffic)))
    enough = log.decide(Candidate("b", (node,), FusionBenefit(4, 0, 0, traffic)))
    assert (little.verdict, enough.verdict) == (False, True)
    assert little.reason == "would save 8.99 µs, less than the threshold of 10.0 µs"


def test_more_arithmetic_is_a_trade_and_takes_time() -> None:
    candidate = Candidate("a", (_node(),), FusionBenefit(launches_saved=1), flops_delta=2_000)
    made = DecisionLog(WGPU).decide(candidate)
    assert made.predicted_ns == 3_000 - 2_000 / WGPU.machine.gflops(DType.F32)
    assert not made.verdict


def test_an_added_sync_is_a_trade_with_the_thunk_penalty() -> None:
    made = _ask(DecisionLog(WGPU), _node(), benefit=FusionBenefit(100, -1, 0, 10**9))
    assert made.predicted_ns == 300_000 - 30_000 - 25_000_000 + 10**9 / WGPU.machine.memory_gb_s(0)
    assert made.verdict is (made.predicted_ns >= 10_000)


def test_traffic_is_priced_at_the_cache_that_holds_the_working_set() -> None:
    cpu, benefit = Target.of("cpu"), FusionBenefit(device_traffic_bytes_saved=1 << 20)
    log = DecisionLog(cpu)
    rates = [(1 << 20) / log.gain_ns(Candidate("a", (), benefit, working_set_bytes=size))
             for size in (1 << 10, 1 << 20, 1 << 24, 1 << 30)]  # fmt: skip
    assert rates == [400, 200, 100, cpu.gate.memory_gb_s]


def test_a_forced_verdict_wins_and_says_so() -> None:
    node = _node()
    plain = _ask(DecisionLog(WGPU), node)
    log = DecisionLog(WGPU, {plain.id: False})
    forced = _ask(log, node)
    assert (forced.verdict, forced.reason) == (False, "forced")
    assert (forced.id, forced.predicted_ns) == (plain.id, plain.predicted_ns)
    assert log.unused_force == ()


def test_a_choice_can_be_forced_and_a_necessity_cannot() -> None:
    node = _node()
    first = DecisionLog(WGPU)
    chosen = first.choose("hoist", (node,), True, "it depends on weights alone")
    settled = first.note("lower", node, True, "there is no kernel")
    log = DecisionLog(WGPU, {chosen.id: False, settled.id: False, "nothing:0": True})
    assert log.choose("hoist", (node,), True, "it depends on weights alone").verdict is False
    assert log.note("lower", node, True, "there is no kernel").verdict is True
    assert log.unused_force == (settled.id, "nothing:0")


def test_a_miss_is_recorded_with_its_reason() -> None:
    log = DecisionLog(WGPU)
    made = log.refuse("fuse_it", _node(), "it is an output")
    assert log.decisions == (made,)
    assert (made.verdict, made.reason, made.is_reversible) == (False, "it is an output", False)


def test_what_is_shown_are_the_users_names() -> None:
    g = Graph("g").successor()
    with g.scope(Origin("block", "encoder.3")):
        node = g.relu(g.input("x", Shape([2])))
    made = _ask(DecisionLog(WGPU), node)
    assert made.where == ("relu at block encoder.3",)


# -- ids ------------------------------------------------------------------------------------------


def test_asking_twice_is_asking_once() -> None:
    log, node = DecisionLog(WGPU), _node()
    assert _ask(log, node) is _ask(log, node)
    assert len(log.decisions) == 1


def test_equal_layers_have_different_ids() -> None:
    _, relus = _layers(12)
    log = DecisionLog(WGPU)
    assert len({_ask(log, relu.inputs[0], relu).id for relu in relus}) == 12


def test_ids_do_not_depend_on_order() -> None:
    def ids(order: slice) -> dict[int, str]:
        _, relus = _layers(5)
        log = DecisionLog(WGPU)
        numbered = list(enumerate(relus))[order]
        return {i: _ask(log, relu.inputs[0], relu).id for i, relu in numbered}

    assert ids(slice(None)) == ids(slice(None, None, -1))
    assert ids(slice(None))[3] == ids(slice(3, 4))[3]


def test_ids_do_not_depend_on_the_order_of_the_nodes_given() -> None:
    relu = _node()
    add, matmul = relu.inputs[0], relu.inputs[0].inputs[0]
    first, second = DecisionLog(WGPU), DecisionLog(WGPU)
    assert _ask(first, matmul, add, relu).id == _ask(second, relu, matmul, add).id


def test_ids_do_not_depend_on_node_numbers_or_on_what_was_fused_upstream() -> None:
    """The second layer's candidate, after the first layer was spelled otherwise."""
    plain, relus = _layers(2)
    second = relus[1]

    def respelled(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return new.maximum(inputs[0], 0.0) if node is relus[0] else None

    other = plain.rebuild(respelled)
    again = other.outputs[0]
    assert again.index != second.index
    asked = [_ask(DecisionLog(WGPU), n.inputs[0], n).id for n in (second, again)]
    assert asked[0] == asked[1]


def test_structure_leaves_and_origins_count() -> None:
    def asked(build: Callable[[Graph, Node], Node], leaf: str = "x", origin: str = "a") -> str:
        g = Graph("g")
        with g.scope(Origin("block", origin)):
            return _ask(DecisionLog(WGPU), build(g, g.input(leaf, Shape([2, 3])))).id

    base = asked(lambda g, x: g.elu(x, alpha=1.0))
    assert base == asked(lambda g, x: g.elu(x, alpha=1.0))
    others = [
        asked(lambda g, x: g.elu(x, alpha=2.0)),
        asked(lambda g, x: g.leaky_relu(x, alpha=1.0)),
        asked(lambda g, x: g.elu(x, alpha=1.0), leaf="y"),
        asked(lambda g, x: g.elu(x, alpha=1.0), origin="b"),
    ]
    assert base not in others
    assert len(set(others)) == 4


def test_origins_that_are_no_names_do_not_count() -> None:
    node = _node()
    plain = _ask(DecisionLog(WGPU), node).id
    for kind in ("rule", "pass", "line"):
        node.graph.add_origins(node, (Origin(kind, "another"),))
    assert _ask(DecisionLog(WGPU), node).id == plain


def _twins() -> tuple[Graph, tuple[Node, Node]]:
    """Two nodes of equal structure, leaves and origins: only how they are used differs."""
    g = Graph("g")
    with g.scope(Origin("block", "same")):
        x = g.input("x", Shape([4]))
        pair = (g.relu(g.exp(x)), g.relu(g.sin(x)))
        g.set_outputs(pair)
    return g, pair


def test_twins_are_numbered() -> None:
    _, (a, b) = _twins()
    log = DecisionLog(WGPU)
    assert _ask(log, b).id == _ask(log, a).id.removesuffix("#2")
    assert _ask(log, a).id.endswith("#2")


def test_a_refused_candidate_keeps_its_id_when_the_next_graph_proposes_it_again() -> None:
    g, (a, b) = _twins()
    ids = [_ask(log := DecisionLog(WGPU), a).id, _ask(log, b).id]
    log = DecisionLog(WGPU, {ids[1]: False})
    assert [_ask(log, n).verdict for n in (a, b)] == [True, False]
    fused = g.rebuild(lambda new, n, i: new.maximum(i[0], 0.0) if n is a else None)
    again = _ask(log, fused.outputs[1])
    assert (again.id, again.verdict) == (ids[1], False)
    assert len(log.decisions) == 2


_PRINT_ID = """
from rlx.cost.decision import *; from rlx.cost.gate import FusionBenefit
from rlx.cost.target import Target; from rlx.ir.mir import Graph; from rlx.core.shape import Shape
g = Graph('g'); g.traces_lines = False
n = g.relu(g.add(g.input('x', Shape([2])), g.param('w', Shape([2]))))
print(DecisionLog(Target.of('cuda')).decide(Candidate('f', (n,), FusionBenefit(1))).id)
print(Target.of('cuda').digest())
"""


def test_ids_and_digests_are_the_same_in_every_process() -> None:
    seen = {
        subprocess.run([sys.executable, "-c", _PRINT_ID], env={"PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1


def test_a_long_chain_is_asked_about_without_recursion() -> None:
    g = Graph("g")
    g.traces_lines = False
    x = g.input("x", Shape([4]))
    for _ in range(24_000):
        x = g.neg(x)
    log = DecisionLog(WGPU)
    assert _ask(log, x).verdict
    assert benefit_of([x, x.inputs[0]], [x], log) == FusionBenefit(1, 0, 0, 32)


def test_what_was_impossible_is_weighed_once_it_is_possible() -> None:
    log, node = DecisionLog(WGPU), _node()
    missed = log.refuse("fuse_it", node, "its value has other readers")
    made = _ask(log, node)
    assert (made.id, made.verdict) == (missed.id, True)
    assert log.decisions == (made,)
    assert log.refuse("fuse_it", node, "it is gone") is made


# -- with the terms of nodes ----------------------------------------------------------------------


def test_a_context_prices_a_candidate_end_to_end() -> None:
    ctx = Context.of("cuda", FusionOptions())
    relu = _node()
    add, matmul = relu.inputs[0], relu.inputs[0].inputs[0]
    g, (x, w, b) = relu.graph, (*matmul.inputs, add.inputs[1])
    removed = (matmul, add, relu)
    clamped = g.clamp(g.matmul(x, w), min=0.0)
    benefit = benefit_of(removed, (clamped, clamped.inputs[0]), ctx)
    out = 4 * 8 * 4
    assert benefit == FusionBenefit(1, 0, 0, 2 * out + 8 * 4)
    assert compute_profile(removed, ctx).working_set_bytes == sum(
        n.shape.size_bytes for n in (x, w, b, *removed)
    )
    made = ctx.log.decide(Candidate("fuse", removed, benefit))
    assert made.launches_saved == 1
    assert made.bytes_saved == 2 * out + 8 * 4
    assert ctx.log.decisions == (made,)


@pytest.mark.parametrize("verdict", ["yes", 1, None])
def test_force_takes_booleans_only(verdict: object) -> None:
    from rlx.core.errors import Error

    with pytest.raises(Error, match="fuse:1"):
        FusionOptions(force={"fuse:1": verdict})  # pyright: ignore[reportArgumentType]
