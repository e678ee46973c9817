"""One sentence for a reader who will read nothing else, and the picture that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foldline.auditing.session import Session
from foldline.reports.document import Defences, Finding


@dataclass(frozen=True)
class Headline:
    sentence: str
    lead: str
    hero: str | None


def headline(session: Session, findings: Sequence[Finding], figures: Sequence[Any],
             defences: Defences) -> Headline:
    shown = {f.id: f for f in findings if f.state == "shown"}
    ids = {f.id for f in figures}
    hero = next((id for id in ("reconstruct-pictures", "weights-pictures", "labels-pictures", "span-spectrum",
                               "imitate-curve", "extract-folds", "learn-error", "obfuscate-pictures") if id in ids),
                None)
    lead = further(session, shown, defences)
    if "training-data" in shown:
        f = shown["training-data"]
        n, of = round(f.numbers.get("count") or 0), round(f.numbers.get("of") or 0)
        span = shown.get("span")
        rows = span.cost.rows if span is not None else f.cost.rows
        what = "its explanations" if "gradients" in session.main.access else "its answers"
        said = f"Anyone who may ask this model for {what} can get {n} of its {of} training images back, after " \
               f"{rows:,} questions." if session.main.known.image_shape else \
               f"Anyone who may ask this model for {what} can get {n} of its {of} training samples back, after " \
               f"{rows:,} questions."
        return Headline(said, lead, hero)
    if "training-data-weights" in shown:
        f = shown["training-data-weights"]
        return Headline(f"Whoever holds this model's weights can get {round(f.numbers.get('count') or 0)} of its "
                        f"{round(f.numbers.get('of') or 0)} training samples back.", lead, hero)
    if "training-data-labels" in shown:
        f = shown["training-data-labels"]
        return Headline(f"Anyone who may ask this model for labels alone can get {round(f.numbers.get('count') or 0)} "
                        f"of its {round(f.numbers.get('of') or 0)} training samples back, after {f.cost.rows:,} "
                        f"questions.", lead, hero)
    if "extraction" in shown:
        f = shown["extraction"]
        return Headline(f"Anyone who may ask this model can copy it exactly, after {f.cost.rows:,} questions.", lead,
                        hero)
    if "imitation" in shown:
        f = shown["imitation"]
        return Headline(f"A copy that agrees with this model in {f.numbers.get('agreement') or 0:.0%} of cases costs "
                        f"{f.cost.rows:,} questions.", lead, hero)
    if "learning" in shown:
        f = shown["learning"]
        return Headline(f"Anyone who may ask this model for values can copy it to {f.numbers.get('bound') or 0:.1g} of "
                        f"its answers' spread, after {f.cost.rows:,} questions.", lead, hero)
    if "span" in shown:
        f = shown["span"]
        return Headline(f"This model reveals the {round(f.numbers.get('rank') or 0)} directions it looks at, after "
                        f"{f.cost.rows:,} questions; no training data was recovered from them at this budget.", lead,
                        hero)
    return Headline("Nothing was shown against this model at this budget, which does not mean that it leaks nothing.",
                    lead, hero)


def further(session: Session, shown: dict[str, Finding], defences: Defences) -> str:
    """Two or three sentences for the same reader."""
    said = []
    if (f := shown.get("imitation")) is not None:
        what = "explanations" if "gradients" in session.main.access else "answers"
        said.append(f"{f.numbers.get('rows') or 0:.0f} {what} were enough for a copy that gives the same answer in "
                    f"{f.numbers.get('agreement') or 0:.0%} of cases.")
    if (f := shown.get("extraction")) is not None and "small" in session.subjects:
        said.append(f"A second, smaller model was copied exactly, to the last weight, with {f.cost.rows:,} questions.")
    if (f := shown.get("training-data-labels")) is not None and "training-data" in shown:
        said.append(f"From labels alone, with nothing explained, {round(f.numbers.get('count') or 0)} came back after "
                    f"{f.cost.rows:,} questions.")
    tried = [r for r in defences.rows if r.group != "none" and r.recovered is not None]
    if tried and "training-data" in shown:
        held = [r.name for r in tried if (r.recovered or 0) <= max(1, r.null or 0)]
        said.append(f"Of {len(tried)} defences tried, {len(held) or 'none'} kept the training images to chance"
                    + (f": {', '.join(held)}." if held else "."))
    return " ".join(said)
