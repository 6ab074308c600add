"""Metal as pyobjc gives it: the few calls that are made of it, and the devices there are.

Objects that Metal returns live in a pool until it is drained, which nobody does in a process
without an event loop: `Metal.pool` is around everything that makes some.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rlx.backends.metal.machine import FAMILIES, Family
from rlx.core.errors import UnsupportedError

INSTALL = "pip install 'rlx[metal]'"
FAMILY_CONSTANTS = {
    "apple9": "MTLGPUFamilyApple9",
    "apple8": "MTLGPUFamilyApple8",
    "apple7": "MTLGPUFamilyApple7",
    "mac2": "MTLGPUFamilyMac2",
}
LANGUAGES = ("MTLLanguageVersion3_1", "MTLLanguageVersion3_0", "MTLLanguageVersion2_4")
"""The newest that is asked for first: 3.1 has bfloat."""
FIRST_SYSTEM = {"MTLLanguageVersion3_1": 14, "MTLLanguageVersion3_0": 13}
"""The release of macOS that brought them."""


@dataclass(frozen=True, slots=True)
class Metal:
    """pyobjc's module Metal, a pool of its objects, and the release of macOS."""

    module: Any
    pool: Callable[[], AbstractContextManager[Any]]
    system: str

    @property
    def language(self) -> str:
        """The newest version of MSL that the system and the module have."""
        major = int(self.system.split(".")[0] or 0)
        has = (n for n in LANGUAGES if hasattr(self.module, n) and FIRST_SYSTEM.get(n, 0) <= major)
        return next(has, "")

    @property
    def has_bfloat(self) -> bool:
        return self.language == LANGUAGES[0]

    def devices(self) -> list[Any]:
        """All of the machine; those that do not save power first."""
        found = list(self.module.MTLCopyAllDevices() or ())
        return sorted(found, key=lambda d: bool(d.isLowPower()))

    def device(self, number: int) -> Any:
        found = self.devices()
        if not 0 <= number < len(found):
            here = (
                f"{len(found)} here: 0 to {len(found) - 1}"
                if len(found) > 1
                else (f"{len(found) or 'none'} here")
            )
            raise UnsupportedError(
                f"there is no Metal device {number}; {here}. Choose another one, or use "
                "target='cpu'."
            )
        return found[number]

    def family_of(self, device: Any) -> Family:
        """The newest that the device supports."""
        for name, constant in FAMILY_CONSTANTS.items():
            value = getattr(self.module, constant, None)
            if value is not None and device.supportsFamily_(value):
                return FAMILIES[name]
        raise UnsupportedError(
            f"{device.name()} is of no family that rlx prints code for "
            f"({', '.join(FAMILIES)}). Use target='cpu'."
        )

    def compile_options(self) -> Any:
        """Without fast mathematics: NaN and infinities are numbers, and nothing is reordered."""
        options = self.module.MTLCompileOptions.alloc().init()
        if hasattr(options, "setMathMode_"):
            options.setMathMode_(self.module.MTLMathModeSafe)
        else:
            options.setFastMathEnabled_(False)
        if self.language:
            options.setLanguageVersion_(getattr(self.module, self.language))
        return options


def open_metal() -> Metal:
    """An UnsupportedError says why there is none."""
    if sys.platform != "darwin":
        raise UnsupportedError(
            f"there is no Metal on {sys.platform}: it is a part of macOS. Use target='cpu', or "
            "compile on a Mac."
        )
    if find_spec("Metal") is None:
        raise UnsupportedError(f"pyobjc-framework-Metal is not installed; {INSTALL}.")
    pool = getattr(import_module("objc"), "autorelease_pool", nullcontext)
    return Metal(import_module("Metal"), pool, platform.mac_ver()[0])
