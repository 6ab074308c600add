"""Mutated `.ir` files: whatever comes out is a graph that reads back, or one GraphError."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ir.text import read_module, show
from rlx.ops.draw import Draw
from rlx.ops.op import Op, table
from tests.effort import tries

FILES = sorted((Path(__file__).parents[1] / "ir").glob("*.ir"))
TEXTS = [f.read_text(encoding="utf-8") for f in FILES]
ROUNDS = tries(200, 600)
HANG_SECONDS = 60
"""No text takes seconds to read; a minute of processor time is a hang on any machine."""


@contextmanager
def no_hang(text: str) -> Iterator[None]:
    """Fail where reading does not end."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"does not end:\n{text}")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


"""Mutations of each file, and the most that reading one of them may take: they are small."""
SEEDS, PER_SEED = tries(1, 3), 12
"""Applications drawn of each op, and mutations of each."""

WORD = re.compile(r'"[^"]*"|[A-Za-z_][\w.]*|\d+|\S')
NUMBERS = (
    "0", "1", "-1", "2", "63", "1000000", "2147483648", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "9" * 30, "9" * 5000,
    "1e400", "1e-400", "nan", "-inf", "2**99", "0.5", "(1", "1)", "((((1))))", "7//0", "7%0",
)  # fmt: skip
WORDS = (
    "f32", "bool", "c128", "none", "true", "()", "(,)", "{}", "[]", "%0", "%1", "return", "dim",
    "input", "param", "constant", "item", "matmul", "custom", "while", "scan", "region", "gather",
    "reshape", "einsum", "concat", "transpose", "conv2d", "seq", '""', '"x"', "=", ":", ",", "}",
)  # fmt: skip


def flip(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    new = rng.choice(
        [chr(rng.randrange(32, 127)), chr(rng.randrange(0x110000 - 0x800)), "\x00", ""]
    )
    return text[:at] + new + text[at + 1 :]


def delete(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.choice([1, 2, 5, 40, len(text)]) :]


def lines(text: str, rng: random.Random) -> str:
    """A line doubled, dropped, moved or cut in two."""
    rows = text.split("\n")
    i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
    change = rng.randrange(4)
    if change == 0:
        rows.insert(j, rows[i])
    elif change == 1:
        del rows[i]
    elif change == 2:
        rows[i], rows[j] = rows[j], rows[i]
    else:
        rows[i] = rows[i][: rng.randrange(len(rows[i]) + 1)]
    return "\n".join(rows)


def swap(text: str, rng: random.Random) -> str:
    """A word taken from somewhere else, or from the list."""
    found = list(WORD.finditer(text))
    if not found:
        return text
    a, b = rng.choice(found), rng.choice(found)
    new = b[0] if rng.random() < 0.5 else rng.choice(WORDS)
    return text[: a.start()] + new + text[a.end() :]


def number(text: str, rng: random.Random) -> str:
    """Another number in the place of one."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return text
    at = rng.choice(found)
    return text[: at.start()] + rng.choice(NUMBERS) + text[at.end() :]


def splice(text: str, rng: random.Random) -> str:
    """A piece of another file in the middle."""
    other = rng.choice(TEXTS)
    start = rng.randrange(len(other))
    piece = other[start : start + rng.choice([3, 30, 300])]
    at = rng.randrange(len(text))
    return text[:at] + piece + text[at:]


MUTATIONS: list[Callable[[str, random.Random], str]] = [flip, delete, lines, swap, number, splice]


def checked(text: str) -> bool:
    """Did it read? Then it must read back; else it was a GraphError, or this raises."""
    try:
        module = read_module(text, "fuzz.ir")
    except GraphError as error:
        if not str(error).startswith("fuzz.ir"):
            raise AssertionError(f"no place: {error}") from error
        return False
    again = read_module(str(module), "fuzz.ir")
    assert again == module
    assert str(again) == str(module)
    return True


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_only_graph_errors_escape(file):
    text = file.read_text(encoding="utf-8")
    rng = random.Random(file.stem)
    accepted = 0
    for _ in range(ROUNDS):
        mutated = text
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            mutated = rng.choice(MUTATIONS)(mutated, rng) or " "
        with no_hang(mutated):
            accepted += checked(mutated)
    assert 0 < accepted < ROUNDS


def application(op: Op, seed: int) -> str:
    """The text of a graph that applies `op` to inputs."""
    case = Draw([seed, len(op.name)]).case(op)
    g = Graph(op.name)
    operands = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
    node = g.node(op, operands, case.attrs)
    g.set_outputs([g.node("item", (node,), {"index": 0}) if node.has_items else node])
    return show(g)


OPS = [o for o in table().values() if not o.why_no_cases]


@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_no_rule_of_an_op_raises_anything_else(op):
    """Numbers, dtypes, names and operands changed, so that the text parses and the rule decides."""
    rng = random.Random(op.name)
    for seed in range(SEEDS):
        text = application(op, seed)
        for _ in range(PER_SEED):
            mutated = text
            for _ in range(rng.choice([1, 2, 3])):
                mutated = rng.choice([number, swap, symbolic, dtypes, arity])(mutated, rng)
            with no_hang(mutated):
                checked(mutated)


def symbolic(text: str, rng: random.Random) -> str:
    """A named dim, or an expression of it, in the place of a number."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return text
    at = rng.choice(found)
    new = rng.choice(["n", "n + 1", "2*n", "(n//2)", "n - 3", "(n%3)", "max(m, n)", "n*m", "-n"])
    text = text[: at.start()] + new + text[at.end() :]
    declared = "{\n  dim n in 0..\n  dim m in 1..8\n"
    return text if declared in text else text.replace("{\n", declared, 1)


def dtypes(text: str, rng: random.Random) -> str:
    """Every mention of one dtype made another, so that they still agree."""
    names = [d.value for d in DType]
    old, new = rng.choice(names), rng.choice(names)
    return re.sub(rf"\b{old}\b", new, text)


def arity(text: str, rng: random.Random) -> str:
    """An operand more, or less."""
    found = list(re.finditer(r"%\d+, ", text))
    if not found:
        return text
    at = rng.choice(found)
    return text[: at.start()] + rng.choice(["", at[0] * 2]) + text[at.end() :]


def test_random_words_are_graph_errors():
    rng = random.Random(1)
    for _ in range(300):
        words = [rng.choice(WORDS + NUMBERS[:6]) for _ in range(rng.randrange(30))]
        assert not checked(" ".join(['mir "t" {', *words]))
