"""Kernels in MSL, compiled for the host by clang with a metal_stdlib of our own.

With the declarations of `checked/`, types and address spaces are checked as Metal's compiler does;
with the definitions of `shim/` a kernel runs. Sums of signed integers that overflow, and shifts by
the width, which C++ leaves open, trap. No limit of Apple's compiler is known here.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIM, CHECKED = (Path(__file__).parent / n for n in ("shim", "checked"))
FLAGS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-fsigned-char", "-Wall", "-Werror"),
    *("-march=native", "-ffp-contract=on"),  # which only the text can forbid, as for Metal
    *("-Wno-unknown-attributes", "-Wno-unused", "-Wno-logical-op-parentheses"),
    *("-Wno-tautological-compare", "-Wno-self-assign", "-Wno-uninitialized"),
    "-Wno-conditional-uninitialized",
    *("-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero", "-fno-sanitize-recover"),
    "-fsanitize-trap=all",
)
CHECKS = (
    *("-std=c++17", "-fsyntax-only", "-Wall", "-Wconversion", "-Wdouble-promotion", "-Werror"),
    *("-Wno-sign-conversion", "-Wno-unknown-attributes", "-Wno-unused", "-Wno-undefined-inline"),
    *("-Wno-undefined-internal", "-Wno-logical-op-parentheses", "-Wno-tautological-compare"),
    *("-Wno-self-assign", "-Wno-uninitialized", "-Wno-conditional-uninitialized"),
    *("-Xclang", "-fnative-half-type", "-Xclang", "-fallow-half-arguments-and-returns"),
)
BATCH = 12
"""Kernels of one file: clang starts once for them."""
KERNEL = re.compile(r"^void (\w+)\(\n(.*?)\n\) \{", re.M | re.S)
PARAMETER = re.compile(r"^(.*?)([&*]?) (\w+) \[\[(\w+)(?:\((\d+)\))?\]\]$")
WAITING = re.compile(r"threadgroup_barrier|simdgroup_|simd_shuffle")
THREADGROUP = re.compile(r"^ threadgroup uint4 (\w+_memory)", re.M)
POSITIONS = {
    "threadgroup_position_in_grid": "shim::here.group",
    "threadgroups_per_grid": "shim::here.groups",
    "thread_index_in_threadgroup": "shim::here.own->index",
}


def clang() -> str | None:
    return shutil.which("clang++")


@dataclass(frozen=True)
class HostKernel:
    """A kernel that can be called."""

    name: str
    call: Any
    waits: bool

    def run(self, arguments: Sequence[int], grid: Sequence[int], block: int) -> None:
        """On the addresses of arguments, by index of the argument table."""
        table = (ctypes.c_void_p * max(1, len(arguments)))(*arguments)
        counts = (ctypes.c_uint32 * 3)(*grid)
        _threads().shim_run(self.call, table, counts, ctypes.c_uint32(block), int(self.waits))


class ShimError(Exception):
    """What clang says of a kernel."""


def compiled(source: str) -> HostKernel:
    return compile_all([source])[source]


_KERNELS: dict[str, HostKernel] = {}


def compile_all(sources: Iterable[str]) -> dict[str, HostKernel]:
    """Of all that are not compiled yet, some to a file, two files at a time."""
    wanted = list(dict.fromkeys(sources))
    missing = [s for s in wanted if s not in _KERNELS]
    batches = [missing[i : i + BATCH] for i in range(0, len(missing), BATCH)]
    open_threads()
    started = [(b, *_started("".join(map(_wrapped, b)))) for b in batches]
    for batch, path, processes in started:
        _finished(path, processes)
        library = ctypes.CDLL(str(path))
        for source in batch:
            name = _match(source)[1]
            entry = ctypes.cast(getattr(library, f"run_{_digest(source)}"), ctypes.c_void_p)
            _KERNELS[source] = HostKernel(name, entry, bool(WAITING.search(source)))
    return {s: _KERNELS[s] for s in wanted}


def _match(source: str) -> re.Match[str]:
    found = KERNEL.search(source)
    if found is None:
        raise ShimError(f"there is no kernel in: {source[:200]}")
    return found


def _digest(source: str) -> str:
    return hashlib.blake2b(source.encode(), digest_size=12).hexdigest()


def _wrapped(source: str) -> str:
    """A kernel in a namespace of its own, with a function that calls it for one thread."""
    found = _match(source)
    given = ", ".join(_argument(p.strip()) for p in found[2].split(",\n"))
    digest = _digest(source)
    body = THREADGROUP.sub(r" static threadgroup uint4 \1", source)
    call = f'extern "C" void run_{digest}(void* table) {{\n void** at = (void**)table;\n'
    call += f" {found[1]}({given});\n}}\n"
    return f"#include <metal_stdlib>\nnamespace k_{digest} {{\n{body}\n{call}}}\n"


def _argument(parameter: str) -> str:
    found = PARAMETER.match(parameter)
    if found is None:
        raise ShimError(f"parameter {parameter!r}")
    kind, mark, _, attribute, index = found.groups()
    if attribute != "buffer":
        return POSITIONS[attribute]
    pointer = f"({kind}*)at[{index}]"
    return f"*{pointer}" if mark == "&" else pointer


# -- clang ----------------------------------------------------------------------------------------


@functools.cache
def _folder() -> Path:
    made = Path(tempfile.gettempdir()) / f"rlx-metal-shim-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    return made


@functools.cache
def _version() -> str:
    found = clang()
    assert found is not None, "clang++ is not installed"
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    shim = "".join(p.read_text() for folder in (SHIM, CHECKED) for p in sorted(folder.iterdir()))
    return said + shim + " ".join((*FLAGS, *CHECKS))


def _started(text: str, *, is_kernel: bool = True) -> tuple[Path, list[subprocess.Popen[str]]]:
    """A file and what makes it: nothing where it is there from before."""
    path = _folder() / f"{_digest(_version() + text)}.so"
    if path.exists():
        return path, []
    source = path.with_suffix(f".{os.getpid()}.cpp")
    source.write_text(text)
    calls = [(*FLAGS, f"-I{SHIM}", "-o", f"{source}.so")]
    calls += [(*CHECKS, f"-I{CHECKED}")] if is_kernel else []
    command = clang() or ""
    pipe = subprocess.PIPE
    return path, [
        subprocess.Popen([command, *c, str(source)], stderr=pipe, text=True) for c in calls
    ]


def _finished(path: Path, processes: Sequence[subprocess.Popen[str]]) -> None:
    said = "".join(p.communicate()[1] for p in processes)
    if any(p.returncode for p in processes):
        raise ShimError(said)
    if processes:
        source = path.with_suffix(f".{os.getpid()}.cpp")
        os.replace(f"{source}.so", path)
        source.unlink()


@functools.cache
def _threads() -> Any:
    path, processes = _started((SHIM / "threads.cpp").read_text(), is_kernel=False)
    _finished(path, processes)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def open_threads() -> None:
    """The scheduler, which compiled kernels refer to."""
    _threads()
