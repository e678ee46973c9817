"""Inputs buried in noise that the model cannot see: same answer, nothing a person would recognise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.auditing.findings import certificate, cost, finding, share_interval
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.reports.document import Method, Picture, PictureRow, Pictures
from foldline.reports.document import Status as PlainStatus
from foldline.reports.pictures import png

TITLE = "Noise that the model cannot see"
EXPLAINS = ("Whatever is orthogonal to the span does not reach the first layer's units. Noise put there changes the "
            "input beyond recognition and the answer not at all: who knows the span can hide inputs from people.")
INPUTS, SCALE = 50, 5.0     # noise five times as long as the input: nothing is left to recognise
SAME = 1e-3             # of the spread of the answers


@dataclass(frozen=True, eq=False, kw_only=True)
class Hidden:
    clean: Tensor           # (n, d)
    noisy: Tensor
    control: Tensor         # the same amount of noise without the span
    y: Tensor               # (n,) answers to each
    y_noisy: Tensor
    y_control: Tensor


def estimate(session: Session) -> Estimate:
    inputs = session.main.known.inputs
    rows = 3 * (INPUTS if inputs is None else min(INPUTS, len(inputs)))
    return Estimate.exactly(rows, 1.0, "the same inputs clean, hidden, and with ordinary noise")


def attack(session: Session) -> Hidden:
    import foldline as fl
    span = session.result("span")
    inputs = session.main.known.inputs
    rng = session.rng("obfuscate")
    d = span.directions.shape[1]
    clean = inputs[:INPUTS] if inputs is not None else torch.rand(INPUTS, d, generator=rng, dtype=torch.float64)
    noisy = fl.obfuscate(clean, span.basis, scale=SCALE, rng=rng)
    noise = torch.randn(clean.shape, generator=rng, dtype=torch.float64)
    control = clean + SCALE * noise * (clean.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True))
    access = "values" if "values" in session.main.access else "gradients"
    oracle = session.oracle(access)
    answers = oracle(torch.cat([clean, noisy, control]))
    y = (answers if access == "values" else answers[0][:, None]).double()[:, session.audit.output]
    a, b, c = y.split(len(clean))
    return Hidden(clean=clean, noisy=noisy, control=control, y=a, y_noisy=b, y_control=c)


def tell(session: Session, result: Hidden) -> Outcome:
    n = len(result.clean)
    spread = float(result.y.std()) or 1.0
    change = (result.y_noisy - result.y).abs() / spread
    control = (result.y_control - result.y).abs() / spread
    same, same_control = int((change <= SAME).sum()), int((control <= SAME).sum())
    ratio = float(((result.noisy - result.clean).norm(dim=1) / result.clean.norm(dim=1).clamp_min(1e-12)).mean())
    figures = picture(session, result) if session.main.known.image_shape else []
    found = finding(
        session, "obfuscation", "Inputs can be hidden from people, not from the model", shown=same > n // 2,
        what=f"{same} of {n} inputs kept their answer (within {SAME:g} of the answers' spread) under noise {ratio:.2g} "
             f"times as long as the input itself.",
        limits="" if same == n else f"{n - same} inputs changed their answer by more than that at this scale.",
        evidence=[share_interval(same, n, "Unchanged answers"),
                  certificate(f"Largest change {float(change.max()):.2g} of the spread; ordinary noise of the same "
                              f"length changes the answer by {float(control.median()):.2g} in the median and leaves "
                              f"{same_control} of {n} unchanged.")],
        cost=cost(session), fixes=["Refuse inputs outside the range of real data (pixels below 0 or above 1).",
                                   "Do not rely on a person or a log recognising what the model was shown."],
        numbers={"same_answer": same / n, "noise_ratio": ratio, "largest_change": float(change.max())},
        figures=[f.id for f in figures])
    told = Method(id="obfuscate", title=TITLE, explains=EXPLAINS, rows=3 * n, figures=[f.id for f in figures],
                  status=PlainStatus(ok=True, code="ok", message="Done."),
                  numbers={"inputs": n, "noise over input length": ratio, "unchanged": same,
                           "unchanged under ordinary noise": same_control})
    return Outcome(method=told, findings=[found], figures=list(figures))


def picture(session: Session, result: Hidden, columns: int = 8) -> list[Pictures]:
    shape, box = session.main.known.image_shape, session.main.known.box
    assert shape is not None

    def row(label: str, x: Tensor, y: Tensor, hint: str) -> PictureRow:
        low, high = (box if label == "Input" else (float(x[:columns].min()), float(x[:columns].max())))
        return PictureRow(label=label, hint=hint, pictures=[
            Picture(png=png(x[i], shape, box=(low, high)), note=f"{float(y[i]):.4g}", alt=f"{label} {i + 1}")
            for i in range(min(columns, len(x)))])

    return [Pictures(
        id="obfuscate-pictures", title="The same answer to what nobody can read", private=False,
        size=(shape[0], shape[1]), rows=[
            row("Input", result.clean, result.y, "the answer below each"),
            row("Hidden in the null space", result.noisy, result.y_noisy, f"noise {SCALE:g} times as long"),
            row("Ordinary noise", result.control, result.y_control, "of the same length; the null")],
        caption="Inputs, the same inputs with noise orthogonal to the span, and with ordinary noise of the same "
                "length. Below each is the model's answer.",
        alt="Clean inputs, and noisy ones that get the same answers.")]


STAGE = Stage("obfuscate", TITLE, "main", estimate, attack, tell)
