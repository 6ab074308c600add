"""The text form: any graph prints and reads back; what is wrong is a GraphError with its line."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ir.parse import MAX_NESTING
from rlx.ir.text import read, read_module, show
from rlx.ops.draw import Draw
from rlx.ops.op import table

FILES = sorted((Path(__file__).parents[1] / "ir").glob("*.ir"))


def around(statements: str, before: str = "") -> str:
    return f'mir "t" {{\n{before}{statements}\n}}\n'


def same(graph: Graph) -> Graph:
    """`graph`, read back from its text, after checking both laws."""
    text = show(graph)
    back = read(text)
    assert back == graph
    assert back.name == graph.name
    assert show(back) == text
    return back


# -- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_files_print_parse_print(file):
    assert str(rlx.load(file)) == file.read_text(encoding="utf-8")


def test_there_are_files_of_both_kinds():
    kinds = {f.read_text(encoding="utf-8").split()[0] for f in FILES}
    assert kinds == {"mir", "hir"}


def test_the_text_of_a_small_graph():
    g = Graph("hello")
    seq = Dim("seq", 1, 4096)
    x, w = g.input("x", Shape([seq, 4])), g.param("w", Shape([4, 2]))
    g.set_outputs([ops.matmul(x, w)])
    assert show(g) == (
        'mir "hello" {\n'
        "  dim seq in 1..4096\n"
        '  %0 = input(name="x", shape=f32[seq, 4]) : f32[seq, 4]\n'
        '  %1 = param(name="w", shape=f32[4, 2]) : f32[4, 2]\n'
        "  %2 = matmul(%0, %1) : f32[seq, 2]\n"
        "  return %2\n"
        "}\n"
    )
    same(g)


@pytest.mark.parametrize(
    "name", ["", "a b", '"', "\\", "\n\t\r", "\x00\x1f\x7f", "é漢\u2028\U0001f600", "%0 = {", "#"]
)
def test_names_are_whatever_a_string_can_be(name):
    g = Graph(name)
    g.set_outputs([g.input(f"x{name}", Shape([1]))])
    assert same(g).inputs[0].attrs["name"] == f"x{name}"


NAN = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("dims", [(), (3,), (0, 2), (4, 5), (1, 1, 2)], ids=str)
def test_constants_are_exact(dtype, dims):
    raw = np.random.default_rng(3).bytes(int(np.prod(dims)) * dtype.itemsize)
    array = np.frombuffer(raw, dtype.numpy).reshape(dims)
    if dtype is DType.BOOL:
        array = np.frombuffer(raw, np.uint8).reshape(dims) > 127
    g = Graph("c")
    g.set_outputs([g.constant(array)])
    assert same(g).outputs[0].attrs["value"].array.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        NAN,
        np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, 0.1]),
        np.array([0.1, 1 / 3, 65504, 6e-8], np.float16),
        np.array([0.1, 1 / 3, 3e38, 1e-40], ml_dtypes.bfloat16),
        np.array([16777217, 2**63, 0.1, 1e-45], np.float32),
        np.array([complex(-0.0, np.nan), complex(np.inf, -1)], np.complex64),
        np.array([2**64 - 1, 0], np.uint64),
        np.array(-(2**63)),
    ],
    ids=lambda a: str(a.dtype),
)
def test_corner_constants_are_exact(array):
    g = Graph("c")
    g.set_outputs([g.constant(array)])
    assert same(g).outputs[0].attrs["value"].array.tobytes() == array.tobytes()


def test_small_constants_can_be_read_by_people():
    g = Graph("c")
    g.set_outputs([g.constant(np.array([0.1, -0.0, np.inf], np.float32))])
    assert "value=f32[3]{0.1, -0.0, inf}" in show(g)


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 0.1, 1e-300, 1e16, np.inf, -np.inf, np.nan, 1 / 3, 5e-324]
)
def test_float_attributes_are_exact(value):
    g = Graph("f")
    x = g.input("x", Shape([2]))
    g.set_outputs([g.leaky_relu(x, alpha=value)])
    assert same(g).outputs[0].attrs["alpha"].hex() == float(value).hex()


def random_dim(rng: np.random.Generator, names: list[Dim], depth: int = 3):
    """A random expression over sizes."""
    if depth == 0 or rng.random() < 0.2:
        return names[rng.integers(len(names))] if rng.random() < 0.7 else int(rng.integers(1, 9))
    a, b = (random_dim(rng, names, depth - 1) for _ in range(2))
    make = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: a // b if isinstance(b, Dim) or b else a,
        lambda: a % b if isinstance(b, Dim) or b else a,
        lambda: dim_max(a, b),
        lambda: dim_min(a, b),
    ]
    return make[rng.integers(len(make))]()


def test_dim_expressions_read_back():
    rng = np.random.default_rng(0)
    names = [Dim("a", 1, 9), Dim("max"), Dim("b.c", 2), Dim("in", 0, 7), Dim("none"), Dim("inf")]
    seen = 0
    for _ in range(400):
        dim = random_dim(rng, names)
        if isinstance(dim, Dim):
            g = Graph("d")
            g.set_outputs([g.input("x", Shape([dim, 3]))])
            assert same(g).inputs[0].shape.dims[0] == dim
            seen += 1
    assert seen > 200


def test_precedence_is_pythons():
    text = around(
        '%0 = input(name="x", shape=f32[a + b*c - a//2*c, -(a) + 9 + a, 7 - 2 - 1, 9//2//2])'
        " : f32[a + b*c - (a//2)*c, 9, 4, 2]\nreturn %0",
        "dim a in 0..\ndim b in 0..\ndim c in 0..\n",
    )
    a, b, c = (Dim(n) for n in "abc")
    assert read(text).inputs[0].shape.dims == (a + b * c - a // 2 * c, 9, 4, 2)


def test_a_dim_called_like_a_keyword_is_still_a_dim():
    g = Graph("k")
    dim = Dim("none", 1)
    x = g.input("x", Shape([dim]))
    g.set_outputs([g.expand(x, dims=(2, dim))])
    same(g)


def test_comments_order_and_defaults_do_not_matter():
    text = around(
        '%7 = input(shape=f32[2, 3], name="x"): f32[2,3] # a comment %\n'
        "%3=softmax(%7):f32[2, 3]# and another\n\treturn %3"
    )
    g = Graph("t")
    g.set_outputs([g.softmax(g.input("x", Shape([2, 3])))])
    assert read(text) == g


def test_unneeded_nodes_are_left_out_and_leaves_stay():
    g = Graph("dead")
    x, _ = g.input("x", Shape([2])), g.param("unused", Shape([3]))
    g.exp(x)
    g.set_outputs([x + x])
    back = same(g)
    assert len(back.params) == 1
    assert len(back) == 3


def test_a_graph_without_outputs_prints():
    g = Graph("open")
    g.exp(g.input("x", Shape([2])))
    assert "exp" in show(g)
    same(g)


def test_equal_graphs_print_alike():
    def made(swap: bool) -> Graph:
        g = Graph("g")
        x = g.input("x", Shape([2]))
        a, b = (g.exp, g.log)
        parts = [b(x), a(x)][::-1] if swap else [b(x), a(x)]
        parts = parts[::-1] if swap else parts
        g.set_outputs([parts[0] * parts[1]])
        return g

    assert show(made(True)) == show(made(False))


def test_origins_name_the_line():
    g = read(around('%0 = input(name="x", shape=f32[2]) : f32[2]\nreturn %0'), "net.ir")
    assert g.inputs[0].label == "input 'x' at net.ir:2"


def test_random_applications_of_every_op_read_back():
    """The law of the table, once more in small, so that this file stands alone."""
    for op in table().values():
        if op.why_no_cases:
            continue
        draw = Draw([5, len(op.name)])
        case = draw.case(op)
        g = Graph(op.name)
        operands = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        node = g.node(op, operands, case.attrs)
        count = len(node.shapes) if node.has_items else 0
        items = [g.node("item", (node,), {"index": i}) for i in range(count)]
        g.set_outputs(items or [node])
        same(g)


def test_a_long_chain_is_no_problem():
    g = Graph("chain")
    node = g.input("x", Shape([2]))
    for _ in range(5000):
        node = g.exp(node)
    g.set_outputs([node])
    same(g)


def nested(depth: int) -> Graph:
    """Branches inside branches."""
    body: Graph | None = None
    for _ in range(depth):
        g = Graph("level")
        p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([2]))
        sides = {"then": body, "else": body}
        made = x if body is None else g.node("if", (p, p, x), sides)
        g.set_outputs([x if made is x else g.node("item", (made,), {"index": 0})])
        body = g
    assert body is not None
    return body


def test_nesting_is_bounded():
    same(nested(5))
    with pytest.raises(GraphError, match=f"nested deeper than {MAX_NESTING}"):
        show(nested_line(MAX_NESTING + 1))
    deep = 'mir "t" {\n' + '%0 = if(then=mir "b" {\n' * 5000
    with pytest.raises(GraphError, match=f"nested deeper than {MAX_NESTING}"):
        read(deep)


def nested_line(depth: int) -> Graph:
    """Loops inside loops: one body each, so that the text does not double."""
    body = Graph("level")
    body.set_outputs([body.input("x", Shape([2]))])
    for _ in range(depth):
        g = Graph("level")
        x = g.input("x", Shape([2]))
        made = g.node("scan", (x,), {"body": body, "length": 1, "num_carries": 1})
        g.set_outputs([g.node("item", (made,), {"index": 0})])
        body = g
    return body


def test_nesting_up_to_the_bound_reads_back():
    same(nested_line(MAX_NESTING - 1))


# -- what is wrong --------------------------------------------------------------------------------

X = '%0 = input(name="x", shape=f32[2, 3]) : f32[2, 3]\n'
Y = '%1 = input(name="y", shape=i64[2]) : i64[2]\n'

WRONG = {
    "nothing": ("", "1: expected mir or hir"),
    "another kind": ('lir "t" {}', "expected mir"),
    "no name": ("mir {}", "expected a string"),
    "no return": (around(X), "4: expected"),
    "cut off": ('mir "t" {\n' + X, "expected"),
    "trailing": (around(X + "return %0") + "x", "4|5: expected the end"),
    "two graphs": (around(X + "return %0") * 2, "expected the end"),
    "mixed dtypes": (around(X + Y + "%2 = add(%0, %1) : f32[2, 3]\nreturn %2"), "4: add.*dtype"),
    "an odd length": (around(X + "%2 = fft(%0) : f32[2, 3]\nreturn %2"), "3: fft"),
    "a rank that does not fit": (
        around(X + "%2 = conv2d(%0, %0) : f32[]\nreturn %2"), "3: conv.*no axes after batch"
    ),
    "wrong shape": (around(X + "%1 = exp(%0) : f32[2, 4]\nreturn %1"), r"3: exp gives f32\[2, 3\]"),
    "wrong dtype": (around(X + "%1 = exp(%0) : f64[2, 3]\nreturn %1"), "3: exp gives"),
    "one for several": (around(X + "%1 = top_k(%0, k=1) : f32[2, 1]\nreturn %0"), "3: top_k gives"),
    "unknown op": (around(X + "%1 = expp(%0) : f32[2, 3]\nreturn %1"), "3: .*no op 'expp'.*exp"),
    "unknown attr": (around(X + "%1 = softmax(%0, axes=1) : f32[2, 3]\nreturn %1"), "3: .*axes"),
    "attr twice": (
        around(X + "%1 = softmax(%0, axis=1, axis=1) : f32[2, 3]\nreturn %1"),
        "3: .*twice",
    ),
    "attr before operand": (
        around(X + "%1 = softmax(axis=1, %0) : f32[2, 3]\nreturn %1"),
        "3: expected an attribute",
    ),
    "attr missing": (around(X + "%1 = reshape(%0) : f32[6]\nreturn %1"), "3: reshape.*dims"),
    "attr of another type": (
        around(X + '%1 = softmax(%0, axis="1") : f32[2, 3]\nreturn %1'),
        "3: expected a whole number",
    ),
    "axis out of range": (
        around(X + "%1 = softmax(%0, axis=2) : f32[2, 3]\nreturn %1"),
        "3: softmax.*range",
    ),
    "unknown dtype": (around('%0 = input(name="x", shape=f31[2]) : f32[2]\nreturn %0'), "2: .*f31"),
    "unknown dim": (around('%0 = input(name="x", shape=f32[n]) : f32[n]\nreturn %0'), "2: .*'n'"),
    "dim twice": (around(X + "return %0", "dim n in 0..\ndim n in 0..\n"), "3: .*twice"),
    "empty range": (around(X + "return %0", "dim n in 5..2\n"), "2: .*empty"),
    "use before definition": (
        around(X + "%1 = exp(%2) : f32[2, 3]\n%2 = exp(%0) : f32[2, 3]\nreturn %1"),
        "3: %2 is used before",
    ),
    "a cycle": (around("%0 = exp(%0) : f32[2]\nreturn %0"), "2: %0 is used before"),
    "number twice": (around(X + X.replace('"x"', '"y"') + "return %0"), "3: %0 is defined twice"),
    "name twice": (around(X + X.replace("%0", "%1") + "return %0"), "3: .*'x' is already taken"),
    "name of another shape": (
        around(X + '%1 = param(name="x", shape=f32[9]) : f32[9]\nreturn %0'),
        "3: .*'x' is already taken",
    ),
    "empty name": (around(X.replace('"x"', '""') + "return %0"), "2: .*empty"),
    "reshape to another count": (
        around(X + "%1 = reshape(%0, dims=(7,)) : f32[7]\nreturn %1"),
        "3: reshape.*6 elements",
    ),
    "narrow out of range": (
        around(X + "%1 = narrow(%0, axis=1, start=2, length=2) : f32[2, 2]\nreturn %1"),
        "3: narrow.*past",
    ),
    "gather axis": (
        around(X + Y + "%2 = gather(%0, %1, axis=2) : f32[2, 2]\nreturn %2"),
        "4: gather.*axis",
    ),
    "a result that is not there": (
        around(X + "%1 = top_k(%0, k=1) : (f32[2, 1], i64[2, 1])\n"
               "%2 = item(%1, index=2) : f32[2, 1]\nreturn %2"),
        "4: item.*no result 2",
    ),
    "several as one operand": (
        around(X + "%1 = top_k(%0, k=1) : (f32[2, 1], i64[2, 1])\n"
               "%2 = exp(%1) : f32[2, 1]\nreturn %2"),
        "4: exp.*several results",
    ),
    "several returned": (
        around(X + "%1 = top_k(%0, k=1) : (f32[2, 1], i64[2, 1])\nreturn %1"),
        "4: .*several results",
    ),
    "item of one": (around(X + "%1 = item(%0, index=0) : f32[2, 3]\nreturn %1"), "3: item"),
    "size past 2^63": (
        around('%0 = input(name="x", shape=f32[4294967296, 4294967296]) : f32[1]\nreturn %0'),
        r"2: .*2\^63",
    ),
    "one size past 2^63": (
        around('%0 = input(name="x", shape=f32[9223372036854775808]) : f32[1]\nreturn %0'),
        r"2: .*2\^63",
    ),
    "a negative size": (
        around('%0 = input(name="x", shape=f32[2 - 3]) : f32[1]\nreturn %0'),
        "2: .*negative",
    ),
    "a billion digits": (
        around(f'%0 = input(name="x", shape=f32[{"9" * 200_000}]) : f32[1]\nreturn %0'),
        "2: .*64 bits",
    ),
    "powers": (around('%0 = input(name="x", shape=f32[2**99]) : f32[1]\nreturn %0'), "2: "),
    "a product past 2^63": (
        around('%0 = input(name="x", shape=f32[9999999999*9999999999]) : f32[1]\nreturn %0'),
        r"2: .*2\^63",
    ),
    "an exponent": (
        around(X + "%1 = leaky_relu(%0, alpha=1e999999999) : f32[2, 3]\nreturn %1"),
        "3: .*range of f64",
    ),
    "deep parens": (
        around(f'%0 = input(name="x", shape=f32[{"(" * 50_000}1]) : f32[1]\nreturn %0'),
        "2: .*deep",
    ),
    "an exploding polynomial": (
        around('%0 = input(name="x", shape=f32[' + "*".join(["(a + b + c + d + e)"] * 60)
               + "]) : f32[1]\nreturn %0", "".join(f"dim {n} in 1..\n" for n in "abcde")),
        "7: .*too large",
    ),
    "too few numbers": (around("%0 = constant(value=u8[3]{1, 2}) : u8[3]\nreturn %0"), "2: .*3 n"),
    "a number that does not fit": (
        around("%0 = constant(value=i8[1]{128}) : i8[1]\nreturn %0"),
        "2: 128 does not fit i8",
    ),
    "a float for an integer": (
        around("%0 = constant(value=i8[1]{1.5}) : i8[1]\nreturn %0"),
        "2: expected",
    ),
    "bad base64": (around('%0 = constant(value=f32[1]"A!==") : f32[1]\nreturn %0'), "2: .*base64"),
    "too few bytes": (
        around('%0 = constant(value=f32[9]"AAAA") : f32[9]\nreturn %0'),
        "2: .*36 bytes",
    ),
    "a huge constant": (
        around("%0 = constant(value=f32[1000000000000]{1.0}) : f32[1]\nreturn %0"),
        "2: .*1000000000000",
    ),
    "an empty constant of huge dims": (
        around("%0 = constant(value=f32[0, 4611686018427387904, 4]{}) : f32[1]\nreturn %0"),
        "2: .*(no constant|bytes)",
    ),
    "a constant of rank 100": (
        around(f"%0 = constant(value=f32[{', '.join(['1'] * 100)}]{{1.0}}) : f32[1]\nreturn %0"),
        "2: .*no constant",
    ),
    "a symbolic constant": (
        around("%0 = constant(value=f32[n]{1.0}) : f32[1]\nreturn %0", "dim n in 0..\n"),
        "3: .*'n'",
    ),
    "bad escape": (around(X.replace('"x"', r'"\q"') + "return %0"), "2: .*JSON"),
    "half a character": (around(X.replace('"x"', r'"\ud800"') + "return %0"), "2: .*JSON"),
    "an open string": (around(X.replace('"x"', '"x') + "return %0"), "2: "),
    "a stray character": (around(X + "$\nreturn %0"), r"3: '\$'"),
    "other digits": (around(X.replace("2", "٢") + "return %0"), "2: "),
    "a literal outside its choices": (
        around(X + '%1 = pad(%0, low=(0, 0), high=(0, 0), mode="up") : f32[2, 3]\nreturn %1'),
        "3: pad.*mode",
    ),
    "a block in mir": (around(X + "%1 = linear(%0, %0) : f32[1]\nreturn %1"), "3: .*linear"),
    "an unknown policy": (around(X + "return %0").replace('mir "t"', 'hir "t" eager'), "direct"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_text_is_a_graph_error_with_its_line(case):
    text, reason = WRONG[case]
    with pytest.raises(GraphError) as caught:
        read_module(text, "net.ir")
    assert re.search(rf"net\.ir:({reason})" if reason[0].isdigit() else reason, str(caught.value))


# -- loading --------------------------------------------------------------------------------------


def test_load_gives_modules(tmp_path):
    folder = FILES[0].parent
    assert isinstance(rlx.load(folder / "hello.ir"), rlx.MirModule)
    hir = rlx.load(str(folder / "ffn_hir.ir"))
    assert isinstance(hir, rlx.HirModule)
    assert hir.policy is rlx.FusionPolicy.FUSABLE
    assert hir.lower().graph.outputs


def test_load_verifies(tmp_path):
    file = tmp_path / "empty.ir"
    file.write_text('mir "t" {\nreturn\n}')
    with pytest.raises(GraphError, match="no outputs"):
        rlx.load(file)


@pytest.mark.parametrize("name", ["e.txt", "f"])
def test_what_cannot_be_loaded_yet_says_so(tmp_path, name):
    with pytest.raises(UnsupportedError, match=r"\.ir"):
        rlx.load(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(Error, match="cannot be read"):
        rlx.load(tmp_path / "missing.ir")
    with pytest.raises(Error, match="cannot be read"):
        rlx.load(tmp_path / "missing.safetensors")
    with pytest.raises(Error, match=r"no config\.json"):
        rlx.load(tmp_path)
    (tmp_path / "folder.ir").mkdir()
    with pytest.raises(Error, match="folder"):
        rlx.load(tmp_path / "folder.ir")
    (tmp_path / "bytes.ir").write_bytes(b'mir "\xff')
    with pytest.raises(Error, match="UTF-8"):
        rlx.load(tmp_path / "bytes.ir")
