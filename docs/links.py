"""`python -m docs.links FOLDER`: every link of a built site leads to a page and anchor of it."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {v for k in ("id", "name") if (v := given.get(k))}
        self.links += [v for k in ("href", "src") if (v := given.get(k))]


def broken(folder: Path) -> list[str]:
    """Links to pages, files and anchors that are not there."""
    pages = {p.resolve(): Page(p.read_text(encoding="utf-8")) for p in folder.rglob("*.html")}
    return [
        f"{path.relative_to(folder.resolve())}: {link}"
        for path, page in sorted(pages.items())
        for link in page.links
        if not _leads_somewhere(path, link, pages)
    ]


def _leads_somewhere(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    if urlsplit(link).scheme:  # another site, or data
        return True
    target, anchor = urldefrag(link)
    file = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
    if file not in pages:
        return file.is_file()
    return not anchor or unquote(anchor) in pages[file].anchors


def main() -> int:
    folder = Path(sys.argv[1])
    found = broken(folder)
    count = len(list(folder.rglob("*.html")))
    print("\n".join(found) if found else f"{count} pages, no broken link")
    return bool(found) or count == 0


if __name__ == "__main__":
    sys.exit(main())
