"""rlx: an ML compiler and runtime that explains every decision it takes.

Names resolve on first use, so that importing rlx costs little more than importing NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx._version import __version__

if TYPE_CHECKING:
    from rlx import lm, ops, torch
    from rlx.core.dim import Dim
    from rlx.core.dtype import DType
    from rlx.core.errors import Error, GraphError, UnsupportedError
    from rlx.core.layout import Layout
    from rlx.core.shape import DimBinding, Shape, sym
    from rlx.cost.decision import Decision
    from rlx.cost.gate import FusionBenefit, GraphIoProfile, IoFusionGate, fusion_benefit
    from rlx.cost.profile import GraphIoOptions, host_sync_op_kinds, profile_graph_io
    from rlx.cost.target import FusionLimits, FusionTarget, Target
    from rlx.explain import package as explain
    from rlx.frontends.files import load, load_program, save
    from rlx.frontends.inference_session import InferenceSession
    from rlx.frontends.torch.pretrained import from_pretrained
    from rlx.frontends.tracing import jit, trace
    from rlx.frontends.web import export_web
    from rlx.ir.hir import FusionPolicy, HirModule
    from rlx.ir.lir import BufferPlan, IoManifest, LirModule, Phase, Slot, Space, View
    from rlx.ir.mir import Graph, MirModule, Node
    from rlx.ir.module import GraphModule, GraphStage
    from rlx.ops.control_flow import cond, scan_loop, while_loop
    from rlx.ops.custom_ops import custom_op
    from rlx.passes.fusion.report import FusionReport
    from rlx.passes.legalise import DispatchReport
    from rlx.passes.options import DispatchPolicy, FusionOptions
    from rlx.pipeline import CompilePipeline, CompileResult
    from rlx.runtime.executable import Executable
    from rlx.runtime.session import Session, compile
    from rlx.runtime.state_session import StateSession
    from rlx.runtime.threads import threads

_HOME = {
    "rlx.cost.decision": ("Decision",),
    "rlx.cost.gate": ("FusionBenefit", "GraphIoProfile", "IoFusionGate", "fusion_benefit"),
    "rlx.cost.profile": ("GraphIoOptions", "host_sync_op_kinds", "profile_graph_io"),
    "rlx.cost.target": ("FusionLimits", "FusionTarget", "Target"),
    "rlx.ops.custom_ops": ("custom_op",),
    "rlx.core.dim": ("Dim",),
    "rlx.core.dtype": ("DType",),
    "rlx.core.errors": ("Error", "GraphError", "UnsupportedError"),
    "rlx.ir.hir": ("FusionPolicy", "HirModule"),
    "rlx.core.layout": ("Layout",),
    "rlx.ir.lir": ("BufferPlan", "IoManifest", "LirModule", "Phase", "Slot", "Space", "View"),
    "rlx.ir.mir": ("Graph", "MirModule", "Node"),
    "rlx.frontends.files": ("load", "load_program", "save"),
    "rlx.frontends.inference_session": ("InferenceSession",),
    "rlx.ops.control_flow": ("cond", "scan_loop", "while_loop"),
    "rlx.ir.module": ("GraphModule", "GraphStage"),
    "rlx.passes.legalise": ("DispatchReport",),
    "rlx.passes.options": ("DispatchPolicy", "FusionOptions"),
    "rlx.passes.fusion.report": ("FusionReport",),
    "rlx.pipeline": ("CompilePipeline", "CompileResult"),
    "rlx.runtime.executable": ("Executable",),
    "rlx.runtime.session": ("Session", "compile"),
    "rlx.runtime.state_session": ("StateSession",),
    "rlx.runtime.threads": ("threads",),
    "rlx.core.shape": ("DimBinding", "Shape", "sym"),
    "rlx.frontends.torch.pretrained": ("from_pretrained",),
    "rlx.frontends.tracing": ("jit", "trace"),
    "rlx.frontends.web": ("export_web",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BufferPlan",
    "CompilePipeline",
    "CompileResult",
    "DType",
    "Decision",
    "Dim",
    "DimBinding",
    "DispatchPolicy",
    "DispatchReport",
    "Error",
    "Executable",
    "FusionBenefit",
    "FusionLimits",
    "FusionOptions",
    "FusionPolicy",
    "FusionReport",
    "FusionTarget",
    "Graph",
    "GraphError",
    "GraphIoOptions",
    "GraphIoProfile",
    "GraphModule",
    "GraphStage",
    "HirModule",
    "InferenceSession",
    "IoFusionGate",
    "IoManifest",
    "Layout",
    "LirModule",
    "MirModule",
    "Node",
    "Phase",
    "Session",
    "Shape",
    "Slot",
    "Space",
    "StateSession",
    "Target",
    "UnsupportedError",
    "View",
    "__version__",
    "compile",
    "cond",
    "custom_op",
    "explain",
    "export_web",
    "from_pretrained",
    "fusion_benefit",
    "host_sync_op_kinds",
    "jit",
    "lm",
    "load",
    "load_program",
    "ops",
    "profile_graph_io",
    "save",
    "scan_loop",
    "sym",
    "threads",
    "torch",
    "trace",
    "while_loop",
]


if not TYPE_CHECKING:  # type checkers see the imports above, and no other names

    def __getattr__(name: str) -> Any:
        if name in ("explain", "lm", "ops", "torch"):
            return import_module(f"rlx.{name}")
        if name not in _MODULE_OF:
            raise _unknown(name)
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def _unknown(name: str) -> Exception:
    """The error of a name that rlx does not have, with one that may be meant."""
    import difflib

    from rlx.core.errors import UnknownNameError

    near = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
    hint = f" Did you mean rlx.{near[0]}?" if near else ""
    return UnknownNameError(f"module 'rlx' has no attribute {name!r}.{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
