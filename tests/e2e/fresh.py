"""`python -m tests.e2e.fresh`: the newcomer script in a new environment, from a wheel of this tree.

What is installed: the wheel with what runs models, onnx, and the two type checkers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKERS = ("onnx", "mypy", "basedpyright")


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        wheel = built(folder)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[cpu,cli]", *CHECKERS], check=True
        )
        script = shutil.copy(ROOT / "tests" / "e2e" / "newcomer.py", folder)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run([str(python), script, str(ROOT)], cwd=folder, env=env, check=False)
        return done.returncode


def built(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return next(folder.glob("rlx-*.whl"))


if __name__ == "__main__":
    sys.exit(main())
