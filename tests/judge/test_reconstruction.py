"""The score of a reconstruction: chance scores near its one per cent, truth scores everything, order is nothing."""

import pytest
import torch
from torch import Tensor

import foldline as fl
from foldline.errors import BadInput
from foldline.judge.reconstruction import correlation, matched, score_reconstruction


def rows(n: int, d: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=fl.generator(seed), dtype=torch.float64)


def test_perfect_samples_score_everything() -> None:
    train, unseen = rows(40), rows(40, seed=1)
    score = score_reconstruction(train, train, unseen)
    assert score.recovered == 1.0 and score.interval == (1.0, 1.0)
    assert score.above == {"0.8": 40, "0.9": 40, "0.99": 40} and score.unseen_above["0.8"] == 0
    assert torch.equal(score.match, torch.arange(40))


def test_order_scale_and_brightness_change_nothing() -> None:
    train, unseen = rows(30), rows(30, seed=1)
    order = torch.randperm(30, generator=fl.generator(2))
    score = score_reconstruction(3 * train[order] - 0.7, train, unseen)
    assert score.recovered == 1.0 and float(score.ncc.min()) > 1 - 1e-9
    assert torch.equal(order[score.match], torch.arange(30))
    negative = score_reconstruction(-train, train, unseen)                  # a negative is no reconstruction
    assert negative.recovered < 0.2 and negative.above["0.8"] == 0


def test_chance_scores_about_one_per_cent() -> None:
    drawn = [[rows(200, seed=3 * s + k) for k in range(3)] for s in range(5)]
    shares = [score_reconstruction(*three).recovered for three in drawn]
    assert sum(shares) / 5 < 0.03
    one = score_reconstruction(rows(200, seed=90), rows(200, seed=91), rows(200, seed=92))
    assert one.interval[0] <= one.recovered <= one.interval[1] and one.interval[1] < 0.12


def test_half_of_the_rows_found_is_half_with_an_interval_around_it() -> None:
    train, unseen = rows(60), rows(60, seed=1)
    score = score_reconstruction(train[:30], train, unseen)
    assert score.recovered == 0.5 and score.interval[0] < 0.5 < score.interval[1]
    assert int((score.match >= 0).sum()) == 30 and float(score.ncc[30:].abs().max()) == 0.0


def test_one_candidate_counts_once() -> None:
    """A prototype that looks like every row is one image, not all of them."""
    centre = rows(1)
    train = centre + 0.05 * rows(20, seed=1)
    unseen = rows(20, seed=2)
    score = score_reconstruction(centre, train, unseen)
    assert score.above["0.9"] == 1 and score.recovered == 1 / 20
    # The nulls say why a high NCC means little here: other training rows pass the same threshold.
    assert score.nulls["nearest other training row"] == 1.0 and score.nulls["training mean"] == 1.0


def test_nothing_recovered_is_nothing() -> None:
    score = score_reconstruction(torch.zeros(0, 64, dtype=torch.float64), rows(10), rows(10, seed=1))
    assert score.recovered == 0.0 and score.above["0.8"] == 0 and int((score.match == -1).sum()) == 10
    flat = score_reconstruction(torch.ones(5, 64, dtype=torch.float64), rows(10), rows(10, seed=1))
    assert flat.above["0.8"] == 0                                           # a constant correlates with nothing


def test_matching_is_the_best_one_to_one() -> None:
    from itertools import permutations
    a, b = rows(5, seed=4), rows(5, seed=5)
    C = correlation(a, b)
    slow = max(sum(float(C[p[j], j]) for j in range(5)) for p in permutations(range(5)))
    assert float(matched(a, b)[0].sum()) == pytest.approx(slow)


def test_ssim_follows_the_published_voting() -> None:
    train, unseen = rows(6, 784), rows(6, 784, seed=1)
    score = score_reconstruction(train, train, unseen, image_shape=(28, 28))
    assert float(score.ssim.min()) > 0.95 and float(score.unseen_ssim.max()) < 0.5
    # Two noisy copies vote: their mean is nearer to the row than either.
    noise = 0.3 * (rows(6, 784, seed=2) - 0.5)
    alone = score_reconstruction(train + noise, train, unseen, image_shape=(28, 28)).ssim
    both = score_reconstruction(torch.cat([train + noise, train - noise]), train, unseen, image_shape=(28, 28)).ssim
    assert float((both - alone).min()) > 0
    assert bool(score_reconstruction(rows(6, 30), rows(6, 30, seed=1), rows(6, 30, seed=2)).ssim.isnan().all())


def test_the_same_input_gives_the_same_score_and_it_goes_into_json() -> None:
    import json
    one, two = (score_reconstruction(rows(20, seed=7), rows(20), rows(20, seed=1)) for _ in range(2))
    assert one.interval == two.interval
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["recovered"] == one.recovered


@pytest.mark.parametrize(("samples", "train", "unseen", "says"), [
    (rows(3), rows(3, 65), rows(3), "same width"), (rows(3), rows(0), rows(3), "at least one row"),
    (rows(3), rows(3), rows(0), "at least one row"), (rows(3)[0], rows(3), rows(3), "tensor of rows"),
    (rows(3) / 0, rows(3), rows(3), "NaN or infinite")])
def test_wrong_input_is_refused(samples: Tensor, train: Tensor, unseen: Tensor, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        score_reconstruction(samples, train, unseen)
