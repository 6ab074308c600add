"""What Python does during a call: the profiler sees every function that is entered."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

WAY_IN = {"executable.py:__call__", "len", "rlx_model"}
"""All that a call of plain arrays may enter: the method, and the native function it calls."""
CHECKS = {
    "arguments.py", "executable.py", "program.py", "interface.py", "shape.py", "atoms.py", "dim.py",
    "intervals.py", "dtype.py", "arrays.py", "call.py", "binding_table.py", "buffer_pool.py",
    "thread_pool.py", "cpython_layout.py", "named_calls.py", "named_dims.py", "public_calls.py",
    "loaded_program.py", "variants.py",
    "_asarray.py", "_dtype.py", "<frozen _collections_abc>",
    "_internal.py", "dataclasses.py", "enum.py", "<frozen abc>", "<string>",
}  # fmt: skip
"""Where the functions are that check a call and mend it: dtypes, sizes, how arrays lie."""
PLAIN = {
    "rlx_model", "asarray", "array", "empty", "zeros", "tobytes", "items", "values", "get",
    "append", "remove", "pop", "update", "isalnum", "index", "upper", "move_to_end",
    "_abc_instancecheck", "__enter__", "__exit__",
    "from_address", "addressof", "frombuffer", "bit_length", "HasField", "WhichOneof",
    "ascontiguousarray", "astype", "reset", "reshape", "startswith", "tolist", "view",
    *dir(builtins),
}  # fmt: skip
"""C functions that look, lead in, or make arrays for results; none computes on them."""
MODEL = {
    "onnx_backend.py", "variants.py", "model.py", "values.py", "reader.py", "mir.py:outputs",
    "mir.py:inputs", "call_values.py", "strings.py", "small_dtypes.py", "host_steps.py",
    "contextlib.py",
    "numerictypes.py", "<frozen importlib._bootstrap>",
}  # fmt: skip
"""Where a model of ONNX has its inputs checked and encoded, and its outputs decoded and named."""
READS = {"infer_binding", "_match_leaf", "_solve", "checked_array"}
"""What they use of the interpreter: reading the sizes of named dims off arrays."""


def watched(call: Callable[..., Any], *given: Any) -> tuple[Any, list[str]]:
    """The result, and the functions of Python and of C that were entered, in order."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            code = frame.f_code
            seen.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_name}")
        elif event == "c_call":
            seen.append(what.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        made = call(*given)
    finally:
        sys.setprofile(before)
    return made, seen[:-1]  # the last is setprofile itself


def computed(seen: list[str]) -> list[str]:
    """What was entered beyond the way in and the checks of a call, in order."""
    return [s for s in dict.fromkeys(seen) if not _is_check(s)]


def _is_check(what: str) -> bool:
    file, _, name = what.rpartition(":")
    if not file:
        return name in PLAIN
    known = file in CHECKS or file in MODEL or what in MODEL
    return known or (file == "interpret.py" and (name in READS or name.startswith("<")))
