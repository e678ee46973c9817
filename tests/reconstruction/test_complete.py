"""Rows that the box has something against are found again by images and units, and only where both bear it out."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from planted import MNIST, mnist, network_of
from torch import Tensor

import foldline as fl
from foldline.randomness import Streams
from foldline.reconstruction import complete as completing
from foldline.reconstruction import layer
from foldline.reconstruction.complete import InRows, complete, seated
from foldline.reconstruction.grow import around
from foldline.reconstruction.peel import Peeled, ncc
from foldline.reconstruction.snap import measure
from foldline.results import silent

N = 20


def stationary(rows: Tensor, h: int = 200) -> Tensor:
    """[W, b] (h, d + 1) as training leaves it: no row has a part in a unit that it leaves off.

    Each unit is a random direction projected on the rows that it sees; those it does not see may see it afterwards,
    with a part of zero.
    """
    X = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    sees = torch.randn(h, X.shape[1], generator=fl.generator(0), dtype=X.dtype) @ X.T           # (h, n)
    on = sees > 0
    gram = (X @ X.T) * on[:, :, None] * on[:, None, :] + torch.diag_embed((~on).to(X.dtype))
    return torch.linalg.solve(gram, sees * on) @ X


@cache
def pinned() -> tuple[Tensor, Peeled, tuple[Any, ...]]:
    """(images, all of them pinned, what else `complete` is given) of a network with a stationary first layer."""
    x, seen = mnist(N)[0], []

    def watched(found: Peeled, *rest: Any, **_: object) -> Peeled:
        seen.append((found, rest))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "complete", watched)
        fl.reconstruct(network_of(stationary(x - x.mean(0))), mean=x.mean(0), image_shape=MNIST, box=(0.0, 1.0),
                       rng=fl.generator(0))
    found, rest = seen[0]
    assert int(found.exact.sum()) == N and float(ncc(x, found.images).amax(1).min()) > 0.999
    return x, found, rest


def spoilt(found: Peeled, seat: int = 3, other: int = 7) -> Peeled:
    """found with the difference of two images in the seat of one."""
    images, exact = found.images.clone(), found.exact.clone()
    images[seat] -= 0.7 * images[other]
    exact[seat] = False
    return replace(found, images=images, exact=exact, violation=measure(images @ found.R.T, found.R).violation)


def test_a_mixture_gives_its_seat_to_the_image_that_box_and_units_bear_out() -> None:
    x, found, rest = pinned()
    bad = spoilt(found)
    assert int((ncc(x, bad.images).amax(1) > 0.99).sum()) == N - 1
    better = complete(bad, *rest, streams=Streams(fl.generator(0)), progress=silent)
    assert float(ncc(x, better.images).amax(1).min()) > 0.99
    assert bool(better.exact.all()) and float(better.violation.max()) < 0.01
    others = torch.arange(N) != 3
    assert torch.allclose(better.images[others], bad.images[others])


def test_units_that_disagree_keep_an_image_out() -> None:
    _, found, (pixels, _, C, *_) = pinned()
    R, bad = found.R, spoilt(found)
    K, truth, sure = pixels @ R.T, found.images @ R.T, bad.exact
    as_it_is = InRows(torch.linalg.solve(K, C.T).T, C @ K)
    for name, seen, expected in (("right", as_it_is, True), ("signs turned", replace(as_it_is, seeing=-as_it_is.seeing),
                                                             False)):
        rows = bad.images @ R.T
        seated(truth, rows, sure, R, seen)
        assert bool((rows[3] == truth[3]).all()) == expected, name


def test_a_candidate_outside_the_box_or_known_already_gets_no_seat() -> None:
    _, found, (pixels, _, C, *_) = pinned()
    R, bad = found.R, spoilt(found)
    K, truth = pixels @ R.T, found.images @ R.T
    as_it_is = InRows(torch.linalg.solve(K, C.T).T, C @ K)
    rows = bad.images @ R.T
    seated(torch.stack([truth[3] - 0.6 * truth[7], truth[5]]), rows, bad.exact, R, as_it_is)
    assert torch.equal(rows, bad.images @ R.T)


def test_what_needs_nothing_and_what_is_mostly_open_are_returned_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found, rest = pinned()
    monkeypatch.setattr(completing, "around", None)                 # nothing is searched
    assert complete(found, *rest, streams=Streams(fl.generator(0)), progress=silent) is found
    few = replace(spoilt(found), exact=torch.arange(N) < 2 * N // 3)
    assert complete(few, *rest, streams=Streams(fl.generator(0)), progress=silent) is few


def test_a_search_around_rows_holds_the_others_as_they_are() -> None:
    rng, r = fl.generator(0), 8
    truth = torch.linalg.qr(torch.randn(r, r, generator=rng, dtype=torch.float64))[0]
    part = torch.randn(600, r, generator=rng, dtype=torch.float64)
    part *= torch.rand(600, r, generator=rng, dtype=torch.float64) < 0.15
    part += 1e-3 * torch.randn(600, r, generator=rng, dtype=torch.float64)
    start = truth.clone()
    start[0], start[1] = truth[0] + 0.5 * truth[1], truth[1] - 0.4 * truth[5]
    free = torch.arange(r) < 2
    drawn = around(part @ truth, torch.randn(r, 500, generator=rng, dtype=torch.float64), start, free, 1.0, 3, rng=rng)
    assert drawn.shape == (6, r)
    alike = (torch.nn.functional.normalize(drawn, dim=1) @ truth.T).abs()
    assert float(alike[:, :2].amax(0).min()) > 0.99     # both free rows, one of them mixed with a held one
