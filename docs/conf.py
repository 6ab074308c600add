"""The documentation site, by Sphinx: `make docs-site` builds it into build/site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tables  # noqa: E402  (beside this file)

from rlx import __version__  # noqa: E402

project = "rlx"
author = "the authors of rlx"
release = version = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "rlx"
html_static_path: list[str] = []
html_theme_options = {"source_directory": "docs/"}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
add_module_names = False
nitpicky = False  # annotations name types of NumPy and of typing, which have no page here

# Code is highlighted by what its fence says; a fence without a language is output.
highlight_language = "text"


def setup(app: Any) -> None:
    """Pages that restate a table of the program are written before they are read."""
    app.connect("builder-inited", lambda _: tables.write(HERE / "generated"))
    app.connect("source-read", _link)


def _link(app: Any, page: str, source: list[str]) -> None:
    """Links from docs/ into the tree lead to the page that restates that file."""
    if "/" not in page:
        source[0] = tables.site_links(source[0], "../")
