"""Matrix products with bias and activation; horizontal fusion of products with one operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.errors import GraphError
from rlx.ir.mir import Node
from rlx.ops.op import Kind
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.patterns.common import (
    at_each,
    concatenated,
    flat,
    is_linear,
    only_last_differs,
    other_operand,
    why_escapes,
)

BIAS_ACT = "fuse_matmul_bias_act"
SHARED = "fuse_shared_input_matmul"


def activation_after(node: Node, facts: Facts) -> Node | None:
    """The activation that alone reads `node`: elementwise, of one operand, as it is by default."""
    user = facts.sole_user(node)
    if user is None or user.decl.kind is not Kind.ELEMENTWISE or user.inputs != (node,):
        return None
    is_plain = dict(user.attrs) == _defaults(user)
    return user if is_plain and user.shape == node.shape else None


def _defaults(node: Node) -> dict[str, Any] | None:
    """The attributes the op has where none are given; None where some must be."""
    try:
        return node.decl.canonical({}, [i.shape for i in node.inputs])
    except GraphError:
        return None


def _bias_of(add: Node, product: Node) -> Node | None:
    """The other operand of `add`, if it is a vector along the last axis of the product."""
    other = other_operand(add, product)
    if other is None or not only_last_differs(other, product.shape.rank):
        return None
    return other if other.shape.dims[-1] == product.shape.dims[-1] else None


def _bias_act(node: Node, facts: Facts) -> Found:
    """x · w + bias, and the activation behind it where there is one."""
    if not is_linear(node):
        return None
    adds = [u for u in facts.users[node] if u.op == "add"]
    biased = [u for u in adds if _bias_of(u, node) is not None]
    if not biased:
        return _with_wide_bias(node, adds, facts)
    if reason := why_escapes((node,), biased[:1], facts):
        return Miss(BIAS_ACT, node, reason)
    return _bias_match(node, biased[0], facts)


def _with_wide_bias(node: Node, adds: list[Node], facts: Facts) -> Found:
    """A weight added that is no vector is a miss; a value of the call is a residual."""
    for add in adds:
        other = other_operand(add, node)
        if other is not None and facts.is_weight(other) and other.shape.rank > 1:
            return Miss(BIAS_ACT, node, reasons.BIAS_SHAPE)
    return None


def _bias_match(node: Node, add: Node, facts: Facts) -> Match:
    bias = _bias_of(add, node)
    assert bias is not None
    last = activation_after(add, facts)
    removed = (node, add) if last is None else (node, add, last)
    attrs = {"activation": None if last is None else last.op}
    return Match(
        BIAS_ACT,
        removed[-1:],
        removed,
        (*node.inputs, bias),
        lambda x, w, b: (x.graph.node("fused_matmul_bias_act", (x, w, flat(b)), attrs),),
    )


def fuse_shared_input_matmul(facts: Facts) -> Iterator[Match | Miss]:
    """Several products of one value with weights: one product with the weights concatenated."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in facts.order:
        if node in facts.per_call and _has_static_weights(node, facts):
            key = (node.op, node.inputs[0], node.attrs.get("activation"))
            groups.setdefault(key, []).append(node)
    for products in groups.values():
        if len(products) > 1:
            yield _shared_match(products, facts)


def _has_static_weights(node: Node, facts: Facts) -> bool:
    """A product with weights of known width."""
    if node.op == "fused_matmul_bias_act":
        fits = len(node.inputs) == 3 and node.inputs[1].shape.rank == 2
    else:
        fits = is_linear(node)
    weights = node.inputs[1:]
    return fits and all(facts.is_weight(w) and w.shape.is_static for w in weights)


def _shared_match(products: Sequence[Node], facts: Facts) -> Match:
    """One product for all; a concat of some of them is then a part of it."""
    product_concat = next((j for p in products for j in _product_concats(p, products, facts)), None)
    first = () if product_concat is None else product_concat.products
    ordered = tuple(dict.fromkeys((*first, *products)))
    arity = len(ordered[0].inputs) - 1
    widths = [p.shape.dims[-1] for p in ordered]
    weights = [w for p in ordered for w in p.inputs[1:]]
    decl, attrs = ordered[0].decl, ordered[0].attrs
    hides = product_concat is not None and product_concat.hides_all

    def make(x: Node, *given: Node) -> list[Node]:
        sides = [concatenated(given[i::arity], axis=1 - i) for i in range(arity)]
        whole = x.graph.node(decl, (x, *sides), attrs)
        if product_concat is None or not hides:
            return _slices(whole, widths)
        count = len(product_concat.products)
        front, *rest = _slices(whole, [sum(widths[:count]), *widths[count:]])
        return [product_concat.applied(front if rest else whole), *rest]

    roots = (
        (product_concat.concat, *ordered[len(product_concat.products) :])
        if product_concat and hides
        else ordered
    )
    removed = (
        (*ordered, *product_concat.between, product_concat.concat)
        if product_concat and hides
        else ordered
    )
    return Match(SHARED, roots, removed, (ordered[0].inputs[0], *weights), make)


@dataclass(frozen=True, slots=True)
class _ProductConcat:
    """A concat along the last axis of products, or of one function of each."""

    concat: Node
    products: tuple[Node, ...]
    between: tuple[Node, ...]
    """The function of each product; nothing where the concat reads the products themselves."""
    hides_all: bool
    """Does nothing else read the products?"""

    def applied(self, value: Node) -> Node:
        if not self.between:
            return value
        return value.graph.node(self.between[0].decl, (value,), self.between[0].attrs)


def _product_concats(
    product: Node, products: Sequence[Node], facts: Facts
) -> Iterator[_ProductConcat]:
    """The concats that read `product` with others of `products`, itself or through one op."""
    last = product.shape.rank - 1
    through = [u for u in facts.users[product] if u.decl.kind is Kind.ELEMENTWISE]
    for value in (product, *through):
        for concat in facts.users[value]:
            if concat.op == "concat" and concat.attrs["axis"] == last:
                found = _product_concat(
                    concat, value if value is not product else None, products, facts
                )
                if found is not None:
                    yield found


def _product_concat(
    concat: Node, step: Node | None, products: Sequence[Node], facts: Facts
) -> _ProductConcat | None:
    """The concat, where each of its operands is a product, or what `step` is of one."""
    read = concat.inputs
    if step is not None:
        if not all(_is_same(step, i) for i in read):
            return None
        read = tuple(i.inputs[0] for i in read)
    if len(set(read)) < len(read) or not all(r in products for r in read):
        return None
    between = concat.inputs if step is not None else ()
    inner = (*read, *between)
    hides = all(facts.is_inner(n, (*between, concat)) and not facts.is_output(n) for n in inner)
    return _ProductConcat(concat, read, between, hides) if hides or step is None else None


def _is_same(one: Node, other: Node) -> bool:
    """The same function of one operand."""
    return other.op == one.op and len(other.inputs) == 1 and other.attr_key == one.attr_key


def _slices(whole: Node, widths: list[int]) -> list[Node]:
    """Slices of `widths` along the last axis."""
    axis, start, slices = whole.shape.rank - 1, 0, list[Node]()
    for width in widths:
        attrs = {"axis": axis, "start": start, "length": width}
        slices.append(whole.graph.node("narrow", (whole,), attrs))
        start += width
    return slices


fuse_matmul_bias_act = at_each("matmul", _bias_act)
