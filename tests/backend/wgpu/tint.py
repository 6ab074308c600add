"""Tint, the compiler of WGSL in Chromium, on many modules in one headless page.

It refuses what other compilers accept: barriers in control flow that it cannot prove uniform,
constant expressions that overflow. The page asks for the texts and posts what it found.
`python -m tests.backend.wgpu.tint [--draws N] [--only RE]` has the modules of all laws.
"""

from __future__ import annotations

import argparse
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from rlx.backends.wgpu.backend import WgpuBackend
from rlx.backends.wgpu.wgsl.module import Module
from rlx.core.errors import UnsupportedError
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.pipeline import CompilePipeline
from tests.backend.gpu import laws
from tests.patience import PATIENCE_S

WEB = WgpuBackend(variant="web", tune="off")

PAGE = """<script>
(async () => {
  const found = [];
  try {
    const texts = await (await fetch("/texts")).json();
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter.requestDevice();
    for (const text of texts) {
      const info = await device.createShaderModule({code: text}).getCompilationInfo();
      found.push(info.messages.filter(m => m.type == "error")
        .map(m => `${m.lineNum}: ${m.message}: ${text.split("\\n")[m.lineNum - 1]}`).join("; "));
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


def errors(texts: Sequence[str]) -> list[str]:
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
            assert done.wait(PATIENCE_S), "the page did not answer"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            server.shutdown()
            server.server_close()
    return found


def modules(graph: Graph) -> Iterator[Module]:
    """Those of a graph's kernels for any browser."""
    program = WEB.program(CompilePipeline(WEB.target()).compile(graph).lir)
    return (Module.of_bytes(code.binary) for code in WEB.build(program).codes)


def _drawn(draws: int, only: str) -> Iterator[tuple[str, str]]:
    """What a module is of, and its text with bindings of their own and with one for all."""
    for op in table.table().values():
        if op.why_no_cases or not re.search(only, op.name):
            continue
        for number in range(draws):
            for made in laws.drawn(op, number, 1, has_weights=number % 2 == 1):
                try:
                    for module in modules(made.graph):
                        yield f"{op.name} {number}", module.source()
                        yield f"{op.name} {number} merged", module.source(module.merged)
                except UnsupportedError as error:
                    print(f"refused {op.name} {number}: {' '.join(str(error).split())[:160]}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    drawn = list(_drawn(given.draws, given.only))
    found = errors([text for _, text in drawn], 600)
    wrong = [(label, said) for (label, _), said in zip(drawn, found, strict=True) if said]
    for label, said in wrong:
        print(f"{label}: {said[:400]}")
    print(f"{len(drawn)} modules, {len(wrong)} refused by Tint")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
