"""Where target and student are compared: logits, log-probabilities, log-odds or probabilities, with their gradients.

Probabilities saturate and their gradients with them (grad p_j = p_j grad log p_j), so answers are taken back through
the link before they are matched:

    probabilities p          ->  log p_j,           grad log p_j = grad p_j / p_j
    one probability p        ->  log p / (1 - p),   grad / (p (1 - p))
    logits z, all explained  ->  probabilities and log-probabilities, where the caller wants the paper's own loss

Both divisions are by a number per explanation, so they hold for explanations that lost their scale or sign too.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from foldline.errors import BadInput, Refused

Space = Literal["logits", "probabilities", "log-probabilities", "log-odds"]
SPACES: tuple[Space, ...] = ("logits", "probabilities", "log-probabilities", "log-odds")


def found_space(values: Tensor) -> Space:
    """What answers (n, k) are: rows of probabilities, their logarithms, or anything else ("logits")."""
    if values.shape[1] < 2:
        return "logits"
    v = values.double()
    slack = 1e-4                        # float16 and four printed digits still count
    if float(v.min()) >= 0 and bool(((v.sum(1) - 1).abs() < slack).all()):
        return "probabilities"
    if float(v.max()) <= 0 and bool((v.logsumexp(1).abs() < slack).all()):
        return "log-probabilities"
    return "logits"


def convert(values: Tensor, explanations: Tensor | None, of: Tensor | None, start: Space,
            end: Space) -> tuple[Tensor, Tensor | None]:
    """values (n, k) and explanations (n, m, d) of the outputs `of` (n, m), taken from one space to another."""
    if start == end:
        return values, explanations
    values = values.double()
    if start == "probabilities" and end in ("log-probabilities", "log-odds"):
        p = values.clamp(1e-30, 1.0)
        slope = 1 / p if end == "log-probabilities" else 1 / (p * (1 - p)).clamp_min(1e-30)
        out = p.log() if end == "log-probabilities" else (p / (1 - p).clamp_min(1e-30)).log()
        if explanations is None or of is None:
            return out, None
        return out, explanations.double() * slope.gather(1, of)[:, :, None]
    k = values.shape[1]
    if start in ("logits", "log-probabilities") and end in ("log-probabilities", "probabilities"):
        logp = values.log_softmax(1)
        p = logp.exp()                                                          # (n, k)
        out = logp if end == "log-probabilities" else p
        if explanations is None or of is None:
            return out, None
        e = explanations.double()
        if start == "logits":
            if e.shape[1] != k:
                raise Refused(f"The gradient of a probability needs the logits' gradients of all {k} outputs; only "
                              f"{e.shape[1]} was answered. Match logits instead.")
            e = e - torch.einsum("nk,nkd->nd", p, e)[:, None]                   # grad log p_j
        return out, e if end == "log-probabilities" else e * p.gather(1, of)[:, :, None]
    raise Refused(f"Answers that are {start} cannot be compared as {end}.")


def ending(student: nn.Module) -> Space:
    """What the student answers, from its last layer: Softmax, LogSoftmax, Sigmoid, or logits."""
    last = [m for m in student.modules() if not list(m.children())][-1:]
    if last and isinstance(last[0], nn.Softmax):
        return "probabilities"
    if last and isinstance(last[0], nn.LogSoftmax):
        return "log-probabilities"
    return "log-odds" if last and isinstance(last[0], nn.Sigmoid) else "logits"


def student_in(out: Tensor, ends: Space, space: Space) -> Tensor:
    """The student's outputs (n, k) in the space of comparison."""
    if space == "probabilities":
        return out if ends == "probabilities" else out.softmax(1)
    if space == "log-probabilities":
        if ends == "probabilities":
            return out.clamp_min(1e-30).log()
        return out if ends == "log-probabilities" else out.log_softmax(1)
    if space == "log-odds":
        return torch.logit(out, eps=1e-12) if ends == "log-odds" else out
    return out


def chosen_space(answered: Space, wanted: Space | None, ends: Space, outputs: int) -> Space:
    """The best space both can be taken to, or the one the caller wants."""
    if wanted is not None:
        if wanted not in SPACES:
            raise BadInput(f"match is one of {', '.join(SPACES)}, not {wanted!r}.")
        return wanted
    if outputs == 1:
        return "log-odds" if answered == "probabilities" else "logits"
    if answered == "logits" and ends in ("probabilities", "log-probabilities"):
        return "log-probabilities"
    return "log-probabilities" if answered in ("probabilities", "log-probabilities") else "logits"
