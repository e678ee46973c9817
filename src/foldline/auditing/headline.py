"""One sentence for a reader who will read nothing else, and the picture that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The worst kind of leak that was shown, by the order of SENTENCES."""
    shown = {f.id: f for f in findings if f.state == "shown"}
    ids = {f.id for f in figures}
    hero = next((id for id in HEROES if id in ids), None)
    lead = further(session, shown, defences)
    said = next((sentence(session, shown[id], shown) for id, sentence in SENTENCES.items() if id in shown),
                "Nothing was shown against this model at this budget, which does not mean that it leaks nothing.")
    return Headline(said, lead, hero)


def of_the_samples(f: Finding, noun: str = "samples") -> str:
    return f"{round(f.numbers.get('count') or 0)} of its {round(f.numbers.get('of') or 0)} training {noun} back"


def by_asking(session: Session, f: Finding, shown: dict[str, Finding]) -> str:
    rows = shown["span"].cost.rows if "span" in shown else f.cost.rows
    what = "its explanations" if "gradients" in session.main.access else "its answers"
    noun = "images" if session.main.known.image_shape else "samples"
    return f"Anyone who may ask this model for {what} can get {of_the_samples(f, noun)}, after {rows:,} questions."


Sentence = Callable[[Session, Finding, dict[str, Finding]], str]
SENTENCES: dict[str, Sentence] = {
    "training-data": by_asking,
    "training-data-weights": lambda _, f, __: f"Whoever holds this model's weights can get {of_the_samples(f)}.",
    "training-data-labels": lambda _, f, __: (
        f"Anyone who may ask this model for labels alone can get {of_the_samples(f)}, after {f.cost.rows:,} "
        f"questions."),
    "extraction": lambda _, f, __: (
        f"Anyone who may ask this model can copy it exactly, after {f.cost.rows:,} questions."),
    "learning": lambda _, f, __: (
        f"Anyone who may ask this model for values can copy it to {f.numbers.get('bound') or 0:.1g} of its answers' "
        f"spread, after {f.cost.rows:,} questions."),
    "imitation": lambda _, f, __: (
        f"A copy that agrees with this model in {f.numbers.get('agreement') or 0:.0%} of cases costs {f.cost.rows:,} "
        f"questions."),
    "span": lambda _, f, __: (
        f"This model reveals the {round(f.numbers.get('rank') or 0)} directions it looks at, after {f.cost.rows:,} "
        f"questions; no training data was recovered from them at this budget."),
    "label-span": lambda _, f, __: (
        f"This model's labels reveal {round(f.numbers.get('rank') or 0)} of the directions it looks at, after "
        f"{f.cost.rows:,} questions; no training data was recovered from them at this budget."),
}
HEROES = ("reconstruct-pictures", "weights-pictures", "labels-pictures", "span-spectrum", "imitate-curve",
          "extract-folds", "learn-error", "obfuscate-pictures")


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
