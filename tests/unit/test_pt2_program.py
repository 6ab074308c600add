"""The text of exported programs: sizes and structures are values, whoever wrote them."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from rlx.core.errors import Error
from rlx.frontends.torch.pt2_program import checked_program, expression, identifier, structure

S = "Symbol('s10', positive=True, integer=True)"


@pytest.mark.parametrize("text", [
    S, "s0 + 1", "Integer(-3)", f"Add(FloorDiv(Add({S}, Integer(-3)), Integer(2)), Integer(1))",
    f"TruncToInt(Mul(Float('1.5', precision=53), ToFloat({S})))",
    f"FloatPow(ToFloat({S}), Float('0.5', precision=53))", f"Pow({S}, Integer(2))",
    "GreaterThan(Symbol('u0', integer=True), Integer(0))", "s0*s1 // (s2 + 1)", "2 <= s0",
    "*".join(f"Max(Integer(1), FloorDiv(s{i}, Integer(2)))" for i in range(8)),
    " + ".join(f"s{i}" for i in range(40)), "((s0 + 1)**2 - 1)//2", "Pow(Integer(2), Integer(60))",
])  # fmt: skip
def test_sizes_of_exports_stay_as_they_are(text: str) -> None:
    assert ast.dump(ast.parse(expression(text))) == ast.dump(ast.parse(text))


@pytest.mark.parametrize("text", [
    "", "x y", "__import__('os')", "s0.__class__", "(lambda: 1)()", "[1]", "s0[0]", "f'{s0}'",
    "Max(*s0)", "Add(s0, x=1)", "open('x')", "Symbol(s0)", "Symbol('s0', positive=open('x'))",
    "Symbol('a.b')", "Integer('1')", "Integer(open)", "Float('nan')", "Float(s0)", "'s0'", "None",
    "1j", "s0 if s1 else s2", "(s0 := 1)", "9**9**9", "2**s0", "Pow(2, s0)", "LShift(1, s0)",
    "s0 << 999999", "Pow(Pow(s0, 16), 16)", "(s0 + s1 + s2 + s3)**4", f"{'9' * 500}*{'9' * 500}",
    "9" * 5000, "(" * 300 + "s0" + ")" * 300, "-" * 20_000 + "1", "s0\0", "u12345678",
    "Float('1', precision=10000)", "Float('1e999')",
])  # fmt: skip
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Error):
        expression(text)


def tree(kind: str | None, context: Any, *children: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": list(children)}


def test_structures_hold_values_alone() -> None:
    leaf = tree(None, None)
    good = tree("builtins.tuple", "null", leaf, tree("builtins.dict", '["a", "b"]', leaf, leaf))
    held = {"default_factory_module": "builtins", "default_factory_name": "list"}
    for found in (good, tree("collections.defaultdict", {**held, "dict_context": []})):
        assert json.loads(structure(json.dumps([1, found]))) == [1, found]
    for bad in (
        tree("x", '{"__enum__": true}'), tree("x", '[[{"\\u005f_enum__": true}]]'),
        tree("x", {"a": {"__enum__": 1}}), tree("x", {**held, "default_factory_module": "os"}),
        tree("x", {**held, "default_factory_name": "open"}), tree("x", "[", leaf), {}, [], None, 3,
        tree("builtins.tuple", "null", tree("x", '{"__enum__": 1}')),
    ):  # fmt: skip
        with pytest.raises(Error):
            structure(json.dumps([1, bad]))


def test_a_text_of_no_known_field_is_a_name() -> None:
    for bad in ("x=1", "x\ny", "a b", "é", "x" * 2000, "1x", "a.b"):
        with pytest.raises(Error, match="is no name"):
            checked_program({"graph": [{"later": bad}]})
        with pytest.raises(Error, match="is no name"):
            checked_program({bad: 1})
    assert identifier("x_1") == "x_1"
    kept = {"tensor_values": {"metadata": {"dtype": 7}}, "as_string": "any text\n", "n": [1, None]}
    assert checked_program({**kept, "guards_code": ["f()"]}) == {**kept, "guards_code": []}
