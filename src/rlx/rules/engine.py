"""The rewrite engine: rules are data, applied bottom-up to a fixpoint, and every firing is logged.

    @rule(lambda x, y: ops.transpose(ops.matmul(x, y), perm=p))
    def transpose_of_matmul(x, y, p): ...

A rule's pattern is made by calling table ops with variables. Its function gets the variables it
names, and on request `node` (the matched node), `uses` (how often a node is read), and `starts`
(where the parts of a concat or a split begin: a sweep computes it once for all who read one).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlx.core.dim import DimLike
from rlx.core.errors import Error
from rlx.ir.mir import NAMED_LEAVES, STEADY, Graph, Node, Origin
from rlx.ir.outline import place_of
from rlx.ops.op import Kind, Var
from rlx.rules.match import ANYTHING, Env, Guard, Patterns, guard_of, matches, passes, roots_of

Uses: TypeAlias = Callable[[Node], int]
Allows: TypeAlias = Callable[[Node], bool]
Ask: TypeAlias = Callable[[str, str, Node], Any]
"""Rule, identity and node → the decision: something with an `id` and a `verdict`."""
Starts: TypeAlias = Callable[[Node], Sequence[DimLike]]
"""Where the operands of a concat begin along its axis, or the results of a split; then its end."""
MAX_CHAIN = 1000
"""Firings in a chain from one node; rules that need more do not terminate."""
MAX_SWEEPS = 16
"""Sweeps for rules that depend on use counts; each one only lowers them."""
MAX_ORIGINS = 16
"""Origins carried onto a replacement: enough to find the source, and merging stays linear."""


@dataclass(frozen=True, slots=True)
class No:
    """A rule that looked and declined, with the reason."""

    reason: str


def no(reason: str) -> No:
    """What a rule returns where it nearly applies: the miss is recorded."""
    return No(reason)


@dataclass(frozen=True, slots=True)
class Rule:
    """A named identity, directed from its patterns to what `make` returns."""

    name: str
    identity: str
    patterns: Patterns
    make: Callable[..., Any]
    sample: Callable[..., Any] | None = None
    slack: float = 0.0
    """Tolerance between the two sides, in units of eps of the result's largest element."""
    refines: bool = False
    """The replacement is finite where the decomposition overflows midway."""
    valid_in_half_precision: bool = False
    """The slack is the order of sums, or an error of the reference, so that both sides round to the
    same f16 or bf16; or the values whose rounding is dropped have no other reader. Any other rule
    with a slack drops a visible rounding, so it does not apply to f16 and bf16."""
    domain: str = "any"
    """Which values a proof draws: `any`, or `plain` where infinities follow no law."""
    why: str = ""
    """Where the slack comes from."""

    when: Callable[[Node], bool] | None = None
    """A cheap guard before matching, for rules without a pattern."""
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
    id: str = ""
    """Names this firing for `force`; stable like the id of any decision."""

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
    *patterns: Callable[..., Any],
    sample: Callable[..., Any] | None = None,
    slack: float = 0.0,
    refines: bool = False,
    valid_in_half_precision: bool = False,
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
            make.__name__, identity, made, make, sample, slack, refines, valid_in_half_precision,
            domain, why, when, tuple(inspect.signature(make).parameters),
            tuple(map(guard_of, made)),
        )  # fmt: skip

    return declare


# -- rewriting ------------------------------------------------------------------------------------


def starts_of(node: Node) -> list[DimLike]:
    """Where the parts along the axis begin, and where the last ends."""
    axis = node.attrs["axis"]
    is_split = node.op == "split"
    sizes = node.attrs["sizes"] if is_split else [i.shape.dims[axis] for i in node.inputs]
    return list(itertools.accumulate(sizes, initial=0))


def step(
    candidate: Rule,
    node: Node,
    uses: Uses,
    missed: list[Missed] | None = None,
    starts: Starts = starts_of,
) -> Node | None:
    """One rule at one node: what the node becomes, or None."""
    return _step(candidate, _near(candidate, node), node, Scope(uses, starts), missed)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule may ask of the graph around a match."""

    uses: Uses
    starts: Starts


def _near(candidate: Rule, node: Node) -> Patterns:
    """The patterns that could match, going by the ops of the operands alone."""
    pairs = zip(candidate.patterns, candidate.guards)
    return tuple(pattern for pattern, guard in pairs if passes(guard, node))


def _step(
    candidate: Rule, patterns: Patterns, node: Node, around: Scope, missed: list[Missed] | None
) -> Node | None:
    if candidate.when is not None and not candidate.when(node):
        return None
    if candidate.slack and not candidate.valid_in_half_precision and _is_half(node):
        return None
    for pattern in patterns:
        for env in matches(pattern, node, {}):
            made = _apply(candidate, node, env, around)
            if isinstance(made, No):
                if missed is not None:
                    missed.append(Missed(candidate.name, node.label, made.reason))
            elif made is not None and made is not node:
                return _checked(candidate, node, made)
    return None


def _is_half(node: Node) -> bool:
    return any(s.dtype.compute is not s.dtype for s in node.shapes)


def _apply(candidate: Rule, node: Node, env: Env, around: Scope) -> Any:
    """What the rule's function makes of the match; what it builds says where it comes from."""
    scope: Env = {**env, "node": node, "uses": around.uses, "starts": around.starts}
    origins = (*node.origins[:MAX_ORIGINS], *_phases(node), Origin("rule", candidate.name))
    with node.graph.scope(*origins):
        return candidate.make(**{p: scope[p] for p in candidate.parameters})


def _phases(node: Node) -> tuple[Origin, ...]:
    return tuple(o for o in node.origins if o.kind == "phase")


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
        for op in dict.fromkeys(name for p in r.patterns for name in roots_of(p)):
            by_op.setdefault(op, [*everywhere]).append(r)
    return Ruleset(tuple(rules), {k: tuple(v) for k, v in by_op.items()}, everywhere)


def _anything(node: Node) -> bool:
    return True


def rewrite(
    graph: Graph,
    rules: Ruleset,
    log: list[Event] | None = None,
    allows: Allows = _anything,
    ask: Ask | None = None,
) -> Graph:
    """`graph` with `rules` applied bottom-up until none applies; nothing else is kept.

    A replacement that holds a node which is not allowed is not taken, nor one that `ask` has a
    verdict against. Use counts are those of the graph before the sweep, so the sweep is repeated
    while a rule that reads them met a shared node and another one has fired.
    """
    for _ in range(MAX_SWEEPS):
        sweep = _Sweep(graph, rules, allows, ask)
        graph = sweep.result()
        if log is not None:
            log += [*sweep.fired, *sweep.missed]
        if not (sweep.fired and sweep.has_met_shared):
            break
    return graph


class _Sweep:
    """Nodes of the new graph move forward, one step at a time, until nothing applies."""

    def __init__(self, old: Graph, rules: Ruleset, allows: Allows, ask: Ask | None = None) -> None:
        self.old, self.rules, self.new, self.allows = old, rules, old.successor(), allows
        self.ask = ask
        self.fired: list[Event] = []
        self.missed: list[Missed] = []
        self.has_met_shared = False
        self._settled: dict[Node, Node] = {}
        self._next: dict[Node, Node] = {}
        self._by: dict[Node, str] = {}
        self._uses: dict[Node, int] = {}
        self._by_ops: dict[tuple[str, ...], list[tuple[Rule, Patterns]]] = {}
        self._around = Scope(self.uses, functools.cache(starts_of))

    def result(self) -> Graph:
        reads = _reads(self.old)
        mapped: dict[Node, Node] = {}
        for node in self.old.order():
            inputs = tuple(mapped[i] for i in node.inputs)
            copy = self._copied(node, inputs)
            self.new.add_origins(copy, node.origins)
            made = mapped[node] = self._settle(copy)
            self._uses[made] = self._uses.get(made, 0) + reads.get(node, 0)
        self.new.set_results([mapped[o] for o in self.old.results], self.old)
        return self.new.rebuild() if self.fired else self.new

    def _copied(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """The node in the new graph; graphs held by control flow are rewritten first."""
        if node.decl.kind is not Kind.CONTROL:
            return self.new.copy(node, inputs)
        attrs = {k: self._body(v) for k, v in node.attrs.items()}
        return self.new.node(node.decl, inputs, attrs)

    def _body(self, value: Any) -> Any:
        if not isinstance(value, Graph):
            return value
        return rewrite(value, self.rules, self.fired, self.allows, self.ask)

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
            made = _step(candidate, patterns, node, self._around, self.missed)
            if made is not None and self._is_allowed(made):
                asked = self.ask and self.ask(candidate.name, candidate.identity, node)
                if asked is None or asked.verdict:
                    return self._record(candidate, node, made, asked.id if asked else "")
        return None

    def _candidates(self, node: Node) -> list[tuple[Rule, Patterns]]:
        """The rules that could match, cached by the ops of a node and its operands."""
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

    def _record(self, by: Rule, node: Node, made: Node, id_: str) -> Node:
        self.fired.append(Fired(by.name, by.identity, place_of(node), place_of(made), id_))
        self._by[node] = by.name
        self._carry(node, made, Origin("rule", by.name))
        if node.is_late:
            self._part_phases(node, made)
        return made

    def _part_phases(self, node: Node, made: Node) -> None:
        """What replaces a node of the Epilogue is of the Epilogue, but for what reads values from
        further up than the node did: that does work of the steady nodes that the rule took in."""
        near, above = set(node.inputs), set[Node]()
        for each in self._added(made):
            if each in self._settled:
                if each not in near and not each.is_late and each.op not in ("param", "constant"):
                    above.add(each)
            elif not above.isdisjoint(each.inputs):
                self.new.add_origins(each, (STEADY,))
                if each.decl.kind is Kind.MOVEMENT:
                    above.add(each)

    def _added(self, made: Node) -> list[Node]:
        """What a rule has made, and what that reads, inputs before users."""
        stack, seen = [made], {made}
        while stack:
            fresh = stack.pop()
            if fresh not in self._settled:
                stack += [i for i in fresh.inputs if i not in seen]
                seen.update(fresh.inputs)
        return sorted(seen, key=lambda n: n.index)

    def _carry(self, node: Node, made: Node, *more: Origin) -> None:
        """The replacement comes from where the node came from. Leaves are known by their names."""
        if made.op in NAMED_LEAVES:
            return
        is_short = len(made.origins) < MAX_ORIGINS
        self.new.add_origins(made, (*node.origins, *more) if is_short else _phases(node))

    def _endless(self, stack: Sequence[Node]) -> Error:
        names = dict.fromkeys(self._by[n] for n in stack if n in self._by)
        return Error(
            f"rules {', '.join(names)} undo or feed each other at {stack[0].label}. "
            "This is a mistake in the rules, not in the model: please report it."
        )


def _reads(graph: Graph) -> dict[Node, int]:
    """How often each node is read; being an output is one more time."""
    counts: dict[Node, int] = dict.fromkeys(graph.results, 0)
    for node in graph.order():
        for i in dict.fromkeys(node.inputs):
            counts[i] = counts.get(i, 0) + 1
    for output in graph.results:
        counts[output] += 1
    return counts
