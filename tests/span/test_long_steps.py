"""Float32 answers: long steps across what is known show directions that short steps bury."""

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.span.differences import Differences
from foldline.span.long_steps import LongSteps, best_step, turned, turned_back
from foldline.span.result import SpanResult
from foldline.span.seen import Seen

from .nets import angle, deep_net


def falling_net(d: int, k: int, decades: float, seed: int) -> nn.Sequential:
    """d-60-30-1 whose first layer has rank k and singular values that fall through some decades, as trained ones do."""
    net = deep_net([d, 60, 30, 1], seed)
    rng = fl.generator(seed + 100)
    U = torch.linalg.qr(torch.randn(60, k, generator=rng, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(d, k, generator=rng, dtype=torch.float64))[0]
    with torch.no_grad():
        net[0].weight.copy_(3 * U @ torch.diag(torch.logspace(0, -decades, k, dtype=torch.float64)) @ V.T)
    return net


def asked(d: int, k: int, decades: float, seed: int) -> tuple[SpanResult, Tensor]:
    net = falling_net(d, k, decades, seed)
    V = torch.linalg.svd(net[0].weight.detach(), full_matrices=False)[2][:k]
    f = fl.value_oracle(net.float(), budget=int(1.1 * (k + 20) * (d + 1)))
    return fl.recover_span(f, rng=fl.generator(seed)), V


@pytest.mark.parametrize("seed", range(2))
def test_weak_directions_of_a_float32_target_show(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    d, k = 300, 12
    found, V = asked(d, k, 3.5, seed)
    assert float((V - V @ found.directions[:k].T @ found.directions[:k]).norm(2)) < 0.1
    assert found.rank == k or not found.status.ok
    monkeypatch.setattr(LongSteps, "rough", False)
    short, _ = asked(d, k, 3.5, seed)
    assert float((V - V @ short.directions[:k].T @ short.directions[:k]).norm(2)) > 0.5


def test_rows_say_how_noisy_they_are() -> None:
    found, V = asked(300, 12, 3.5, 0)
    net = falling_net(300, 12, 3.5, 0)
    steps = LongSteps(fl.value_oracle(net.float()), rng=fl.generator(1))
    seen = Seen(300, steps.eps, 10.0)
    off = []
    for x in found.points[:24]:
        if steps.link is not None:
            seen.rough = True
            steps.know(*seen.shown_well(10.0))
        J = steps.at(x)
        assert J.least is not None
        seen.add(x, J.rows[0], float(J.values[0]), 0, float(J.noise[0]), float(J.least[0]))
        u = J.rows[0] / J.rows[0].norm()
        off.append(float((u - V.T @ (V @ u)).norm()) / float(J.noise[0]))
    assert max(off) < 8 and sorted(off)[len(off) // 2] > 0.1        # neither hidden nor made up
    assert seen.noises[-1] < 0.2 * seen.noises[0]                   # steps grew with what was known


def test_exact_answers_are_asked_as_before() -> None:
    net = deep_net([40, 8, 6, 2], 3)
    x = torch.randn(40, generator=fl.generator(0), dtype=torch.float64)
    a, b = (kind(fl.value_oracle(net), rng=fl.generator(1)).at(x) for kind in (Differences, LongSteps))
    assert torch.equal(a.rows, b.rows) and a.step == b.step and b.least is None


def test_steps_are_as_long_as_bends_allow() -> None:
    steps = torch.tensor([10.0, 3.0, 1.0, 0.3, 0.1], dtype=torch.float64)
    rounding = torch.tensor([1e-7], dtype=torch.float64)
    straight = torch.full((5, 1), 1e-7, dtype=torch.float64)
    i, noise = best_step(straight, steps, rounding, 5.0)
    assert i == 1 and float(noise) == pytest.approx(2 ** 0.5 * 1e-7 / 3)
    bent = 1e-5 * steps[:, None] ** 1.5
    j, worse = best_step(bent, steps, rounding, 5.0)
    assert j > i and float(worse) > float(noise)
    lucky = bent.clone()
    lucky[1] = 0.0                                                  # one move met no fold: not believed
    assert best_step(lucky, steps, rounding, 5.0)[0] > 1


def test_the_random_basis_is_orthonormal() -> None:
    signs = torch.tensor([1.0, -1, -1, 1, 1, -1, 1], dtype=torch.float64)
    B = turned(torch.eye(7, dtype=torch.float64), signs)
    assert torch.allclose(B @ B.T, torch.eye(7, dtype=torch.float64), atol=1e-12)
    g = torch.randn(2, 7, generator=fl.generator(0), dtype=torch.float64)
    assert torch.allclose(turned_back(B @ g.T, signs), g, atol=1e-12)


def test_what_is_known_stays_in_the_moves_as_far_as_it_is_noise() -> None:
    steps = LongSteps(fl.value_oracle(deep_net([5, 3, 1], 0).float()), rng=fl.generator(0))
    steps.know(torch.eye(5, dtype=torch.float64)[:3], torch.tensor([1e-4, 0.01, 0.9], dtype=torch.float64))
    ones = torch.ones(1, 5, dtype=torch.float64)
    moves = steps.off(ones)
    assert moves[0].tolist() == pytest.approx([0.0, 0.005, 0.45, 1.0, 1.0])
    assert steps.whole(moves)[0].tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0, 1.0])


def test_noise_is_tightened_by_what_lies_outside_the_span_but_not_below_what_is_certain() -> None:
    rng = fl.generator(0)
    V = torch.linalg.qr(torch.randn(50, 3, generator=rng, dtype=torch.float64))[0].T
    seen = Seen(50, 1.2e-7, 10.0)
    seen.rough = True
    for _ in range(12):
        row = torch.randn(3, generator=rng, dtype=torch.float64) @ V
        white = 1e-5 * torch.randn(50, generator=rng, dtype=torch.float64) / 50 ** 0.5
        seen.add(row, row / row.norm() + white, 0.0, 0, 1e-3, 1e-6)
    seen.tighten()
    assert all(1e-6 <= n <= 1e-3 for n in seen.noises) and sorted(seen.noises)[6] < 5e-5
    assert seen.shown_well(10.0)[0].shape == (3, 50)


def test_long_steps_are_not_for_boxes_and_probabilities() -> None:
    net = deep_net([30, 6, 5, 1], 1).float()
    steps = LongSteps(fl.value_oracle(nn.Sequential(net, nn.Sigmoid())), rng=fl.generator(0))
    steps.at(torch.randn(30, generator=fl.generator(1), dtype=torch.float64))
    assert steps.link == "logit" and not steps.rough
    boxed = LongSteps(fl.value_oracle(net, box=(0.0, 1.0)), rng=fl.generator(0))
    boxed.at(torch.rand(30, generator=fl.generator(1), dtype=torch.float64))
    assert not boxed.rough
    r = fl.recover_span(fl.value_oracle(net), rng=fl.generator(0))
    assert r.rank == 6 and r.status.ok and angle(r.basis, net[0].weight) < 1e-2


def test_within_a_subspace_points_cost_less_and_show_its_part_of_the_span() -> None:
    d, k, p = 300, 12, 100
    net = falling_net(d, k, 3.5, 0)
    V = torch.linalg.svd(net[0].weight.detach(), full_matrices=False)[2][:k]
    within = torch.linalg.qr(torch.randn(d, p, generator=fl.generator(7), dtype=torch.float64))[0].T
    f = fl.value_oracle(net.float(), budget=int(1.1 * (k + 20) * (d + 1)))
    found = fl.recover_span(f, rng=fl.generator(0), within=within)
    part = torch.linalg.qr((V @ within.T @ within).T)[0].T          # (k, d)
    kept = found.directions[:k]
    assert float((kept - kept @ within.T @ within).norm(2)) < 1e-9  # nothing outside it
    assert float((part - part @ kept.T @ kept).norm(2)) < 0.1
    assert f.used < 0.6 * d * len(found.points) and found.provenance.parameters["within"] == p
    assert found.rank == k or not found.status.ok


def test_exact_answers_are_read_whole() -> None:
    net = falling_net(30, 3, 1.0, 0)
    found = fl.recover_span(fl.value_oracle(net), rng=fl.generator(0), within=torch.eye(30, dtype=torch.float64)[:10])
    V = torch.linalg.svd(net[0].weight.detach(), full_matrices=False)[2][:3]
    assert found.rank == 3 and angle(found.basis, V) < 1e-6
    assert found.provenance.parameters["within"] is None


def test_a_subspace_must_be_one() -> None:
    net = falling_net(30, 3, 1.0, 0)
    eye = torch.eye(30, dtype=torch.float64)
    for wrong in (eye[:, :20], eye[:0], 2 * eye[:5], eye[[0, 0]], eye[0]):
        with pytest.raises(fl.errors.BadInput, match="within"):
            fl.recover_span(fl.value_oracle(net.float()), rng=fl.generator(0), within=wrong)
    with pytest.raises(fl.errors.BadInput, match="whole gradients"):
        fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(0), within=eye[:5])
