"""The JavaScript runtime as one ES module: the modules of `js/` in the order of their imports,
without comments and indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

MODULES = ("sizes", "arrays", "device", "call", "weights", "model")
"""Each imports only from those before it; the last one has the exports."""
FILES = ("rlx.d.ts", "index.html", "times.js", "style.css")
_COMMENT = re.compile(r"/\*\*.*?\*/", re.DOTALL)
_REMARK = re.compile(r"(^|(?<=; ))// .*$")
"""A comment of a line, alone or behind a statement."""
_IMPORT = re.compile(r"^import [^;]*;$", re.MULTILINE | re.DOTALL)
HEADER = "// The runtime of models that rlx has compiled for WebGPU; rlx.d.ts has its types."


def runtime_module() -> str:
    """The text of `rlx.js`."""
    *inner, last = MODULES
    lines = [HEADER]
    for name in inner:
        lines += (line.removeprefix("export ") for line in _lines(name))
    lines += _lines(last)
    return _joined(lines)


def _joined(lines: list[str]) -> str:
    """Behind an opening bracket and a comma no line has to end, nor in front of a closing bracket
    and of a member: JavaScript ends no statement there because of a line's end."""
    made = ""
    for line in lines:
        is_open = made.endswith(("(", "[", "{", ",")) or line.startswith((")", "]", "}", "."))
        made += line if is_open else f"\n{line}"
    return f"{made.lstrip()}\n"


def texts() -> dict[str, str]:
    """The files of a folder that are the same for every model: the module with its types, and a
    page that times a model."""
    return {"rlx.js": runtime_module(), **{name: _text(name) for name in FILES}}


def _lines(name: str) -> Iterator[str]:
    text = _IMPORT.sub("", _COMMENT.sub("", _text(f"{name}.js")))
    for line in text.splitlines():
        code = _REMARK.sub("", line.strip()).rstrip()
        if code:
            yield code


def _text(name: str) -> str:
    return files("rlx.backends.wgpu.web").joinpath("js", name).read_text("utf-8")
