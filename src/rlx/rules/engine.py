"""The rewriting engine: rules are data, and every firing is a value that can be shown.

    @rule(lambda x, y: ops.transpose(ops.matmul(x, y), perm=p))
    def transpose_of_product(x, y, p): ...

A rule's pattern is made by calling table ops with variables. Its function gets the variables it
names, and on request `node` (the matched node) and `uses` (how often a node is read).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rlx import attrs as attributes
from rlx.errors import Error
from rlx.ir.mir import Graph, Node, Origin
from rlx.op import Kind, Op, Pattern, Var

Env: TypeAlias = dict[str, Any]
Patterns: TypeAlias = tuple[Pattern | Op | Var, ...]
Uses: TypeAlias = Callable[[Node], int]
Allows: TypeAlias = Callable[[Node], bool]
MAX_CHAIN = 1000
"""Firings one after the other from one node; rules that need more do not end."""
MAX_SWEEPS = 16
"""Sweeps for the sake of rules that ask about uses; each one only frees more nodes."""
MAX_ORIGINS = 16
"""Origins carried onto a replacement: enough to find the source, and merging stays linear."""


@dataclass(frozen=True, slots=True)
class No:
    """A rule that looked and declined, with the reason."""

    reason: str


def no(reason: str) -> No:
    """What a rule returns where it nearly applies: the miss is recorded."""
    return No(reason)


ANYTHING = Var("_")
_UNIFORM_THROUGH = ("expand", "reshape", "transpose", "squeeze", "expand_dims")


class At(Pattern):
    """A pattern whose matched node has a name."""

    __slots__ = ("name",)

    def __init__(self, name: str, inner: Pattern) -> None:
        super().__init__(inner.op, (inner,), {})
        self.name = name


class Either(Pattern):
    """Several spellings of one thing."""

    __slots__ = ()

    def __init__(self, *options: Pattern) -> None:
        super().__init__(options[0].op, options, {})


def at(name: str, pattern: Pattern) -> At:
    """`pattern`, with the node it matches given to the rule as `name`."""
    return At(name, pattern)


def either(*options: Pattern) -> Either:
    """Any of `options`, tried in order."""
    return Either(*options)


@dataclass(frozen=True, slots=True)
class Rule:
    """A named identity, directed from its patterns to what `make` returns."""

    name: str
    identity: str
    patterns: Patterns
    make: Callable[..., Any]
    sample: Callable[..., Any] | None = None
    slack: float = 0.0
    """How far the two sides may differ: this many roundings of the result's largest element."""
    refines: bool = False
    """The replacement is finite where the spelling overflows on the way."""
    domain: str = "any"
    """Which values a proof draws: `any`, or `plain` where infinities follow no law."""
    why: str = ""
    """Where the slack comes from."""

    when: Callable[[Node], bool] | None = None
    """A cheap test before anything else, for rules that are asked often."""
    parameters: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()
    """For each pattern, the ops that its operands must have."""


@dataclass(frozen=True, slots=True)
class Fired:
    """One rewrite that happened."""

    rule: str
    identity: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.before} -> {self.after}  ({self.identity})"


@dataclass(frozen=True, slots=True)
class Missed:
    """One rewrite that nearly happened, and why not."""

    rule: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: not at {self.where}: {self.reason}"


Event: TypeAlias = Fired | Missed


def rule(
    *patterns: Callable[..., Pattern | Op],
    sample: Callable[..., Any] | None = None,
    slack: float = 0.0,
    refines: bool = False,
    domain: str = "any",
    why: str = "",
    when: Callable[[Node], bool] | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a rule. Several patterns are alternatives; a pattern that is an op matches any use
    of it; a rule without patterns is tried at every node."""

    def declare(make: Callable[..., Any]) -> Rule:
        identity = " ".join((inspect.getdoc(make) or "").split())
        if not identity:
            raise Error(f"rule {make.__name__} has no docstring: it is what users are shown")
        if slack and not why:
            raise Error(f"rule {make.__name__} has a slack and no reason for it")
        made = tuple(p(*map(Var, inspect.signature(p).parameters)) for p in patterns)
        made = made or (ANYTHING,)
        return Rule(
            make.__name__, identity, made, make, sample, slack, refines, domain, why, when,
            tuple(inspect.signature(make).parameters), tuple(map(_guard, made)),
        )  # fmt: skip

    return declare


Guard: TypeAlias = tuple[frozenset[str] | None, ...] | None
"""The ops that each operand may have; None is any op, or any operands."""


def _guard(pattern: Any) -> Guard:
    if not isinstance(pattern, Pattern) or isinstance(pattern, At | Either):
        return None
    return tuple(_possible_ops(a) for a in pattern.args)


def _possible_ops(pattern: Any) -> frozenset[str] | None:
    if isinstance(pattern, Var):
        return None
    if isinstance(pattern, Pattern):
        return frozenset(_roots(pattern))
    return frozenset(("constant", *_UNIFORM_THROUGH))


def _passes(guard: Guard, node: Node) -> bool:
    """Could the operands match, going by their ops alone?"""
    if guard is None:
        return True
    ops = [i.op for i in node.inputs]
    if len(ops) != len(guard):
        return False
    if all(g is None or op in g for g, op in zip(guard, ops)):
        return True
    return node.decl.is_commutative and all(
        g is None or op in g for g, op in zip(guard, reversed(ops))
    )


# -- matching -------------------------------------------------------------------------------------


def matches(pattern: Any, node: Node, env: Env) -> Iterator[Env]:
    """Every way in which `pattern` fits `node`, given what is bound already."""
    if isinstance(pattern, Var):
        yield from _bound(env, pattern.name, node)
    elif isinstance(pattern, Either):
        for option in pattern.args:
            yield from matches(option, node, env)
    elif isinstance(pattern, At):
        for inner in matches(pattern.args[0], node, env):
            yield from _bound(inner, pattern.name, node)
    elif isinstance(pattern, Pattern):
        yield from _match_op(pattern, node, env)
    elif isinstance(pattern, Op):
        if node.decl is pattern:
            yield env
    elif is_literal(node, pattern):
        yield env


def _bound(env: Env, name: str, value: Any) -> Iterator[Env]:
    if name not in env:
        yield {**env, name: value}
    elif env[name] is value:
        yield env


def _match_op(pattern: Pattern, node: Node, env: Env) -> Iterator[Env]:
    args = pattern.args
    if node.decl is not pattern.op or len(node.inputs) != len(args):
        return
    with_attrs = _match_attrs(pattern.attrs, node.attrs, env)
    if with_attrs is None:
        return
    yield from _match_all(args, node.inputs, with_attrs)
    if node.decl.is_commutative and len(args) == 2 and node.inputs[0] is not node.inputs[1]:
        yield from _match_all(args, node.inputs[::-1], with_attrs)


def _match_all(args: Sequence[Any], nodes: Sequence[Node], env: Env) -> Iterator[Env]:
    if not args:
        yield env
        return
    for first in matches(args[0], nodes[0], env):
        yield from _match_all(args[1:], nodes[1:], first)


def _match_attrs(wanted: Mapping[str, Any], given: Mapping[str, Any], env: Env) -> Env | None:
    """Attributes that are not mentioned match anything."""
    for name, want in wanted.items():
        value = given[name.removesuffix("_")]
        expected = env.get(want.name, value) if isinstance(want, Var) else want
        if attributes.key(expected) != attributes.key(value):
            return None
        if isinstance(want, Var):
            env = {**env, want.name: value}
    return env


def scalar_of(node: Node) -> Any:
    """The one value that every element of a constant has, as a NumPy scalar, or None.

    Seen through what only repeats or moves elements, so that a large constant can stay small.
    """
    while node.op in _UNIFORM_THROUGH:
        node = node.inputs[0]
    if node.op != "constant":
        return None
    flat = node.attrs["value"].array.reshape(-1)
    if flat.size == 0 or (flat.size > 1 and flat[0].tobytes() != flat[-1].tobytes()):
        return None
    if flat.size == 1:
        return flat[0]
    as_bytes = flat.view(np.dtype((np.void, flat.itemsize)))
    return flat[0] if bool((as_bytes == as_bytes[0]).all()) else None


def is_literal(node: Node, literal: Any) -> bool:
    """Is `node` a constant whose every element is `literal`, the sign of zero included?"""
    value = scalar_of(node)
    if value is None or isinstance(literal, bool) != (value.dtype == np.bool_):
        return False
    is_negative_zero = literal == 0 and bool(np.signbit(float(literal)))
    if np.iscomplexobj(value):
        return complex(value) == literal != 0
    if np.issubdtype(value.dtype, np.integer):
        return int(value) == literal and not is_negative_zero
    same_sign = literal != 0 or bool(np.signbit(float(value))) == is_negative_zero
    return float(value) == literal and same_sign


# -- rewriting ------------------------------------------------------------------------------------


def step(
    candidate: Rule, node: Node, uses: Uses, missed: list[Missed] | None = None
) -> Node | None:
    """One rule at one node: what the node becomes, or None."""
    return _step(candidate, _near(candidate, node), node, uses, missed)


def _near(candidate: Rule, node: Node) -> Patterns:
    """The patterns that could match, going by the ops of the operands alone."""
    pairs = zip(candidate.patterns, candidate.guards)
    return tuple(pattern for pattern, guard in pairs if _passes(guard, node))


def _step(
    candidate: Rule, patterns: Patterns, node: Node, uses: Uses, missed: list[Missed] | None
) -> Node | None:
    if candidate.when is not None and not candidate.when(node):
        return None
    for pattern in patterns:
        for env in matches(pattern, node, {}):
            made = _apply(candidate, node, env, uses)
            if isinstance(made, No):
                if missed is not None:
                    missed.append(Missed(candidate.name, node.label, made.reason))
            elif made is not None and made is not node:
                return _checked(candidate, node, made)
    return None


def _apply(candidate: Rule, node: Node, env: Env, uses: Uses) -> Any:
    """What the rule's function makes of the match; what it builds says where it comes from."""
    scope: Env = {**env, "node": node, "uses": uses}
    origins = (*node.origins[:MAX_ORIGINS], Origin("rule", candidate.name))
    with node.graph.scope(*origins):
        return candidate.make(**{p: scope[p] for p in candidate.parameters})


def _checked(candidate: Rule, node: Node, made: Any) -> Node:
    if not isinstance(made, Node) or made.shape != node.shape:
        got = made.shape if isinstance(made, Node) else repr(made)
        raise Error(
            f"rule {candidate.name} at {node.label} replaced {node.shape} by {got}. "
            "This is a mistake in the rule, not in the model: please report it."
        )
    return made


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Rules by the op at the root of their patterns, in the order in which they are tried."""

    rules: tuple[Rule, ...]
    by_op: Mapping[str, tuple[Rule, ...]]
    everywhere: tuple[Rule, ...]
    """Rules without a pattern: tried at every node, before the others."""

    def for_op(self, op: str) -> tuple[Rule, ...]:
        return self.by_op.get(op, self.everywhere)


def ruleset(rules: Sequence[Rule]) -> Ruleset:
    """Index `rules` by root op."""
    everywhere = tuple(r for r in rules if r.patterns == (ANYTHING,))
    by_op: dict[str, list[Rule]] = {}
    for r in rules:
        for op in dict.fromkeys(name for p in r.patterns for name in _roots(p)):
            by_op.setdefault(op, [*everywhere]).append(r)
    return Ruleset(tuple(rules), {k: tuple(v) for k, v in by_op.items()}, everywhere)


def _roots(pattern: Any) -> list[str]:
    if isinstance(pattern, Var):
        return []
    if isinstance(pattern, Op):
        return [pattern.name]
    if isinstance(pattern, Either | At):
        return [name for option in pattern.args for name in _roots(option)]
    return [pattern.op.name]


def _anything(node: Node) -> bool:
    return True


def rewrite(
    graph: Graph, rules: Ruleset, log: list[Event] | None = None, allows: Allows = _anything
) -> Graph:
    """`graph` with `rules` applied bottom-up until none applies; nothing else is kept.

    A replacement that holds a node which is not allowed is not taken. Rules that ask how often a
    node is read are told the truth of the graph they are given, so the sweep is repeated while
    such a rule met a shared node and something has changed since.
    """
    for _ in range(MAX_SWEEPS):
        sweep = _Sweep(graph, rules, allows)
        graph = sweep.result()
        if log is not None:
            log += [*sweep.fired, *sweep.missed]
        if not (sweep.fired and sweep.has_met_shared):
            break
    return graph


class _Sweep:
    """Nodes of the new graph move forward, one step at a time, until nothing applies."""

    def __init__(self, old: Graph, rules: Ruleset, allows: Allows) -> None:
        self.old, self.rules, self.new, self.allows = old, rules, old.successor(), allows
        self.fired: list[Event] = []
        self.missed: list[Missed] = []
        self.has_met_shared = False
        self._settled: dict[Node, Node] = {}
        self._next: dict[Node, Node] = {}
        self._by: dict[Node, str] = {}
        self._uses: dict[Node, int] = {}
        self._by_ops: dict[tuple[str, ...], list[tuple[Rule, Patterns]]] = {}

    def result(self) -> Graph:
        reads = _reads(self.old)
        mapped: dict[Node, Node] = {}
        for node in self.old.order():
            inputs = tuple(mapped[i] for i in node.inputs)
            copy = self.new.node(node.decl, inputs, self._bodies(node))
            self.new.add_origins(copy, node.origins)
            made = mapped[node] = self._settle(copy)
            self._uses[made] = self._uses.get(made, 0) + reads.get(node, 0)
        self.new.set_outputs([mapped[o] for o in self.old.outputs])
        return self.new.rebuild() if self.fired else self.new

    def _bodies(self, node: Node) -> Mapping[str, Any]:
        """Graphs held by control flow are rewritten first."""
        if node.decl.kind is not Kind.CONTROL:
            return node.attrs
        return {k: self._body(v) for k, v in node.attrs.items()}

    def _body(self, value: Any) -> Any:
        if not isinstance(value, Graph):
            return value
        return rewrite(value, self.rules, self.fired, self.allows)

    def uses(self, node: Node) -> int:
        """How often `node` is read; a node that a rule has just made is read once."""
        count = self._uses.get(node, 1)
        self.has_met_shared |= count > 1
        return count

    def _settle(self, root: Node) -> Node:
        """What `root` becomes when nothing applies to it or to anything it reads."""
        settled, stack, depth = self._settled, [root], {root: 0}
        open_: set[Node] = set()
        while stack:
            node = stack[-1]
            waiting = self._pending(node)
            if not waiting:
                stack.pop()
                settled[node] = settled[self._next[node]] if node in self._next else node
                continue
            open_.add(node)
            level = depth[node] + (node in self._next)
            depth.update((w, level) for w in waiting if w not in depth)
            if level > MAX_CHAIN or any(w in open_ for w in waiting):
                raise self._endless(stack)
            stack += waiting
        return settled[root]

    def _pending(self, node: Node) -> list[Node]:
        """What must be settled before `node` is; empty when it is settled now."""
        settled = self._settled
        if node in settled:
            return []
        if node not in self._next:
            waiting = [i for i in node.inputs if i not in settled]
            if waiting:
                return waiting
            made = self._advanced(node)
            if made is None:
                return []
            self._next[node] = made
        made = self._next[node]
        return [made] if made not in settled else []

    def _advanced(self, node: Node) -> Node | None:
        """One step: settled operands, else the first rule that applies."""
        inputs = tuple(self._settled[i] for i in node.inputs)
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            made = self.new.copy(node, inputs)
            self._carry(node, made)
            return made
        for candidate, patterns in self._candidates(node):
            made = _step(candidate, patterns, node, self.uses, self.missed)
            if made is not None and self._is_allowed(made):
                return self._record(candidate, node, made)
        return None

    def _candidates(self, node: Node) -> list[tuple[Rule, Patterns]]:
        """The rules that could match, found once for all nodes alike in their operands' ops."""
        key = (node.op, *(i.op for i in node.inputs))
        found = self._by_ops.get(key)
        if found is None:
            near = [(rule, _near(rule, node)) for rule in self.rules.for_op(node.op)]
            found = self._by_ops[key] = [(rule, patterns) for rule, patterns in near if patterns]
        return found

    def _is_allowed(self, made: Node) -> bool:
        """May everything be there that a rule has added?"""
        if self.allows is _anything:
            return True
        stack, seen = [made], {made}
        while stack:
            node = stack.pop()
            if node in self._settled:
                continue
            if not self.allows(node):
                return False
            fresh = [i for i in node.inputs if i not in seen]
            seen.update(fresh)
            stack += fresh
        return True

    def _record(self, by: Rule, node: Node, made: Node) -> Node:
        self.fired.append(Fired(by.name, by.identity, node.label, made.label))
        self._by[node] = by.name
        self._carry(node, made, Origin("rule", by.name))
        return made

    def _carry(self, node: Node, made: Node, *more: Origin) -> None:
        """The replacement comes from where the node came from. Leaves are known by their names."""
        if made.op not in ("input", "param") and len(made.origins) < MAX_ORIGINS:
            self.new.add_origins(made, (*node.origins, *more))

    def _endless(self, stack: Sequence[Node]) -> Error:
        names = dict.fromkeys(self._by[n] for n in stack if n in self._by)
        return Error(
            f"rules {', '.join(names)} undo or feed each other at {stack[0].label}. "
            "This is a mistake in the rules, not in the model: please report it."
        )


def _reads(graph: Graph) -> dict[Node, int]:
    """How often each node is read; being an output is one more time."""
    counts: dict[Node, int] = dict.fromkeys(graph.outputs, 0)
    for node in graph.order():
        for i in dict.fromkeys(node.inputs):
            counts[i] = counts.get(i, 0) + 1
    for output in graph.outputs:
        counts[output] += 1
    return counts
