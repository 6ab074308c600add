"""Graph breaks: why Dynamo ended a graph, and at which line of the user's."""

from __future__ import annotations

import logging
from typing import Any

LOG = logging.getLogger("rlx")


def report_break(module: Any, name: str) -> None:
    """Log the break that ended this graph, if one did."""
    found = getattr(module, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return
    frame = found.user_stack[-1] if found.user_stack else None
    place = "" if frame is None else f" at {frame.filename}:{frame.lineno}"
    LOG.warning("torch.compile broke the graph %s%s: %s", name, place, reason(found.reason))


def reason(text: str) -> str:
    """What Dynamo gives as the cause, on one line."""
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Explanation:")]
    return " ".join([lines[0] if lines else "no reason given", *told])


def graph_name() -> str:
    """The function that Dynamo compiles, with its number and that of its recompile, as torch's own
    logs have them: `forward[0/1]`."""
    from torch._guards import CompileContext  # pyright: ignore[reportMissingImports]

    number = CompileContext.current_compile_id()
    code = getattr(_translator(), "f_code", None)
    called = getattr(code, "co_name", "graph")
    return called if number is None else f"{called}[{number}]"


def is_whole() -> bool:
    """Was torch.compile asked for one graph (`fullgraph=True`)?"""
    return bool(getattr(_translator(), "one_graph", False))


def _translator() -> Any:
    """What Dynamo is tracing; None where it is not."""
    from torch._dynamo.symbolic_convert import (  # pyright: ignore[reportMissingImports]
        InstructionTranslator,
    )

    try:
        return InstructionTranslator.current_tx()
    except AttributeError:
        return None
