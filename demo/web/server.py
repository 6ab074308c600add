"""A server of folders on the loopback."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar


class _Files(http.server.SimpleHTTPRequestHandler):
    """Files are never older than they are on disk."""

    extensions_map: ClassVar[dict[str, str]] = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged."""


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """Of a folder, at a port that is free where none is given."""
    handler = partial(_Files, directory=str(folder))
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, while it is needed."""
    made = server(folder)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}/"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()
