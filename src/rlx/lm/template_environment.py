"""The sandbox of chat templates: jinja2's, with each operation within the bounds of a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from rlx.lm.template_bounds import (
    BUDGET,
    FILTERS,
    MAX_DEPTH,
    Exceeded,
    allow,
    bounded,
    called,
    combined,
    copied,
    created,
    weighed,
)

MAX_NODES, MAX_BRANCHES, MAX_NAMES = 20_000, 1000, 256
"""Of a template: jinja2 compiles in the product of branches and names."""
STATEMENTS = (
    nodes.Output, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With,
    nodes.Assign, nodes.AssignBlock, nodes.ExprStmt,
)  # fmt: skip


class Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which everything that a template does is paid for."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, filters: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_finalized,
            cache_size=0,
        )  # fmt: skip
        known = {n: f for n, f in self.filters.items() if n in FILTERS} | dict(filters)
        self.filters = {n: bounded(n, f) for n, f in known.items()}
        self.tests = {n: bounded(n, f) for n, f in self.tests.items()}
        self.globals = {**functions, "namespace": Namespace}

    def _parse(self, source: str, name: Any, filename: Any) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_tree(tree)
        return _Charged().visit(tree)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        del context
        return combined(operator, self.binop_table[operator], left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
        """As jinja2's, whose names keep out of the way of keywords."""
        if getattr(__obj, "__self__", None) is __self:
            return __obj(*args)
        given = {k: v for k, v in named.items() if k not in ("_loop_vars", "_block_vars")}
        args = called(__obj, args, given)
        if isinstance(__obj, LoopContext):
            BUDGET.get().spend(8)
        made = super().call(__context, __obj, *args, **named)
        return made if isinstance(__obj, Macro | LoopContext) else created(made)

    def spend(self, steps: int, chars: int) -> bool:
        """Run a body once."""
        BUDGET.get().spend(steps)
        BUDGET.get().write(chars)
        return True

    def weighed(self, value: Any) -> Any:
        """An operand that is read from end to end."""
        weighed(value)
        return value

    def copied(self, value: Any) -> Any:
        """An operand of which a part is copied."""
        copied(value)
        return value

    def created(self, value: Any) -> Any:
        """A list, tuple or dict that is written out."""
        return created(value)

    def concatenated(self, *values: Any) -> str:
        """`a ~ b`."""
        allow(weighed(*values))
        return "".join(str(_finalized(None, v)) for v in values)


@pass_context
def _finalized(context: Any, value: Any) -> Any:
    """What is written: texts, numbers, and lists and dicts of them."""
    del context
    if isinstance(value, Undefined):
        return value
    if isinstance(value, Namespace | Macro | LoopContext) or callable(value):
        raise Exceeded("it writes what is no value")
    allow(weighed(value))
    return value


def _check_tree(tree: nodes.Node) -> None:
    """Refuse statements that read other templates, and what is nested so deeply that compiling it
    would end the process' stack."""
    count, level = 0, [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        count += len(level)
        if count > MAX_NODES:
            raise Exceeded(f"it has more than {MAX_NODES:,} nodes")
        for node in level:
            if isinstance(node, nodes.Stmt) and not isinstance(node, STATEMENTS):
                raise Exceeded(f"it has a statement {type(node).__name__.lower()!r}")
        if not level:
            return _check_names(tree)
    raise Exceeded("it is nested too deeply")


def _check_names(tree: nodes.Node) -> None:
    names = {n.name for n in tree.find_all(nodes.Name) if n.ctx != "load"}
    branches = sum(1 for _ in tree.find_all((nodes.If, nodes.For, nodes.CondExpr)))
    if len(names) > MAX_NAMES or branches > MAX_BRANCHES:
        raise Exceeded(f"it has more than {MAX_BRANCHES:,} branches, or {MAX_NAMES} names")


class _Charged(NodeTransformer):
    """Bodies that pay when they are run, and operands that are weighed."""

    def visit_For(self, node: Any) -> Any:
        cost = _cost([*node.body, *([node.test] if node.test else ())])
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_call("spend", *cost), node.test)
        node.body.insert(0, nodes.ExprStmt(_call("spend", *cost)))
        return node

    def visit_Macro(self, node: Any) -> Any:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("spend", *cost)))
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("concatenated", *node.nodes)

    def visit_Compare(self, node: Any) -> Any:
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _call("created", nodes.Getitem(_call("copied", node.node), node.arg, node.ctx))
        return node

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("created", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: Any) -> Any:
        self.generic_visit(node)
        return _call("created", node) if node.ctx == "load" else node


def _call(name: str, *args: Any) -> Any:
    given = [a if isinstance(a, nodes.Node) else nodes.Const(a) for a in args]
    return nodes.Call(nodes.EnvironmentAttribute(name), given, [], None, None)


def _weighed(node: Any) -> Any:
    return node if isinstance(node, nodes.Const) else _call("weighed", node)


def _cost(body: list[Any]) -> tuple[int, int]:
    """Nodes of a body, and the characters that it writes as they are."""
    inner = [n for node in body for n in (node, *node.find_all(nodes.Node))]
    texts = sum(len(n.data) for n in inner if isinstance(n, nodes.TemplateData))
    return 1 + len(inner) // 32, texts
