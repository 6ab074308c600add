"""An AMD device: its machine, code, memory and queues, by HIP alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace

from rlx.backends.cuda.device import CudaDevice, Function
from rlx.backends.gpu.device import Code, Kernel
from rlx.backends.rocm.architecture import LDS_BYTES, architecture
from rlx.backends.rocm.context import HipContext
from rlx.backends.rocm.library import HipLibrary, open_library
from rlx.backends.rocm.metadata import facts
from rlx.backends.rocm.queue import ForeignHipQueue, HipQueue
from rlx.core.errors import UnsupportedError
from rlx.program.program import Program


class HipDevice(CudaDevice):
    """One device, by number."""

    context: HipContext

    def __init__(self, number: int = 0, library: HipLibrary | None = None) -> None:
        context = HipContext(library or open_library(), number)
        given = context.properties
        self.target = architecture(given.architecture)
        self.machine = replace(
            self.target.machine,
            processors=given.processors,
            shared_bytes=min(given.lds_bytes, LDS_BYTES),
        )
        self._start(context)

    @property
    def architecture(self) -> str:
        return self.target.name

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        from rlx.backends.rocm.amdgcn.assemble import assemble

        return assemble(programs, self.target)

    def load(self, code: Code) -> Kernel:
        self._unload_retired()
        found = facts(code.binary)
        if found.architecture != self.target.name:
            raise UnsupportedError(
                f"kernel {code.name} is compiled for {found.architecture}, and this device is "
                f"{self.target.name}. Compile the model again on this machine."
            )
        module = self.context.made("hipModuleLoadData", code.binary)
        function = self.context.made("cuModuleGetFunction", module, code.name.encode())
        held = Function(function, module)
        weakref.finalize(held, self._retired.append, module).atexit = False
        return Kernel(code, held)

    def _new_queue(self, stream: int | None) -> HipQueue:
        kind = HipQueue if stream is None else ForeignHipQueue
        return kind(self.context, *self._shared, stream)
