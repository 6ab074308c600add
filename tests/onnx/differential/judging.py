"""Who is right: rlx must give what the evaluators agree on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.onnx.differential.drawing import (
    EPSILON,
    Array,
    Explained,
    Formula,
    Node,
    Rounding,
    pages,
)
from tests.onnx.differential.running import Outcome, Ran, Refused


@dataclass(frozen=True, slots=True)
class Verdict:
    """same, explained, unchecked (a row names an evaluator that gives nothing), invalid (no
    evaluator takes the model); or a finding: wrong, refused, crashed, undecided (the evaluators
    differ, and no row says who is right)."""

    word: str
    reason: str = ""

    @property
    def is_finding(self) -> bool:
        return self.word not in ("same", "explained", "unchecked", "invalid")


def judge(node: Node, ours: Outcome, reference: Outcome, peer: Outcome) -> Verdict:
    """The verdict on what rlx gives, beside onnx.reference and onnxruntime. A row decides between
    these two; only one with a formula against both."""
    oracles = [o for o in (peer, reference) if isinstance(o, Ran)]
    agree = len(oracles) == 2 and not differs(oracles[0], oracles[1], node.tolerance)
    row = _row(node)
    if row is not None and (callable(row.right) or not agree):
        return _by_row(node, row, ours, reference, peer)
    rejected = isinstance(peer, Refused) and peer.kind == "rejects"
    if isinstance(ours, Refused):
        if ours.kind == "crashed":
            return Verdict("crashed", ours.reason)
        is_valid = bool(oracles) and not rejected
        return Verdict("refused" if is_valid else "invalid", ours.reason)
    if not oracles:
        return Verdict("invalid", "runs on rlx alone")
    if len(oracles) == 2 and not agree:
        apart = differs(oracles[0], oracles[1], node.tolerance)
        return Verdict("undecided", f"onnxruntime for onnx.reference: {apart}")
    found = [differs(ours, o, node.tolerance) for o in oracles]
    return Verdict("wrong", found[0] or "") if all(found) else Verdict("same")


def _row(node: Node) -> Explained | None:
    rows = (r for r in pages().explained if r.op == node.op)
    return next((r for r in rows if r.when(node)), None)


def _by_row(
    node: Node, row: Explained, ours: Outcome, reference: Outcome, peer: Outcome
) -> Verdict:
    """A known difference; rlx still gives what the row says."""
    if isinstance(ours, Refused):
        return Verdict(ours.kind, ours.reason)
    who, right = _right(node, row, reference, peer)
    if not isinstance(right, Ran):
        return Verdict("unchecked", row.why)
    if apart := differs(ours, right, node.tolerance):
        return Verdict("wrong", f"{who} is right: {apart}")
    oracles = [o for o in (peer, reference) if isinstance(o, Ran)]
    is_same = len(oracles) == 2 and not any(differs(ours, o, node.tolerance) for o in oracles)
    return Verdict("same") if is_same else Verdict("explained", row.why)


def _right(
    node: Node, row: Explained, reference: Outcome, peer: Outcome
) -> tuple[str, Outcome | None]:
    evaluators = {"onnxruntime": peer, "reference": reference}
    named = None if callable(row.right) else evaluators.get(row.right)
    formula = row.right if callable(row.right) else row.otherwise
    if formula is None or isinstance(named, Ran):
        return str(row.right), named
    with np.errstate(all="ignore"):
        return "its formula", _by_formula(node, formula)


def _by_formula(node: Node, formula: Formula) -> Outcome:
    try:
        made = formula(node)
        return Ran(tuple(map(np.asarray, made if isinstance(made, tuple) else (made,))))
    except Exception as error:  # a fault of the page, not of what it judges
        raise AssertionError(f"the formula of a row for {node.op} fails: {error}") from error


def differs(ours: Ran, other: Ran, tolerance: Rounding) -> str | None:
    """Where two results are not the same."""
    if len(ours.values) != len(other.values):
        return f"{len(ours.values)} outputs for {len(other.values)}"
    for i, (made, wanted) in enumerate(zip(ours.values, other.values)):
        if found := _apart(made, wanted, tolerance):
            return f"output {i}: {found}"
    return None


def _apart(made: Array, wanted: Array, tolerance: Rounding) -> str | None:
    if (made.dtype, made.shape) != (wanted.dtype, wanted.shape):
        return f"{made.dtype}{list(made.shape)} for {wanted.dtype}{list(wanted.shape)}"
    if made.dtype.name not in EPSILON:
        same = np.asarray(made == wanted)
        if tolerance.whole and made.dtype.kind in "iu":
            same = np.abs(made.astype(float) - wanted.astype(float)) <= tolerance.whole
        return None if same.all() else _first(made, wanted, ~same)
    epsilon = EPSILON[made.dtype.name]
    one, other = made.astype(np.float64), wanted.astype(np.float64)
    tiny = float(np.finfo(np.float32).tiny if made.dtype.name != "float16" else 2.0**-24)
    with np.errstate(all="ignore"):
        limit = tolerance.ulps * epsilon * (np.abs(other) + tolerance.scale) + tiny
        near = np.abs(one - other) <= limit
    same = near | (one == other) | (np.isnan(one) & np.isnan(other))
    same &= np.isfinite(one) | (one == other) | np.isnan(other)
    return None if same.all() else _first(made, wanted, ~same)


def _first(made: Array, wanted: Array, bad: Array) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
    return f"{made[at]!s} for {wanted[at]!s} at {list(at)}, {int(bad.sum())} of {bad.size} differ"
