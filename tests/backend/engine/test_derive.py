"""Derived calls: NumPy meanings on another namespace, and the table that lists them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.engine.calls import CallTable
from rlx.backends.engine.derive import Derivation
from rlx.backends.engine.lazy import lazy
from rlx.ops import op as table
from tests.backend.engine.numpy_engine import NumpyEngine


class Recording:
    """NumPy's names; those that were asked for are kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(np, name)


def derived(op: str, *arrays: Any, **attrs: Any) -> tuple[Any, list[str]]:
    space = Recording()
    made = Derivation(space, lambda op: op.reference).function(table.lookup(op).reference)
    with np.errstate(all="ignore"):
        return made(*arrays, **attrs), space.asked


X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("exp", {}),
        ("softmax", {"axis": 1}),
        ("silu", {}),
        ("layer_norm", {}),
        ("cumsum", {"axis": 0}),
        ("log_softmax", {"axis": 1}),
    ],
)
def test_a_meaning_asks_the_namespace_alone(op: str, attrs: dict[str, Any]) -> None:
    given = [X, np.ones(4, np.float32), np.zeros(4, np.float32)] if op == "layer_norm" else [X]
    want = table.lookup(op).run(given, attrs)
    canonical = table.lookup(op).canonical(attrs, [rlx.Shape(a.shape) for a in given])
    got, asked = derived(op, *given, **canonical)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert asked, f"{op} was computed by NumPy itself"


def test_the_original_stays_as_it_is() -> None:
    reference = table.lookup("softmax").reference
    before = dict(reference.__globals__)
    derived("softmax", X, axis=1)
    assert table.lookup("softmax").reference is reference
    assert all(reference.__globals__[k] is v for k, v in before.items())


def test_an_engine_derives_a_call_once() -> None:
    engine = NumpyEngine()
    op = table.lookup("add")
    assert engine.function(op) is engine.function(op)


def test_an_op_has_one_call_and_must_exist() -> None:
    calls = CallTable("some")
    calls.derived("add")
    with pytest.raises(rlx.Error, match="add has two calls"):
        calls.derived("add")
    with pytest.raises(rlx.GraphError, match="no op 'ad'"):
        calls.derived("ad")


def test_a_lazy_module_is_imported_by_its_first_attribute() -> None:
    space = lazy("json")
    assert repr(space) == "json"
    assert space.loads("1") == 1
    missing = lazy("a_module_that_nobody_has")
    with pytest.raises(ModuleNotFoundError):
        missing.name.other  # noqa: B018
