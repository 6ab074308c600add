"""Laws of the op table: nobody wrote these cases, they follow from the declarations.

For every op and 8 drawn applications of it, or 24 in `make test-thorough`: the shape rule gives
what the reference gives; memory order of operands does not matter; the text form parses back; the
lowering means the same; symbolic shapes bind to the concrete ones; views lie where the values are.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from rlx.core.attrs import bind
from rlx.core.dim import Dim, provably_le
from rlx.core.errors import GraphError
from rlx.core.extent import measure
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ir.text import read, show
from rlx.ops import op as table
from rlx.ops.draw import Case, Draw
from rlx.ops.operands import computable, python_names
from tests.effort import tries

CASES = tries(8, 24)
OPS = table.table()
DRAWN = [o for o in OPS.values() if not o.why_no_cases]


def draws(op: table.Op, law: str) -> list[tuple[Case, list[np.ndarray]]]:
    """`CASES` applications of `op`, the same on every run."""
    found = []
    for i in range(CASES):
        draw = Draw([zlib.crc32(f"{law} {op.name}".encode()), i])
        case = draw.case(op)
        found.append((case, draw.arrays(case)))
    return found


def built(case: Case) -> Graph:
    """A graph that applies the op to inputs."""
    g = Graph(case.op.name)
    operands = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
    node = g.node(case.op, operands, case.attrs)
    items = range(len(node.shapes))
    g.set_outputs(
        [g.node("item", (node,), {"index": i}) for i in items] if node.has_items else [node]
    )
    return g


def named(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": a for i, a in enumerate(arrays)}


def as_tuple(value: object) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def assert_same(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Bit for bit, but any NaN is a NaN."""
    assert got.dtype == want.dtype, message
    assert got.shape == want.shape, message
    if want.dtype.kind in "fcV":
        got, want = got.astype(_wide(want)), want.astype(_wide(want))
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    np.testing.assert_array_equal(got, want, err_msg=message)


def _wide(a: np.ndarray) -> type:
    return np.complex128 if a.dtype.kind == "c" else np.float64


@pytest.mark.parametrize("op", DRAWN, ids=lambda o: o.name)
def test_shape_rule_is_what_the_reference_gives(op: table.Op) -> None:
    for case, arrays in draws(op, "shape"):
        shapes = [Shape(a.shape, a.dtype) for a in arrays]
        attrs = op.canonical(case.attrs, shapes)
        results = op.infer(shapes, attrs)
        with np.errstate(all="ignore"):
            made = op.reference(*_computable(op, arrays), **python_names(attrs))
        for value, shape in zip(as_tuple(made) if len(results) > 1 else [made], results):
            value = value[0] if isinstance(value, tuple) else value
            found = measure(shape.dims, np.shape(value))
            assert np.shape(value) == shape.bind(found).dims, f"{case}: rule {shape}"
        assert provably_le(0, op.flops(shapes, results, attrs))


def _computable(op: table.Op, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return arrays if op.is_exact else [computable(a) for a in arrays]


@pytest.mark.parametrize("op", DRAWN, ids=lambda o: o.name)
def test_memory_order_of_operands_does_not_matter(op: table.Op) -> None:
    for case, arrays in draws(op, "order"):
        plain = as_tuple(
            op.run([np.ascontiguousarray(a).reshape(a.shape) for a in arrays], case.attrs)
        )
        other = as_tuple(
            op.run([np.asfortranarray(a).reshape(a.shape) for a in arrays], case.attrs)
        )
        for a, b in zip(plain, other):
            assert_same(b, a, f"{case}")


def _eps(a: np.ndarray) -> float:
    if a.dtype.kind == "c":
        return float(np.finfo(a.real.dtype).eps)
    return (
        2.0**-7
        if a.dtype.kind == "V" or a.dtype.name == "bfloat16"
        else float(np.finfo(a.dtype).eps)
    )


def _finite(a: np.ndarray) -> np.ndarray:
    """Values as numbers that compare: halves as f64."""
    return a.astype(np.float64) if a.dtype.name in ("bfloat16", "float16") else a


def _scale(result: np.ndarray, arrays: list[np.ndarray]) -> float:
    """The size of the numbers that were added up."""
    sizes = [1.0]
    for a in (result, *arrays):
        with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
            wide = np.abs(_finite(a)).astype(np.float64) if a.dtype.kind != "b" else np.zeros(1)
        wide = wide[np.isfinite(wide)]
        sizes.append(float(wide.max()) if wide.size else 0.0)
    return max(sizes)


@pytest.mark.parametrize("op", DRAWN, ids=lambda o: o.name)
def test_text_parses_back(op: table.Op) -> None:
    for case, _ in draws(op, "text"):
        g = built(case)
        text = show(g)
        assert read(text) == g, text
        assert show(read(text)) == text


def expanded(graph: Graph) -> set[str]:
    """The ops of a graph, and of every lowering of them, to the last."""
    found: set[str] = set()
    todo = [graph]
    for each in todo:
        for node in each.order():
            todo += [v for v in node.attrs.values() if isinstance(v, Graph)]
            is_opened = node.decl.kind is table.Kind.CONTROL or node.op in found
            if node.decl.lower is not None and not is_opened:
                low = Graph("low")
                inputs = [low.input(f"x{i}", v.shape) for i, v in enumerate(node.inputs)]
                low.set_outputs(list(node.decl.lowered(inputs, node.attrs, low)))
                todo.append(low)
            found.add(node.op)
    return found


@pytest.mark.parametrize("op", DRAWN, ids=lambda o: o.name)
def test_an_op_says_whether_it_holds_an_fft(op: table.Op) -> None:
    holding = ["fft" in expanded(built(case)) for case, _ in draws(op, "fft")[:6]]
    assert any(holding) == op.has_fft


LOWERED = [o for o in DRAWN if o.lower is not None]


@pytest.mark.parametrize("op", LOWERED, ids=lambda o: o.name)
def test_lowering_means_the_same(op: table.Op) -> None:
    for case, arrays in draws(op, "lowering"):
        g = built(case)
        low = g.rebuild()
        node = next(n for n in low.order() if n.op == op.name)
        low.set_outputs(list(op.lowered(node.inputs, node.attrs, low)))
        own = [i.shape for i in node.inputs]
        assert all(n.op != op.name or [i.shape for i in n.inputs] != own for n in low.order()), (
            f"{op.name} lowers to itself"
        )
        want, got = evaluate(g, named(arrays)), evaluate(low, named(arrays))
        magnitude = _magnitude(low, arrays)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype
            _assert_close(a, b, magnitude, f"{case}")


def _magnitude(graph: Graph, arrays: list[np.ndarray]) -> float:
    """The greatest finite number that occurs while the graph is evaluated.

    Every step rounds by at most eps times its own value; a lowering has few steps, so its error
    is a small multiple of eps times the greatest of them.
    """
    inner = graph.rebuild()
    inner.set_outputs([n for n in inner.order() if not n.has_items])
    return max(_scale(v, []) for v in evaluate(inner, named(arrays)))


def _assert_close(got: np.ndarray, want: np.ndarray, magnitude: float, message: str) -> None:
    assert got.shape == want.shape, message
    if want.dtype.kind not in "fcV":
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    a, b = got.astype(_wide(want)), want.astype(_wide(want))
    atol = 256 * _eps(want) * min(magnitude, 1e6)
    np.testing.assert_allclose(a, b, rtol=256 * _eps(want), atol=atol, err_msg=message)


@pytest.mark.parametrize("op", DRAWN, ids=lambda o: o.name)
def test_symbolic_shapes_bind_to_the_concrete_ones(op: table.Op) -> None:
    admitted = 0
    for case, _ in draws(op, "symbolic"):
        concrete = [Shape(s.dims, s.dtype) for s in case.specs]
        attrs = op.canonical(case.attrs, concrete)
        want = op.infer(concrete, attrs)
        for size in sorted({d for s in concrete for d in s.dims if d > 1}):
            n = Dim("n", 0)
            open_shapes = [s.with_dims(n if d == size else d for d in s.dims) for s in concrete]
            for given in (attrs, opened(attrs, size, n)):
                try:
                    got = op.infer(open_shapes, given)
                except GraphError:
                    continue  # an attribute fixes the size, so the named dim is refused: sound
                admitted += 1
                assert tuple(s.bind({"n": size}) for s in got) == want, f"{case}: n={size}"
                assert all(bind(v, {"n": size}) == attrs[k] for k, v in given.items())
    needs_sizes = op.why_static or not any(
        d for c, _ in draws(op, "symbolic") for s in c.specs for d in s.dims if d > 1
    )
    assert admitted or needs_sizes, f"{op.name} takes no symbolic dim at all"


def opened(attrs: dict, size: int, n: Dim) -> dict:
    """The attributes with target dims named like the operands'."""
    return {
        k: tuple(n if d == size else d for d in v) if k == "dims" else v for k, v in attrs.items()
    }


VIEWS = [o for o in DRAWN if o.view_rule is not None]


@pytest.mark.parametrize("op", VIEWS, ids=lambda o: o.name)
def test_views_lie_where_the_values_are(op: table.Op) -> None:
    for case, arrays in draws(op, "view"):
        x = np.ascontiguousarray(arrays[0]).reshape(arrays[0].shape)
        shapes = [Shape(a.shape, a.dtype) for a in arrays]
        attrs = op.canonical(case.attrs, shapes)
        layout = op.view_rule(Layout.contiguous(x.shape), **attrs)
        want = op.run([x], attrs)
        if layout is None or x.size == 0 or want.size == 0 or want.dtype != x.dtype:
            continue
        seen = np.ndarray(
            want.shape,
            x.dtype,
            x.tobytes(),
            layout.offset * x.itemsize,
            tuple(s * x.itemsize for s in layout.strides),
        )
        assert_same(seen, want, f"{case}")


def test_every_op_has_laws_cost_and_lowering_or_says_why() -> None:
    for op in OPS.values():
        assert op.doc, f"{op.name} has no docstring"
        assert op.lower is not None or op.why_no_lowering, f"{op.name}: no lowering, no reason"
