"""Tint, the compiler of WGSL in Chromium, on many modules in one headless page.

It refuses what other compilers accept: barriers in control flow that it cannot prove uniform,
constant expressions that overflow. The page asks for the texts and posts what it found.
"""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence

PAGE = """<script>
(async () => {
  const found = [];
  try {
    const texts = await (await fetch("/texts")).json();
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter.requestDevice({requiredLimits: {
      maxStorageBuffersPerShaderStage: adapter.limits.maxStorageBuffersPerShaderStage,
      maxComputeWorkgroupStorageSize: adapter.limits.maxComputeWorkgroupStorageSize}});
    for (const text of texts) {
      device.pushErrorScope("validation");
      const module = device.createShaderModule({code: text});
      const info = await module.getCompilationInfo();
      let said = info.messages.filter(m => m.type == "error")
        .map(m => `${m.lineNum}: ${m.message}: ${text.split("\\n")[m.lineNum - 1]}`).join("; ");
      if (!said) device.createComputePipeline({layout: "auto", compute: {module}});
      const error = await device.popErrorScope();
      if (!said && error) said = error.message;
      found.push(said);
    }
  } catch (error) { found.push("page: " + error); }
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""
FLAGS = (
    "--headless", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip


def reason_to_skip() -> str:
    return "" if shutil.which("chromium") else "chromium is not installed"


def errors(texts: Sequence[str], timeout_s: float = 120) -> list[str]:
    """What Tint says against each text; nothing where it takes it."""
    done, found = threading.Event(), list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/texts":
                self._answer("application/json", json.dumps(list(texts)).encode())
            else:
                self._answer("text/html", PAGE.encode())

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            found.extend(json.loads(self.rfile.read(size)))
            self._answer("text/plain", b"")
            done.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing on standard error."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address = f"http://127.0.0.1:{server.server_port}/"
        process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={folder}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert done.wait(timeout_s), "the page did not answer"
        finally:
            process.terminate()
            process.wait(20)
            server.shutdown()
            server.server_close()
    return found
