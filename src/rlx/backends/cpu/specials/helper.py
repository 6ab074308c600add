"""Functions that a module has once, called by those that need them."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.ir import Code


def helper(
    code: Code, name: str, args: str, build: Callable[[Code], None], lanes: int = 1,
    result: str = "void",
) -> None:  # fmt: skip
    """Write the function, unless the module has it; `build` writes its lines, and only for a
    result also its end."""
    if name in code.shared:
        return
    code.shared[name] = ""
    inner = Code(lanes, code.isa, code.shared)
    build(inner)
    if result == "void":
        inner.do("ret void")
    code.shared[name] = inner.function(f"define internal {result} @{name}({args})")
