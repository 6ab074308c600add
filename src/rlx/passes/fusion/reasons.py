"""Reasons of missed fusions, and a hint for the user about each."""

from __future__ import annotations

HAS_OTHER_READERS = "a value inside it has other readers"
IS_OUTPUT = "a value inside it is an output of the graph"
BIAS_SHAPE = "the bias differs along more than the last axis"
NOT_WEIGHTS = "the right operands are not weights: concatenating them would cost on every call"
OTHER_INPUT = "gate and up are products of different values"
UNEQUAL_HALVES = "the two halves do not cover the axis"
RESIDUAL_SHAPE = "the two sides of the sum have different shapes"
TOO_MANY_STEPS = "the region would have more steps than the target takes"
TOO_MANY_INPUTS = "the region would read more values than the target takes"
TOO_MANY_ROW_STEPS = "the region would pass over its rows more often than the target takes"
TOO_MANY_OPERATIONS = (
    "the region has as much code as compiles well, and a value between two is cheap"
)
SEVERAL_RESULTS = "the region would have several results, and the target writes one"
TOO_MANY_RESULTS = "the region would have more results than one kernel should write"
OTHER_PHASE = "one side runs in the Epilogue, the other before it"
WOULD_CYCLE = "the region would form a cycle through another kernel"
ON_MESH = "a mesh splits each of the weights by its own columns, which one product would mix"
TOO_FAR = "too many kernels are between them to prove that the region is convex"

HINTS = {
    HAS_OTHER_READERS: "compute the other readers from the fused result, or accept the extra pass",
    IS_OUTPUT: "drop that output if nobody needs it",
    BIAS_SHAPE: "give a bias of one dim, the size of the last axis",
    NOT_WEIGHTS: "make them params, or concatenate them before the call",
    OTHER_INPUT: "feed both products from one value",
    UNEQUAL_HALVES: "split the axis in two equal halves",
    RESIDUAL_SHAPE: "nothing: it takes a sum of equal sides, and a region takes any",
    TOO_MANY_STEPS: "raise FusionOptions.limits if the target can take it",
    TOO_MANY_INPUTS: "raise FusionOptions.limits if the target can take it",
    TOO_MANY_ROW_STEPS: "raise FusionOptions.limits if the target can take it",
    TOO_MANY_OPERATIONS: "raise FusionOptions.limits to compile longer for one value less",
    SEVERAL_RESULTS: "drop the output or the other reader of the value inside",
    TOO_MANY_RESULTS: "drop outputs or other readers of the values inside",
    OTHER_PHASE: "nothing: step() must leave what finish() begins with",
    WOULD_CYCLE: "nothing: the kernel between them must run first",
    ON_MESH: "nothing: each device multiplies by its part of each weight",
    TOO_FAR: "build the parts that belong together next to each other",
}
REFUSED = "force the decision to see what it costs: FusionOptions(force={id: True})"


def hint_for(reason: str) -> str:
    """What to do about `reason`; for a refusal by price, how to try it anyway."""
    return HINTS.get(reason, REFUSED)
