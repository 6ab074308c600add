"""Every rule is proved on drawn graphs; the engine ends, records and stays linear."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Dim, Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node, Origin
from rlx.passes.context import Context
from rlx.passes.simplify import simplify as simplify_pass
from rlx.rules import all_rules, engine
from rlx.rules.check_by_sampling import prove
from rlx.rules.common import is_float
from rlx.rules.engine import Event, Fired, Missed, Rule, no, rewrite, rule, ruleset
from rlx.rules.match import at, either, is_literal, scalar_of
from tests.effort import tries

RULES = [r for r in all_rules() if r.name != "fold_constants"]
"""Folding has no pattern to draw from: test_constant_folding.py tests it on every op."""


def graph_of(*dims: int, dtype: str = "f32", inputs: str = "xy") -> tuple[Graph, list[Node]]:
    g = Graph("test")
    return g, [g.input(name, Shape(dims, dtype)) for name in inputs]


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.order() if not n.is_leaf]


def rewritten(graph: Graph, *rules: Rule, log: list[Event] | None = None) -> Graph:
    return rewrite(graph, ruleset(rules), log)


def simplify(graph: Graph, log: list[Event] | None = None) -> Graph:
    context = Context.of("cpu")
    made = simplify_pass(graph, context)
    if log is not None:
        log += context.rewrites
    return made


# -- proofs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", RULES, ids=lambda r: r.name)
def test_rule_holds(candidate: Rule) -> None:
    proof = prove(candidate, wanted=40, tries=4000)
    assert not proof.counterexample, proof.counterexample
    assert proof.fired >= 40, f"only {proof.fired} of {proof.tried} draws exercised the rule"


def test_rules_have_names_of_their_own() -> None:
    names = [r.name for r in all_rules()]
    assert len(set(names)) == len(names)
    assert len(names) > 60


@rule(lambda x: ops.add(x, 0))
def plus_zero(x: Node, node: Node) -> object:
    """x + 0 = x, which -0 disproves."""
    return x if is_float(x) and x.shape == node.shape else None


@rule(lambda x: ops.div(x, x))
def over_itself(x: Node) -> object:
    """x / x = 1, which 0 disproves."""
    one = x.graph.constant(np.ones((), x.dtype.numpy))
    return ops.expand(one, dims=x.shape.dims)


@rule(lambda x: ops.sqrt(ops.square(x)))
def root_of_square(x: Node) -> object:
    """√x² = x, which -1 disproves."""
    return x


@rule(lambda x: ops.exp(ops.log(x)), slack=8.0, why="two roundings")
def exp_of_log(x: Node) -> object:
    """exp(log x) = x, which -1 disproves."""
    return x


@rule(lambda x: ops.mul(x, 0))
def times_zero(x: Node, node: Node) -> object:
    """x · 0 = 0, which infinity disproves."""
    return ops.sub(x, x) if is_float(x) and x.shape == node.shape else None


@rule(lambda x, y: ops.logical_not(ops.less(x, y)))
def not_less(x: Node, y: Node) -> object:
    """not (x < y) = (x ≥ y), which NaN disproves."""
    return ops.greater_equal(x, y)


@rule(lambda x, p, q: ops.transpose(ops.transpose(x, perm=p), perm=q))
def transposed_the_wrong_way(x: Node, p: tuple[int, ...], q: tuple[int, ...], node: Node) -> object:
    """The permutations composed in the wrong order."""
    made = ops.transpose(x, perm=tuple(q[i] for i in p))
    return made if made.shape == node.shape else None


@rule(lambda x, way, to: ops.cast(ops.cast(x, to=way), to=to))
def cast_through_anything(x: Node, to: DType) -> object:
    """A cast through any dtype."""
    return ops.cast(x, to=to)


@rule(lambda x: ops.abs(x))
def magnitude_is_idle(x: Node) -> object:
    """|x| = x, which the least integer disproves too."""
    return x if x.dtype.is_integer else None


UNSOUND = [
    plus_zero, over_itself, root_of_square, exp_of_log, times_zero, not_less,
    transposed_the_wrong_way, cast_through_anything, magnitude_is_idle,
]  # fmt: skip


@pytest.mark.parametrize("candidate", UNSOUND, ids=lambda r: r.name)
def test_the_proof_catches_an_unsound_rule(candidate: Rule) -> None:
    proof = prove(candidate, wanted=200, tries=4000)
    assert proof.counterexample, f"{candidate.name} was not caught in {proof.fired} firings"
    assert not proof.holds


# -- matching -------------------------------------------------------------------------------------


def test_literals_match_uniform_constants_and_the_sign_of_zero() -> None:
    g = Graph("test")
    minus = g.constant(np.full((2, 3), -0.0, np.float32))
    assert is_literal(minus, -0.0)
    assert not is_literal(minus, 0.0)
    assert not is_literal(g.constant(np.array([1, 2])), 1)
    assert is_literal(g.constant(np.array([True])), True)
    assert not is_literal(g.constant(np.array([1])), True)
    assert not is_literal(g.constant(np.zeros(0)), 0)
    assert not is_literal(g.constant(np.int64(2**63 - 1)), float(2**63))
    assert is_literal(g.constant(np.int8(-1)), -1)


def test_a_repeated_scalar_is_seen_through_its_expansion() -> None:
    g = Graph("test")
    wide = ops.expand(g.constant(np.float32(2.0)), dims=(10**6, 10**6))
    assert scalar_of(wide) == 2.0


def test_operands_of_commutative_ops_match_in_either_order() -> None:
    @rule(lambda x, y: ops.add(ops.exp(x), ops.neg(y)))
    def found(x: Node, y: Node) -> object:
        """e^x + (-y), either way round."""
        return ops.sub(ops.exp(x), y)

    for turn in (False, True):
        g, (x, y) = graph_of(2)
        operands = [ops.exp(x), ops.neg(y)]
        g.set_outputs([ops.add(*(operands[::-1] if turn else operands))])
        assert ops_of(rewritten(g, found)) == ["exp", "sub"]


def test_a_repeated_variable_is_one_node_and_a_repeated_attribute_one_value() -> None:
    @rule(lambda x, a: ops.add(ops.sum(x, axes=a, keepdims=True), x))
    def found(x: Node, a: tuple[int, ...]) -> object:
        """Any sum of x beside x."""
        return x

    @rule(lambda x, y, a: ops.add(ops.sum(x, axes=a), ops.sum(y, axes=a)))
    def alike(x: Node, y: Node, a: tuple[int, ...]) -> object:
        """Sums over the same axes."""
        return ops.sum(ops.add(x, y), axes=a)

    g, (x, y) = graph_of(2, 2)
    g.set_outputs([ops.add(ops.sum(x, axes=(0,), keepdims=True), y)])
    assert rewritten(g, found) == g
    g.set_outputs([ops.add(ops.sum(x, axes=(0,)), ops.sum(y, axes=(1,)))])
    assert rewritten(g, alike) == g
    g.set_outputs([ops.add(ops.sum(x, axes=(1,)), ops.sum(y, axes=(1,)))])
    assert ops_of(rewritten(g, alike)) == ["add", "sum"]


def test_inner_nodes_can_be_named_and_spelled_in_several_ways() -> None:
    @rule(lambda x: ops.neg(at("inner", either(ops.exp(x), ops.log(x)))))
    def found(inner: Node) -> object:
        """Drop the sign of an exponential or a logarithm."""
        return inner

    for f, expected in ((ops.exp, ["exp"]), (ops.log, ["log"]), (ops.sin, ["sin", "neg"])):
        g, (x, _) = graph_of(2)
        g.set_outputs([ops.neg(f(x))])
        assert ops_of(rewritten(g, found)) == expected


# -- the engine -----------------------------------------------------------------------------------


def test_rules_that_undo_each_other_are_an_error_that_names_them() -> None:
    @rule(lambda x, y: ops.add(x, y))
    def there(x: Node, y: Node) -> object:
        """x + y = x - (-y)."""
        return ops.sub(x, ops.neg(y))

    @rule(lambda x, y: ops.sub(x, ops.neg(y)))
    def back(x: Node, y: Node) -> object:
        """x - (-y) = x + y."""
        return ops.add(x, y)

    g, (x, y) = graph_of(2)
    g.set_outputs([ops.add(x, y)])
    with pytest.raises(Error, match="there, back undo or feed each other"):
        rewritten(g, there, back)


@pytest.mark.parametrize("inside", [False, True])
def test_a_rule_that_grows_without_end_is_an_error(inside: bool) -> None:
    @rule(lambda x: ops.exp(x))
    def grows(x: Node) -> object:
        """e^x becomes more and more."""
        return ops.neg(ops.exp(ops.neg(x))) if inside else ops.exp(ops.neg(x))

    g, (x, _) = graph_of(2)
    g.set_outputs([ops.exp(x)])
    with pytest.raises(Error, match="grows"):
        rewritten(g, grows)


def test_a_replacement_that_holds_what_it_replaces_is_an_error() -> None:
    @rule(lambda x: ops.exp(x))
    def wraps(node: Node) -> object:
        """Wrap it."""
        return ops.neg(ops.neg(node))

    g, (x, _) = graph_of(2)
    g.set_outputs([ops.exp(x)])
    with pytest.raises(Error, match="wraps"):
        rewritten(g, wraps)


@pytest.mark.parametrize("made", [lambda x: ops.sum(x), lambda x: ops.cast(x, to="f64"), 3])
def test_a_replacement_of_another_shape_or_dtype_is_an_error(made: object) -> None:
    @rule(lambda x: ops.exp(x))
    def broken(x: Node) -> object:
        """Something else."""
        return made(x) if callable(made) else made

    g, (x, _) = graph_of(2)
    g.set_outputs([ops.exp(x)])
    with pytest.raises(Error, match="rule broken at exp"):
        rewritten(g, broken)


def test_a_rule_must_say_what_it_is_and_why_it_may_differ() -> None:
    def nameless(x: Node) -> object:
        return x

    with pytest.raises(Error, match="no docstring"):
        rule(lambda x: ops.exp(x))(nameless)
    nameless.__doc__ = "It."
    with pytest.raises(Error, match="no reason"):
        rule(lambda x: ops.exp(x), slack=1.0)(nameless)


def test_firings_and_misses_are_recorded_with_where_they_come_from() -> None:
    @rule(lambda x: ops.neg(ops.neg(x)))
    def twice(x: Node) -> object:
        """-(-x) = x."""
        return ops.abs(x)

    @rule(lambda x: ops.exp(x))
    def declines() -> object:
        """Never."""
        return no("not today")

    g, (x, _) = graph_of(2)
    with g.scope(Origin("layer", "first")):
        inner = ops.neg(x)
    with g.scope(Origin("layer", "second")):
        g.set_outputs([ops.exp(ops.neg(inner))])
    log: list[Event] = []
    made = rewritten(g, twice, declines, log=log)
    assert ops_of(made) == ["abs", "exp"]
    absolute = made.outputs[0].inputs[0]
    assert absolute.origins[1:] == (Origin("layer", "second"), Origin("rule", "twice"))
    line = absolute.origins[0]
    assert line.kind == "line"
    assert log == [
        Fired(
            "twice", "-(-x) = x.", f"neg at {line}, layer second", f"abs at {line}, layer second"
        ),
        Missed("declines", f"exp at {line}", "not today"),
    ]
    assert str(log[1]) == f"declines: not at exp at {line}: not today"


def test_a_shared_node_is_told_to_rules_and_asked_again_when_it_is_free() -> None:
    @rule(lambda x: ops.exp(at("inner", ops.neg(x))))
    def alone(x: Node, inner: Node, uses: object) -> object:
        """Only where the sign is not needed elsewhere."""
        return ops.sin(x) if uses(inner) == 1 else no("shared")  # type: ignore[operator]

    @rule(lambda x: ops.cos(ops.neg(x)))
    def frees(x: Node) -> object:
        """cos(-x) = cos(x)."""
        return ops.cos(x)

    g, (x, _) = graph_of(2)
    turned = ops.neg(x)
    g.set_outputs([ops.exp(turned), ops.log(turned)])
    assert ops_of(rewritten(g, alone, frees)) == ["neg", "exp", "log"]
    g.set_outputs([ops.exp(turned), ops.cos(turned)])
    assert ops_of(rewritten(g, alone, frees)) == ["sin", "cos"]
    g.set_outputs([ops.exp(turned), turned])
    assert ops_of(rewritten(g, alone, frees)) == ["neg", "exp"]


def test_results_of_several_result_ops_are_rewritten_through_their_items() -> None:
    g, (x, _) = graph_of(6)
    first, second = ops.split(x, sizes=(2, 4), axis=0)
    g.set_outputs([ops.concat([first, second], axis=0), second])
    made = simplify(g)
    assert made.outputs[0] is made.inputs[0]
    assert ops_of(made) == ["narrow"]


def test_a_replacement_that_is_not_allowed_is_not_taken() -> None:
    @rule(lambda x: ops.reciprocal(ops.sqrt(x)))
    def named(x: Node) -> object:
        """1/√x has a name."""
        return ops.neg(ops.neg(ops.rsqrt(x)))

    g, (x, _) = graph_of(2)
    g.set_outputs([ops.reciprocal(ops.sqrt(x)), ops.neg(ops.reciprocal(ops.sqrt(x)))])
    made = rewrite(g, ruleset([named]), None, lambda node: node.op != "rsqrt")
    assert made == g
    assert "rsqrt" in ops_of(rewritten(g, named))


def chain(count: int, step: object, dtype: str = "f32") -> Graph:
    g = Graph("chain")
    g.traces_lines = False
    node = x = g.input("x", Shape([4, 4], dtype))
    for i in range(count):
        node = step(i, node, x)  # type: ignore[operator]
    g.set_outputs([node])
    return g


LONG = tries(6_000, 24_000)
CHAINS = {
    "nothing to do": (lambda i, y, x: ops.add(y, x) if i % 2 else ops.mul(y, x), "f32", LONG),
    "all of it goes": (lambda i, y, x: ops.relu(y), "f32", 1),
    "pairs go": (lambda i, y, x: ops.neg(y), "f32", 0),
    "constants join": (lambda i, y, x: ops.add(y, 1), "i32", 1),
    "movements join": (lambda i, y, x: ops.transpose(y, perm=(1, 0)), "f32", 0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_is_rewritten(name: str) -> None:
    step, dtype, left = CHAINS[name]
    made = simplify(chain(LONG, step, dtype))
    assert len(ops_of(made)) == left


@pytest.mark.parametrize("name", CHAINS)
def test_twice_the_nodes_are_twice_the_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, dtype, _ = CHAINS[name]
    count, original = 0, engine.step

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return original(*args)

    monkeypatch.setattr(engine, "step", counted)
    work: list[int] = []
    for length in (1000, 2000):
        count = 0
        simplify(chain(length, step, dtype))
        work.append(count)
    assert work[1] <= 2.2 * work[0]


# -- simplify -------------------------------------------------------------------------------------


def test_what_is_not_needed_goes_and_leaves_and_outputs_keep_their_place() -> None:
    g, (x, y) = graph_of(2)
    w = g.param("w", Shape([2]))
    ops.exp(ops.add(x, y))
    g.set_outputs([y, ops.neg(ops.neg(x)), y])
    made = simplify(g)
    assert [n.attrs["name"] for n in made.inputs] == ["x", "y"]
    assert [n.attrs["name"] for n in made.params] == [w.attrs["name"]]
    assert [o.attrs["name"] for o in made.outputs] == ["y", "x", "y"]
    assert len(made) == 3


def test_equal_work_is_done_once() -> None:
    g, (x, _) = graph_of(2)
    g.set_outputs([ops.exp(ops.neg(ops.neg(x))), ops.exp(x)])
    assert ops_of(simplify(g)) == ["exp"]


def test_a_simplified_graph_stays_as_it_is() -> None:
    g, (x, y) = graph_of(4, 4)
    g.set_outputs([ops.softmax(ops.matmul(x, ops.transpose(y, perm=(1, 0))), axis=-1)])
    once = simplify(g)
    log: list[Event] = []
    assert simplify(once, log) == once
    assert not [e for e in log if isinstance(e, Fired)]


def test_named_dims_are_simplified_too() -> None:
    n = Dim("n")
    g = Graph("test")
    x = g.input("x", Shape([n, 4]))
    y = ops.reshape(ops.reshape(x, dims=(n * 4,)), dims=(n, 4))
    z = ops.expand(ops.expand_dims(ops.mul(y, 1.0), axes=(0,)), dims=(2, n, 4))
    g.set_outputs([ops.add(z, ops.expand(y, dims=(2, n, 4)))])
    made = simplify(g)
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(evaluate(made, {"x": value})[0], np.stack([value * 2] * 2))
    assert "reshape" not in ops_of(made)
