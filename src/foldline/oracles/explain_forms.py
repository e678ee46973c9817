"""What an API does to an explanation before it shows it, what that loses, and how to tell.

form         shown                                         lost
signed       the numbers                                   nothing
normalised   e / max |e|, per explanation                  the scale
8bit         round(127 e / max |e|), per explanation       the scale, and all below max |e| / 254
clipped      e clipped at its 99th percentile of |e|       the size of the largest 1 %
absolute     |e| (captum's default for Saliency)           the sign
image        round(255 (e - min) / (max - min))            scale, offset and small differences: a grey picture

`lose` does it, `found_form` reads it off answers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput

Form = Literal["signed", "normalised", "8bit", "clipped", "absolute", "image"]
FORMS: tuple[Form, ...] = ("signed", "normalised", "8bit", "clipped", "absolute", "image")
CLIP_QUANTILE = 0.99


def check_form(form: str) -> Form:
    for known in FORMS:
        if form == known:
            return known
    raise BadInput(f"There is no form of explanation {form!r}; there are {', '.join(FORMS)}.")


def lose(e: Tensor, form: Form) -> Tensor:
    """e (n, d) as the API shows it."""
    if form == "signed":
        return e
    if form == "absolute":
        return e.abs()
    top = e.abs().amax(1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)         # (n, 1)
    if form == "normalised":
        return e / top
    if form == "8bit":
        return (127 * e / top).round()
    if form == "clipped":
        bound = e.abs().double().quantile(CLIP_QUANTILE, dim=1, keepdim=True).to(e)  # (n, 1)
        return e.clamp(-bound, bound)
    low, high = e.amin(1, keepdim=True), e.amax(1, keepdim=True)
    return (255 * (e - low) / (high - low).clamp_min(torch.finfo(e.dtype).tiny)).round()


def found_form(e: Tensor) -> Form:
    """The form that answers e (n, d) have. Few numbers can look like a form by chance: d >= 16 is needed."""
    rows = e[e.abs().amax(1) > 0].double()
    if len(rows) == 0 or e.shape[1] < 16:
        return "signed"
    top = rows.abs().amax(1)                                                         # (n,)
    whole = bool((rows == rows.round()).all())
    if float(rows.min()) >= 0:
        return "image" if whole and float(top.max()) <= 255 else "absolute"
    if whole and bool((top == 127).all()):
        return "8bit"
    if bool(((top - 1).abs() < 1e-6).all()):
        return "normalised"
    tied = ((rows.abs() - top[:, None]).abs() <= 1e-9 * top[:, None]).sum(1)         # (n,) how many sit at the bound
    return "clipped" if bool((tied >= max(3, 0.005 * e.shape[1])).all()) else "signed"
