"""Where a node of an FX graph comes from: the path of its module, and the line that called it."""

from __future__ import annotations

import re
from typing import Any

from rlx.ir.mir import Origin

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OF_TORCH = re.compile(r"[/\\]torch[/\\](?:nn|_|utils|functional|overrides|fx|export)")


def module_path(node: Any) -> str:
    """The innermost module that the node belongs to, as `named_modules` has it; "" of the root."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(list(stack.values())), ("",))[0] if stack else ""
    cleaned = path.replace("L['self']", "").replace("L__self__", "")
    return re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", cleaned).strip("._")


def source_line(node: Any) -> str:
    """file:line of the innermost frame that is not torch's own."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not _OF_TORCH.search(f[0])] or frames
    if not own:
        return ""
    file, line = own[-1]
    name = re.split(r"[/\\]", file)[-1]
    return f"{name}:{line}"


def place_of(node: Any) -> str:
    """Module path and line, as errors and reports name them."""
    found = [p for p in (module_path(node), source_line(node)) if p]
    return " · ".join(found) or node.name


def origin_of(node: Any) -> Origin:
    return Origin("torch", place_of(node))
