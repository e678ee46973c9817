"""Figures as inline SVG that follows the page: its colours, its theme, its fonts, and its content policy.

matplotlib draws with stand-in colours; afterwards every style attribute becomes plain attributes and classes, so that
one stylesheet colours all figures in light and dark and the page needs no inline style. Text stays text (escaped by
matplotlib's own writer), formulas are never parsed, and dates and random ids are left out: same data, same bytes.
"""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from importlib import resources
from typing import Any

from foldline.reports.document import Curves, Folds, Scores, Spectrum
from foldline.reports.junit import UNWRITABLE

INK, MUTED, GRID, ACCENT, NULL, THIRD, FOURTH = (f"#0{i}0{i}0{i}" for i in range(1, 8))
CLASSES = {INK: "ink", MUTED: "muted", GRID: "grid", ACCENT: "accent", NULL: "null", THIRD: "third", FOURTH: "fourth"}
CYCLE = (ACCENT, NULL, THIRD, FOURTH)
DASHES = ("-", (0, (6, 3)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)))     # told apart without colour too
MARKERS = ("o", "s", "^", "D")
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
KEPT = {"fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
        "opacity", "fill-opacity", "stroke-opacity", "font-size", "text-anchor"}
RC: dict[str, Any] = {"svg.fonttype": "none", "text.parse_math": False, "font.size": 11, "font.family": "DejaVu Sans",
      "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED, "axes.labelcolor": INK,
      "axes.linewidth": 0.8, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
      "ytick.labelcolor": INK, "text.color": INK, "axes.unicode_minus": True, "axes.grid": True, "grid.color": GRID,
      "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.8}


def draw(figure: Any, size: tuple[float, float] = (5.8, 3.3)) -> str:
    """The SVG of one figure of the report; pictures are not drawn here, the page shows them as images."""
    painters: dict[str, Any] = {"spectrum": spectrum, "curves": curves, "folds": folds, "scores": scores}
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    settings: Any = {**RC, "svg.hashsalt": figure.id}
    with matplotlib.rc_context(settings):
        canvas = Canvas(figsize=size, layout="constrained")
        painters[figure.kind](figure, canvas.add_subplot())
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None,
                                                                      "Type": None})
    return page_svg(out.getvalue(), figure.id, figure.title, figure.alt)


def draw_alone(figure: Any) -> str:
    """The same as a file of its own: the page's colours go with it, and a long legend gets the room it takes."""
    many = len(getattr(figure, "series", ()))
    svg = draw(figure, (7.2, 3.3 + 0.11 * many))
    css = resources.files("foldline.reports").joinpath("templates/report.css").read_text()
    colours = re.findall(r"--[a-z]+: #[0-9a-f]+;", css[:css.index("}")])        # of the light theme, which comes first
    rules = [line for line in css.splitlines() if line.startswith("svg .")]
    style = "\n".join([f":root {{ {' '.join(colours)} background: var(--card); font-family: sans-serif; }}", *rules])
    start = svg.index(">") + 1
    return f"{svg[:start]}<style>{style}</style>{svg[start:]}\n"


def spectrum(figure: Spectrum, axes: Any) -> None:
    positive = [v for v in figure.values if v > 0]
    # Exact zeros are drawn at the bottom edge: a log axis has no place for them.
    low = min(positive, default=1.0) / 3
    values = [v if v > 0 else low for v in figure.values]
    index = list(range(1, len(values) + 1))
    r = figure.rank
    axes.plot(index[:r], values[:r], marker="o", markersize=4, linestyle="none", color=ACCENT, label="signal")
    if r < len(values):
        axes.plot(index[r:], values[r:], marker="x", markersize=4, linestyle="none", color=NULL, label="noise")
    if figure.floor and figure.floor > 0:
        axes.axhline(figure.floor, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label="noise floor")
    for name, at in figure.marks.items():
        axes.axvline(at, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.annotate(label(name), (at, 0.0), xycoords=("data", "axes fraction"), xytext=(-4, 4),
                      textcoords="offset points", ha="right", va="bottom", color=INK)
    logarithmic(axes, "y")
    axes.set_xlabel("direction, strongest first")
    axes.set_ylabel("singular value")
    axes.legend(loc="upper right")


def curves(figure: Curves, axes: Any) -> None:
    for i, s in enumerate(figure.series):
        points = [(a, b) for a, b in zip(s.x, s.y, strict=True) if b is not None and math.isfinite(b)]
        x, y = [a for a, _ in points], [b for _, b in points]
        colour, other = CYCLE[i % 4], (i + i // 4) % 4      # the fifth has the first one's colour and another mark
        line = {"line": DASHES[other], "points": "none", "step": DASHES[other], "dashed": (0, (4, 3))}[s.style]
        marker = MARKERS[other] if s.style == "points" or len(x) <= 20 else None
        axes.plot(x, y, linestyle=line, marker=marker, markersize=5, color=colour, label=label(s.name),
                  drawstyle="steps-post" if s.style == "step" else "default")
    if figure.log_x:
        logarithmic(axes, "x")
        places = spread_out(sorted({x for s in figure.series for x in s.x}))
        if len(places) <= 8:
            axes.set_xticks(places)
    if figure.log_y:
        logarithmic(axes, "y")
    axes.set_xlabel(label(figure.x_label))
    axes.set_ylabel(label(figure.y_label))
    if len(figure.series) > 1:                  # above the axes: inside, one of the curves is always behind it
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2, columnspacing=1.2)


def spread_out(places: list[float]) -> list[float]:
    """Ticks on a logarithmic axis whose labels would not touch; of two neighbours the later stays."""
    return [x for x, after in zip(places, [*places[1:], math.inf], strict=True) if not 0 < after < 1.25 * x]


def folds(figure: Folds, axes: Any) -> None:
    for at in figure.folds:
        axes.axvline(at, color=GRID, linewidth=1.0)
    axes.plot(figure.t, figure.f, color=ACCENT, label="the network along one line")
    on_line = [interpolate(figure.t, figure.f, at) for at in figure.folds]
    axes.plot(figure.folds, on_line, linestyle="none", marker="o", markersize=4.5, color=INK,
              label=f"{len(figure.folds)} folds found")
    axes.set_xlabel("position on the line")
    axes.set_ylabel("output")
    axes.grid(visible=False)
    axes.legend(loc="best")


def scores(figure: Scores, axes: Any) -> None:
    """Each sample is a dot: nothing is smoothed or binned away."""
    n = len(figure.groups)
    for i, group in enumerate(figure.groups):
        base = n - 1 - i
        x = sorted(group.x)
        # A fixed zigzag separates neighbours; no random jitter, so the figure is reproducible.
        y = [base + 0.26 * (((7 * j) % 11) / 10 - 0.5) * 2 for j in range(len(x))]
        axes.plot(x, y, linestyle="none", marker=MARKERS[i % 4], markersize=5, alpha=0.75, color=CYCLE[i % 4])
    axes.set_yticks(range(n), [label(g.name, 16) for g in reversed(figure.groups)])
    axes.set_ylim(-0.6, n - 0.3)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if figure.threshold is not None:
        axes.axvline(figure.threshold, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(label(figure.threshold_label), (figure.threshold, 1.0), xycoords=("data", "axes fraction"),
                      xytext=(-5, 0), textcoords="offset points", ha="right", va="top", color=INK)
    axes.set_xlabel(label(figure.x_label))


def label(text: str, longest: int = 36) -> str:
    """Names from outside may be long enough to leave no room for the figure, or hold what XML cannot."""
    text = UNWRITABLE.sub("\ufffd", text)
    return text if len(text) <= longest else text[:longest - 1] + "…"


def logarithmic(axes: Any, which: str) -> None:
    """Decades as 1e-6 and 100: formulas are not parsed here, so the stock labels would show their source."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if 1 <= v < 1e5 else f"{v:.0e}".replace("e-0", "e-")
                                           .replace("e+0", "e")))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def interpolate(t: list[float], f: list[float], at: float) -> float:
    for (t0, f0), (t1, f1) in zip(zip(t, f, strict=True), zip(t[1:], f[1:], strict=True), strict=False):
        if t0 <= at <= t1:
            return f0 if t1 == t0 else f0 + (f1 - f0) * (at - t0) / (t1 - t0)
    return f[0] if at < t[0] else f[-1]


def page_svg(raw: str, name: str, title: str, alt: str) -> str:
    """matplotlib's SVG made fit for the page: no style attributes, no foreign ids, a name for screen readers."""
    root = ET.fromstring(raw)
    prefix = "f-" + re.sub(r"[^a-zA-Z0-9]+", "-", name) + "-"
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}style", f"{{{SVG}}}metadata"):
                parent.remove(child)
    for element in root.iter():
        restyle(element)
        reference(element, prefix)
    for stale in ("width", "height", "version"):
        root.attrib.pop(stale, None)
    root.set("role", "img")
    root.set("aria-label", UNWRITABLE.sub("\ufffd", f"{title}. {alt}"))
    root.set("class", "plot")
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode")


def restyle(element: ET.Element) -> None:
    style = dict(part.split(":", 1) for part in element.attrib.pop("style", "").split(";") if ":" in part)
    style = {k.strip(): v.strip() for k, v in style.items()}
    if "font" in style and (size := re.search(r"([\d.]+)px", style["font"])):
        style["font-size"] = size.group(1)
    classes = []
    for key in ("fill", "stroke"):
        value = style.get(key) or element.attrib.get(key, "")
        if value.lower() in CLASSES:
            classes.append(f"{key[0]}-{CLASSES[value.lower()]}")
            style.pop(key, None)
            element.attrib.pop(key, None)
    for key, value in style.items():
        if key in KEPT:
            element.set(key, value.removesuffix("px"))
    if element.tag == f"{{{SVG}}}text" and not classes:
        classes.append("f-ink")
    if classes:
        element.set("class", " ".join(classes))


def reference(element: ET.Element, prefix: str) -> None:
    """Ids are unique in a page, not only in a figure."""
    for key, value in element.attrib.items():
        if key == "id":
            element.set(key, prefix + value)
        elif key == f"{{{XLINK}}}href" and value.startswith("#"):
            element.set(key, "#" + prefix + value[1:])
        elif value.startswith("url(#"):
            element.set(key, f"url(#{prefix}{value[5:]}")
