"""One hidden layer from the explanations of all outputs at a few points: exact, or not at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldline as fl
from foldline.imitation.one_hidden import minors_gram, null_space, rank_of, solve_one_hidden
from foldline.imitation.solved import contrasts, one_hidden_layer, put
from foldline.networks.presets import build
from foldline.oracles.explain import explanations


def network(h: int = 16, d: int = 30, k: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    rng = fl.generator(seed)
    net = nn.Sequential(nn.Linear(d, h, dtype=dtype), nn.ReLU(), nn.Linear(h, k, dtype=dtype))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64) / p.shape[-1] ** 0.5)
    return net


def points(n: int, d: int = 30, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=fl.generator(seed), dtype=torch.float64)


def asked(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    answer = explanations(net, "gradient", output="all")(x)
    return x, answer.values, answer.explanations


def error(f: nn.Module, g: nn.Module, d: int = 30) -> float:
    z = points(2000, d, seed=99)
    with torch.no_grad():
        y = f(z.to(next(f.parameters()).dtype)).double()
        return float((g(z.to(next(g.parameters()).dtype)).double() - y).abs().max() / y.std())


def test_every_unit_is_found_to_rounding() -> None:
    net = network()
    found = solve_one_hidden(*asked(net, points(20)))
    assert found is not None and len(found.b) == 16 and found.residual < 1e-9
    z = points(500, seed=7)
    with torch.no_grad():
        assert torch.allclose(found(z), net(z), atol=1e-9)
        alike = nn.functional.normalize(found.W, dim=1) @ nn.functional.normalize(net[0].weight, dim=1).T
    assert float(alike.amax(0).min()) > 1 - 1e-12                   # the right sign too


def test_what_the_minors_vanish_on_is_spanned_by_the_units() -> None:
    h, m, k = 6, 7, 4
    rng = fl.generator(0)
    left, right = (torch.randn(h, size, generator=rng, dtype=torch.float64) for size in (m, k))
    terms = torch.einsum("um,uk->mku", left, right).flatten(0, 1)   # (m k, h)
    E, R = torch.linalg.qr(terms)                                   # unit u is E R[:, u]
    G = minors_gram(E.reshape(m, k, h))
    r, c = torch.triu_indices(h, h)
    on_units = torch.stack([torch.outer(q, q)[r, c] for q in R.T], 1)
    assert float((G @ on_units).abs().max()) < 1e-12 * float(G.abs().max()) * 100
    assert float(torch.linalg.eigvalsh(G)[h]) > 1e-8                # and on nothing else
    null = null_space(G, h)
    assert null is not None
    assert float((on_units - null @ (null.T @ on_units)).norm()) < 1e-9 * float(on_units.norm())


def test_the_gram_of_minors_is_that_of_the_obvious_minors() -> None:
    m, k, h = 4, 3, 3
    E = torch.linalg.qr(torch.randn(m * k, h, generator=fl.generator(0), dtype=torch.float64))[0].reshape(m, k, h)
    q = torch.randn(h, generator=fl.generator(1), dtype=torch.float64)
    X = E @ q
    direct = sum((X[i, a] * X[j, b] - X[i, b] * X[j, a]) ** 2 for i in range(m) for j in range(i + 1, m)
                 for a in range(k) for b in range(a + 1, k))
    r, c = torch.triu_indices(h, h)
    v = torch.outer(q, q)[r, c]
    assert float(v @ minors_gram(E) @ v) == pytest.approx(float(direct), rel=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(3, 6), st.booleans())
def test_the_answer_is_exact_or_none(seed: int, h: int, k: int, biased: bool) -> None:
    net = network(h, 20, k, seed)
    if not biased:
        nn.init.zeros_(net[0].bias)
    x = points(24, 20, seed + 1)
    found = solve_one_hidden(*asked(net, x))
    if found is not None:
        with torch.no_grad():
            on = torch.relu(net[0](x)) > 0
        if bool((on.any(0) & ~on.all(0)).all()):                    # every unit changes somewhere among the points
            assert error(net, as_module(found), 20) < 1e-7


def as_module(found: object) -> nn.Module:
    class Found(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dtype_of = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return found(x)                                         # type: ignore[operator, no-any-return]

    return Found()


@pytest.mark.parametrize("why", ["two hidden layers", "linear", "too few points", "one output", "noise",
                                 "constant", "not finite"])
def test_other_answers_give_nothing(why: str) -> None:
    net = network()
    x, y, J = asked(net, points(20))
    if why == "two hidden layers":
        deep = nn.Sequential(nn.Linear(30, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5)).double()
        x, y, J = asked(deep, points(24))
    elif why == "linear":
        x, y, J = asked(nn.Sequential(nn.Linear(30, 5)).double(), points(24))
        J = J + 1e-7 * torch.randn(J.shape, generator=fl.generator(3), dtype=torch.float64)
    elif why == "too few points":
        x, y, J = x[:3], y[:3], J[:3]
    elif why == "one output":
        y, J = y[:, :1], J[:, :1]
    elif why == "noise":
        J = J + 0.3 * J.std() * torch.randn(J.shape, generator=fl.generator(3), dtype=torch.float64)
    elif why == "constant":
        y, J = torch.ones_like(y), torch.zeros_like(J)
    else:
        J = J.clone()
        J[0, 0, 0] = float("nan")
    assert solve_one_hidden(x, y, J) is None


def test_units_that_are_always_on_are_a_linear_map_near_the_points() -> None:
    net = network()
    with torch.no_grad():
        net[0].bias[3:5] = 50.0
    x, y, J = asked(net, points(24))
    found = solve_one_hidden(x, y, J)
    assert found is not None and found.always_on == 2 and len(found.b) == 16 and "rank 2" in found.said()
    z = points(500, seed=8)
    with torch.no_grad():
        assert torch.allclose(found(z), net(z), atol=1e-7)


def test_units_with_the_same_gates_are_solved_near_the_points_and_said_or_not_at_all() -> None:
    net = network()
    with torch.no_grad():                                           # unit 1 folds where unit 0 does, but for a hair
        net[0].weight[1] = 1.5 * net[0].weight[0] + 1e-4 * points(1, seed=4)[0]
        net[0].bias[1] = net[0].bias[0] * 1.5
    found = solve_one_hidden(*asked(net, points(24)))
    assert found is None or (found.alike == 1 and "gates of another" in found.said())
    clean = solve_one_hidden(*asked(network(), points(24)))
    assert clean is not None and clean.alike == 0 and "gates of another" not in clean.said()


def test_gates_that_cannot_be_read_are_not_papered_over() -> None:
    net = network()
    with torch.no_grad():
        net[0].bias[:8] = 50.0                                      # of five outputs, a linear map of full rank
    assert solve_one_hidden(*asked(net, points(24))) is None


def test_ranks_are_falls_of_the_spectrum() -> None:
    s = torch.cat([torch.linspace(3, 1, 7), 1e-7 * torch.linspace(2, 1, 5)]).double()
    assert rank_of(s) == 7
    assert rank_of(torch.linspace(3, 1, 9).double()) is None
    assert rank_of(torch.zeros(5).double()) is None


def test_contrasts_are_orthonormal_and_blind_to_what_is_common() -> None:
    C = contrasts(5)
    assert torch.allclose(C @ C.T, torch.eye(4, dtype=torch.float64)) and float(C.sum(1).abs().max()) < 1e-12


@pytest.mark.parametrize("link", ["identity", "softmax"])
def test_imitate_solves_a_wider_float32_student(link: str) -> None:
    target = network(dtype=torch.float32, k=6)
    student = build("two-layer", input_shape=(30,), outputs=6, width=40, rng=fl.generator(5))
    r = fl.imitate(target, student, points(24).float(), rng=fl.generator(0), link=link)
    assert r.solved and r.status.ok and r.queries in (24, 25) and any("16 units" in note for note in r.status.notes)
    z = points(2000, seed=99).float()
    with torch.no_grad():
        p, q = target(z), r.network(z)
        assert float((p.softmax(1) - q.softmax(1)).abs().max()) < 1e-3
        assert float((p.argmax(1) == q.argmax(1)).float().mean()) > 0.999
    assert r.certificate.training_loss < 1e-4


def test_a_student_without_room_is_left_alone() -> None:
    found = solve_one_hidden(*asked(network(), points(20)))
    narrow = build("two-layer", input_shape=(30,), outputs=5, width=8, rng=fl.generator(5))
    layers, before = one_hidden_layer(narrow), [p.clone() for p in narrow.parameters()]
    assert layers is not None and found is not None and not put(layers, found)
    assert all(torch.equal(p, q) for p, q in zip(narrow.parameters(), before, strict=True))
    assert one_hidden_layer(build("mlp", input_shape=(30,), outputs=5, widths=(8, 8), rng=fl.generator(5))) is None


def test_fixed_steps_mean_training() -> None:
    student = build("two-layer", input_shape=(30,), outputs=5, width=20, rng=fl.generator(5))
    r = fl.imitate(network(dtype=torch.float32), student, points(24).float(), rng=fl.generator(0), steps=5)
    assert not r.solved
