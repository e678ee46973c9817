"""Students of one hidden layer that need no training: where the explanations are those of such a network, they fix it.

one_hidden.py takes the explanations of all outputs apart; here is when that may be tried, and how what it finds becomes
the student. Log-probabilities say nothing of what all logits have in common, so they are taken relative to their mean.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from foldline.imitation.linear import PASSIVE
from foldline.imitation.losses import Lesson, Pupil
from foldline.imitation.one_hidden import OneHidden, solve_one_hidden

CHECKED = 1e-2          # relative error on rows that the algebra did not use: gates of a unit it never saw change


def solved_student(pupil: Pupil, lesson: Lesson) -> OneHidden | None:
    """pupil.module filled in, in place, and what it was filled with; None where training has to do it."""
    layers = one_hidden_layer(pupil.module)
    e, of = lesson.explanations, lesson.of
    k = lesson.values.shape[1]
    if layers is None or e is None or of is None or lesson.form != "signed" or lesson.recipe.kind != "gradient" \
            or lesson.space not in ("logits", "log-probabilities") or pupil.ends == "log-odds" or k < 2 \
            or e.shape[1] != k or lesson.smoothing is not None:
        return None
    live = torch.ones(lesson.x.shape[1], dtype=torch.bool)
    if lesson.metric is not None:                                   # gradients of inputs that never vary were dropped
        live = lesson.metric > 0
        e = e[:, :, live] / lesson.metric[live]
    x = lesson.x[:, live]
    e = torch.zeros_like(e).scatter_(1, of[:, :, None].expand_as(e), e)         # in the order of the outputs
    values = lesson.values
    back: Tensor | None = None
    if lesson.space == "log-probabilities":
        back = contrasts(k).to(values)                              # (k - 1, k)
        values, e = values @ back.T, back @ e
    found = solve_one_hidden(x, values, e)
    if found is None:
        return None
    if back is not None:
        found = replace(found, A=back.T.double() @ found.A, c=back.T.double() @ found.c)
        values = lesson.values - lesson.values.mean(1, keepdim=True)
    W = found.W.new_zeros(len(found.W), len(live))
    W[:, live] = found.W
    found = replace(found, W=W)
    error = (found(lesson.x.double()) - values.double()).norm() / values.double().norm().clamp(min=1e-300)
    return found if float(error) < CHECKED and put(layers, found) else None


def one_hidden_layer(student: nn.Module) -> tuple[nn.Linear, nn.Linear] | None:
    """The two layers of Linear, ReLU, Linear, if the student is nothing else."""
    leaves = [m for m in student.modules() if not list(m.children()) and not isinstance(m, PASSIVE)]
    if [type(m) for m in leaves] != [nn.Linear, nn.ReLU, nn.Linear]:
        return None
    first, last = leaves[0], leaves[2]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    return first, last


def put(layers: tuple[nn.Linear, nn.Linear], found: OneHidden) -> bool:
    """Whether there was room: units that are not needed are zero."""
    first, last = layers
    h = len(found.b)
    if first.out_features < h or first.bias is None or last.bias is None:
        return False
    with torch.no_grad():
        for p in (first.weight, first.bias, last.weight):
            p.zero_()
        first.weight[:h] = found.W.to(first.weight)
        first.bias[:h] = found.b.to(first.bias)
        last.weight[:, :h] = found.A.to(last.weight)
        last.bias.copy_(found.c)
    return True


def contrasts(k: int) -> Tensor:
    """(k - 1, k) orthonormal rows that sum to zero."""
    ones = torch.ones(k, 1, dtype=torch.float64)
    rows: Tensor = torch.linalg.qr(torch.cat([ones, torch.eye(k, dtype=torch.float64)[:, 1:]], 1))[0][:, 1:].T
    return rows
