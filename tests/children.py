"""Tests that start Python again: not where an emulator runs it, as no kernel executes that."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest


@functools.cache
def can_start_python() -> bool:
    try:
        return subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def require_children() -> None:
    if not can_start_python():
        pytest.skip("this Python is emulated, and the kernel cannot start it again")
