"""The campaign as a command."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
from onnx import printer

from tests.onnx.differential import __doc__ as about
from tests.onnx.differential.building import model_of
from tests.onnx.differential.campaign import Judged, Report, jobs_of, run
from tests.onnx.differential.drawing import Key, drawn, pages
from tests.onnx.differential.running import Ran, by_onnxruntime, by_reference, by_rlx

# What is tested is what the code does now.
os.environ["RLX_CACHE"] = "off"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.differential",
        description=(about or "").partition("\n\nTo add")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.onnx.differential --ops Slice,Pad --draws 300 --jobs 2",
    )
    parser.add_argument("--ops", default="", help="operators or families, by comma; all without")
    parser.add_argument("--draws", type=int, default=300, help="per operator (default 300)")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--targets", default="reference,cpu", help="of rlx, by comma")
    parser.add_argument("--draw", type=int, help="show one draw of the operator in full")
    parser.add_argument("--explained", action="store_true", help="print the table of differences")
    parser.add_argument("--verbose", action="store_true", help="say why draws are invalid, too")
    parser.add_argument("--list", action="store_true", help="print the operators by family")
    return parser.parse_args(given)


def chosen(names: str) -> list[Key]:
    """Operators by name or by family; one of another domain is `domain.Name`."""
    known = pages()
    wanted = [n for n in names.split(",") if n]
    labels = {n for key in known.drawings for n in (label(key), known.family[key])}
    if missing := [n for n in wanted if n not in labels]:
        sys.exit(f"no page draws {', '.join(missing)}; --list names those there are")
    keys = sorted(known.drawings)
    return [k for k in keys if not wanted or label(k) in wanted or known.family[k] in wanted]


def label(key: Key) -> str:
    return ".".join(filter(None, key))


def show(key: Key, number: int, seed: int) -> None:
    """One draw: its model, its inputs, and what everyone makes of it."""
    node = drawn(key, number, seed)
    print(printer.to_text(model_of([node])))
    with np.printoptions(threshold=200, floatmode="unique"):
        for i, operand in enumerate(node.operands):
            if operand is not None:
                print(f"x{i} = {operand.array!r}")
        for name, made in (
            ("onnx.reference", by_reference(node)),
            ("onnxruntime", by_onnxruntime(node)),
            ("rlx reference", by_rlx([node], "reference")),
            ("rlx cpu", by_rlx([node], "cpu")),
        ):
            print(f"{name}: {list(made.values) if isinstance(made, Ran) else made}")


def tell(judged: Judged, count: int, seed: int) -> None:
    verdict = judged.verdict
    print(
        f"{verdict.word.upper()} {label(judged.key)} opset {judged.opset}, target {judged.target}, "
        f"{count} draws: {verdict.reason}\n    python -m tests.onnx.differential "
        f"--ops {label(judged.key)} --draw {judged.number} --seed {seed}"
    )


def summarise(report: Report, seed: int, is_verbose: bool) -> int:
    family = pages().family
    for key, words in report.words.items():
        counts = ", ".join(f"{n} {w}" for w, n in words.most_common() if n)
        peer = ", ".join(f"{n} {w}" for w, n in sorted(report.peers[key].items()))
        print(f"{family[key]:12} {label(key):24} {counts}; onnxruntime: {peer}")
    for (op, why), count in sorted(report.explained.items()):
        print(f"explained: {op}, {count} times: {why}")
    for (op, why), count in sorted(report.invalid.items()) if is_verbose else ():
        print(f"invalid: {op}, {count} times: {why}")
    for judged, count in report.smallest():
        tell(judged, count, seed)
    print(f"{report.num_findings} findings in {time.monotonic() - report.since:.0f} s, seed {seed}")
    return 1 if report.num_findings else 0


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    if options.explained:
        for row in sorted(pages().explained, key=lambda r: r.op):
            who = "its formula" if callable(row.right) else row.right
            print(f"{row.op}: {who} is right. {row.why}")
        return 0
    keys = chosen(options.ops)
    if options.list:
        for key in sorted(keys, key=lambda k: (pages().family[k], k)):
            print(f"{pages().family[key]:12} {label(key)}")
        return 0
    if options.draw is not None:
        show(keys[0], options.draw, options.seed)
        return 0
    targets = tuple(options.targets.split(","))
    jobs = jobs_of(keys, options.draws, options.seed, targets, options.first)
    report = Report(keys)
    for done, judged in enumerate(run(jobs, options.jobs), 1):
        for new in report.add(judged):
            tell(new, 1, options.seed)
        if sys.stderr.isatty() or done % 20 == 0 or done == len(jobs):
            print(
                f"\r{done}/{len(jobs)} batches, {report.num_findings} findings, "
                f"{label(judged[0].key):24}",
                end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True,
            )  # fmt: skip
    print(file=sys.stderr)
    return summarise(report, options.seed, options.verbose)


if __name__ == "__main__":
    sys.exit(main())
