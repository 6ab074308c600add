"""Drivers of Vulkan in software, by name: `python -m tests.backend.wgpu.drivers lavapipe` says with
exit code 0 that one is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ICD = "VK_ICD_FILENAMES"
"""What names the driver that Vulkan loads."""
DRIVERS = {
    "lavapipe": ("usr/share/vulkan/icd.d", "lvp_icd*.json", "mesa-vulkan-drivers"),
    "swiftshader": ("usr/lib/chromium", "vk_swiftshader_icd.json", "chromium"),
}
"""Where Debian has the file of a driver, what it is called, and the package that brings it."""


def file_of(driver: str) -> Path | None:
    folder, pattern, _ = DRIVERS[driver]
    return next(iter(sorted((Path("/") / folder).glob(pattern))), None)


def why_not(driver: str) -> str:
    """What is missing to run on a driver; "" where nothing is."""
    if find_spec("wgpu") is None:
        return "the package wgpu is not installed: pip install 'rlx[wgpu]'"
    if driver in DRIVERS and file_of(driver) is None:
        return f"the driver {driver} is not installed: apt install {DRIVERS[driver][2]}"
    return ""


def installed() -> Iterator[str]:
    """The drivers that are."""
    return (driver for driver in DRIVERS if not why_not(driver))


def choose(adapter: str) -> str:
    """The target of a driver by name, or of an adapter by number. A driver is loaded when wgpu
    is first used, by this process and by those that it starts."""
    if adapter in DRIVERS:
        os.environ[ICD] = str(file_of(adapter))
        return "wgpu"
    return f"wgpu:{adapter}" if adapter else "wgpu"


if __name__ == "__main__":
    reason = why_not(sys.argv[1])
    if reason:
        print(reason, file=sys.stderr)
    sys.exit(1 if reason else 0)
