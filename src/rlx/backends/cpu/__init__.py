"""The CPU: native code made by LLVM, for the instruction set of this machine or another.

Loading code that was made before needs no LLVM.
"""

from __future__ import annotations

from rlx.backends.cpu.backend import CpuBackend

backend = CpuBackend()
