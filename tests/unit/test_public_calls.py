"""Calls that a signature does not take: of every public function and method, by an unknown keyword,
by too many and by too few arguments, and by values that its annotations do not allow. Each is an
rlx.Error that states the call that works.

What is public is found here, so that a new name is tested without being written down.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import rlx
from rlx.core.annotations import described, fits, resolved
from rlx.core.errors import CallError
from tests.effort import sample

MODULES = ("rlx", "rlx.lm", "rlx.torch", "rlx.explain")
GIVEN = (
    "rlx.explain.report:Report", "rlx.explain.roofline:KernelTimes", "rlx.explain.trace:Trace",
    "rlx.explain.measure_decisions:Measurement", "rlx.runtime.pending:Pending",
    "rlx.runtime.loaded_program:MemoryNeed", "rlx.frontends.tracing:Jit",
)  # fmt: skip
"""Classes of what public calls give."""
WRONG = "no_such_argument"


def names_of(module: Any) -> list[str]:
    return list(getattr(module, "__all__", None) or dir(module))


def public_values() -> Iterator[tuple[str, Any]]:
    for module in map(importlib.import_module, MODULES):
        for name in names_of(module):
            yield f"{module.__name__}.{name}", getattr(module, name)
    for place in GIVEN:
        module, name = place.split(":")
        yield name, getattr(importlib.import_module(module), name)


def is_class(value: Any) -> bool:
    return inspect.isclass(value) and not issubclass(value, enum.Enum | BaseException)


def functions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Each with what it is bound to: methods are called on an object that nothing was done to."""
    for name, value in public_values():
        if inspect.isfunction(value):
            yield name, value, ()
        elif is_class(value):
            yield from methods(name, value)


def methods(owner: str, cls: type) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for name in ("__init__", *(n for c in cls.__mro__[:-1] for n in vars(c) if n[0] != "_")):
        held = inspect.getattr_static(cls, name)
        if isinstance(held, staticmethod | classmethod):
            yield f"{owner}.{name}", getattr(cls, name), ()
        elif inspect.isfunction(held):
            yield f"{owner}.{name}", held, (object.__new__(cls),)


ALL = {name: (function, bound) for name, function, bound in functions()}


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(CallError) as caught:
        function(*args, **kwargs)
    assert isinstance(caught.value, rlx.Error)
    assert isinstance(caught.value, TypeError)
    assert caught.value.__suppress_context__
    return str(caught.value)


def test_what_is_public_is_found() -> None:
    assert len(ALL) > 200
    assert {"rlx.compile", "rlx.Executable.set_params", "rlx.lm.LanguageModel.generate"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_arguments_that_a_call_does_not_take(name: str) -> None:
    function, bound = ALL[name]
    parameters = list(inspect.signature(function).parameters.values())[len(bound) :]
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        told = raised(function, *bound, **{WRONG: 1})
        assert " Write " in told
        assert f"{function.__name__.replace('__init__', name.split('.')[-2])}(" in told
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        assert "by position" in raised(function, *bound, *[object()] * 40)
    if any(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters):
        assert "no value for" in raised(function, *bound)


# -- values that annotations do not allow ----------------------------------------------------------

REGISTERS = {"rlx.custom_op"}
"""What it is given stays: tests/unit/test_misuse.py calls it."""
WRONG_VALUES: list[Any] = [object(), 3, 1.5, "a\0b", [3], {3: 3}, None]
FITTING_VALUES: list[Any] = ["", 1, 1.0, True, None, [], {}, frozenset(), len, Path("q")]


def example(hint: Any) -> Any:
    """A value that an annotation allows, where one is easily made."""
    for value in FITTING_VALUES:
        if fits(value, hint):
            return value
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    is_made = isinstance(hint, type) and not inspect.isabstract(hint)
    return object.__new__(hint) if is_made else None


def hints_of(name: str) -> dict[str, tuple[inspect.Parameter, Any]]:
    function, bound = ALL[name]
    module = inspect.unwrap(function).__module__
    parameters = list(inspect.signature(function).parameters.values())[len(bound) :]
    return {p.name: (p, resolved(p.annotation, module)) for p in parameters}


def call_with(name: str, argument: str, wrong: Any) -> None:
    """One wrong value, and ones that fit for what else must be given."""
    function, bound = ALL[name]
    positional, named = [*bound], {}
    for each, (p, hint) in hints_of(name).items():
        value = wrong if each == argument else example(hint)
        if each != argument and (p.default is not p.empty or p.kind is p.VAR_POSITIONAL):
            continue
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            positional.append(value)
        elif p.kind is not p.VAR_KEYWORD or each == argument:
            named[each] = value
    function(*positional, **named)


ANNOTATED = [
    (name, argument)
    for name in ALL.keys() - REGISTERS
    for argument, (_, hint) in hints_of(name).items()
    if not fits(WRONG_VALUES[0], hint)
]


def test_annotations_are_understood() -> None:
    """Names that are imported for type checkers only among them."""
    assert len(ANNOTATED) > 300
    assert {("rlx.explain.why", "report"), ("rlx.lm.load", "path")} <= set(ANNOTATED)
    assert ("rlx.Executable.__init__", "loaded") in ANNOTATED


@pytest.mark.parametrize("name", sorted({name for name, _ in ANNOTATED}))
def test_values_that_an_annotation_does_not_allow(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call with a wrong value raises is an error of rlx, whatever it fails at."""
    monkeypatch.chdir(tmp_path)
    for argument in (a for n, a in ANNOTATED if n == name):
        hint = hints_of(name)[argument][1]
        for value in (v for v in WRONG_VALUES if not fits(v, hint)):
            try:
                call_with(name, argument, value)
            except rlx.Error:
                continue
            except Exception as error:
                pytest.fail(f"{name}({argument}={value!r}): {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("hint", "allowed", "others", "told"),
    [
        (int, [1, np.int64(1)], [1.5, True, "1", None], "a whole number"),
        (float, [1, 1.5, np.float32(1)], ["1", None, [1.0]], "a number"),
        (bool, [True, np.True_], [1, None], "True or False"),
        (str | None, ["", None], [b"", 1], "a string, or None"),
        (Literal["a", 1], ["a", 1], ["b", 1.0, True], "'a' or 1"),
        (Sequence[str], [[], ["a"], ("a",)], ["ab", [1], None, {"a"}], "a list of strings"),
        (Mapping[str, int], [{}, {"a": 1}], [{1: 1}, {"a": "b"}, []], "a dict"),
        (Callable[..., Any], [len, int], [3, "len"], "a function"),
        (tuple[int, ...], [(), (1, 2), [3]], [("a",), 3], "a list of whole numbers"),
        (Sequence[tuple[str, int]], [[("a", 1)], []], [[("a", "b")], [("a",)], [1]], "a list"),
        (rlx.Error, [rlx.Error()], [ValueError()], "an Error"),
        (Any, [3, None, ...], [], "an Any"),
    ],
    ids=str,
)
def test_what_annotations_allow(
    hint: Any, allowed: list[Any], others: list[Any], told: str
) -> None:
    assert all(fits(v, hint) for v in allowed)
    assert not any(fits(v, hint) for v in others)
    assert described(hint) == told


def exe() -> rlx.Executable:
    g = rlx.Graph("g")
    x, w = g.input("x", [rlx.Dim("n", 1, 9), 4]), g.param("w", [4, 2])
    g.set_outputs({"y": g.mm(x, w)})
    return rlx.compile(g, "reference", params={"w": np.ones((4, 2), np.float32)})


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: rlx.compile(rlx.Graph(), thread=2), "Did you mean 'threads'?"),  # pyright: ignore
    (lambda: rlx.jit(lambda x: x, target="cpu", thred=2), "Did you mean 'threads'?"),  # pyright: ignore
    (lambda: exe().set_params(w=1), "Write set_params({'w': …})"),  # pyright: ignore
    (lambda: exe().warmup(n=1), "Write warmup([{'n': …}])"),  # pyright: ignore
    (lambda: exe().run(x=1), "Write run({'x': …})"),  # pyright: ignore
    (lambda: exe()(y=1), "there is no input 'y'. It has: x"),
    (lambda: exe().submit(y=1), "there is no input 'y'. It has: x"),
    (lambda: exe().bind(y=1), "there is no input 'y'. It has: x"),
    (lambda: exe().memory(m=1), "there is no named dim 'm'. It has: n"),
    (lambda: rlx.explain(rlx.Graph(), tgt="cpu"), "Did you mean 'target'?"),  # pyright: ignore
    (lambda: rlx.explain.why(3, "x"), "why(): report is 3. Give a Report."),  # pyright: ignore
    (lambda: rlx.explain.diff("a", "b"), "diff(): before is 'a'. Give a Report."),  # pyright: ignore
    (lambda: rlx.lm.load(3), "path is 3. Give a path"),  # pyright: ignore
    (lambda: rlx.Executable(3), "Executable(): loaded is 3. Give a LoadedProgram, or None."),  # pyright: ignore
    (lambda: rlx.Executable(None), "rlx.compile and rlx.load make them"),
]


@pytest.mark.parametrize(("call", "told"), CASES)
def test_the_error_states_the_call_that_works(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(rlx.Error) as caught:
        call()
    assert told in str(caught.value)


# -- the reference of the API ----------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
DIRECTIVE = re.compile(r"auto(?:function|class|exception):: (\S+)|`(rlx\.\w+)[`(]")


def test_public_names_are_those_of_the_reference() -> None:
    """`rlx.ops` and blocks have pages of their own, written from their tables."""
    named = {a or b for a, b in DIRECTIVE.findall(PAGE)}
    public = {f"{m}.{n}" for m in MODULES for n in names_of(importlib.import_module(m))}
    assert public - named == set()
    assert {n for n in named if n.count(".") == 1 or n.rpartition(".")[0] in MODULES} == public


def test_public_methods_and_properties_are_described() -> None:
    """What has no docstring is not in the reference: it is private, or lacks one."""
    bare: list[str] = []
    for owner, cls in public_values():
        if is_class(cls):
            for name in {n for c in cls.__mro__[:-1] for n in vars(c) if n[0] != "_"}:
                held = inspect.getattr_static(cls, name)
                function = getattr(held, "fget", None) or getattr(held, "__func__", held)
                if inspect.isfunction(function) and not function.__doc__:
                    bare.append(f"{owner}.{name}")
    assert sorted(bare) == []


def test_an_error_inside_of_a_call_stays_what_it_is() -> None:
    """A TypeError of a user's function is not taken for one of the call's own arguments."""

    def broken(x: rlx.Node) -> rlx.Node:
        raise TypeError("of the user")

    with pytest.raises(TypeError, match="of the user") as caught:
        rlx.trace(broken, rlx.Shape([2]))
    assert not isinstance(caught.value, rlx.Error)


def op_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for builder in (rlx.Graph("g"), rlx.HirModule("m")):
        for name in type(builder).op_names():
            yield f"{type(builder).__name__}.{name}", getattr(builder, name)
    for name in dir(rlx.ops):
        if callable(getattr(rlx.ops, name)):
            yield f"ops.{name}", getattr(rlx.ops, name)


@pytest.mark.parametrize(("name", "call"), sample(list(op_methods()), 7))
def test_ops_and_blocks_say_what_they_take(name: str, call: Callable[..., Any]) -> None:
    x = rlx.Graph("other").input("x", [2, 3])
    for given in ((), (x,), (x,) * 40, (object(),) * 3):
        with pytest.raises(rlx.Error):
            call(*given, **{WRONG: 1})


def test_dims_are_given_one_by_one_or_together() -> None:
    g = rlx.Graph("g")
    x = g.input("x", [2, 3])
    assert g.reshape(x, 3, 2).shape == g.reshape(x, (3, 2)).shape == g.reshape(x, dims=[3, 2]).shape
    assert rlx.ops.transpose(np.ones((2, 3)), 1, 0).shape == (3, 2)
    assert rlx.ops.reshape(np.ones((2, 3)), 6).shape == (6,)
    with pytest.raises(rlx.GraphError, match="by position and by name"):
        g.reshape(x, 3, 2, dims=(3, 2))  # pyright: ignore
