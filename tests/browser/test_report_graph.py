"""The graphs of a report in a browser: `make test-browser`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import Browser, browser
from tests.browser.reports import LAYERS, MANY_LAYERS, SIZES
from tests.patience import eventually

Opens = Callable[..., Browser]
PANES = "const p = report.views.find((v) => v.name === 'Graph').section.panes();"
CARDS = PANES + (
    "return [...p[arguments[0]].where.values()].map(({ key, title, head, x, y, w, h, share, sort })"
    " => ({ key, title, head, x, y, w, h, share, sort }))"
)
NEAR = PANES + "return [...p[arguments[0]].near].map(([key, n]) => [key, n.below])"
SCALE = PANES + "return p.compiled.spot.scale"


def _cards(window: Browser, which: str = "compiled") -> dict[str, Any]:
    return {c["key"]: c for c in window.run(CARDS, which)}


def _pick(window: Browser, label: str, value: str) -> None:
    window.run(
        "const e = document.querySelector('.tools select[aria-label=\"' + arguments[0] + '\"]');"
        "e.value = arguments[1]; e.dispatchEvent(new Event('change'))", label, value,
    )  # fmt: skip


def _check_drawn(window: Browser, which: str) -> None:
    """Cards do not overlap, and are below what they read but for a column's end."""
    cards = _cards(window, which)
    held = sorted(cards.values(), key=lambda c: c["y"])
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            if b["y"] >= a["y"] + a["h"]:
                break
            assert a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"], (a, b)
    ahead = wrong = 0
    for key, below in window.run(NEAR, which):
        for reader in below:
            a, b = cards[key], cards[reader]
            ahead += a["y"] + a["h"] < b["y"]
            wrong += a["y"] + a["h"] >= b["y"] and b["x"] + b["w"] <= a["x"]
    assert ahead > 0
    assert wrong == 0


@pytest.mark.parametrize("size", SIZES)
def test_cards_are_placed_apart_and_below_what_they_read(opened: Opens, size: str) -> None:
    window = opened("graph", size=size)
    _pick(window, "Which graph", "both")
    for title in ("Fold", "Unfold"):
        window.click(f"button[title^={title}]")
        _check_drawn(window, "compiled")
        _check_drawn(window, "original")


def test_a_large_graph_is_placed_apart(opened: Opens, large_page: Path) -> None:
    window = opened("graph", file=large_page)
    assert len(_cards(window)) < 20  # runs of kernels, folded
    window.click("button[title^=Unfold]")
    assert len(_cards(window)) > 300
    _check_drawn(window, "compiled")


STUBS = PANES + (
    "return [...p[arguments[0]].where.values()].filter((c) => c.stubs.length)"
    ".map((c) => [c.key, c.stubs.map((e) => e.from), c.x, c.y, c.w])"
)


@pytest.mark.parametrize("mode", ["compiled", "original"])
@pytest.mark.parametrize("title", ["Fold", "Unfold"])
def test_a_value_that_many_read_is_a_stub_at_each(
    opened: Opens, deep_page: Path, mode: str, title: str
) -> None:
    window = opened("graph", file=deep_page)
    _pick(window, "Which graph", mode)
    window.click(f"button[title^={title}]")
    held, cards = window.run(STUBS, mode), _cards(window, mode)
    (mask,) = (k for k, c in cards.items() if c["title"] == "mask")
    assert [makers for _, makers, *_ in held] == [[mask]] * (MANY_LAYERS - 1)
    edges = sum(len(below) for _, below in window.run(NEAR, mode))
    assert window.run("return document.querySelectorAll('.edge').length") == edges
    routes = window.run(PANES + "return [...p[arguments[0]].size.routes.keys()]", mode)
    assert sum(r.startswith(f"{mask} ") for r in routes) == 1
    names = window.each(
        ".stub", "((b) => [e.textContent, b.x, b.y, b.width, b.height])(e.getBBox())"
    )
    assert len(names) == len(held)
    for (text, x, y, width, height), (_, _, left, top, wide) in zip(names, held):
        assert text == "mask"
        assert left < x
        assert x + width < left + wide / 2  # arrows come in the middle
        assert y + height <= top
    assert "read by 12" in window.each(".shapes text")
    _check_drawn(window, mode)
    window.run("document.querySelector('.stub').dispatchEvent(new MouseEvent('click'))")
    assert window.run("return report.state.value") == mask


def test_arrows_shapes_inputs_and_outputs(opened: Opens) -> None:
    window = opened("graph")
    window.click("button[title^=Unfold]")
    edges = window.each(".edge", "[e.getAttribute('d'), e.getAttribute('marker-end')]")
    assert edges
    assert all(d.startswith("M") and end.startswith("url(#arrow") for d, end in edges)
    shapes = window.each(".shapes text")
    assert "f32[64, 384]" in shapes
    sorts = [c["sort"] for c in _cards(window).values()]
    assert sorts.count("input") == 2
    assert sorts.count("output") == 2


@pytest.mark.parametrize("mode", ["compiled", "original"])
def test_shapes_are_written_apart(opened: Opens, branched_page: Path, mode: str) -> None:
    window = opened("graph", file=branched_page)
    _pick(window, "Which graph", mode)
    boxes = window.each(
        ".shapes text",
        "((b) => [b.x, b.y, b.x + b.width, b.y + b.height, e.textContent])(e.getBBox())",
    )
    assert sum(b[4] == "f32[10, 1, 11, 1, 12, 1, 13, 14]" for b in boxes) > 3
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            is_apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 2 or b[3] <= a[1] + 2
            assert is_apart, (a, b)


def test_layers_fold(opened: Opens) -> None:
    window = opened("graph")
    window.click("button[title^=Fold]")
    folded = _cards(window)
    layers = [c for c in folded.values() if c["sort"] == "layer"]
    assert [c["title"] for c in layers] == [f"encoder.layer.{i} ▸" for i in range(LAYERS)]
    whole = sum(c["share"] for c in folded.values())
    assert whole == pytest.approx(1)
    window.run("document.querySelector('.node.layer').dispatchEvent(new MouseEvent('click'))")
    unfolded = _cards(window)
    assert len([c for c in unfolded.values() if c["sort"] == "layer"]) == LAYERS - 1
    assert len(unfolded) > len(folded)
    assert sum(c["share"] for c in unfolded.values()) == pytest.approx(whole)
    kernel = next(k for k, c in unfolded.items() if c["sort"] == "card")
    window.run("report.choose(Number(arguments[0].slice(1)))", kernel)
    window.each(".side button", "e.textContent === 'Fold this layer' && e.click()")
    assert _cards(window).keys() == folded.keys()


def test_colour_is_time_or_kind(opened: Opens) -> None:
    window = opened("graph")
    window.click("button[title^=Unfold]")
    fill = "[e.dataset.key, getComputedStyle(e.querySelector('rect:last-of-type')).fill]"
    cards, by_time = _cards(window), dict(window.each(".node", fill))
    shares = sorted((c["share"], k) for k, c in cards.items() if k.startswith("k"))
    assert by_time[shares[0][1]] != by_time[shares[-1][1]]
    assert "20 % and more" in window.run("return document.querySelector('.side').textContent")
    _pick(window, "Colour", "kind")
    assert dict(window.each(".node", fill)) != by_time
    assert "matmuls" in window.run("return document.querySelector('.side .legend').textContent")


def _is_shown(window: Browser, script: str, expected: Any) -> bool:
    return window.run(script) == expected


def _scales(window: Browser, mode: str) -> list[float]:
    shown = ("original", "compiled") if mode == "both" else (mode,)
    return [window.run(PANES + "return p[arguments[0]].spot.scale", which) for which in shown]


@pytest.mark.parametrize("mode", ["compiled", "original", "both"])
def test_tools_act_on_the_graphs_that_are_shown(opened: Opens, mode: str) -> None:
    window = opened("graph")
    window.run("report.choose(3)")
    _pick(window, "Which graph", mode)
    for tool in ("Zoom in", "Zoom out", "Fit", "Zoom out"):
        before = _scales(window, mode)
        window.each(".tools button", f"(e.ariaLabel ?? e.textContent) === '{tool}' && e.click()")
        after = _scales(window, mode)
        grow = {"Zoom in": 1.3, "Zoom out": 1 / 1.3}.get(tool)
        if grow:
            assert after == pytest.approx([grow * s for s in before])
        label = window.run("return document.querySelector('.tools .zoom').textContent")
        assert [int(part.split()[0]) for part in label.split(" · ")] == pytest.approx(
            [100 * s for s in after], abs=0.51
        )


def test_ops_of_the_model_are_coloured_by_kind_alone(opened: Opens) -> None:
    window = opened("graph")
    _pick(window, "Which graph", "original")
    window.click("button[title^=Unfold]")
    colour = "document.querySelector('.tools select[aria-label=Colour]')"
    assert window.run(f"return [{colour}.value, {colour}.disabled]") == ["kind", True]
    fills = dict(window.each(".node", "[e.dataset.key, e.style.getPropertyValue('--fill')]"))
    nodes = window.run("return report.data.model.nodes.map((n) => n.kind)")
    assert [fills[f"n{i}"] for i in range(len(nodes))] == [f"var(--c{k})" for k in nodes]
    assert len(set(nodes)) > 1
    side = window.run("return document.querySelector('.side').textContent")
    assert "kind of op" in side
    assert "share" not in side


def test_the_graph_and_its_colour_are_in_the_address(reader: Browser, page: Path) -> None:
    with browser((1280, 800)) as window:  # whose history holds nothing else
        window.open(f"{page.as_uri()}#view=graph")
        _check_history(window)


def _check_history(window: Browser) -> None:
    _pick(window, "Which graph", "both")
    _pick(window, "Colour", "kind")
    assert "graph=both&colour=kind" in window.run("return location.hash")
    address = window.run("return location.href")
    shown = "return [...document.querySelectorAll('.tools select')].map((e) => e.value)"
    for expected in (["both", "time"], ["compiled", "time"]):
        window.run("history.back()")
        eventually(partial(_is_shown, window, shown, expected), f"{expected}")
    window.open("about:blank")
    window.open(address)
    assert window.run(shown) == ["both", "kind"]
    assert window.run("return document.querySelectorAll('.pane').length") == 2


def test_an_input_shows_what_reads_it(opened: Opens) -> None:
    window = opened("graph")
    window.each(".node.input", "e.dispatchEvent(new MouseEvent('click'))")
    assert "value=i" in window.run("return location.hash")
    side = window.run("return document.querySelector('.side').innerText")
    assert "Read by kernels" in side
    assert window.run("return document.querySelectorAll('.node.chosen.input').length") == 1


def test_the_model_is_beside_what_it_became(opened: Opens) -> None:
    window = opened("graph")
    _pick(window, "Which graph", "both")
    assert window.run("return document.querySelectorAll('.pane').length") == 2
    window.click("button[title^=Unfold]")
    window.run("report.choose(3)")
    nodes = window.each(".node.related", "report.data.model.nodes[e.dataset.key.slice(1)]")
    assert [n["op"] for n in nodes] == ["matmul", "add", "gelu"]
    assert {n["layer"] for n in nodes} == {"encoder.layer.1"}
    window.run("report.chooseNode(1)")
    side = window.run("return document.querySelector('.side').textContent")
    assert "Kernels of these names" in side
    assert "fused_matmul_bias_act" in side


def test_labels_are_whole_words_inside_their_cards(opened: Opens) -> None:
    window = opened("graph")
    for title in ("Fold", "Unfold"):
        window.click(f"button[title^={title}]")
        for card in _cards(window).values():
            joined = "".join(card["head"]).replace(" ", "")
            assert joined == card["title"].replace(" ", "")
        right, card = (
            "getBoundingClientRect().right",
            "parentNode.querySelector('rect:last-of-type')",
        )
        ends = window.each(
            ".node text",
            f"[e.textContent, e.{right}, e.{card}.{right}]",
        )
        outside = [text for text, own, most in ends if own > most + 1]
        assert outside == []


@pytest.mark.parametrize("size", SIZES)
def test_the_folded_graph_can_be_read_as_it_opens(opened: Opens, size: str) -> None:
    window = opened("graph", size=size)
    window.settle()
    assert 12 * window.run(SCALE) >= 7
    window.click("button[title^=Fold]")
    if size == "desktop":
        assert 12 * window.run(SCALE) >= 8  # all of it


def test_a_graph_is_moved_and_zoomed_by_pointer_and_keys(opened: Opens) -> None:
    window = opened("graph")
    spot = PANES + "const { x, y, scale } = p.compiled.spot; return [x, y, scale]"
    first = window.run(spot)
    window.drag((300, 700), (360, 730))
    moved = window.run(spot)
    assert (moved[0] - first[0], moved[1] - first[1]) == pytest.approx((60, 30))
    window.wheel((300, 500), -300)
    assert window.run(spot)[2] > first[2]
    window.run("document.querySelector('.view svg').focus()")
    for key, changed in (("-", True), ("+", True), ("\ue015", False), ("f", True)):
        before = window.run(spot)
        window.press(key)
        assert (window.run(spot)[2] != before[2]) is changed
        assert window.run(spot) != before
    assert window.run(spot) == pytest.approx(first)


def test_keys_go_along_edges_and_enter_chooses(opened: Opens) -> None:
    window = opened("graph")
    window.click("button[title^=Unfold]")
    window.run("document.querySelector('.node.input').focus()")
    window.press("n", "\ue007")
    chosen = window.run("return report.state.kernel")
    assert chosen >= 0
    side = window.run("return document.querySelector('.side').textContent")
    assert f"k{chosen}" in side
    assert "=" in window.run("return document.querySelector('.side pre').textContent")
    window.press("n")
    assert window.run("return document.activeElement.dataset.key") != f"k{chosen}"
    window.press("\ue00c")
    assert window.run("return report.state.kernel") == -1


def test_weight_preparation_is_shown_where_asked(opened: Opens) -> None:
    window = opened("graph")
    late = window.run("return report.data.kernels.findIndex((k) => k.phase === 'prologue')")
    if late < 0:
        assert window.run("return document.querySelectorAll('.tools input').length") == 0
        return
    window.click("button[title^=Unfold]")
    assert f"k{late}" not in _cards(window)
    window.click(".tools input")
    assert f"k{late}" in _cards(window)
