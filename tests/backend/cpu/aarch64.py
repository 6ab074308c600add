"""`python -m tests.backend.cpu.aarch64`: the laws of the CPU backend on aarch64, emulated.

A Python of Debian's for arm64 and wheels for aarch64, unpacked in a folder, run by qemu's emulator
of user programs: the compiler, LLVM, the linker, the thread pool and the binder are those that run
on the real machine. Nothing is installed: `--fetch` fills the folder, and only it uses the network.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.backend.cpu.laws import CLAIMED

REPO = Path(__file__).parents[3]
FOLDER = REPO / ".aarch64"
EMULATOR = "qemu-aarch64"
LAWS = "tests/backend/cpu/test_laws_cpu.py::test_an_op_means_the_same"
NATIVE = (
    "tests/backend/cpu/test_native_blob.py",
    "tests/backend/cpu/test_native_entry.py",
    "tests/backend/cpu/test_native_pool.py",
)
SHARD = 12
"""Tests of one emulated process: so many are worth its start."""
WHEELS = ("numpy", "ml_dtypes", "llvmlite", "scipy")
PURE = ("pytest", "hypothesis", "sortedcontainers", "pluggy", "iniconfig", "packaging", "pygments")
FOLLOWED = re.compile(r"lib|zlib|python3\.")
"""Dependencies that a Python without a terminal, time zones and mail needs."""


@dataclass(frozen=True, slots=True)
class Sysroot:
    """A folder with Python and its packages for aarch64."""

    folder: Path

    @property
    def python(self) -> Path | None:
        found = sorted((self.folder / "root/usr/bin").glob("python3.*[0-9]"))
        return found[-1] if found else None

    def missing(self) -> str | None:
        if shutil.which(EMULATOR) is None:
            return f"{EMULATOR} is not installed: apt install qemu-user"
        if self.python is None or not (self.folder / "packages/numpy").exists():
            return f"{self.folder} has no Python for aarch64: make fetch-aarch64"
        return None

    def command(self, *arguments: str) -> list[str]:
        root, paths = self.folder / "root", [REPO / "src", REPO, self.folder / "packages"]
        given = {
            "PYTHONHOME": root / "usr", "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RLX_CACHE_DIR": self.folder / "cache", "PYTHONDONTWRITEBYTECODE": "",
        }  # fmt: skip
        settings = [text for name, value in given.items() for text in ("-E", f"{name}={value}")]
        return [EMULATOR, "-L", str(root), *settings, str(self.python), *arguments]


# -- fetching -------------------------------------------------------------------------------------


def fetch(folder: Path) -> None:
    """Debian's packages of the release and mirror that apt has, and wheels that pip finds."""
    mirror, release = _mirror()
    index = lzma.decompress(_read(f"{mirror}dists/{release}/main/binary-arm64/Packages.xz"))
    known = {r["Package"]: r for r in _records(index.decode())}
    version = re.findall(r"python3\.\d+", _needs(known["python3-minimal"]))[0]
    first = [f"{version}-minimal", f"lib{version}-stdlib", "libstdc++6"]
    for record in _closure(first, known):
        print(record["Filename"], flush=True)
        data = _read(mirror + record["Filename"])
        if hashlib.sha256(data).hexdigest() != record["SHA256"]:
            raise SystemExit(f"{record['Filename']} is not what its index says.")
        package = folder / "package.deb"
        package.parent.mkdir(parents=True, exist_ok=True)
        package.write_bytes(data)
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
        package.unlink()
    _install(folder / "packages", version.removeprefix("python"))


def _mirror() -> tuple[str, str]:
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)"
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", form], capture_output=True, text=True, check=True
    ).stdout
    for uri, release, component, kind in map(str.split, told.splitlines()):
        if (component, kind) == ("main", "Packages") and uri.endswith("/debian/"):
            return uri, release
    raise SystemExit("apt knows no mirror of Debian.")


def _read(address: str) -> bytes:
    with urlopen(address, timeout=300) as answer:
        return answer.read()


def _records(index: str) -> Iterator[dict[str, str]]:
    for text in index.split("\n\n"):
        record = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", text, re.MULTILINE))
        if record:
            yield record


def _needs(record: dict[str, str]) -> str:
    return ", ".join(record.get(k, "") for k in ("Depends", "Pre-Depends"))


def _closure(first: Sequence[str], known: dict[str, dict[str, str]]) -> Iterator[dict[str, str]]:
    todo, seen = list(first), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        yield known[name]
        names = [re.split(r"[ :(|]", n.strip())[0] for n in _needs(known[name]).split(",")]
        todo += [n for n in names if FOLLOWED.match(n)]


def _install(target: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    pip += ["--only-binary", ":all:", "--python-version", version, "--implementation", "cp"]
    for glibc in (17, 27, 28, 34):
        pip += ["--platform", f"manylinux_2_{glibc}_aarch64"]
    pip += ["--platform", "manylinux2014_aarch64", "-c", str(REPO / "constraints.txt")]
    subprocess.run([*pip, *WHEELS, *PURE], check=True)


# -- running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process of tests gave."""

    passed: int
    text: str
    is_right: bool


def ran(root: Sysroot, tests: Sequence[str]) -> Outcome:
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    command = root.command("-m", "pytest", *options, *tests)
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)
    found = re.search(r"(\d+) passed", done.stdout)
    return Outcome(int(found[1]) if found else 0, done.stdout + done.stderr, done.returncode == 0)


def shards(names: Sequence[str]) -> list[list[str]]:
    laws = [f"{LAWS}[{n}]" for n in names]
    made = [laws[i : i + SHARD] for i in range(0, len(laws), SHARD)]
    return made if len(names) < len(CLAIMED) else [[n] for n in NATIVE] + made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all that ran is right; 2 where something is missing."""
    parser = argparse.ArgumentParser("python -m tests.backend.cpu.aarch64", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the Python for aarch64")
    parser.add_argument("--fetch", action="store_true", help="fill the folder from the network")
    parser.add_argument("--check", action="store_true", help="only say whether it can run")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none after this")
    parser.add_argument("ops", nargs="*", help="ops by name (all that are claimed)")
    args = parser.parse_args(argv)
    if args.fetch:
        fetch(args.folder)
    root = Sysroot(args.folder)
    if why := root.missing():
        print(why)
        return 2
    return 0 if args.check else _report(root, args.ops, args.jobs, args.seconds)


def _report(root: Sysroot, ops: Sequence[str], jobs: int, seconds: float) -> int:
    end, todo = time.monotonic() + seconds, shards(ops or [o.name for o in CLAIMED])

    def one(tests: Sequence[str]) -> Outcome | None:
        return ran(root, tests) if time.monotonic() < end else None

    done: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        for tests, outcome in zip(todo, pool.map(one, todo)):
            if outcome is not None:
                done.append(outcome)
                print(f"{outcome.passed:4} passed from {tests[0]}", flush=True)
                print("" if outcome.is_right else outcome.text, end="", flush=True)
    wrong = [o for o in done if not o.is_right]
    passed, left = sum(o.passed for o in done), len(todo) - len(done)
    late = f"; time was up before {left} of {len(todo)} groups" if left else ""
    print(f"aarch64 by {EMULATOR}: {passed} tests passed, {len(wrong)} groups failed{late}")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
