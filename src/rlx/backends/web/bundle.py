"""The JavaScript runtime as ES modules, a front and the engines that it imports on demand: each the
modules of `js/` in the order of their imports, without comments and indentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from rlx.backends.web.minify import minified

FRONT = "rlx.js"
MODULES = {
    FRONT: ("sizes", "arrays", "weights", "adapter", "model"),
    "webgpu.js": ("device", "call", "webgpu"),
    "wasm.js": ("wasm",),
}
"""Each imports only from those before it and, in engines, from those of the front; the last one of
a file has its exports."""
FILES = ("rlx.d.ts", "index.html", "times.js", "style.css")
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|const|function))", re.MULTILINE)
HEADERS = {
    FRONT: "// The runtime of models that rlx has compiled for browsers; rlx.d.ts has its types.",
    "webgpu.js": "// The engine of rlx.js on WebGPU.",
    "wasm.js": "// The engine of rlx.js on WebAssembly.",
}


def texts(engines: Sequence[str] = ("webgpu", "wasm")) -> dict[str, str]:
    """The files of a folder that are the same for every model of these engines: the modules with
    their types, and a page that times a model."""
    wanted = (FRONT, *(f"{engine}.js" for engine in engines))
    return {**{n: module_text(n) for n in wanted}, **{name: _text(name) for name in FILES}}


def module_text(name: str) -> str:
    """The text of a module. What engines import from modules of the front, it exports."""
    *inner, last = MODULES[name]
    parts = [_EXPORT.sub("", _body(one)) for one in inner] + [_body(last)]
    if borrowed := ", ".join(_borrowed(name)):
        parts.insert(0, f'import {{ {borrowed} }} from "./{FRONT}";\n')
    if name == FRONT:
        parts.append(f"export {{ {', '.join(_lent())} }};")
    return f"{HEADERS[name]}\n{minified(''.join(parts))}"


def _borrowed(name: str) -> list[str]:
    """What an engine imports from modules of the front."""
    own = MODULES[name]
    imports = (found for one in own for found in _IMPORT.findall(_text(f"{one}.js")))
    return sorted({n for names, source in imports if source not in own for n in _names(names)})


def _lent() -> list[str]:
    """What the front exports for engines alone."""
    public = set(_names(_text(f"{MODULES[FRONT][-1]}.js").rpartition("export")[2]))
    engines = (name for name in MODULES if name != FRONT)
    return sorted({n for name in engines for n in _borrowed(name)} - public)


def _names(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _body(name: str) -> str:
    return _IMPORT.sub("", _text(f"{name}.js"))


def _text(name: str) -> str:
    return files("rlx.backends.web").joinpath("js", name).read_text("utf-8")
