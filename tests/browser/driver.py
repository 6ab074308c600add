"""A headless Chromium, told what to do by the WebDriver protocol, which is JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, eventually

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip
NO_GPU = ("--disable-gpu",)
MEASURED = "--enable-precise-memory-info"
WEBGPU = (
    "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan",
    MEASURED,
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

    def _send(self, method: str, path: str, body: Any = None, timeout_s: float = PATIENCE_S) -> Any:
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

    def each(self, selector: str, of: str = "e.textContent") -> list[Any]:
        """An expression of every element `e` that a selector finds."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.run(f"return {found}.map((e) => {of})")

    def settle(self) -> None:
        """Until what was asked for is drawn: charts are, once their place has a size."""
        self.wait("for (const _ of [1, 2]) await new Promise(requestAnimationFrame)")

    def wait(self, script: str, *arguments: Any) -> Any:
        """What the body of an asynchronous function in JavaScript returns; an error of it is one
        here."""
        self._send("POST", "/timeouts", {"script": int(1000 * PATIENCE_S)})
        held = (
            "const [script, ...given] = arguments, done = given.pop();"
            "const f = Object.getPrototypeOf(async function () {}).constructor;"
            "f('given', script)(given).then((value) => done({ value }),"
            "(e) => done({ error: String(e), node: e.node, stack: e.stack }));"
        )
        body = {"script": held, "args": [script, *arguments]}
        found = self._send("POST", "/execute/async", body, PATIENCE_S + 30.0)
        if "error" in found:
            raise PageError(found["error"], found.get("node") or "", found["stack"])
        return found["value"]

    def press(self, *keys: str) -> None:
        """Keys down and up, wherever the focus is."""
        actions = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        self._send(
            "POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]}
        )

    def command(self, name: str, **given: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": name, "params": given})

    def resize(self, width: int, height: int) -> None:
        """The size of the page, also below what a window can have: a phone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)

    def keep_saved(self) -> None:
        """The next file that the page saves is kept for `saved`. It does not go through the
        browser's downloads, which may hold one back that no user is there to allow."""
        self.run(
            "const make = URL.createObjectURL; let made;"
            "URL.createObjectURL = (blob) => make.call(URL, made = blob);"
            "window.saved = new Promise((done) => addEventListener('click', function kept(event) {"
            "  if (!event.target.download) return;"
            "  event.preventDefault();"
            "  removeEventListener('click', kept);"
            "  URL.createObjectURL = make;"
            "  const reader = new FileReader();"
            "  reader.onload = () => done([event.target.download, reader.result]);"
            "  reader.readAsDataURL(made);"
            "}))"
        )

    def saved(self) -> tuple[str, bytes]:
        """The file after `keep_saved`: its name and its bytes."""
        name, data = self.wait("return await window.saved")
        return name, base64.b64decode(data.partition(",")[2])

    def drag(self, start: tuple[int, int], stop: tuple[int, int]) -> None:
        """The pointer, pressed at one point and let go at another."""
        moves = [
            {"type": "pointerMove", "duration": 0, "x": start[0], "y": start[1]},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 50, "x": stop[0], "y": stop[1]},
            {"type": "pointerUp", "button": 0},
        ]
        self._send(
            "POST", "/actions", {"actions": [{"type": "pointer", "id": "p", "actions": moves}]}
        )

    def wheel(self, at: tuple[int, int], by: int) -> None:
        """The wheel turned over a point; away from the user is negative."""
        turn = {"type": "scroll", "x": at[0], "y": at[1], "deltaX": 0, "deltaY": by, "duration": 0}
        self._send(
            "POST", "/actions", {"actions": [{"type": "wheel", "id": "w", "actions": [turn]}]}
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
        eventually(lambda: _is_open(port), "chromedriver", 0.05)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            window = Browser(port, profile, size, flags)
            try:
                yield window
            finally:
                window.close()
    finally:
        driver.terminate()
        driver.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
