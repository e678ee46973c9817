"""Training samples out of the span: nothing more is asked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foldline.auditing.findings import assumption, cost, finding, method, null
from foldline.auditing.judging import Verdict, in_pixels, judge
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.auditing.subjects import Subject
from foldline.reports.document import Cost, Evidence, Figure, Picture, PictureRow, Pictures, Scores, Series
from foldline.reports.pictures import png

TITLE = "Training samples from the span"
EXPLAINS = ("Inside the span, the training samples are the independent components: a blind separation of sources, as "
            "it is used on mixed voices, pulls them apart. A second step snaps candidates to points that fit the range "
            "of pixels exactly. Neither uses anything but the explanations and the shape of an image.")
COLUMNS = 10
TITLES = {"labels": "What labels alone gave away", "weights": "What the weights gave away"}


def estimate(session: Session) -> Estimate:
    return Estimate.exactly(0, 20.0, "computes on what the span asked")


def attack(session: Session) -> Any:
    import foldline as fl
    known = session.main.known
    return fl.reconstruct_from_span(session.result("span"), rng=session.rng("reconstruct"),
                                    image_shape=known.image_shape, mean=known.mean, box=known.box)


def tell(session: Session, result: Any) -> Outcome:
    rows = session.outcomes["span"].method.rows
    found, figures = told(session, session.main, result, "training-data", "reconstruct",
                          cost=cost(session, f"the {rows:,} rows of the span, asked once; nothing more", rows=rows),
                          source=f"{rows:,} explanations" if "gradients" in session.main.access else f"{rows:,} values")
    return Outcome(method=method(STAGE, EXPLAINS, result, numbers={
        "samples returned": len(result.samples), "estimated training samples": getattr(result, "estimated_n", None),
        **found.numbers}, figures=[f.id for f in figures]), findings=[found], figures=figures)


def told(session: Session, subject: Subject, result: Any, id: str, prefix: str, *, cost: Cost,
         source: str, off: str = "the explanations", fixes: list[str] | None = None,
         all_of_them: bool = True) -> tuple[Any, list[Figure]]:
    """The finding and its figures, from weights or from a span alike. `off`: what the samples were read off."""
    known = subject.known
    rows: Tensor = result.samples
    if fixes is None:
        fixes = ["Serve no raw gradients as explanations; the table of defences shows what each alternative still "
                 "leaks."]
    fixes = [*fixes,
             "Train with differential privacy, on more data, or with an optimiser that leaves the span; measure again.",
             "Treat this model, and every copy of its weights, like the data it was trained on."]
    n = len(rows)
    samples = in_pixels(rows, known.mean, known.inputs)                 # to look at
    estimated = getattr(result, "estimated_n", None)
    if subject.owner is None:
        found = finding(session, id, f"Candidates for training samples came out of {off}" if n else
                        f"No candidate for a training sample came out of {off}", shown=False,
                        incomplete=n > 0,
                        what=f"{n} candidate samples came out of {source}"
                             + (f"; the model seems to have been trained on {estimated}" if estimated else "")
                             + ". Whether they are training samples cannot be told without the owner's data.",
                        limits="Give reference.train and reference.unseen in the audit file to have them scored.",
                        cost=cost, fixes=fixes, numbers={"candidates": float(n)})
        return found, candidates(subject, samples, prefix)
    mean_known = known.mean is not None
    verdict = judge(samples if mean_known else rows, subject.owner, mean_known, known.image_shape)
    of = len(subject.owner.train)
    shown = verdict.count > verdict.null_count and verdict.count > 0
    noun = "images" if subject.known.image_shape else "samples"
    figures = compared(subject, samples, verdict, prefix, source, noun, all_of_them)
    close = int((verdict.train_ncc > 0.99).sum())
    found = finding(
        session, id, f"Training {noun} can be read off {off}",
        shown=shown,
        what=f"{verdict.count} of {of} training {noun} were recovered from {source}"
             + (f", {close} of them almost to the pixel (correlation above 0.99)." if close else ".") if shown else
             f"No more training {noun} were recovered from {source} than chance would match: {verdict.count} of {of}.",
        limits=f"The other {of - verdict.count} did not pass the threshold at this budget; that is no proof that they "
               f"are safe." if verdict.count < of else "",
        evidence=[null(f"Scored the same way, {verdict.unseen_passing} of {len(subject.owner.unseen)} unseen {noun} "
                       f"pass the threshold of {verdict.threshold:.3f} (one false positive in a hundred)."),
                  Evidence(kind="interval", text=f"Recovered {verdict.count / of:.0%}; 95 % bootstrap interval over "
                                                 f"training and unseen {noun} {verdict.score.interval[0]:.0%} to "
                                                 f"{verdict.score.interval[1]:.0%}."),
                  null("Other guesses at the same threshold: " + ", ".join(
                      f"{name} {share:.0%}" for name, share in verdict.score.nulls.items()) + "."),
                  Evidence(kind="measurement", text=f"Correlation of the median training sample "
                                                    f"{float(verdict.train_ncc.median()):.3f}, of the median unseen "
                                                    f"one {float(verdict.score.unseen_ncc.median()):.3f}.")],
        cost=cost, fixes=fixes,
        assumptions=[assumption("The first layer lies in the span of the training data.", True if shown else None,
                                f"{estimated} samples estimated, {of} true" if estimated else ""),
                     assumption("Training samples are independent components with sparse differences (images are).",
                                True if shown else None)],
        numbers={"recovered": verdict.count / of, "count": float(verdict.count), "of": float(of),
                 "excess": (verdict.count - verdict.null_count) / of, "by_chance": float(verdict.null_count),
                 "threshold": verdict.threshold, "almost_exact": float(close),
                 "clear": float(verdict.score.above["0.9"]), "median_ncc": float(verdict.train_ncc.median())},
        figures=[f.id for f in figures])
    return found, figures


def compared(subject: Subject, samples: Tensor, verdict: Verdict, prefix: str, source: str, noun: str,
             all_of_them: bool) -> list[Figure]:
    assert subject.owner is not None
    figures: list[Figure] = []
    shape, owner = subject.known.image_shape, subject.owner
    if shape is not None:
        order = verdict.train_ncc.argsort(descending=True)
        every = [int(order[round(i * (len(order) - 1) / (COLUMNS - 1))]) for i in range(COLUMNS)] \
            if len(order) > COLUMNS else order.tolist()
        figures.append(rows_of(subject, samples, verdict, every, f"{prefix}-pictures",
                               TITLES.get(prefix, "What the model gave away"),
                               f"{len(every)} of {len(owner.train)} training images at even steps from the best "
                               f"recovered to the worst, chosen by rank and not by hand"
                               + ("; all of them are further down." if all_of_them else "."),
                               source))
        if len(order) > COLUMNS and all_of_them:
            figures.append(rows_of(subject, samples, verdict, order.tolist(), f"{prefix}-all", "All training images",
                                   "Every training image, best first, with what was recovered and the unseen image "
                                   "that comes closest to it.", source))
    figures.append(Scores(
        id=f"{prefix}-scores", title="Recovered against the null", x_label="correlation with its best match",
        groups=[Series(name="training", x=verdict.train_ncc.tolist(), y=[]),
                Series(name="unseen", x=verdict.score.unseen_ncc.tolist(), y=[])],
        threshold=verdict.threshold, threshold_label="1 % false positives",
        caption=f"Each dot is one of the owner's {noun}: how well its best partner among the recovered ones matches "
                f"it, one to one. Unseen {noun} show what chance gives.",
        alt=f"{verdict.count} training dots lie right of the threshold, {verdict.null_count} unseen ones."))
    return figures


def rows_of(subject: Subject, samples: Tensor, verdict: Verdict, chosen: list[int], id: str, title: str, caption: str,
            source: str) -> Pictures:
    shape, box, owner = subject.known.image_shape, subject.known.box, subject.owner
    assert shape is not None and owner is not None

    def tile(x: Tensor | None, note: str, alt: str) -> Picture:
        return Picture(png=png(x, shape, box=box) if x is not None else "", note=note, alt=alt)

    train, found, unseen = [], [], []
    for i in chosen:
        j, k = int(verdict.score.match[i]), int(verdict.nearest_unseen[i])
        train.append(tile(owner.train[i], "", f"training image {i + 1}"))
        found.append(tile(samples[j], f"{float(verdict.train_ncc[i]):.2f}",
                          f"recovered, correlation {float(verdict.train_ncc[i]):.2f}") if j >= 0 else
                     tile(None, "none", "nothing was recovered"))
        unseen.append(tile(owner.unseen[k], f"{float(verdict.nearest_unseen_ncc[i]):.2f}",
                           f"closest unseen image, correlation {float(verdict.nearest_unseen_ncc[i]):.2f}"))
    return Pictures(
        id=id, title=title, size=(shape[0], shape[1]), rows=[
            PictureRow(label="Training image", hint="the attacker never saw it", pictures=train),
            PictureRow(label="Recovered", hint=f"from {source}", pictures=found),
            PictureRow(label="Closest unseen image", hint="the null: likeness by chance", pictures=unseen)],
        caption=f"{caption} Below each is its correlation with the recovered or the training image above; "
                f"{verdict.threshold:.2f} is where one unseen image in a hundred passes.",
        alt=f"Rows of {len(chosen)} training images, their recovered partners, and unseen images for comparison.")


def candidates(subject: Subject, samples: Tensor, prefix: str) -> list[Figure]:
    shape = subject.known.image_shape
    if shape is None or not len(samples):
        return []
    return [Pictures(id=f"{prefix}-pictures", title="Candidates, best first", size=(shape[0], shape[1]), rows=[
        PictureRow(label="Recovered", pictures=[
            Picture(png=png(x, shape, box=subject.known.box), alt=f"candidate {i + 1}")
            for i, x in enumerate(samples[:COLUMNS])])],
        caption="What came out, by the method's own ranking. Without the owner's data nobody can say which are real.",
        alt="A row of recovered candidates.")]


STAGE = Stage("reconstruct", TITLE, "main", estimate, attack, tell)
