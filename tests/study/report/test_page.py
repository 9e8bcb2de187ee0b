"""The page: complete, in one file, and alive in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shardinv.study.report import write_report
from tests.harness.browser import Browser, browser, chromium
from tests.study.report import made_up

PLAN = {"name": "made up <b>", "price": 2.0, "common": {"size": 64}, "grids": [{}]}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything that a study can hold."""
    folder = tmp_path_factory.mktemp("study")
    made_up.write(folder, made_up.study(quality=True, profile=True), PLAN)
    (folder / "points" / "0123.error.txt").write_text("RuntimeError: <rank 1> is gone", "utf-8")
    return write_report(folder)


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_page_is_complete_and_self_contained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    elements = _Elements(text).found
    links = [a.get("href") or a.get("src") or "" for _, a in elements if "href" in a or "src" in a]
    assert links
    for link in links:
        assert not re.match(r"(https?:)?//", link)
        if not link.startswith(("#", "data:")):
            assert (page.parent / link).is_file(), link
        elif link.startswith("#") and len(link) > 1:
            assert any(attributes.get("id") == link[1:] for _, attributes in elements), link
    assert not re.search(r"@import|url\((?!data:)", text[: text.index("</style>")])
    sections = [a["id"] for tag, a in elements if tag == "section"]
    assert sections == [
        "time", "scaling", "losses", "communication", "timeline", "kernels", "quality",
        "resources", "published", "points", "provenance",
    ]  # fmt: skip
    assert "made up &lt;b&gt;" in text
    assert "RuntimeError: &lt;rank 1&gt; is gone" in text
    for words in ("times as fast as the baseline", "halo work takes", "Beside undistributed"):
        assert words in text
    for tag, attributes in elements:
        if tag == "img":
            assert "alt" in attributes
        if attributes.get("role") == "img":
            assert attributes["aria-label"]


def test_an_earlier_report_is_replaced(tmp_path: Path) -> None:
    made_up.write(tmp_path, [made_up.measurement(system="deepinv")])
    page = write_report(tmp_path)
    assert "Published measurements" in page.read_text(encoding="utf-8")
    old = page.parent / "figures" / "of-an-earlier-study.png"
    old.write_bytes(b"old")
    assert write_report(tmp_path, with_published=False) == page
    assert not old.exists()
    assert "Published measurements" not in page.read_text(encoding="utf-8")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["points", "report"]


@pytest.fixture(scope="module")
def chrome(page: Path) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with browser() as opened:
        opened.show(390, 800)
        opened.open(page.as_uri())
        yield opened


def _rule(chrome: Browser, script: str) -> Any:
    return chrome.run(f"(() => {{ {script} }})()")


def test_every_figure_is_drawn(chrome: Browser, page: Path) -> None:
    found = _rule(
        chrome,
        """return [...document.querySelectorAll(".plot")].map((plot) => [
             plot.id,
             plot.querySelectorAll("svg.main-svg .trace path, svg.main-svg .trace .point").length,
             plot.parentElement.querySelectorAll(".legend li").length,
           ]);""",
    )
    assert len(found) > 20
    for name, marks, entries in found:
        assert marks > 0, name
        assert entries > 0, name
    assert chrome.errors == []
    assert [r for r in chrome.requests if not r.startswith("data:")] == [page.as_uri()]


def test_nothing_is_wider_than_a_phone(chrome: Browser) -> None:
    assert chrome.run("document.documentElement.scrollWidth") == 390


def test_slider_and_zoom(chrome: Browser) -> None:
    clip = 'document.getElementById("left-picture").style.clipPath'
    loaded = """["left-picture", "right-picture"].map((id) =>
        document.getElementById(id)).map((picture) => [picture.naturalWidth, picture.alt])"""
    assert chrome.run(loaded) == [[64, "start"], [64, "shardinv sharded, 4 ranks"]]
    assert chrome.run(clip) == "inset(0px 50% 0px 0px)"
    chrome.run('document.getElementById("slider").focus()')
    for key in ("Home", "ArrowRight"):
        chrome.press(key)
    assert chrome.run('document.getElementById("slider").value') == "0.5"
    assert chrome.run(clip) == "inset(0px 99.5% 0px 0px)"
    _rule(
        chrome,
        """const zoom = document.getElementById("zoom");
           zoom.value = 4; zoom.dispatchEvent(new Event("input"));""",
    )
    moved = 'document.getElementById("right-picture").style.transform'
    assert chrome.run(moved) == "scale(4) translate(-37.5%, -37.5%)"
    assert chrome.run(clip) == "inset(0px 62.375% 0px 0px)"  # of the picture: 37.5 + 0.5 / 4
    chrome.run('document.getElementById("stage").focus()')
    chrome.press("ArrowRight")
    assert chrome.run(moved) == "scale(4) translate(-40%, -37.5%)"


def test_legend_hides_and_shows(chrome: Browser) -> None:
    lines = "document.querySelectorAll('#speedup .scatterlayer .trace').length"
    entry = "document.querySelector('#figure-speedup .legend button')"
    before = chrome.run(lines)
    chrome.run(f"{entry}.click()")
    assert chrome.run(f"{entry}.getAttribute('aria-pressed')") == "false"
    assert chrome.run(lines) == before - 1
    chrome.run(f"{entry}.click()")
    assert chrome.run(lines) == before


def test_tables_sort(chrome: Browser) -> None:
    head = "document.querySelector('[data-table=points]').tHead.rows[0].cells[3]"
    column = """[...document.querySelector("[data-table=points]").tBodies[0].rows]
        .map((row) => +row.cells[3].dataset.value)"""
    assert chrome.run(f"{head}.textContent.trim()") == "s per iteration"
    before = chrome.run(column)
    assert before != sorted(before)
    chrome.run(f"{head}.querySelector('button').focus()")
    chrome.press("Enter")
    assert chrome.run(column) == sorted(before)
    assert chrome.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    chrome.press("Enter")
    assert chrome.run(column) == sorted(before, reverse=True)
    assert chrome.run(f"{head}.getAttribute('aria-sort')") == "descending"


def test_dark_colours_and_choice(chrome: Browser) -> None:
    ink = """document.querySelector("#speedup .xtick text").style.fill"""
    light = chrome.run(ink)
    chrome.show(390, 800, dark=True)
    chrome.wait("document.documentElement.dataset.theme === 'dark'")
    assert chrome.run(ink) != light
    chrome.run("document.getElementById('theme').click()")  # auto, then light
    assert chrome.run("document.documentElement.dataset.theme") == "light"
    assert chrome.run(ink) == light
    shown = """document.querySelector("#timeline .plot").querySelectorAll(".ytick").length"""
    assert chrome.run(shown) == 4
    _rule(
        chrome,
        """const choice = document.querySelector("#timeline select");
           choice.selectedIndex = [...choice.options].findIndex((o) => /2 ranks/.test(o.text));
           choice.dispatchEvent(new Event("change"));""",
    )
    assert chrome.run(shown) == 2
    assert chrome.errors == []
