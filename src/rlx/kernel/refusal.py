"""Refusals as values: why a lowering does not apply to a step.

A lowering gives a kernel or a `Refusal`. Its helpers meet the reason deep inside, in the middle of
an index map or an expression, and raise `NotLowered` there; `attempt` is the only place where that
becomes a value: selection reads values, and keeps every reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rlx.core.errors import UnsupportedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The kernel form does not fit the step."""

    reason: str


class NotLowered(UnsupportedError):
    """Internal to a lowering; it states the reason."""


def attempt(lower: Callable[[], T]) -> T | Refusal:
    """What a lowering gives, or the reason that it met."""
    try:
        return lower()
    except UnsupportedError as error:
        return Refusal(str(error))


def required(made: T | Refusal) -> T:
    """The kernel of a step that was built to fit the form; an error where it does not."""
    if isinstance(made, Refusal):
        raise NotLowered(made.reason)
    return made
