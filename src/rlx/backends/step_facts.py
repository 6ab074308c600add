"""What is said of a step whatever its target: how it is lowered, and which forms were refused."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.cost.decision import Decision
from rlx.kernel.program.program import (
    Branch,
    Control,
    HostCall,
    KernelForm,
    Nested,
    RefusedForm,
    ScanLoop,
    WhileLoop,
)

CONTROL = {
    Nested: ("steps", "no single kernel fits: {count} smaller steps"),
    Branch: ("branch", "one of two subprograms, by its first operand"),
    WhileLoop: ("loop", "a subprogram, for as long as its condition holds"),
    ScanLoop: ("scan", "a subprogram, once for every slice"),
    HostCall: ("host", "the program that registered the op runs it"),
}
WHY = {
    KernelForm.DEDICATED: "{op} has a dedicated kernel",
    KernelForm.STRIDED_COPIES: "a concat of many values of unknown sizes: a strided copy of each",
    KernelForm.CONVOLUTION: "a convolution with fused prologue and epilogue",
    KernelForm.LOOP: "all index maps are affine: one fused loop nest",
    KernelForm.GEMM: "a GEMM with fused prologue and epilogue",
    KernelForm.GEMM_AND_LOOP: "a GEMM, then a loop nest for its epilogue, which is not elementwise",
    KernelForm.DEDICATED_AND_LOOP: "a dedicated kernel, and a loop nest for its epilogue",
}


def control_text(lowering: Control) -> tuple[str, str]:
    """A word for control flow, and what it runs."""
    name, text = CONTROL[type(lowering)]
    count = len(lowering.body.calls) if isinstance(lowering, Nested) else 0
    return name, text.format(count=count)


def form_decision(what: str, reason: str, *, is_taken: bool) -> Decision:
    """A form of kernel, taken or refused."""
    name = f"run_as_{what.lower().replace(' ', '_')}"
    return Decision("", name, (), is_taken, reason, is_reversible=False, kind="kernel")


def refused_forms(forms: Iterable[RefusedForm]) -> tuple[Decision, ...]:
    """The forms that were considered and do not fit, with the reason of each."""
    return tuple(form_decision(r.form.value, r.reason, is_taken=False) for r in forms)
