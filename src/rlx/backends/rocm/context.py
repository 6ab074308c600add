"""One AMD device: calls of HIP for it, its facts, and its state after an error that is sticky."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from rlx.backends.cuda.context import Context, check, device_name, integer
from rlx.backends.rocm.library import HipLibrary

PROPERTIES_BYTES = 1472
"""Of hipDeviceProp_t since ROCm 6.0; later versions only use what is reserved in it."""
MEMORY_AT, LDS_AT, PROCESSORS_AT = 288, 296, 388
ARCHITECTURE_AT, ARCHITECTURE_BYTES = 1160, 256
"""Where it has totalGlobalMem, sharedMemPerBlock, multiProcessorCount and gcnArchName."""


class Properties:
    """What HIP says of a device."""

    def __init__(self, library: HipLibrary, number: int) -> None:
        room = ctypes.create_string_buffer(2 * PROPERTIES_BYTES)
        check(library, "hipGetDevicePropertiesR0600", room, number)
        self._raw = room.raw

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._raw[at : at + size], "little")

    @property
    def architecture(self) -> str:
        """With its options, such as gfx90a:sramecc+:xnack-."""
        field = self._raw[ARCHITECTURE_AT : ARCHITECTURE_AT + ARCHITECTURE_BYTES]
        return field.split(b"\0", 1)[0].decode(errors="replace")

    @property
    def processors(self) -> int:
        return self._number(PROCESSORS_AT, 4)

    @property
    def lds_bytes(self) -> int:
        """That a workgroup may have."""
        return self._number(LDS_AT, 8)

    @property
    def memory_bytes(self) -> int:
        return self._number(MEMORY_AT, 8)


class HipContext(Context):
    """A device by number. HIP has no contexts: its functions are called with the device current."""

    library: HipLibrary

    def __init__(self, library: HipLibrary, number: int = 0) -> None:
        super().__init__(library, number)
        if integer(library, "cuDeviceGetCount") > 1:
            self.library = library.of_device(number)

    def _retained(self) -> ctypes.c_void_p:
        return ctypes.c_void_p()

    def _within(self, name: str, *args: Any) -> int:
        return self.library[name](*args)

    def failed(self, name: str, code: int, *args: Any) -> None:
        raise self.error(name, code)

    @property
    def is_current(self) -> bool:
        return True

    # -- facts -----------------------------------------------------------------------------------

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.library, self.number)


def shown_devices(library: HipLibrary) -> tuple[str, ...]:
    """All devices that HIP shows, in a few words each."""
    check(library, "cuInit", 0)
    found: list[str] = []
    for number in range(integer(library, "cuDeviceGetCount")):
        given = Properties(library, number)
        size = given.memory_bytes / 2**30
        name = device_name(library, number)
        found.append(f"rocm:{number} {name}, {given.architecture}, {size:.0f} GiB")
    return tuple(found)
