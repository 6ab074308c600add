"""What Metal's errors mean to a user: which error is raised, and what to do next."""

from __future__ import annotations

import re
from typing import Any

from rlx.core.errors import Error, OutOfMemoryError

OUT_OF_MEMORY = 8
TIMEOUT = 2
ADVICE = {
    TIMEOUT: "A kernel ran too long for the system: use smaller inputs.",
    3: "A kernel accessed memory that is not there. This is a defect of rlx: please report it.",
    4: "The process may not use the GPU any more: start it again.",
    9: "A buffer was freed before its kernel ran. This is a defect of rlx: please report it.",
}
"""By code of MTLCommandBufferError: timeout, page fault, access revoked, invalid resource."""
PLACE = re.compile(r"program_source:(\d+):\d+: error: (.*)")


class MetalError(Error):
    """What a call of Metal failed with."""


class CompileError(MetalError):
    """MSL that Metal's compiler refuses."""


def text_of(error: Any) -> str:
    """Of an NSError, or of none."""
    return "Metal does not say why" if error is None else str(error.localizedDescription())


def compile_error(name: str, source: str, error: Any) -> CompileError:
    """With the line of the source, if Metal says which."""
    said = text_of(error)
    found = PLACE.search(said)
    where = said
    if found is not None:
        lines, number = source.splitlines(), int(found[1])
        line = lines[number - 1].strip() if number <= len(lines) else ""
        where = f"line {number}, {found[2]}: {line}"
    return CompileError(
        f"kernel {name} does not compile: {where}. This is a defect of rlx: please report it with "
        "the kernel's name and the version of macOS."
    )


def run_error(names: tuple[str, ...], error: Any) -> Error:
    """That of a command buffer; one of several kernels is to blame."""
    code = -1 if error is None else int(error.code())
    who = f"kernel {names[0]}" if len(names) == 1 else f"one of these kernels: {', '.join(names)}"
    said = f"Metal could not run {who}: {text_of(error)}."
    if code == OUT_OF_MEMORY:
        return OutOfMemoryError(f"{said} Use smaller inputs, or free memory.")
    return MetalError(f"{said} {ADVICE[code]}" if code in ADVICE else said)
