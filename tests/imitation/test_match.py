"""fl.imitate on targets small enough to be learned in a second, and on targets that misbehave."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadInput, Refused
from foldline.imitation.match import imitate
from foldline.imitation.optimise import Plan
from foldline.judge.imitation import queries_needed, score_imitation
from foldline.networks.presets import initialise
from foldline.oracles.explain import explanations

D, K = 20, 5


def net(seed: int, *widths: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    sizes = [D, *widths, K]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    m = nn.Sequential(*layers[:-1]).to(dtype)
    rng = fl.generator(seed)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64) / p.shape[-1] ** 0.5)
    return m


def rows(n: int, seed: int = 7) -> Tensor:
    return torch.randn(n, D, generator=fl.generator(seed))


def agreement(result: object, target: object) -> float:
    return score_imitation(result.network, target, rows(2000, 99)).agreement        # type: ignore[attr-defined]


QUICK = [Plan(lr=1e-2, lam=0.1, steps=300)]


@pytest.mark.parametrize("explain", ["gradient", "smoothgrad", "integrated_gradients", "gradient_x_input"])
def test_one_explained_query_fixes_a_linear_model(explain: str) -> None:
    target = net(0)
    r = imitate(target, net(1), rows(1), explain, rng=fl.generator(0), sigma=3.0)
    assert r.status.ok and r.solved and r.queries == 1
    x = rows(500, 3)
    assert float((r.network(x) - target(x)).detach().abs().max()) < 1e-4


def test_far_points_undo_noise_that_is_a_hundred_times_the_inputs() -> None:
    """Near the inputs SmoothGrad explains its noise; far out it explains the target without its biases."""
    target = net(0, 12)
    with torch.no_grad():
        for layer in (target[0], target[2]):
            layer.bias.mul_(0.1)
    found = {scale: imitate(target, net(1, 48), rows(24), "smoothgrad", rng=fl.generator(0), sigma=100.0, samples=10,
                            plans=QUICK, committee=1, scale=scale) for scale in (1.0, 1400.0)}
    near, far = (agreement(r, target) for r in found.values())
    assert far > 0.8 and far > near + 0.1, (near, far)
    assert "without its biases" in found[1400.0].status.notes[-1]


@pytest.mark.parametrize(("scale", "explain", "widths"), [
    (0.0, "gradient", (8,)), (float("nan"), "gradient", (8,)), (2.0, None, (8,)), (2.0, "gradient", ()),
    (2.0, "integrated_gradients", (8,))])
def test_a_scale_that_cannot_be_is_one_sentence(scale: float, explain: str | None, widths: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="scale="):
        imitate(net(0, 4), net(1, *widths), rows(4), explain, rng=fl.generator(0), scale=scale)
    with pytest.raises(BadInput, match="not homogeneous"):
        imitate(net(0, 4), net(1, 8), rows(4), rng=fl.generator(0), link="softmax", match="probabilities", scale=2.0)


@pytest.mark.parametrize("link", ["softmax", "log_softmax"])
def test_one_query_behind_a_softmax_fixes_a_linear_model_too(link: str) -> None:
    target = net(0)
    r = imitate(target, net(1), rows(1), link=link, rng=fl.generator(0))
    x = rows(500, 3)
    assert r.solved and r.space == "log-probabilities"
    assert float((r.network(x).softmax(1) - target(x).softmax(1)).detach().abs().max()) < 1e-3


def test_one_query_behind_a_sigmoid_fixes_a_logistic_regression() -> None:
    target, student = (nn.Sequential(nn.Linear(D, 1), nn.Sigmoid()).double() for _ in range(2))
    initialise(target, fl.generator(0))
    initialise(student, fl.generator(1))
    r = imitate(target, student, rows(1).double(), rng=fl.generator(0))
    x = rows(200, 3).double()
    assert r.solved and r.space == "log-odds"
    assert float((r.network(x) - target(x)).detach().abs().max()) < 1e-9


def test_values_fix_a_linear_model_from_d_plus_one() -> None:
    target = net(0)
    r = imitate(target, net(1), rows(D + 12), None, rng=fl.generator(0))
    assert r.solved and r.explained is None and r.certificate.held_out.values < 1e-6
    assert agreement(r, target) > 0.995


def test_gradients_teach_more_than_values_from_the_same_queries() -> None:
    target, x = net(0, 16), rows(12)
    with_gradients = imitate(target, net(1, 16), x, rng=fl.generator(0), plans=QUICK, committee=1)
    values_only = imitate(target, net(1, 16), x, None, rng=fl.generator(0), plans=QUICK, committee=1)
    assert with_gradients.queries == values_only.queries == 12
    assert agreement(with_gradients, target) > agreement(values_only, target) + 0.05
    assert agreement(with_gradients, target) > 0.85


def test_settings_are_chosen_on_answers_that_were_held_out() -> None:
    target = net(0, 8)
    plans = [Plan(lr=1e-6, steps=400), Plan(lr=1e-2, steps=400)]
    r = imitate(target, net(1, 8), rows(20), rng=fl.generator(0), plans=plans)
    assert r.plan.lr == 1e-2
    assert len(r.trials) == 2 and r.certificate.held_out_rows == 4
    assert r.certificate.held_out.explanations < 1


def test_the_same_seed_gives_the_same_student_and_the_given_one_is_left_alone() -> None:
    target, student = net(0, 8), net(1, 8)
    before = {k: v.clone() for k, v in student.state_dict().items()}
    a, b = (imitate(target, student, rows(5), rng=fl.generator(3), plans=[Plan(steps=20)]) for _ in range(2))
    for (name, p), q in zip(a.network.state_dict().items(), b.network.state_dict().values(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(student.state_dict()[name], before[name])
    assert a.to_dict()["status"]["ok"]


def test_nothing_touches_the_global_seed() -> None:
    target, student = net(0, 8), net(1, 8)
    before = torch.random.get_rng_state()
    imitate(target, student, rows(5), "smoothgrad", rng=fl.generator(3), plans=[Plan(steps=5)])
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_predicted_output_alone_teaches_too() -> None:
    target, x = net(0, 16), rows(40)
    top = imitate(target, net(1, 16), x, rng=fl.generator(0), output="top", plans=QUICK, committee=1)
    values = imitate(target, net(1, 16), x, None, rng=fl.generator(0), plans=QUICK, committee=1)
    assert agreement(top, target) > agreement(values, target) + 0.02


@pytest.mark.parametrize("form", ["normalised", "8bit", "clipped", "image", "absolute"])
def test_lossy_forms_are_seen_and_used(form: str) -> None:
    target, x = net(0, 16), rows(40)
    r = imitate(explanations(target, form=form), net(1, 16), x, rng=fl.generator(0), plans=QUICK, committee=1)
    values = imitate(target, net(1, 16), x, None, rng=fl.generator(0), plans=QUICK, committee=1)
    assert r.status.ok and r.form == form
    if form != "absolute":                                  # without signs nothing is promised but an answer
        assert agreement(r, target) > agreement(values, target) + 0.03


def test_a_form_that_was_not_announced_is_noticed() -> None:
    target = net(0, 16)
    attr = pytest.importorskip("captum.attr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        r = imitate(target, net(1, 16), rows(10), attr.Saliency(target), rng=fl.generator(0), plans=QUICK, committee=1)
    assert r.form == "absolute"
    assert any("signs are lost" in note for note in r.status.notes)


def test_labels_only_falls_back_and_says_what_is_lost() -> None:
    target = net(0)
    r = imitate(fl.label_oracle(target), net(1), rows(400), rng=fl.generator(0), plans=QUICK, committee=1)
    assert r.status.code == "labels_only" and "lost" in str(r.status)
    assert agreement(r, target) > 0.7


def test_gradients_of_another_output_are_put_aside() -> None:
    target = net(0, 16)

    class Shuffled(explanations(target).source.__class__):  # type: ignore[misc]
        def _explanations(self, x: Tensor, j: Tensor) -> Tensor:
            return super()._explanations(x, (j + 1) % K)

    oracle = explanations(target)
    wrong = type(oracle)(Shuffled(target, oracle.source.recipe, "all"))
    r = imitate(wrong, net(1, 16), rows(40), rng=fl.generator(0), plans=[Plan(steps=20)])
    assert r.status.code == "explanations_disagree" and r.explained is None
    right = imitate(oracle, net(1, 16), rows(40), rng=fl.generator(0), plans=[Plan(steps=20)])
    assert right.status.ok and right.explained == "gradient"


class Faulty(nn.Module):
    """Answers NaN where the first input is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.in_features, self.out_features = net(0), D, K

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 0, torch.nan, 1.0) * self.inner(x)


def test_rows_with_nan_are_dropped_and_counted() -> None:
    x = rows(30)
    r = imitate(Faulty(), net(1), x, rng=fl.generator(0))
    bad = int((x[:, 0] > 0).sum())
    assert r.status.ok and any(f"{bad} of 30" in n for n in r.status.notes) and r.queries == 31      # one twice
    assert score_imitation(r.network, net(0), rows(500, 2)).agreement > 0.99


def test_nothing_but_nan_is_a_status() -> None:
    x = rows(5)
    x[:, 0] = x[:, 0].abs() + 0.1
    r = imitate(Faulty(), net(1), x, rng=fl.generator(0))
    assert r.status.code == "bad_answers" and r.network is None
    assert r.to_dict()["network"] is None


def test_a_target_without_gradients_is_learned_from_values() -> None:
    weight = net(0)[0].weight.detach()

    class Opaque(nn.Module):
        in_features, out_features = D, K

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(x.detach().numpy() @ weight.T.numpy())

    r = imitate(Opaque(), net(1), rows(D + 12), rng=fl.generator(0))
    assert r.status.code == "no_explanations" and r.solved and r.explained is None


def test_a_budget_is_kept_and_the_rest_is_learned_from() -> None:
    target = net(0, 8)
    r = imitate(target, net(1, 8), rows(20), rng=fl.generator(0), budget=7, plans=[Plan(steps=10)])
    assert r.status.code == "budget" and r.queries == 7 and r.network is not None
    none = imitate(target, net(1, 8), rows(20), rng=fl.generator(0), budget=0)
    assert none.status.code == "budget" and none.queries == 0 and none.network is None


def test_training_that_blows_up_starts_again_slower() -> None:
    r = imitate(net(0, 8), net(1, 8), rows(6), rng=fl.generator(0), plans=[Plan(lr=1e30, steps=30)])
    assert r.status.code == "diverged"
    assert all(bool(p.isfinite().all()) for p in r.network.parameters())


def test_a_committee_is_nearer_than_one_student_and_asks_no_more() -> None:
    target, x = net(0, 32), rows(6)
    alone, many = (imitate(target, net(1, 32), x, rng=fl.generator(0), plans=QUICK, committee=c) for c in (1, 4))
    assert alone.queries == many.queries == 6
    assert agreement(many, target) > agreement(alone, target)
    assert many.network[0].out_features == 4 * 32
    assert any("mean of 4" in note for note in many.status.notes)


def test_a_student_of_zeros_is_started() -> None:
    student = net(1, 8)
    with torch.no_grad():
        for p in student.parameters():
            p.zero_()
    r = imitate(net(0, 8), student, rows(6), rng=fl.generator(0), plans=[Plan(steps=5)])
    assert any("default start" in n for n in r.status.notes)
    assert float(r.network[0].weight.detach().abs().max()) > 0


@pytest.mark.parametrize(("change", "said"), [
    ({"inputs": torch.zeros(0, D)}, "zero queries"),
    ({"inputs": torch.zeros(3, D + 1)}, "inputs"),
    ({"student": nn.Linear(D + 2, K)}, "student takes"),
    ({"student": nn.Linear(D, K + 1)}, "outputs"),
    ({"student": nn.ReLU()}, "parameters"),
    ({"inputs": torch.zeros(3, D, dtype=torch.int64)}, "floating"),
    ({"explain": "lime"}, "explanation"),
    ({"output": 17}, "output"),
    ({"target": 3}, "target"),
    ({"match": "odds"}, "match"),
])
def test_mistakes_are_sentences(change: dict[str, object], said: str) -> None:
    arguments = {"target": net(0), "student": net(1), "inputs": rows(3), **change}
    with pytest.raises((BadInput, Refused), match=said):
        imitate(**arguments, rng=fl.generator(0))          # type: ignore[arg-type]


def test_batch_normalised_students_learn_from_gradients() -> None:
    target = net(0, 16)
    student = nn.Sequential(nn.Linear(D, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, K))
    initialise(student, fl.generator(1))
    r = imitate(target, student, rows(30), rng=fl.generator(0), plans=QUICK, committee=1)
    assert r.status.ok and agreement(r, target) > 0.7


def test_queries_needed_reads_the_curve() -> None:
    curve = [(1, 0.5), (10, 0.91), (100, 0.96)]
    assert queries_needed(curve, 1.0) == {0.90: 10, 0.95: 100, 0.99: None}


class Wavering(nn.Module):
    """A linear model whose every answer is off by a fresh thousandth or tenth."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.inner, self.in_features, self.out_features = net(0), D, K
        self.size, self.rng = size, fl.generator(5)

    def forward(self, x: Tensor) -> Tensor:
        factor = 1 + self.size * torch.randn(len(x), K, generator=self.rng)
        return self.inner(x) * factor


def test_a_target_that_answers_at_random_is_noticed_by_asking_once_more() -> None:
    quick = {"rng": fl.generator(0), "plans": [Plan(steps=5)], "committee": 1}
    r = imitate(Wavering(0.1), net(1, 8), rows(20), **quick)                        # type: ignore[arg-type]
    (note,) = (n for n in r.status.notes if "not deterministic" in n)
    assert "values" in note and "explanations" in note and r.queries == 21
    values = imitate(Wavering(0.1), net(1, 8), rows(20), None, **quick)             # type: ignore[arg-type]
    assert any("not deterministic" in n for n in values.status.notes)
    labels = imitate(fl.label_oracle(Wavering(9.0)), net(1, 8), rows(3), repeat=True, **quick)  # type: ignore[arg-type]
    assert labels.queries == 4


def test_a_target_that_does_not_is_not_accused_and_few_queries_are_not_repeated() -> None:
    quick = {"rng": fl.generator(0), "plans": [Plan(steps=5)], "committee": 1}
    steady = imitate(net(0, 8), net(1, 8), rows(20), **quick)                       # type: ignore[arg-type]
    assert steady.queries == 21 and not any("deterministic" in n for n in steady.status.notes)
    assert imitate(Wavering(0.1), net(1, 8), rows(10), **quick).queries == 10       # type: ignore[arg-type]
    assert imitate(Wavering(0.1), net(1, 8), rows(10), repeat=True, **quick).queries == 11      # type: ignore[arg-type]
    declared = imitate(net(0, 8), net(1, 8), rows(20), "smoothgrad", **quick)       # type: ignore[arg-type]
    assert declared.queries == 20 and not any("deterministic" in n for n in declared.status.notes)
    kept = imitate(net(0, 8), net(1, 8), rows(20), budget=20, **quick)              # type: ignore[arg-type]
    assert kept.queries == 20 and kept.status.ok
