"""Code in memory, ready to be called."""

from __future__ import annotations

from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.system.base import System
from rlx.backends.cpu.system.current import this_system
from rlx.core.errors import Error


class Loaded:
    """A blob in executable memory of its own. The memory goes when this does: keep it as long as
    its functions are called."""

    def __init__(self, blob: Blob, system: System | None = None) -> None:
        system = this_system() if system is None else system
        if blob.arch != system.abi:
            raise Error(
                f"this code is for {blob.arch} and the machine is {system.abi}. "
                "Compile the model here."
            )
        self.exports = blob.exports
        self._memory = system.map_code(blob.code)

    def address(self, name: str) -> int:
        if name not in self.exports:
            raise Error(f"native code has no function {name!r}; it has {sorted(self.exports)}.")
        return self._memory.base + self.exports[name]
