"""The page as text: escaped, complete, small, the same twice. What a browser does with it is in test_browser.py."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from sample import sample

from foldline.reports.document import Curves, Folds, Scores, Series, Spectrum
from foldline.reports.figures import draw
from foldline.reports.html import number, render_html, weblink

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'{{7*7}}$x^2$\\frac</style></title><!--"


class Page(HTMLParser):
    """Tags, attributes and ids of a page; void elements are not balanced."""

    VOID = frozenset({"meta", "link", "img", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]
        self.ids += [v for k, v in attrs if k == "id" and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]
        self.ids += [v for k, v in attrs if k == "id" and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"


@pytest.fixture(scope="module")
def page() -> str:
    return render_html(sample())


def test_the_page_is_whole_and_its_ids_are_unique(page: str) -> None:
    found = Page(page)
    assert not found.open
    assert len(found.ids) == len(set(found.ids))
    targets = {v[1:] for tag, k, v in found.attributes if tag == "a" and k == "href" and v and v.startswith("#")}
    assert targets <= set(found.ids)


def test_it_opens_with_the_sentence_and_then_the_picture(page: str) -> None:
    first = page.index("<h1>")
    assert "46 of its 50 training images" in page[first:first + 200]
    assert page.index("<h1>") < page.index('id="fig-hero"') < page.index('id="findings"')


def test_there_is_no_script_and_the_policy_names_the_only_stylesheet(page: str) -> None:
    found = Page(page)
    assert "script" not in found.tags and "iframe" not in found.tags and "form" not in found.tags
    assert not [a for a in found.attributes if a[1].startswith("on") or a[1] == "style"]
    css = re.search(r"<style>(.*?)</style>", page, re.S)
    assert css is not None
    digest = base64.b64encode(hashlib.sha256(css.group(1).encode()).digest()).decode()
    policy = next(v for tag, k, v in found.attributes if tag == "meta" and k == "content" and v and "default-src" in v)
    assert policy.startswith("default-src 'none'") and f"'sha256-{digest}'" in policy and "unsafe" not in policy


def test_nothing_is_fetched(page: str) -> None:
    sources = [v or "" for _, k, v in Page(page).attributes if k in ("src", "srcset", "data", "poster")]
    assert sources and all(v.startswith("data:image/png;base64,") for v in sources)
    assert "url(" not in re.sub(r"url\(#", "", page) and "@import" not in page


def test_hostile_strings_stay_text_in_every_field_and_figure() -> None:
    text = render_html(sample(HOSTILE))
    found = Page(text)
    clean = Page(render_html(sample()))
    assert sorted(set(found.tags)) == sorted(set(clean.tags))
    assert found.tags.count("img") == clean.tags.count("img")
    assert "alert(1)</script>" not in text and text.count("{{7*7}}") > 20
    assert not [a for a in found.attributes if a[1].startswith("on")]


def test_the_same_report_is_the_same_bytes(page: str) -> None:
    assert render_html(sample()) == page
    assert len(page) < 5_000_000


def test_private_pictures_ask_first_and_redacted_ones_are_gone(page: str) -> None:
    assert page.count('class="reveal"') == 1
    gone = render_html(sample(), redact=True)
    assert "data:image/png" not in gone and 'class="reveal"' not in gone and "left out of this copy" in gone


def test_images_have_words_and_tables_have_headers(page: str) -> None:
    found = Page(page)
    images = [i for i, (tag, k, _) in enumerate(found.attributes) if tag == "img" and k == "src"]
    assert images and sum(tag == "img" and k == "alt" and bool(v) for tag, k, v in found.attributes) == len(images)
    assert all(v for tag, k, v in found.attributes if tag == "svg" and k == "aria-label")
    assert found.tags.count("h1") == 1 and ("html", "lang", "en") in found.attributes


def test_links_leave_only_by_https() -> None:
    assert weblink("javascript:alert(1)") == "#" and weblink("https://example.org") == "https://example.org"


def test_numbers_are_readable() -> None:
    assert [number(v) for v in (None, 1200.0, 0.12345, 3e-9, float("nan"))] == \
        ["none", "1,200", "0.123", "3e-09", "not a number"]


@pytest.mark.parametrize("figure", [
    Spectrum(id="a", title="t", caption="", alt="", values=[], rank=0),
    Spectrum(id="a", title="t", caption="", alt="", values=[1.0, 0.0, 0.0], rank=1, floor=0.0),
    Curves(id="a", title="t", caption="", alt="", x_label="x", y_label="y", series=[]),
    Curves(id="a", title="t", caption="", alt="", x_label="x", y_label="y", log_x=True, log_y=True,
           series=[Series(name="$a_b$", x=[1, 2], y=[None, 0.5])]),
    Folds(id="a", title="t", caption="", alt="", t=[0.0], f=[1.0], folds=[]),
    Scores(id="a", title="t", caption="", alt="", x_label="x", groups=[Series(name="n", x=[], y=[])], threshold=0.5),
], ids=["no values", "zeros", "no series", "gaps", "one point", "no scores"])
def test_degenerate_figures_are_drawn_without_complaint(figure: object) -> None:
    root = ET.fromstring(draw(figure))
    assert root.get("role") == "img"
    assert not [e for e in root.iter() if e.get("style") or e.tag.endswith("style") or e.tag.endswith("script")]
