"""Internal functions that a module has once, called by the kernels that need them."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.llvm.builder import Code


def helper(
    code: Code, name: str, args: str, build: Callable[[Code], None], lanes: int = 1,
    result: str = "void",
) -> None:  # fmt: skip
    """Define the function, unless the module has it; `build` emits its body, and only for a result
    also its return. One that polls is called by `polled_call`."""
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
    """The pointer that a function returns whose last argument is `poll`: null means that it was
    interrupted, and its caller returns too."""
    made = code.let(f"call ptr @{name}({given}, ptr %poll)")
    with code.when(code.let(f"icmp eq ptr {made}, null")):
        code.poll()
    return made


def subprogram(
    code: Code, name: str, args: str, given: str, build: Callable[[Code], None], lanes: int,
    *, is_long: bool,
) -> None:  # fmt: skip
    """Call a function that a module has once; one that may take long polls, and its caller returns
    with it when interrupted."""
    if not is_long:
        helper(code, name, args, build, lanes)
        code.do(f"call void @{name}({given})")
        return

    def whole(inner: Code) -> None:
        build(inner)
        inner.do("ret ptr %poll")

    helper(code, f"{name}.long", f"{args}, ptr %poll", whole, lanes, result="ptr")
    polled_call(code, f"{name}.long", given)
