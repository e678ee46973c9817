"""Figures as files of their own: what the page's stylesheet says must go with them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from foldline.reports.document import Curves, Series
from foldline.reports.figures import draw, draw_alone


def figure(series: int) -> Curves:
    return Curves(id="many", title="Many", x_label="queries", y_label="accuracy", log_x=True, alt="curves", caption="",
                  series=[Series(name=f"series {i}", x=[1, 10], y=[0.1 * i, 0.5]) for i in range(series)])


def test_a_figure_alone_brings_its_colours() -> None:
    inside, alone = draw(figure(2)), draw_alone(figure(2))
    assert "<style" not in inside
    style = alone[alone.index("<style>"):alone.index("</style>")]
    defined = set(re.findall(r"(--[a-z]+):", style))
    assert set(re.findall(r"var\((--[a-z]+)\)", style)) <= defined
    used = {name for text in re.findall(r'class="([^"]+)"', alone) for name in text.split()} - {"plot"}
    assert {"s-accent", "s-null", "f-ink"} <= used
    assert all(f"svg .{name} " in style for name in used)
    ET.fromstring(alone)


def test_eight_series_are_told_apart() -> None:
    drawn = ET.fromstring(draw_alone(figure(8)))
    svg = "{http://www.w3.org/2000/svg}"
    legend = next(g for g in drawn.iter(f"{svg}g") if g.get("id", "").endswith("legend_1"))
    looks = [(p.get("class"), p.get("stroke-dasharray")) for p in legend.iter(f"{svg}path")
             if (p.get("class") or "").startswith("s-")]
    lines = [look for look in looks if look[0] in ("s-accent", "s-null", "s-third", "s-fourth")]
    assert len(set(lines)) == 8
