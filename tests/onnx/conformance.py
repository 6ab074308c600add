"""ONNX's own test cases on rlx: `python -m tests.onnx.conformance`.

Every case that passes is in passing.txt, which may only grow: one that is there and does not pass
is an error. `--update` adds those that pass now. Each case runs in a child process, so that a
crash or a hang costs one case; it is compared by the tolerance that the case itself brings.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.effort import tries
from tests.watching import computed, watched

# What is tested is what the code does now.
os.environ["RLX_CACHE"] = "off"

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
PASSING = Path(__file__).with_name("passing.txt")
LIMIT_S = 240.0
"""Of a case: only one that hangs takes as long, also on a busy machine."""
FAST_PER_OP = tries(1, 2)


@dataclass(frozen=True, slots=True)
class Case:
    """One model, what goes in and what must come out, as it is sent to a child."""

    name: str
    """Kind and name, as in passing.txt."""
    op: str
    is_core: bool
    model: bytes
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """pass, unsupported (said when preparing), wrong (another result), python (a call computed
    outside native code) or error."""

    word: str
    reason: str = ""


# -- the cases ----------------------------------------------------------------------------------


def cases(kinds: Sequence[str], wanted: frozenset[str] | None = None) -> Iterator[Case]:
    """Those of the installed onnx, in order; only `wanted` ones, if given."""
    from onnx.backend.test.loader import load_model_tests

    for kind in kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cases compute with infinities
            found = load_model_tests(kind=kind)
        for test in sorted(found, key=lambda t: t.name):
            if wanted is None or f"{kind}/{test.name}" in wanted:
                yield _case(kind, test)


def _case(kind: str, test: Any) -> Case:
    model = _model(test)
    op = model.graph.node[-1].op_type if kind == "node" and model.graph.node else test.name
    return Case(
        f"{kind}/{test.name}", op, is_core(model), model.SerializeToString(),
        tuple(_data(test, model)), test.rtol, test.atol,
    )  # fmt: skip


def _model(test: Any) -> Any:
    import onnx

    if test.model is not None:
        return test.model
    return onnx.load(_light(test) if test.url else Path(test.model_dir, "model.onnx"))


def _light(test: Any) -> Path:
    import onnx

    return Path(onnx.__file__).parents[1] / test.url


def _data(test: Any, model: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    if test.data_sets is not None:
        for given, expected in test.data_sets:
            yield [_array(v) for v in given], [_array(v) for v in expected]
    elif test.url:
        yield _light_data(test, model)
    else:
        for folder in sorted(Path(test.model_dir).glob("test_data_set*")):
            yield (
                _read(folder, "input", model.graph.input),
                _read(folder, "output", model.graph.output),
            )


def _array(value: Any) -> Any:
    """A value of a case that was made in memory; protos are read."""
    from onnx import SequenceProto, TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return numpy_helper.to_list(value) if isinstance(value, SequenceProto) else value


def _read(folder: Path, what: str, infos: Any) -> list[Any]:
    count = len(list(folder.glob(f"{what}_*.pb")))
    return [_value(folder / f"{what}_{i}.pb", infos[i].type) for i in range(count)]


def _value(path: Path, kind: Any) -> Any:
    from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper

    readers = {
        "sequence_type": (SequenceProto, numpy_helper.to_list),
        "optional_type": (OptionalProto, numpy_helper.to_optional),
    }
    form, read = readers.get(kind.WhichOneof("value"), (TensorProto, numpy_helper.to_array))
    proto = form()
    proto.ParseFromString(path.read_bytes())
    return read(proto)


def _light_data(test: Any, model: Any) -> tuple[list[Any], list[Any]]:
    """Inputs that follow from the model; the results are beside it."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.runner import Runner

    weights = {t.name for t in model.graph.initializer}
    given = [Runner.generate_dummy_data(i) for i in model.graph.input if i.name not in weights]
    path = _light(test)
    files = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    return given, [numpy_helper.to_array(onnx.load_tensor(str(f))) for f in files]


RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial",
}  # fmt: skip
ORDINARY = {
    "FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
    "UINT64", "BOOL",
}  # fmt: skip


def is_core(model: Any) -> bool:
    """Tensors of ordinary dtypes, operators of the default domain, and nothing random."""
    values = (*model.graph.input, *model.graph.output)
    return all(_is_ordinary(v.type) for v in values) and all(
        n.domain in ("", "ai.onnx") and n.op_type not in RANDOM for n in _nodes(model.graph)
    )


def _is_ordinary(kind: Any) -> bool:
    from onnx import TensorProto

    known = kind.WhichOneof("value") == "tensor_type"
    return known and TensorProto.DataType.Name(kind.tensor_type.elem_type) in ORDINARY


def _nodes(graph: Any) -> Iterator[Any]:
    graphs = [graph]
    for each in graphs:
        for node in each.node:
            yield node
            graphs += [a.g for a in node.attribute if a.HasField("g")]


# -- running them -------------------------------------------------------------------------------


def judged(case: Case) -> Verdict:
    """The verdict on one case."""
    import onnx

    from rlx.core.errors import UnsupportedError
    from rlx.onnx_backend import Backend

    warnings.simplefilter("ignore")
    model = onnx.ModelProto.FromString(case.model)
    if not Backend.is_compatible(model):
        return Verdict("unsupported", "its numbers are drawn at random: there are none to compare")
    try:
        prepared = Backend.prepare(model)
    except UnsupportedError as error:
        return Verdict("unsupported", _line(error))
    except Exception as error:
        return Verdict("error", f"prepare: {type(error).__name__}: {_line(error)}")
    try:
        return _compared(case, prepared)
    except Exception as error:
        return Verdict("error", f"run: {type(error).__name__}: {_line(error)}")


def _compared(case: Case, prepared: Any) -> Verdict:
    if not case.data:
        return Verdict("error", "the case has no data")
    for given, expected in case.data:
        try:
            _check(expected, list(prepared.run(given)), case)
        except AssertionError as error:
            return Verdict("wrong", _line(error))
    foreign = _foreign(case)
    if foreign and {op for op, _ in foreign} <= ON_HOST:
        return Verdict("pass")
    _, seen = watched(prepared.run, case.data[0][0])
    outside = [*computed(seen), *(f"{op} is {path}" for op, path in foreign)]
    return Verdict("python", ", ".join(outside)) if outside else Verdict("pass")


ON_HOST = {
    "Cast", "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    "Unique",
}  # fmt: skip
"""Operators that make strings, look inside them or decode files: Python runs them, and `rlx check`
reports it."""


def _foreign(case: Case) -> list[tuple[str, str]]:
    """The nodes that `rlx check` would not call native, lowered or folded."""
    import onnx

    from rlx.backends.registry import find_backend
    from rlx.frontends.onnx.model import from_proto
    from rlx.frontends.onnx.support_report import dispatched
    from rlx.passes.context import Context
    from rlx.passes.options import FusionOptions

    model = from_proto(onnx.ModelProto.FromString(case.model))
    read = model.specialised(case.data[0][0]) if model.is_static else model.whole()
    context = Context.of(find_backend("cpu").target(), FusionOptions())
    report = dispatched(model.reader, read.graph, context, read.steps)
    return [(r.op, r.path) for r in (*report.of("host"), *report.of("missing"))]


def _check(expected: Any, made: Any, case: Case) -> None:
    """An AssertionError where values differ; sequences item by item."""
    import numpy as np

    if isinstance(expected, list | tuple):
        assert isinstance(made, list | tuple), f"{type(made).__name__} for a sequence"
        assert len(made) == len(expected), f"{len(made)} values for {len(expected)}"
        for one, other in zip(expected, made):
            _check(one, other, case)
        return
    if expected is None:
        assert made is None, "a value for an optional that has none"
        return
    want, got = np.asarray(expected), np.asarray(made)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), (
        f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    )
    if want.dtype.name == "bfloat16":  # NumPy compares none; two units in its last place
        wide, rtol = np.float32, max(case.rtol, 2.0**-6)
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=case.atol)
    elif want.dtype == object:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def run(chosen: Sequence[Case], jobs: int, *, is_verbose: bool = True) -> dict[str, Verdict]:
    """Every case judged; what does not pass is printed as it comes."""
    from rlx.fuzz.workers import Lost, each

    found: dict[str, Verdict] = {}
    for case, got in zip(chosen, each(judged, chosen, jobs, LIMIT_S)):
        verdict = Verdict("error", got.reason) if isinstance(got, Lost) else got
        found[case.name] = verdict
        if is_verbose and verdict.word != "pass":
            print(f"{verdict.word:12} {case.name}: {verdict.reason}", flush=True)
    return found


# -- the list of those that pass ----------------------------------------------------------------


def passing() -> list[str]:
    return PASSING.read_text().split() if PASSING.exists() else []


def update(found: dict[str, Verdict]) -> int:
    """Add what passes; how many that is."""
    old = set(passing())
    new = {name for name, verdict in found.items() if verdict.word == "pass"} - old
    PASSING.write_text("".join(f"{name}\n" for name in sorted(old | new)))
    return len(new)


def fast(known: Sequence[Case]) -> list[Case]:
    """A few cases of every operator, the same ones each time."""
    by_op: dict[str, list[Case]] = defaultdict(list)
    for case in known:
        by_op[case.op].append(case)
    chosen: list[Case] = []
    for op in sorted(by_op):
        ranked = sorted(by_op[op], key=lambda c: hashlib.blake2b(c.name.encode()).digest())
        chosen += ranked[:FAST_PER_OP]
    return chosen


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.conformance", description=__doc__,
        epilog="example: python -m tests.onnx.conformance --include softmax",
    )  # fmt: skip
    parser.add_argument("--kinds", default=",".join(KINDS), help="of cases, by name (all)")
    parser.add_argument("--include", metavar="RE", help="only cases whose name has this")
    parser.add_argument("--core", action="store_true", help="only ordinary tensors and operators")
    parser.add_argument("--fast", action="store_true", help="a few that pass, of every operator")
    parser.add_argument("--update", action="store_true", help="add what passes to passing.txt")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    args = parser.parse_args(argv)
    listed = frozenset(passing())
    chosen = list(cases(args.kinds.split(","), listed if args.fast else None))
    chosen = [c for c in chosen if not args.include or re.search(args.include, c.name)]
    chosen = [c for c in chosen if not args.core or c.is_core]
    chosen = fast(chosen) if args.fast else chosen
    return _report(chosen, run(chosen, args.jobs), listed, is_updated=args.update)


def _report(
    chosen: Sequence[Case], found: dict[str, Verdict], listed: frozenset[str], *, is_updated: bool
) -> int:
    """Totals; exit 1 where a listed case does not pass."""
    _totals("all", found)
    _totals("node, core", {c.name: found[c.name] for c in chosen
                           if c.is_core and c.name.startswith("node/")})  # fmt: skip
    if is_updated:
        print(f"{update(found)} cases are new in {PASSING.name}")
    lost = [n for n, v in found.items() if n in listed and v.word != "pass"]
    for name in lost:
        print(f"passed before: {name}: {found[name].word}: {found[name].reason}")
    return 1 if lost else 0


def _totals(what: str, found: dict[str, Verdict]) -> None:
    counts = Counter(v.word for v in found.values())
    words = ", ".join(f"{n} {w}" for w, n in sorted(counts.items()))
    print(f"{what}: {len(found)} cases: {words}")


if __name__ == "__main__":
    sys.exit(main())
