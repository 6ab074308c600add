"""Functions that a module has once, called by those that need them."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.llvm.builder import Code


def helper(
    code: Code, name: str, args: str, build: Callable[[Code], None], lanes: int = 1,
    result: str = "void",
) -> None:  # fmt: skip
    """Write the function, unless the module has it; `build` writes its lines, and only for a
    result also its end. One that polls is called by `polled_call`."""
    if name in code.shared:
        return
    code.shared[name] = ""
    inner = Code(lanes, code.isa, code.shared)
    inner.left = "ret ptr null" if "%poll" in args else ""
    build(inner)
    if result == "void":
        inner.do("ret void")
    code.shared[name] = inner.function(f"define internal {result} @{name}({args})")


def polled_call(code: Code, name: str, given: str) -> str:
    """The pointer that a function gives whose last argument is `poll`: null means that it left, as
    the one that calls it does then."""
    made = code.let(f"call ptr @{name}({given}, ptr %poll)")
    with code.when(code.let(f"icmp eq ptr {made}, null")):
        code.poll()
    return made


def subprogram(
    code: Code, name: str, args: str, given: str, build: Callable[[Code], None], lanes: int,
    *, is_long: bool,
) -> None:  # fmt: skip
    """Call a function that a module has once; one that may take long polls, and the one that calls
    it leaves with it."""
    if not is_long:
        helper(code, name, args, build, lanes)
        code.do(f"call void @{name}({given})")
        return

    def whole(inner: Code) -> None:
        build(inner)
        inner.do("ret ptr %poll")

    helper(code, f"{name}.long", f"{args}, ptr %poll", whole, lanes, result="ptr")
    polled_call(code, f"{name}.long", given)
