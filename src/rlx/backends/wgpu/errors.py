"""What errors of wgpu mean to a user: which error is raised, and what to do next."""

from __future__ import annotations

from rlx.core.errors import Error, OutOfMemoryError

LOST = ("device is lost", "device lost", "has been destroyed")
"""In messages of calls on a device that is gone."""
NO_POLLER = "no attribute 'get_token'"
"""What wgpu's own objects say of one that was destroyed."""
NO_MEMORY = ("out of memory", "not enough memory")
LOST_ADVICE = (
    "What was on the device is gone: compile or load the model again, which opens the device anew."
)


class WgpuError(Error):
    """What a call of wgpu failed with."""


class LostDeviceError(WgpuError):
    """The device is gone, and all that was on it."""


def error_of(what: str, error: Exception) -> Error:
    """The error of a call that failed."""
    said = " ".join(str(error).split()) or type(error).__name__
    said = "the device has been destroyed" if NO_POLLER in said else said
    text = f"{what}: wgpu answered: {said.removeprefix('Validation Error Caused by: ')}."
    if any(mark in said.lower() for mark in LOST):
        return LostDeviceError(f"{text} {LOST_ADVICE}")
    if type(error).__name__ == "GPUOutOfMemoryError" or any(m in said.lower() for m in NO_MEMORY):
        return OutOfMemoryError(f"{text} Use smaller inputs, or close executables.")
    return WgpuError(f"{text} This is a defect of rlx or of the driver: please report it.")
