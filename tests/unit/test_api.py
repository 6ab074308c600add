"""What a user types, right and wrong: every mistake is one rlx error that says what and where."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, DimBinding, Graph, GraphError, Shape, ops
from rlx.backends.tpu import backend as tpu
from rlx.ir.text import read, show


def pair() -> tuple[Graph, Any, Any]:
    g = Graph("net")
    return g, g.input("x", Shape([2, 3])), g.input("y", Shape([2, 3]))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a number as dims": (lambda: Shape(3), "list of dims"),  # pyright: ignore
    "None as dims": (lambda: Shape(None), "list of dims"),  # pyright: ignore
    "a truth value as a dim": (lambda: Shape([True]), "True is not a dim"),
    "a float as a dim": (lambda: Shape([2.0]), "2.0 is not a dim"),  # pyright: ignore
    "a NumPy code that counts bytes": (lambda: Shape([2], "i4"), "'i4' is not a dtype"),
    "no dtype": (lambda: Shape([2], None), "None is not a dtype"),  # pyright: ignore
    "a dim's name that is none": (lambda: Dim(3), "3 is not a dim name"),  # pyright: ignore
    "a range of floats": (lambda: Dim("n", 1.5), "not whole"),  # pyright: ignore
    "a size that is not whole": (lambda: DimBinding(seq=1.5), "dim seq cannot be 1.5"),  # pyright: ignore
    "a size that is text": (lambda: DimBinding(seq="3"), "dim seq cannot be '3'"),  # pyright: ignore
    "a graph without a name": (lambda: Graph(None), "a graph's name"),  # pyright: ignore
    "a name that is no text": (lambda: Graph("\ud800"), "Unicode"),
    "an input's name that is no text": (lambda: Graph("g").input("\ud800", Shape([1])), "Unicode"),
    "a node as outputs": (lambda: pair()[0].set_outputs(pair()[1]), "expected a list of nodes"),
    "None as outputs": (lambda: pair()[0].set_outputs(None), "expected a list of nodes"),  # pyright: ignore
    "an array as an output": (lambda: pair()[0].set_outputs([np.ones(2)]), "output 0 is array"),  # pyright: ignore
    "a number as an output's name": (lambda: pair()[0].set_outputs({1: 2}), "an output's name"),  # pyright: ignore
    "another graph's node": (lambda: pair()[0].set_outputs([pair()[1]]), "output 0 belongs to an"),
    "None as an operand": (lambda: pair()[1] + None, "add at test_api.py.*operand 1 is None"),
    "text as an operand": (lambda: pair()[1] + "a", "'a' is not an array of numbers"),
    "a ragged constant": (lambda: Graph("g").constant([[1], [1, 2]]), "not an array of numbers"),
    "a constant past 64 bits": (lambda: Graph("g").constant(2**70), "constant at test_api.py"),
    "nothing to concat": (lambda: pair()[0].concat([], axis=0), "takes at least 1 operands, got 0"),
    "None on arrays": (lambda: ops.add(None, 1), "add: operand 0 is None"),
    "a ragged array": (lambda: ops.relu([[1.0], [1.0, 2.0]]), "relu: .* not an array of numbers"),
    "a scalar that does not fit": (lambda: ops.add(np.ones(2, np.int32), 2**40), "add: .* i32"),
    "jit of a number": (lambda: rlx.jit(3), "jit takes a function"),  # pyright: ignore
    "tracing what has no signature": (lambda: rlx.trace(max, Shape([2])), "max: no signature"),
    "jit of dtypes unknown": (lambda: rlx.jit(lambda x: x)(np.array([None])), "lambda: x: dtype"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_a_graph_error(case: str) -> None:
    make, text = WRONG[case]
    with pytest.raises(GraphError, match=text):
        make()


WRONG_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "options of another type": (lambda: rlx.CompilePipeline(options=3), "expected a FusionOptions"),  # pyright: ignore
    "an alignment of text": (lambda: rlx.CompilePipeline(alignment="64"), "power of two"),  # pyright: ignore
    "a graph as HIR": (
        lambda: rlx.CompilePipeline().compile_hir(pair()[0]),
        "expected a HirModule",
    ),  # pyright: ignore
    "a graph as MIR": (
        lambda: rlx.CompilePipeline().compile_mir(pair()[0]),
        "expected a MirModule",
    ),  # pyright: ignore
    "a graph as a module": (
        lambda: rlx.CompilePipeline().compile_module(pair()[0]),  # pyright: ignore
        "expected a GraphModule",
    ),
    "a function": (lambda: rlx.compile(lambda x: x), "rlx.trace"),
    "a jitted function": (lambda: rlx.compile(rlx.jit(lambda x: x)), "rlx.trace"),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_wrong_call_is_an_error(case: str) -> None:
    make, text = WRONG_CALLS[case]
    with pytest.raises(rlx.Error, match=text):
        make()


def test_targets_are_named_or_members_of_the_enum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "find_spec", lambda _: None)
    g, x, y = pair()
    g.set_outputs([x + y])
    assert rlx.compile(g, like=rlx.FusionTarget.CUDA).lir.target.name == "cuda"
    with pytest.raises(rlx.UnsupportedError, match=r"pip install 'rlx\[tpu\]'"):
        rlx.compile(g, target=rlx.FusionTarget.TPU)


def test_a_module_at_lir_is_loaded_as_it_is() -> None:
    g, x, y = pair()
    g.set_outputs([x + y])
    lir = rlx.CompilePipeline(rlx.FusionTarget.WGPU).compile_graph(g).lir
    assert rlx.compile(lir, "reference").lir is lir
    assert rlx.compile(rlx.GraphModule.from_lir(lir), "reference").lir is lir
    with pytest.raises(rlx.Error, match="was planned for wgpu, not for cpu"):
        rlx.compile(lir, "cpu")


def test_specialize_takes_sizes_by_name() -> None:
    g = Graph("g")
    g.set_outputs([g.relu(g.input("x", Shape([rlx.sym.SEQ, 4])))])
    result = rlx.CompilePipeline().compile_graph(g)
    by_name, bound = (result.specialize(b) for b in ({"seq": 3}, DimBinding.batch_seq(2, 3)))
    assert by_name.lir.fingerprint == bound.lir.fingerprint
    with pytest.raises(GraphError, match=r"expected a rlx\.DimBinding"):
        result.specialize(None)  # pyright: ignore


# -- operators and indexing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), slice(None), None),
        (..., None),
        (None, 0, None, slice(1, None), None),
        (0, None),
        (slice(None), [0, -1], None),
    ],
    ids=str,
)
def test_new_axes_may_stand_anywhere(index: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = rlx.trace(lambda x: x[index], Shape([2, 3]))
    np.testing.assert_array_equal(rlx.compile(graph)(array), array[index])


def test_operators_reflect() -> None:
    bits, shifts = np.array([6, 5], np.int32), np.array([1, 2], np.int32)
    graph = rlx.trace(lambda x, s: (3 & x, 8 | x, 7 ^ x, 1 << s, 64 >> s, +x), bits, shifts)
    for made, want in zip(
        rlx.compile(graph)(bits, shifts),
        (3 & bits, 8 | bits, 7 ^ bits, 1 << shifts, 64 >> shifts, bits),
        strict=True,
    ):
        np.testing.assert_array_equal(made, want)
    flags = np.array([True, False])
    np.testing.assert_array_equal(rlx.jit(lambda f: True ^ f)(flags), ~flags)


def test_numpy_does_not_swallow_a_node() -> None:
    with pytest.raises(rlx.GraphError, match=r"rlx\.ops"):
        np.asarray(pair()[1])


def test_a_constant_of_python_is_weakly_typed_as_beside_ops() -> None:
    g, x, _ = pair()
    kinds = [g.constant(v).shape.dtype for v in (True, 2, 1.5, 1j)]
    assert kinds == [rlx.DType.BOOL, rlx.DType.I64, rlx.DType.F32, rlx.DType.C64]
    assert (x + g.constant(1.5)).shape == x.shape
    assert g.constant(np.float64(1.5)).shape.dtype is rlx.DType.F64


# -- names -----------------------------------------------------------------------------------------

ODD = ["a b", "é", 'x"y', "\\n", "\n", "%0", "layer.0/w:0", "null\0", "🙂", "'", "\u2028", "}"]


def test_odd_names_survive_text_compiling_and_running() -> None:
    g = Graph('we"ird\n{}')
    total = sum(g.input(n, Shape([2])) for n in ODD)
    g.set_outputs({"out put": total, "": g.find("é"), 'q"': total})
    again = read(show(g))
    assert (again, again.name, again.output_names) == (g, g.name, ("out put", "", 'q"'))
    made = rlx.compile(g).run({n: np.ones(2, np.float32) for n in ODD})
    assert list(made) == ["out put", "", 'q"']
    assert made["out put"].tolist() == [len(ODD)] * 2


def test_text_names_every_output_or_none() -> None:
    text = 'mir "g" {\n%0 = input(name="x", shape=f32[2]) : f32[2]\nreturn "a": %0, %0\n}'
    with pytest.raises(GraphError, match="text:3: name every output"):
        read(text)
    with pytest.raises(GraphError, match="text:3: name every output"):
        read(text.replace(", %0", ', "a": %0'))


def test_names_of_outputs_go_with_the_outputs() -> None:
    g, x, y = pair()
    g.set_outputs({"sum": x + y})
    assert g.output_names == ("sum",)
    g.set_outputs([x * y])
    assert g.output_names == ("output0",)


def test_the_users_line_is_found_beside_the_package() -> None:
    """A folder whose path starts like the package's is not the package."""
    package = rlx.__path__[0]
    code = "x = g.input('x', rlx.Shape([2]))"
    g = Graph("g")
    exec(compile(code, f"{package}_user/model.py", "exec"), {"g": g, "rlx": rlx})
    assert str(g.find("x").origins[0]) == "model.py:1"


# -- jit -------------------------------------------------------------------------------------------


def test_a_jitted_function_may_have_a_keyword_called_name() -> None:
    @rlx.jit
    def f(x: Any, *, name: str) -> Any:
        return x + len(name)

    x = np.zeros(2, np.float32)
    assert f(x, name="abc").tolist() == [3, 3]
    assert f.graph(x, name="abc").name == "f"


def test_a_jitted_method_says_that_objects_are_no_arrays() -> None:
    class Model:
        @rlx.jit
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(GraphError, match=r"forward: self: got .*Model.* by position"):
        Model().forward(np.zeros(2))


def test_an_exception_inside_leaves_nothing_behind() -> None:
    fails = [True]

    @rlx.jit
    def f(x: Any) -> Any:
        if fails:
            raise RuntimeError("inside")
        return x + 1

    x = np.zeros(2, np.float32)
    with pytest.raises(RuntimeError, match="inside"):
        f(x)
    assert f.compiled == 0
    fails.clear()
    assert f(x).tolist() == [1, 1]


# -- the table, memory, silence --------------------------------------------------------------------

THREADS = """
import threading
import rlx
from rlx.ops import op
seen, start = [], threading.Barrier(8)
def look():
    start.wait()
    seen.append(len(op.table()))
threads = [threading.Thread(target=look) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert seen == [len(op.table())] * 8, seen
"""


def test_all_threads_see_the_whole_table() -> None:
    subprocess.run([sys.executable, "-c", THREADS], check=True)


def test_graphs_and_executables_are_freed() -> None:
    g, x, y = pair()
    g.set_outputs([g.softmax(x * y + 1.0, axis=-1)])
    exe = rlx.compile(g)
    exe(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    jitted = rlx.jit(lambda x: x + 1)
    jitted(np.ones(2))
    held = [weakref.ref(v) for v in (g, x, exe, exe.lir.mir.graph, jitted)]
    del g, x, y, exe, jitted
    gc.collect()
    assert [r() for r in held] == [None] * 5


def test_the_library_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    g, x, y = pair()
    g.set_outputs([x / y])
    for target in rlx.FusionTarget:
        exe = rlx.compile(g, like=target)
        zeros = np.zeros((2, 3), np.float32)
        assert np.isnan(exe(zeros, zeros)).all()
    assert capfd.readouterr() == ("", "")
