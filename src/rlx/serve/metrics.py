"""Numbers for Prometheus: requests, tokens, times, slots, the queue."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import Response

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A server's counters, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        here = self._registry
        self._requests = Counter(
            "rlx_requests", "Answered requests", ["route", "status"], registry=here
        )
        self._seconds = Histogram(
            "rlx_request_seconds",
            "Time to the end of an answer",
            ["route"],
            buckets=SECONDS,
            registry=here,
        )
        self.prompt_tokens = Counter("rlx_prompt_tokens", "Tokens of prompts", registry=here)
        self.cached_tokens = Counter(
            "rlx_cached_prompt_tokens", "Tokens of prompts that were cached", registry=here
        )
        self.tokens = Counter("rlx_generated_tokens", "Generated tokens", registry=here)
        self.first_token = Histogram(
            "rlx_first_token_seconds", "Time to the first token", buckets=SECONDS, registry=here
        )
        self.cancelled = Counter("rlx_cancelled", "Answers that their client left", registry=here)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    async def respond(self, request: Request) -> Response:
        del request
        return Response(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE})
