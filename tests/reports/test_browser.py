"""The report in a real browser: Debian's chromium, driven by playwright. Skipped, and said, where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sample import sample

from foldline.reports.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
HOSTILE = "<script>window.hit=1</script><img src=x onerror='window.hit=1'><svg onload='window.hit=1'>\"'><b>bold</b>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the report was not tried in a browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_text(render_html(sample()))
    (folder / "hostile.html").write_text(render_html(sample(HOSTILE)))
    return folder


class Visit:
    """One page opened in a fresh context; what it said, asked for, and popped up is kept."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("dialog", lambda d: (self.said.append(f"dialog {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def test_it_paints_at_once_says_nothing_and_asks_nobody(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "report.html") as visit:
        visit.page.wait_for_timeout(300)
        paint = visit.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert visit.said == []
        assert [u for u in visit.asked if not u.startswith(("file:", "data:"))] == []
        assert sum(u.startswith("file:") for u in visit.asked) == 1
        assert paint < 1000


def test_hostile_strings_execute_nothing_and_add_no_element(browser: Any, folder: Path) -> None:
    counts = {}
    for name in ("report", "hostile"):
        with Visit(browser, folder / f"{name}.html") as visit:
            visit.page.wait_for_timeout(300)
            assert visit.page.evaluate("window.hit") is None
            assert visit.said == []
            assert all(u.startswith(("file:", "data:")) for u in visit.asked)
            counts[name] = visit.page.evaluate("['script','img','b','svg','iframe'].map(t => document.querySelectorAll("
                                               "t).length)")
    assert counts["report"] == counts["hostile"]


def test_pictures_are_blurred_until_asked_for_by_keyboard(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "report.html", reduced_motion="reduce") as visit:
        blur = "getComputedStyle(document.querySelector('.private img')).filter"
        assert "blur" in visit.page.evaluate(blur)
        box = visit.page.locator(".private .reveal input").first
        box.focus()
        visit.page.keyboard.press("Space")
        assert visit.page.evaluate(blur) == "none"
        visit.page.keyboard.press("Space")
        assert "blur" in visit.page.evaluate(blur)


def test_the_keyboard_reaches_findings_first(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "report.html") as visit:
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the findings"
        visit.page.keyboard.press("Enter")
        assert visit.page.evaluate("location.hash") == "#findings"


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_sticks_out_of_any_screen(browser: Any, folder: Path, width: int) -> None:
    for name in ("report", "hostile"):
        with Visit(browser, folder / f"{name}.html", viewport={"width": width, "height": 800}) as visit:
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_are_both_readable(browser: Any, folder: Path) -> None:
    for scheme in ("light", "dark"):
        with Visit(browser, folder / "report.html", color_scheme=scheme) as visit:
            ratios = visit.page.evaluate(CONTRAST)
            assert ratios and min(r for r, _ in ratios) >= 4.5, [t for r, t in ratios if r < 4.5][:5]


def test_figures_follow_the_theme(browser: Any, folder: Path) -> None:
    fills = []
    for scheme in ("light", "dark"):
        with Visit(browser, folder / "report.html", color_scheme=scheme) as visit:
            fills.append(visit.page.evaluate("getComputedStyle(document.querySelector('svg text')).fill"))
    assert fills[0] != fills[1]


def test_it_prints_with_everything_open(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "report.html") as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("document.querySelector('details pre').getBoundingClientRect().height") > 0
        assert visit.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert len(visit.page.pdf()) > 10_000


def test_a_screen_reader_finds_names_roles_and_order(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "report.html") as visit:
        levels = visit.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels)), levels             # no level is skipped on the way down
        unnamed = visit.page.evaluate(
            "[...document.querySelectorAll('svg.plot,img,[role=region],nav,input')].filter(e => !(e.getAttribute("
            "'aria-label') || e.alt || e.closest('label')?.textContent.trim())).length")
        assert unnamed == 0
        for role in ("main", "navigation", "banner", "contentinfo"):
            assert visit.page.get_by_role(role).count() == 1, role


# Contrast of every piece of visible text against the nearest opaque background, by WCAG's formula.
CONTRAST = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const line = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const lum = c => { const [r, g, b] = c.map(line);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const out = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const s = getComputedStyle(e); if (s.display === 'none' || !e.getClientRects().length) continue;
    const ink = parse(e instanceof SVGElement ? s.fill : s.color).slice(0, 3);
    const a = lum(ink), b = lum(behind(e).slice(0, 3));
    out.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 40)]);
  }
  return out; }"""
