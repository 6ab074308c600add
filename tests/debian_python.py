"""A Python of Debian's, of another architecture or release, unpacked in a folder.

Nothing is installed: packages are unpacked in `root`, wheels in `packages`, both below one folder.
Only `fetch` uses the network.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

REPO = Path(__file__).parents[1]
WHEELS = ("numpy", "ml_dtypes", "llvmlite", "scipy")
PURE = ("pytest", "hypothesis", "sortedcontainers", "pluggy", "iniconfig", "packaging", "pygments")
FOLLOWED = re.compile(r"lib|zlib|python3\.")
"""Dependencies that a Python without a terminal, time zones and mail needs."""
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class DebianPython:
    """A folder with Python and its packages."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def executable(self) -> Path | None:
        found = sorted((self.root / "usr/bin").glob("python3.*[0-9]"))
        return found[-1] if found else None

    @property
    def is_complete(self) -> bool:
        return self.executable is not None and (self.folder / "packages/numpy").exists()

    @property
    def settings(self) -> dict[str, str]:
        """Its environment: this tree, its own packages, a cache of its own."""
        paths = [REPO / "src", REPO, self.folder / "packages"]
        return {
            "PYTHONHOME": str(self.root / "usr"),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RLX_CACHE_DIR": str(self.folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "",
        }


def fetch(folder: Path, architecture: str, release: str | None = None) -> None:
    """The default Python of a release, apt's own unless it is named, from apt's mirror, and wheels
    that pip finds for it."""
    mirror, own = _mirror()
    at = f"{mirror}dists/{release or own}/main/binary-{architecture}/Packages.xz"
    known = {r["Package"]: r for r in _records(lzma.decompress(_read(at)).decode())}
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
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    _install(folder / "packages", version.removeprefix("python"), machine)


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
    with urlopen(address, timeout=TIMEOUT_S) as answer:
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


def _install(target: Path, version: str, machine: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    pip += ["--target", str(target), "--disable-pip-version-check", "--only-binary", ":all:"]
    pip += ["--python-version", version, "--implementation", "cp"]
    for glibc in (17, 27, 28, 34):
        pip += ["--platform", f"manylinux_2_{glibc}_{machine}"]
    pip += ["--platform", f"manylinux2014_{machine}", "-c", str(REPO / "constraints.txt")]
    subprocess.run([*pip, *WHEELS, *PURE], check=True)
