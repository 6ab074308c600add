"""The page of a report in a browser: every view, in both themes, as wide as a desk and as a phone.

`make test-browser`. Set RLX_PICTURES to a folder to keep pictures of every view.
"""

from __future__ import annotations

import csv
import io
import os
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import Browser, browser
from tests.browser.reports import LAYERS, SIZES, VIEWS
from tests.patience import eventually

HERE = Path(__file__).parent
AGAINST, WIDER, WHOLE_WORDS, NEAREST = (
    (HERE / f"{name}.js").read_text() for name in ("contrast", "wider", "whole_words", "nearest")
)
SHOWN = "section:not([hidden])"
TEXT = f"return document.querySelector('{SHOWN}').innerText"
SELECTED = "return document.querySelector('[aria-selected=true][role=tab]').firstChild.textContent"
ENTER, ARROW_DOWN, ARROW_RIGHT, ESCAPE, TAB = "\ue007", "\ue015", "\ue014", "\ue00c", "\ue004"
Opens = Callable[..., Browser]


def picture(window: Browser, name: str) -> None:
    if folder := os.environ.get("RLX_PICTURES"):
        window.picture(Path(folder) / f"{name}.png")


# -- the file -------------------------------------------------------------------------------------


def test_a_large_page_is_one_small_file_that_asks_for_nothing(
    opened: Opens, large_page: Path
) -> None:
    """Its size is a limit; when it answers is printed, as other work on the machine delays it."""
    size = large_page.stat().st_size
    assert size <= 5_000_000
    window = opened(file=large_page)
    took = window.run("return performance.getEntriesByType('navigation')[0].domInteractive")
    for name in VIEWS:
        window.run("report.open(arguments[0])", name)
    print(f"1,500 nodes: {size / 1e6:.2f} MB, interactive after {took:.0f} ms")
    assert window.log("browser") == []
    asked = [r for r in window.requests() if not r.startswith(("data:", "about:"))]
    assert {r.partition("#")[0] for r in asked} == {large_page.as_uri()}


def test_names_of_a_model_are_text(opened: Opens, large_page: Path) -> None:
    window = opened(file=large_page)
    assert "<script>" in window.run("return document.getElementById('name').textContent")
    assert window.run("return document.querySelectorAll('script').length") == 2


# -- every view -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_fit_and_can_be_read(opened: Opens, name: str, theme: str, size: str) -> None:
    window = opened(name, theme=theme, size=size)
    assert window.run("return document.documentElement.dataset.theme") == theme
    assert window.run("return innerWidth") == SIZES[size][0]
    window.settle()
    assert window.run(WIDER) == []
    assert window.run(AGAINST) == []
    picture(window, f"{name.lower()}-{theme}-{size}")
    assert window.log("browser") == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_details_and_both_graphs_fit_and_can_be_read(opened: Opens, theme: str, size: str) -> None:
    window = opened("graph", theme=theme, size=size)
    for step in ("report.choose(3)", "report.chooseNode(2)", "report.choose(4)"):
        window.run(step)
        assert window.run(WIDER) == []
        assert window.run(AGAINST) == []
    picture(window, f"details-{theme}-{size}")


@pytest.mark.parametrize("size", SIZES)
def test_the_views_of_a_large_model_fit(opened: Opens, large_page: Path, size: str) -> None:
    window = opened(size=size, file=large_page)
    for name in VIEWS:
        window.run("report.open(arguments[0])", name)
        window.settle()
        assert window.run(WIDER) == []
        picture(window, f"large-{name.lower()}-{size}")


def test_the_overview_says_what_where_and_when(opened: Opens) -> None:
    window = opened()
    said = window.run("return document.querySelector('.headline').textContent")
    assert said.startswith("layered on cpu, ")
    assert "kernels per call, measured " in said
    text = window.run(TEXT)
    for part in ("tokens", "mask", "scores", "sum", "f32[64, 96]", "machine", "threads", "date"):
        assert part in text
    lengths = window.each("svg.plot .row .time", "+e.getAttribute('width')")
    assert lengths
    assert lengths[:8] == sorted(lengths[:8], reverse=True)
    _pick(window, "Time by", "layer")
    layers = window.run("return document.querySelector('svg.plot').textContent")
    assert all(f"encoder.layer.{i}" in layers for i in range(LAYERS))


@pytest.mark.parametrize("size", SIZES)
def test_bars_of_the_overview_can_be_told_apart(opened: Opens, large_page: Path, size: str) -> None:
    """By place; by kernel where the same line of code made many of the same ops."""
    window = opened(size=size)
    window.settle()
    assert f"encoder.layer.0–{LAYERS - 1}" in window.run(f"return {_all('.row')}")
    labels = "[...e.querySelectorAll('text')].slice(0, -1).map((t) => t.textContent).join(' | ')"
    for file in ({}, {"file": large_page}):
        window = opened(size=size, **file)
        window.run("for (const k of report.data.kernels) k.group = k.i")
        _pick(window, "Time by", "kernel")
        window.settle()
        told = window.each("svg.plot .row", labels)
        assert len(told) > 4
        assert len(set(told)) == len(told)


def test_ops_are_counted_alike_everywhere(opened: Opens) -> None:
    window = opened()
    ops = window.run("return report.data.facts.find(([n]) => n === 'ops of the model')[1]")
    assert ops == str(window.run("return report.data.model.nodes.filter((n) => n.isOp).length"))
    window.run("report.open('Graph')")
    side = window.run("return document.querySelector('.side h3').textContent")
    assert f"{ops} ops in the model" in side


def test_memory_has_a_legend_and_names(opened: Opens) -> None:
    window = opened("memory")
    window.settle()
    assert "written by matmuls" in window.run(f"return {_all('.legend')}")
    assert window.run(f"return document.querySelectorAll('{SHOWN} svg .label').length") > 0
    assert "most in use" in window.run(f"return document.querySelector('{SHOWN} svg').textContent")
    before = window.run(f"return document.querySelector('{SHOWN} svg').innerHTML")
    window.click(f"{SHOWN} [aria-label='Zoom in']")
    assert window.run(f"return document.querySelector('{SHOWN} svg').innerHTML") != before


def test_the_roofline_names_its_limits(opened: Opens) -> None:
    window = opened("roofline")
    window.settle()
    named = window.run(f"return {_all('.roofname')}")
    held = window.run(f"return {_all('.legend')}")
    for name in ("L1 cache", "L2 cache", "L3 cache", "memory"):
        assert name in named
        assert name in held
    assert "matmuls" in held
    assert "GB/s" in held
    assert window.run(f"return document.querySelectorAll('{SHOWN} circle').length") > 0


@pytest.mark.parametrize("size", SIZES)
def test_names_of_limits_are_clear_of_lines_and_dots(opened: Opens, size: str) -> None:
    window = opened("roofline", size=size)
    window.settle()
    nearest = dict(window.run(NEAREST))
    assert len(nearest) == 5
    assert {name: d for name, d in nearest.items() if d < 5} == {}  # half the height of a letter


@pytest.mark.parametrize(("dtype", "is_known"), [("f32", True), ("i8", False)])
def test_kernels_are_held_against_the_peak_of_their_dtype(
    opened: Opens, dtype: str, is_known: bool
) -> None:
    window = opened()
    window.run(
        "for (const k of report.data.kernels)"
        "  { k.arithmetic = arguments[0]; k.roofline_share = 3 }",
        dtype,
    )
    window.run("report.open('Roofline')")
    window.settle()
    text = window.run(TEXT)
    assert ("faster than the default rates" in text) is is_known
    assert (f"no peak for arithmetic in {dtype}" in text) is not is_known
    dots, without = (
        window.run(f"return document.querySelectorAll('{SHOWN} circle{c}').length")
        for c in ("", ".over")
    )
    assert without == (0 if is_known else dots)
    window.run("report.open('Kernels')")
    shares = window.each(f"{SHOWN} [data-label='of roofline']", "e.innerText")
    assert ("300 %" in shares) is is_known


def test_decisions_are_grouped_by_layer_and_sifted(opened: Opens) -> None:
    window = opened("decisions")
    text = window.run(TEXT)
    assert f"encoder.layer.0–{LAYERS - 1}" in text
    assert "split_work" not in text
    rows = f"return document.querySelectorAll('{SHOWN} tbody tr').length"
    together = window.run(rows)
    window.click(f"{SHOWN} input[type=checkbox]")
    assert window.run(rows) > together
    _pick(window, "Verdict", "no")
    assert window.run("return document.querySelectorAll('tbody .yes').length") == 0
    assert window.run("return document.querySelectorAll('tbody .no').length") > 0
    _pick(window, "Kind", "schedule")
    _pick(window, "Verdict", "")
    assert "split_work" in window.run(TEXT)


def test_kernels_are_sorted_by_any_column(opened: Opens) -> None:
    window = opened("kernels")
    rows = f"{SHOWN} tbody tr"
    by_time = window.each(rows, "e.cells[3].innerText")
    window.run(f"document.querySelectorAll('{SHOWN} th button')[3].click()")
    assert window.each(rows, "e.cells[3].innerText") == sorted(by_time)
    assert window.run("return document.querySelector('[aria-sort=ascending]').textContent")


def test_kernels_of_equal_layers_are_one_row(opened: Opens) -> None:
    window = opened("kernels")
    rows, called = f"{SHOWN} tbody tr", "report.data.kernels.filter((k) => k.phase !== 'prologue')"
    groups, kernels = window.run(
        f"const held = {called}; return [new Set(held.map((k) => k.group)).size, held.length]"
    )
    assert groups < kernels
    counts = window.each(rows, "e.querySelector('[data-label=count]').innerText")
    assert len(counts) == groups
    assert sum(int(c[1:] or 1) for c in counts) == kernels
    assert f"encoder.layer.0–{LAYERS - 1}" in window.run(TEXT)
    assert f"{kernels} of {kernels} kernels" in window.run(TEXT)
    window.click(f"{SHOWN} input[type=checkbox]")
    assert len(window.each(rows)) == kernels


def test_measured_decisions_of_a_group_are_summed(opened: Opens) -> None:
    """Those reversed together are one measurement; negative numbers have one minus sign."""
    window = opened()
    window.run(
        "const held = Map.groupBy(report.data.decisions.filter((d) => d.verdict), (d) => d.group);"
        "const group = [...held.values()].find((g) => g.length >= 4);"
        "group.forEach((d, i) => { d.kind = 'fusion'; d.ns = -1e9; d.launches = -6; });"
        "const both = { ns: -30000, low: -40000, high: -20000, count: 2 };"
        "group[0].measured = group[1].measured = both;"
        "group[2].measured = { ns: -2000, low: -3000, high: -1000, count: 1 };"
        "report.open('Decisions')"
    )
    (row,) = window.each(f"{SHOWN} tbody tr:first-child", "e.innerText")
    assert "−32.0 µs (−43.0 µs to −21.0 µs)" in row
    assert re.search(r"3 of \d+ measured", row)
    assert re.search(r"−\d+\b", row)
    assert "-" not in row.split("fus")[0]


# -- the trace ------------------------------------------------------------------------------------


SEEN = "const { from, to } = document.querySelector(arguments[0]).zoom.seen; return [from, to]"


def test_the_trace_zooms_and_pans(opened: Opens) -> None:
    window, plot = opened("trace"), f"{SHOWN} svg.plot"
    window.settle()
    whole = window.run(SEEN, plot)
    (box,) = window.each(
        f"{plot}[aria-label=Calls]",
        "(({ x, y, width, height }) => [x, y, width, height])(e.getBoundingClientRect())",
    )
    middle = int(box[0] + box[2] / 2), int(box[1] + box[3] / 2)
    window.wheel(middle, -400)
    near = window.run(SEEN, plot)
    assert near[1] - near[0] < (whole[1] - whole[0]) / 2
    window.drag(middle, (middle[0] - 150, middle[1]))
    later = window.run(SEEN, plot)
    assert later[0] > near[0]
    assert later[1] - later[0] == pytest.approx(near[1] - near[0])
    window.run("document.querySelector(arguments[0]).focus()", plot)
    window.press("+")
    closer = window.run(SEEN, plot)
    assert closer[1] - closer[0] < later[1] - later[0]
    window.press(ARROW_RIGHT)
    assert window.run(SEEN, plot)[0] > closer[0]
    window.press("f")
    assert window.run(SEEN, plot) == whole
    window.each(f"{plot} .box[aria-label*='matmul']", "e.dispatchEvent(new MouseEvent('click'))")
    assert window.run(SELECTED) == "Graph"


# -- the address, keys, search --------------------------------------------------------------------


def test_back_undoes_and_the_address_restores(reader: Browser, page: Path) -> None:
    with browser((1280, 800)) as window:  # whose history holds nothing else
        window.open(f"{page.as_uri()}#view=overview")
        _check_history(window)


def _check_history(window: Browser) -> None:
    window.run("report.find(4)")
    assert "view=graph" in window.run("return location.hash")
    assert "kernel=4" in window.run("return location.hash")
    window.run("report.choose(5)")
    window.run("report.open('Memory')")
    for expected in ("view=graph&kernel=5", "view=graph&kernel=4", "view=overview"):
        window.run("history.back()")
        _await(window, "return location.hash", expected)
    assert window.run(SELECTED) == "Overview"
    address = window.run(
        "report.find(4); report.go({ theme: 'dark' }, false); return location.href"
    )
    window.open("about:blank")
    window.open(address)
    assert window.run(SELECTED) == "Graph"
    assert window.run("return document.querySelector('.side').textContent").count("k4")
    assert window.run("return document.querySelectorAll('.node.chosen').length") == 1


def _await(window: Browser, script: str, expected: str) -> None:
    eventually(lambda: expected in window.run(script), expected)


def test_keys_lead_everywhere(opened: Opens) -> None:
    window = opened()
    for i, name in enumerate(VIEWS):
        window.press(str(i + 1))
        assert window.run(SELECTED) == name
    window.press(ARROW_RIGHT)
    assert window.run(SELECTED) == VIEWS[0]
    reached: list[str] = []
    for _ in range(12):
        window.press(TAB)
        reached += window.each(":focus", "e.className.baseVal ?? e.tagName")
    assert "row" in reached  # bars of the chart
    window.press("/")
    assert window.run("return document.activeElement.id") == "search"


@pytest.mark.parametrize("size", SIZES)
def test_search_zooms_to_what_it_finds(opened: Opens, size: str) -> None:
    window = opened(size=size)
    window.press("/", *"layer.2", ARROW_DOWN, ENTER)
    assert window.run(SELECTED) == "Graph"
    side = window.run("return document.querySelector('.side').textContent")
    assert "encoder.layer.2" in side
    corners = "(({ left, top, right, bottom }) => [left, top, right, bottom])"
    (card,), (frame,) = (
        window.each(of, f"{corners}(e.getBoundingClientRect())") for of in (".node.chosen", ".view")
    )
    assert frame[0] <= card[0] < card[2] <= frame[2]
    assert frame[1] <= card[1] < card[3] <= frame[3]
    assert card[3] - card[1] > 25  # as large as it is written, or more
    window.press("/", *"nothing of this name")
    assert "Nothing" in window.run("return document.getElementById('found').textContent")
    window.press(ESCAPE)
    assert window.run("return document.getElementById('found').hidden")


FOUND = "#found [role=option]"


@pytest.mark.parametrize(
    ("name", "sort", "selected"),
    [
        ("mask", "input", "report.state.value === 'i1'"),
        ("scores", "output", "report.state.value === 'o0'"),
        (
            "down.2",
            "weight",
            "report.data.kernels[report.state.kernel].weights.some((w) => w.startsWith('down.2 '))",
        ),
        ("softmax", "node", "report.data.model.nodes[report.state.node].op === 'softmax'"),
    ],
)
def test_search_puts_exact_names_first(opened: Opens, name: str, sort: str, selected: str) -> None:
    window = opened()
    window.press("/", *name)
    first = window.each(FOUND, "[...e.children].map((c) => c.textContent)")[0]
    assert first[0] == sort
    assert first[1].split()[0] == name
    window.press(ENTER)
    assert window.run(SELECTED) == "Graph"
    assert window.run(f"return {selected}")
    edges = "[e.closest('.view'), e].map((b) => b.getBoundingClientRect())"
    for frame, card in window.each(".node.chosen", f"{edges}.map((b) => [b.top, b.bottom])"):
        assert frame[0] <= card[0] < card[1] <= frame[1]
    assert window.each(".node.chosen")


def test_search_counts_what_it_does_not_list(opened: Opens, large_page: Path) -> None:
    window = opened(file=large_page)
    window.press("/", *"matmul")
    listed = len(window.each(FOUND))
    more = window.each("#found li:last-child")[0]
    assert re.fullmatch(r"and [\d,]+ more: .*", more)
    window.press(*"_no_such")
    assert window.each(FOUND) == []
    assert listed == 40


@pytest.mark.parametrize("size", SIZES)
def test_what_search_finds_is_inside_the_page_in_whole_words(opened: Opens, size: str) -> None:
    window = opened(size=size)
    window.press("/", *"encoder")
    box = "(({ left, right }) => [left, right])(e.getBoundingClientRect())"
    for left, right in window.each("#found, #found li, #found li > span", box):
        assert left >= 0
        assert right <= SIZES[size][0]
    assert window.run(WHOLE_WORDS, "#found") == []


@pytest.mark.parametrize("size", SIZES)
def test_words_at_the_side_of_the_graph_are_whole(opened: Opens, size: str) -> None:
    window = opened("graph", size=size)
    for script in ("report.choose(3)", "report.chooseNode(2)", "report.chooseValue('i0')"):
        window.run(script)
        assert window.run(WHOLE_WORDS, ".side") == []


def test_the_theme_changes_and_stays(opened: Opens) -> None:
    window = opened()
    window.click("#theme")
    assert window.run("return document.documentElement.dataset.theme") == "dark"
    assert "theme=dark" in window.run("return location.hash")


# -- files that are saved -------------------------------------------------------------------------


def _saved(window: Browser, view: str, button: str) -> bytes:
    window.run("report.open(arguments[0])", view)
    window.settle()
    window.keep_saved()
    window.click(f"{SHOWN} .exports button[title='Save as {button}']")
    name, data = window.saved()
    assert re.fullmatch(rf"layered-[a-z]+\.{button.lower()}", name)
    return data


def test_tables_and_drawings_are_saved(opened: Opens) -> None:
    window = opened()
    kernels = window.run("return report.data.kernels.filter((k) => k.phase !== 'prologue').length")
    rows = list(csv.reader(io.StringIO(_saved(window, "Kernels", "CSV").decode())))
    assert rows[0][:3] == ["measured (ns)", "share of kernel time (%)", "count"]
    assert sum(int(row[2]) for row in rows[1:]) == kernels
    assert sum(float(row[1]) for row in rows[1:]) == pytest.approx(100, abs=0.01)
    assert float(rows[1][0]) >= float(rows[-1][0])
    ids = [row[rows[0].index("ids")].split("; ") for row in rows[1:]]
    assert sum(map(len, ids)) == kernels
    for view in ("Overview", "Memory", "Decisions", "Roofline", "Trace"):
        saved = _saved(window, view, "CSV").decode()
        assert len(saved.splitlines()) > 2, view
        assert not re.search("Infinity|NaN|null|undefined", saved), view
    for view in ("Overview", "Graph", "Memory", "Roofline", "Trace"):
        drawn = ElementTree.fromstring(_saved(window, view, "SVG").decode())
        assert drawn.tag.endswith("svg")
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}text"))) > 3, view
        data = _saved(window, view, "PNG")
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width > 200, view
        assert height > 100, view


def _pick(window: Browser, label: str, value: str) -> None:
    script = (
        f"const e = document.querySelector('{SHOWN} select[aria-label=\"' + arguments[0] + '\"]');"
        "e.value = arguments[1]; e.dispatchEvent(new Event('change'))"
    )
    window.run(script, label, value)


def _all(selector: str) -> Any:
    found = f"[...document.querySelectorAll('{SHOWN} {selector}')]"
    return f"{found}.map((e) => e.textContent).join(' ')"
