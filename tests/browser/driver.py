"""A headless Chromium, told what to do by the WebDriver protocol, which is JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip
NO_GPU = ("--disable-gpu",)
WEBGPU = (
    "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan",
    "--enable-precise-memory-info",
)  # fmt: skip
"""WebGPU on the browser's own driver in software."""


def missing() -> list[str]:
    """The programs that are needed and not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class PageError(Exception):
    """An error of a page's script."""

    def __init__(self, text: str, node: str, stack: str) -> None:
        super().__init__(text)
        self.node, self.stack = node, stack


class Browser:
    """One window."""

    def __init__(
        self, port: int, profile: str, size: tuple[int, int], extra: tuple[str, ...]
    ) -> None:
        self._base = f"http://127.0.0.1:{port}"
        flags = [*FLAGS, *extra, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"
        inside = self.run("return [innerWidth, innerHeight]")
        width, height = (2 * want - have for want, have in zip(size, inside))
        self._send("POST", "/window/rect", {"width": width, "height": height})

    def _send(self, method: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, address: str) -> None:
        self._send("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the JavaScript returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """What the body of an asynchronous function in JavaScript returns; an error of it is one
        here."""
        self._send("POST", "/timeouts", {"script": int(1000 * timeout_s)})
        held = (
            "const [script, ...given] = arguments, done = given.pop();"
            "const f = Object.getPrototypeOf(async function () {}).constructor;"
            "f('given', script)(given).then((value) => done({ value }),"
            "(e) => done({ error: String(e), node: e.node, stack: e.stack }));"
        )
        body = {"script": held, "args": [script, *arguments]}
        found = self._send("POST", "/execute/async", body, timeout_s + 30.0)
        if "error" in found:
            raise PageError(found["error"], found.get("node") or "", found["stack"])
        return found["value"]

    def press(self, *keys: str) -> None:
        """Keys down and up, wherever the focus is."""
        actions = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        self._send(
            "POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]}
        )

    def click(self, selector: str) -> None:
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        self._send("POST", f"/element/{next(iter(found.values()))}/click", {})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was said since it was last asked: `browser` the console, `performance` requests."""
        return self._send("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        events = [json.loads(e["message"])["message"] for e in self.log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [p["request"]["url"] for p in sent]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    def close(self) -> None:
        self._send("DELETE", "")


@contextmanager
def browser(
    size: tuple[int, int] = (1280, 800), flags: tuple[str, ...] = NO_GPU
) -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(port)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            window = Browser(port, profile, size, flags)
            try:
                yield window
            finally:
                window.close()
    finally:
        driver.terminate()
        driver.wait()


def _await(port: int, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("chromedriver did not start")
