"""Programs printed as PTX and assembled by the driver, several at a time.

The linker's interface is used since it runs in several threads at once and gives the machine code,
which is kept: loading PTX as a module holds the context's lock while it assembles. Measured on an
H200: 60 kernels in 0.5 s by 8 threads, against 2.1 to 3 s as modules.

What the linker assembles is relocatable code, in which asynchronous products of four warps are
serialised and limits of registers ignored, whatever options it is given (C7509 and C7504 in its
log). Programs that compute while such products are under way stay PTX, also in files: the driver
assembles them as a whole whenever they are loaded, in 0.3 to 0.7 s each. Attention of 1x8192, depth
128, on an H200: 0.77 ms so, 1.08 ms by the linker; products of matrices take the same time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.errors import AssemblerError, DriverError
from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.gpu.device import Code

if TYPE_CHECKING:
    from rlx.program.program import Program

PTX = 1
"""The kind of what is given to the linker."""
LOG, LOG_SIZE = 5, 6
"""Options of the assembler: where its messages go, and how many bytes there is room for."""
LOG_BYTES = 1 << 14
SHOWN = 2000
"""Characters of the log in an error."""
THREADS = 16
CUBIN = b"\x7fELF"
"""How machine code begins; anything else is PTX."""


def print_code(program: Program, architecture: Architecture) -> Code:
    """A program with PTX as its binary, which a device's driver assembles when it is loaded."""
    from rlx.backends.cuda.ptx.printer import printed

    text, shared_bytes = printed(program, architecture)
    return Code.of(program, text.encode(), shared_bytes)


def assemble(
    context: Context, architecture: Architecture, programs: Iterable[Program]
) -> list[Code]:
    """Programs with machine code, in order. Each is linked as soon as it is printed, while the next
    ones are written: a thread that links waits for the interpreter's lock after each of four calls,
    for a few milliseconds at most, and the linker takes a hundred for a large program."""

    def code_of(program: Program, text: Code) -> Code:
        return text if _is_whole(program) else linked(context, text)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "rlx-assemble") as pool:
        started = [pool.submit(code_of, p, print_code(p, architecture)) for p in programs]
        return [code.result() for code in started]


def _is_whole(program: Program) -> bool:
    """Does it compute operands while products are under way? Relocatable code waits for each."""
    from rlx.program.nodes import WarpgroupMul

    return any(isinstance(n, WarpgroupMul) and n.is_async and not n.left for n in program.nodes)


def linked(context: Context, code: Code) -> Code:
    """Code in PTX as machine code."""
    log = Log()
    state = context.made_last("cuLinkCreate_v2", 2, log.keys, log.values)
    try:
        text = code.binary + b"\0"
        context("cuLinkAddData_v2", state, PTX, text, len(text), code.name.encode(), 0, None, None)
        cubin, size = ctypes.c_void_p(), ctypes.c_size_t()
        context("cuLinkComplete", state, ctypes.byref(cubin), ctypes.byref(size))
        return code.with_binary(ctypes.string_at(cubin, size.value))
    except DriverError as error:
        raise log.error(code.name, error) from None
    finally:
        context.quietly("cuLinkDestroy", state)


class Log:
    """Room for the assembler's messages, and the options that say so."""

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(LOG_BYTES)
        self.keys: Any = (ctypes.c_int * 2)(LOG, LOG_SIZE)
        self.values: Any = (ctypes.c_void_p * 2)(ctypes.addressof(self._text), LOG_BYTES)

    def error(self, name: str, error: DriverError) -> DriverError:
        """An error of the assembler with what it says; any other as it is."""
        said = self._text.value.decode(errors="replace").strip()
        if not said:
            return type(error)(f"kernel {name}: {error}")
        return AssemblerError(f"kernel {name}: {error} The assembler says: {said[:SHOWN]}")
