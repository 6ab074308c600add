"""Calls that are under way while their caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rlx.core.public_calls import public_class


@public_class
class Pending:
    """A call that was begun."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish: Callable[[], Any] | None = finish
        self._made: Any = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def result(self) -> Any:
        """What the call gives, when it is done. An error of it is raised here, each time."""
        with self._lock:
            if self._finish is not None:
                try:
                    self._made = self._finish()
                except Exception as error:
                    self._error = error
                self._finish = None
        if self._error is not None:
            raise self._error
        return self._made


class Background:
    """A thread that runs calls one after the other, started by the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def pending(self, call: Callable[..., Any], *arrays: Any) -> Pending:
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "rlx-submit")
            return Pending(self._thread.submit(partial(call, *arrays)).result)
