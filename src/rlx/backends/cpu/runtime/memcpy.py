"""memset, memcpy and memmove as LLVM writes calls of them: generated code has no library."""

from __future__ import annotations

_LINE = 64
MEMORY_FUNCTIONS = frozenset(("memcpy", "memmove", "memset"))


def memory_text() -> str:
    """Definitions in blocks of a line, then bytes; never turned into calls of themselves."""
    attributes = 'attributes #0 = { nounwind "no-builtins" }'
    return "\n".join([_copy(), _set(), _MOVE, _BACKWARD, attributes, ""])


def _loop(name: str, low: str, high: str, step: int, body: str, after: str) -> str:
    """A counting loop that leaves at `after`; the body sees `%i.<name>`."""
    i = f"%i.{name}"
    return f"""
  br label %{name}
{name}:
  {i} = phi i64 [ {low}, %{name}.before ], [ {i}.next, %{name}.body ]
  %more.{name} = icmp ult i64 {i}, {high}
  br i1 %more.{name}, label %{name}.body, label %{after}
{name}.body:
{body}
  {i}.next = add i64 {i}, {step}
  br label %{name}
"""


def _moved(kind: str, at: str, mark: str) -> str:
    return f"""  %from.{mark} = getelementptr i8, ptr %source, i64 {at}
  %to.{mark} = getelementptr i8, ptr %target, i64 {at}
  %value.{mark} = load {kind}, ptr %from.{mark}, align 1
  store {kind} %value.{mark}, ptr %to.{mark}, align 1"""


def _stored(kind: str, value: str, at: str, mark: str) -> str:
    return f"""  %to.{mark} = getelementptr i8, ptr %target, i64 {at}
  store {kind} {value}, ptr %to.{mark}, align 1"""


def _copy() -> str:
    lines = _loop(
        "lines", "0", "%whole", _LINE, _moved("<64 x i8>", "%i.lines", "l"), "rest.before"
    )
    rest = _loop("rest", "%whole", "%size", 1, _moved("i8", "%i.rest", "r"), "done")
    return f"""define ptr @memcpy(ptr %target, ptr %source, i64 %size) #0 {{
lines.before:
  %whole = and i64 %size, -{_LINE}{lines}rest.before:{rest}done:
  ret ptr %target
}}"""


def _set() -> str:
    line = _stored("<64 x i8>", "%line", "%i.lines", "l")
    lines = _loop("lines", "0", "%whole", _LINE, line, "rest.before")
    rest = _loop("rest", "%whole", "%size", 1, _stored("i8", "%byte", "%i.rest", "r"), "done")
    return f"""define ptr @memset(ptr %target, i32 %value, i64 %size) #0 {{
lines.before:
  %whole = and i64 %size, -{_LINE}
  %byte = trunc i32 %value to i8
  %one = insertelement <64 x i8> poison, i8 %byte, i32 0
  %line = shufflevector <64 x i8> %one, <64 x i8> poison, <64 x i32> zeroinitializer
{lines}rest.before:{rest}done:
  ret ptr %target
}}"""


_MOVE = """define ptr @memmove(ptr %target, ptr %source, i64 %size) #0 {
  %t = ptrtoint ptr %target to i64
  %s = ptrtoint ptr %source to i64
  %ahead = sub i64 %t, %s
  %overlaps = icmp ult i64 %ahead, %size
  br i1 %overlaps, label %backward, label %forward
forward:
  %f = call ptr @memcpy(ptr %target, ptr %source, i64 %size)
  ret ptr %target
backward:
  call void @backward(ptr %target, ptr %source, i64 %size)
  ret ptr %target
}"""

_BACKWARD = f"""define internal void @backward(ptr %target, ptr %source, i64 %size) #0 {{
entry:
  br label %next
next:
  %i = phi i64 [ %size, %entry ], [ %at, %body ]
  %more = icmp ne i64 %i, 0
  br i1 %more, label %body, label %done
body:
  %at = sub i64 %i, 1
{_moved("i8", "%at", "b")}
  br label %next
done:
  ret void
}}"""
