"""What native code asks of a runtime, for one thread of a page, in LLVM text.

call(context)   fills in the words that say how tasks are run, and runs the program
"""

from __future__ import annotations

from rlx.backends.cpu.program.call_context import Word

WASM_EXPORTS = ("call",)


def caller_text() -> str:
    """`region` runs all units of a task by one call; nobody interrupts, so `poll` gives 0."""
    return f"""
declare hidden i32 @run(ptr)
define i32 @call(ptr %context) nounwind {{
  %pool = getelementptr i64, ptr %context, i64 {Word.POOL.value}
  store i64 0, ptr %pool
  %region = getelementptr i64, ptr %context, i64 {Word.REGION.value}
  store ptr @region, ptr %region
  %threads = getelementptr i64, ptr %context, i64 {Word.THREADS.value}
  store i64 1, ptr %threads
  %poll = getelementptr i64, ptr %context, i64 {Word.POLL.value}
  store ptr @poll, ptr %poll
  %failed = getelementptr i64, ptr %context, i64 {Word.FAILED.value}
  store i64 0, ptr %failed
  %code = call i32 @run(ptr %context)
  ret i32 %code
}}
define internal i32 @region(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
    i64 %grain, ptr %scratch, i64 %bytes) nounwind {{
  %poll = getelementptr i64, ptr %context, i64 {Word.POLL.value}
  %code = call i32 %function(ptr %buffers, ptr %sizes, i64 0, i64 %units, ptr %scratch, ptr %poll)
  ret i32 %code
}}
define internal i32 @poll(ptr %0) nounwind {{
  ret i32 0
}}
"""
