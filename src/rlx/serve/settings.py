"""The configuration of a server: its address, limits and timeouts."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY_BYTES, STALL_S = 8 << 20, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How requests are taken."""

    name: str
    """What the model is called."""
    token: str | None = None
    """The bearer token that requests must have."""
    queue: int = 512
    """Requests that wait for a slot at most; more are refused with 429."""
    timeout_s: float = 600.0
    """From a request to the end of its answer."""
    stall_s: float = STALL_S
    """For one write to a client that does not read, and for reading a body."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_samples: int = 16
    """Answers to one request, `n`."""
    context_shift: bool = False
    """Go on behind the end of the context."""
    hosts: frozenset[str] | None = None
    """Values of the header Host that are accepted; None for all."""
    origins: tuple[str, ...] = ()
    """Pages of other origins that may use the server."""
