"""Keys: every fact that a program depends on changes the request key and the fingerprint.

Facts are changed one at a time, field by field of the values that hold them, so that a field which
is added later and is in no key fails here.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import ISAS
from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.cost.target import FusionLimits, Target
from rlx.ir import fingerprint as fingerprints
from rlx.ir.mir import Graph, Node
from rlx.passes.options import DispatchPolicy, FusionOptions
from rlx.plan.planner import plan_module
from rlx.runtime import request_keys
from rlx.runtime.request_keys import entry_key, request_key
from rlx.runtime.session import Session

CPU = Target.of("cpu")
BASE: dict[str, Any] = {
    "graph": "g", "input": "x", "low": 1, "high": 10, "dim": "s", "dtype": "f32", "width": 4,
    "value": 1.0, "axis": -1, "op": "exp", "names": ("a", "b"), "swap": False, "param": "w",
}  # fmt: skip
OTHER: dict[str, Any] = {
    "graph": "h", "input": "y", "low": 0, "high": 100, "dim": "t", "dtype": "f64", "width": 5,
    "value": -1.0, "axis": 0, "op": "neg", "names": ("a", "c"), "swap": True, "param": "v",
}  # fmt: skip


def built(**changed: Any) -> Graph:
    how = {**BASE, **changed}
    g = Graph(how["graph"])
    shape = Shape([Dim(how["dim"], how["low"], how["high"]), how["width"]], how["dtype"])
    x, w = g.input(how["input"], shape), g.param(how["param"], Shape([how["width"]], how["dtype"]))
    y = getattr(g, how["op"])(g.mul(x, w))
    y = g.add(y, g.constant(np.full(how["width"], how["value"], shape.dtype.numpy)))
    made = [y, g.softmax(y, axis=how["axis"])][:: -1 if how["swap"] else 1]
    g.set_outputs(dict(zip(how["names"], made)))
    return g


def request(graph: Any, options: FusionOptions | None = None, target: Target = CPU) -> str:
    return request_key(graph, target, options or FusionOptions())


@pytest.mark.parametrize("fact", BASE)
def test_every_fact_of_a_graph_is_in_every_key(fact: str) -> None:
    base, other = built(), built(**{fact: OTHER[fact]})
    assert request(built()) == request(base)
    assert request(other) != request(base)
    assert plan_module(other, CPU).fingerprint != plan_module(base, CPU).fingerprint
    if fact != "graph":
        assert other.digest() != base.digest()
        assert other != base


def branched(most: int) -> Graph:
    g, body, shape = Graph("g"), Graph("body"), Shape([Dim("n", 1, most)])
    body.set_outputs([body.neg(body.input("x", shape))])
    flag, x = g.input("flag", Shape([], "bool")), g.input("y", shape)
    g.set_outputs([g.if_(flag, x, then=body, else_=body)[0]])
    return g


def windowed(length: Any) -> Graph:
    g = Graph("g")
    g.set_outputs([g.hann_window(length=length)])
    return g


def test_ranges_inside_bodies_and_attributes_count() -> None:
    assert branched(3) == branched(3)
    assert branched(3) != branched(4)
    bodies = [branched(m).outputs[0].inputs[0].attrs["then"] for m in (3, 4)]
    assert bodies[0].digest() != bodies[1].digest()
    sizes = [Dim("n", low, high) for low, high in ((0, 9), (1, 9), (1, 8), (1, None), (0, None))]
    formulas = [f(n) for n in sizes for f in (lambda n: n, lambda n: n * 2, lambda n: n // 2)]
    assert len({windowed(f).digest() for f in formulas}) == len(formulas)


def test_texts_of_attributes_do_not_run_together() -> None:
    from rlx.core.attrs import canonical

    values: list[Any] = [
        None, "None", 1, True, 1.0, "1", "(1,)", (1,), ((1,),), ("a,b",), ("a", "b"), 0.0,
        -0.0, rlx.DType.F32, "f32", Shape([2]), Dim("n"), "n", Dim("n", 1), Shape([Dim("n")]),
        Shape([Dim("n", 1)]), Shape([2], "f64"), (), "",
    ]  # fmt: skip
    assert len({canonical(v) for v in values}) == len(values)


EMPTY: list[Any] = [(), {}, [], frozenset()]
"""What has nothing in it that could be changed."""

# -- options, target, plan: every field of the values that hold them -----------------------------


def mutants(value: Any) -> Iterator[tuple[str, Any]]:
    """`value` with one fact changed: which one, and the whole."""
    match value:
        case None:
            yield "", 1
        case bool():
            yield "", not value
        case enum.Enum():
            yield "", next(m for m in type(value) if m is not value)
        case int() | float():
            yield "", value + 1
        case Dim():
            yield "", value + 1
        case str():
            yield "", f"{value}?"
        case frozenset():
            yield "", value | {"?"} if not value else frozenset(list(value)[1:])  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case Mapping():
            yield from _of_mapping(value)
        case (str(name), Node() as node):
            yield " renamed", (f"{name}?", node)
        case tuple() | list() if value:
            yield " less", value[1:]
            for label, other in mutants(value[0]):
                yield f"[0]{label}", type(value)([other, *value[1:]])
        case _ if is_dataclass(value):
            yield from _of_dataclass(value)
        case _:
            pass


def _of_mapping(value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, held in list(value.items())[:1]:
        yield f" without {key}", {k: v for k, v in value.items() if k != key}
        for label, other in mutants(held):
            yield f"[{key}]{label}", {**value, key: other}


def _of_dataclass(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        if each.name == "memo" or isinstance(getattr(value, each.name), Node):
            continue
        for label, other in mutants(getattr(value, each.name)):
            made = copy.copy(value)
            object.__setattr__(made, each.name, other)
            if "memo" in {f.name for f in fields(value)}:
                object.__setattr__(made, "memo", {})
            yield f".{each.name}{label}", made


def test_every_number_of_a_target_is_in_its_digest_and_in_both_keys() -> None:
    graph = built()
    lir = plan_module(graph, CPU)
    seen: set[str] = set()
    for label, other in mutants(CPU):
        seen.add(label.split(".")[1].split("[")[0].split()[0])
        assert other.digest() != CPU.digest(), label
        assert request(graph, target=other) != request(graph), label
        assert replace(lir, target=other).fingerprint != lir.fingerprint, label
    assert {f.name for f in fields(CPU) if getattr(CPU, f.name) not in EMPTY} <= seen


def test_large_numbers_of_a_target_are_exact() -> None:
    limits = [replace(CPU, machine=replace(CPU.machine, vector_bytes=2**60 + i)) for i in range(2)]
    assert limits[0].digest() != limits[1].digest()


OPTIONS: dict[str, list[FusionOptions]] = {
    "skip_fusion": [FusionOptions(skip_fusion=True)],
    "limits": [FusionOptions(limits=limits) for _, limits in mutants(FusionLimits())],
    "dispatch": [
        FusionOptions(dispatch=DispatchPolicy("force_common")),
        FusionOptions(dispatch=DispatchPolicy(force_common={"softmax"})),
        FusionOptions(dispatch=DispatchPolicy(force_native={"softmax"})),
    ],
    "force": [FusionOptions(force={"x": True}), FusionOptions(force={"x": False})],
    "precision": [FusionOptions(precision=p) for p in ("bf16", "int8", "int8:block=32")],
    "sizes": [FusionOptions(sizes={"s": 3}), FusionOptions(sizes={"s": 4})],
    "f64": [FusionOptions(f64="f32")],
    "at_end": [FusionOptions(at_end=names) for names in ([], ["a"], ["a", "b"])],
    "one_of": [FusionOptions(one_of=[("a", "b")]), FusionOptions(one_of=[("a", "c")])],
}


def test_every_option_is_in_both_keys() -> None:
    assert set(OPTIONS) == {f.name for f in fields(FusionOptions)}
    every = [FusionOptions(), *(o for made in OPTIONS.values() for o in made)]
    graph = built()
    assert len({request(graph, o) for o in every}) == len(every)
    lir = plan_module(graph, CPU)
    assert len({replace(lir, options=o.text()).fingerprint for o in every}) == len(every)


def test_every_field_of_a_plan_is_in_the_fingerprint_and_so_in_the_key_of_a_lir() -> None:
    lir = plan_module(built(), CPU)
    seen: set[str] = set()
    for label, plan in mutants(lir.plan):
        seen.add(label.split(".")[1].split("[")[0].split()[0])
        other = replace(lir, plan=plan)
        assert other.fingerprint != lir.fingerprint, label
        assert request(other) != request(lir), label
    assert {f.name for f in fields(lir.plan) if getattr(lir.plan, f.name) not in EMPTY} <= seen


def test_views_and_splits_count() -> None:
    g = Graph("g")
    x = g.input("x", Shape([4, 6]))
    y = g.exp(x)
    g.set_outputs([g.neg(g.narrow(y, axis=0, start=1, length=2)), g.sum(y, axes=(0,))])
    lir = plan_module(g, CPU)
    assert lir.plan.views
    for label, plan in mutants(lir.plan):
        assert replace(lir, plan=plan).fingerprint != lir.fingerprint, label
    step = lir.plan.schedule[0]
    marks = {replace(lir, split=s).fingerprint for s in ({}, {step: True}, {step: False})}
    assert len(marks) == 3


def test_a_plan_of_another_graph_is_an_error() -> None:
    lir, other = plan_module(built(), CPU), plan_module(built(), CPU)
    with pytest.raises(rlx.GraphError, match="which its graph does not compute"):
        _ = replace(lir, plan=other.plan).fingerprint


def test_instruction_set_and_version_are_in_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    identities = {CpuBackend(variant=name).identity for name in ISAS}
    assert len(identities) == len(ISAS)
    graph, lir = built(), plan_module(built(), CPU)
    key = request_key(graph, CPU, FusionOptions())
    assert len({entry_key(key, i) for i in identities}) == len(ISAS)
    before = request(graph), lir.fingerprint
    monkeypatch.setattr(request_keys, "__version__", "9")
    monkeypatch.setattr(fingerprints, "__version__", "9")
    assert request(graph) != before[0]
    assert replace(lir).fingerprint != before[1]


def test_a_level_and_a_policy_are_in_the_key() -> None:
    def module(policy: rlx.FusionPolicy) -> rlx.HirModule:
        m = rlx.HirModule("g", policy)
        m.set_outputs([m.exp(m.input("x", Shape([2])))])
        return m

    modules = [module(p) for p in rlx.FusionPolicy]
    every = [*modules, modules[0].lower(), plan_module(modules[0].lower().graph, CPU)]
    assert len({request(m) for m in every}) == len(every)


# -- what a caller sees ----------------------------------------------------------------------------


def scaled(most: int) -> Graph:
    g = Graph("scaled")
    g.set_outputs([g.exp(g.input("x", Shape([Dim("s", 1, most)])))])
    return g


@pytest.mark.parametrize("first", [10, 100])
def test_a_range_is_that_of_the_request_not_of_what_is_kept(tmp_path: Path, first: int) -> None:
    shared = Session("cpu", cache=tmp_path)
    exes: dict[int, Callable[..., Any]] = {}
    for most in (first, 110 - first):
        exes[most] = shared.compile(scaled(most))
        fresh = Session("cpu", cache=tmp_path).compile(scaled(most))
        assert fresh(np.zeros(most, np.float32)).shape == (most,)
    with pytest.raises(rlx.Error, match=r"outside its range 1\.\.10"):
        exes[10](np.zeros(50, np.float32))
    assert exes[100](np.zeros(50, np.float32)).shape == (50,)


def test_a_changed_plan_is_compiled_for_itself() -> None:
    graph = built()
    lir = rlx.CompilePipeline(Session("cpu").target).compile(graph).lir
    shared = Session("cpu")
    shared.compile(lir)
    moved = replace(lir.plan, arena_bytes=lir.plan.arena_bytes + 64)
    shared.compile(replace(lir, plan=moved))
    assert shared.cached == 2


def test_a_copy_of_a_model_file_has_its_own_name(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the file is an ONNX one")
    node = onnx.helper.make_node("Exp", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(n, 1, [3]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    proto.ir_version = 10
    cache = tmp_path / "cache"
    for name in ("one", "two", "one"):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        from rlx.frontends.onnx.model import load

        exe = rlx.compile(load(tmp_path / f"{name}.onnx", cache=cache), "cpu", cache=cache)
        assert exe.name == name
