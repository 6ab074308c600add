"""What the driver's error codes mean to a user: which error is raised, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError

OUT_OF_MEMORY = 2
NO_DEVICE, INVALID_DEVICE, DEVICE_UNAVAILABLE = 100, 101, 46
NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 3, 201, 400, 600
LOST = frozenset({214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 999})
"""Sticky errors: every later call in the context gives them, too. A memory error that cannot be
corrected, an address or instruction that is not legal, a kernel that ran too long."""
ADVICE = {
    NOT_INITIALIZED: "CUDA does not survive a fork: start processes with the 'spawn' method.",
    DEVICE_UNAVAILABLE: "Another process has it for itself; end that one, or use another device.",
    209: "The code was compiled for another GPU: compile the model again on this one.",
    218: "This is a defect of rlx: please report it with the program's name.",
    222: "The driver is older than the code: install a newer one, or compile the model here.",
    701: "The kernel asks for more registers or threads than a block has: report it, please.",
    802: "The GPU is still being started: try again.",
    803: "The driver library and the kernel module differ: restart the machine.",
}


class DriverError(Error):
    """What a call of the driver failed with."""


class AssemblerError(DriverError):
    """PTX that the driver's assembler refuses."""


class LostDeviceError(DriverError):
    """The context is lost: nothing that is on the device can be reached any more."""


def error_of(call: str, code: int, meaning: str) -> Error:
    """The error of a call that failed; `meaning` is the driver's name and text of the code."""
    said = f"{call} of the CUDA driver failed: {meaning}."
    if code == OUT_OF_MEMORY:
        return OutOfMemoryError(f"{said} Use smaller inputs, or free memory of the device.")
    if code in (NO_DEVICE, INVALID_DEVICE):
        return UnsupportedError(f"{said} Look at what `rlx doctor` shows, or use target='cpu'.")
    return DriverError(f"{said} {ADVICE[code]}" if code in ADVICE else said)


def lost_text(call: str, meaning: str, running: Sequence[str]) -> str:
    """Why a context was lost. Kernels run after the call that enqueued them has returned, so one
    of several is to blame."""
    if not running:
        who = "No kernel of rlx was running: another library's may be to blame."
    elif len(running) == 1:
        who = f"Kernel {running[0]} was running."
    else:
        who = f"One of these kernels was running: {', '.join(running)}."
    return f"the GPU's context is lost: {call} answered {meaning}. {who}"


LOST_ADVICE = (
    "What was on the device is gone, and every later call fails, in a new context, too: restart "
    "the process. Other targets still run in this one."
)
