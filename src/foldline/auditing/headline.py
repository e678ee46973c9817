"""One sentence for a reader who will read nothing else, and the picture that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foldline.auditing.session import Session
from foldline.reports.document import Finding


@dataclass(frozen=True)
class Headline:
    sentence: str
    lead: str
    hero: str | None


def headline(session: Session, findings: Sequence[Finding], figures: Sequence[Any]) -> Headline:
    shown = {f.id: f for f in findings if f.state == "shown"}
    ids = {f.id for f in figures}
    hero = next((id for id in ("reconstruct-pictures", "weights-pictures", "span-spectrum", "imitate-curve",
                               "extract-folds", "obfuscate-pictures") if id in ids), None)
    lead = " ".join(sentence for id in ("extraction", "imitation", "obfuscation")
                    if id in shown and (sentence := short(shown[id])))
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
    if "extraction" in shown:
        f = shown["extraction"]
        return Headline(f"Anyone who may ask this model can copy it exactly, after {f.cost.rows:,} questions.", lead,
                        hero)
    if "imitation" in shown:
        f = shown["imitation"]
        return Headline(f"A copy that agrees with this model in {f.numbers.get('agreement') or 0:.0%} of cases costs "
                        f"{f.cost.rows:,} questions.", lead, hero)
    if "span" in shown:
        f = shown["span"]
        return Headline(f"This model reveals the {round(f.numbers.get('rank') or 0)} directions it looks at, after "
                        f"{f.cost.rows:,} questions; no training data was recovered from them at this budget.", lead,
                        hero)
    return Headline("Nothing was shown against this model at this budget, which does not mean that it leaks nothing.",
                    lead, hero)


def short(f: Finding) -> str:
    """The first sentence of what was shown."""
    head, dot, _ = f.what.partition(". ")
    return head + "." if dot else f.what
