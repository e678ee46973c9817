"""The published loop, sliding Frank-Wolfe and inversion, on a network that is exactly at its KKT point by design."""

import pytest
import torch
from planted import MNIST, planted
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadInput, Refused
from foldline.randomness import Streams
from foldline.reconstruction.atoms import solve_atoms
from foldline.reconstruction.kkt import PRESETS, SmoothedReLU, residual, solve_kkt, theta_of

N, D = 6, 16


def simplex() -> Tensor:
    """N points with |x|^2 = 10 and x_i . x_j = -2: a unit along [x_i, 1] is active at x_i alone."""
    corners = torch.eye(N, dtype=torch.float64) - 1 / N
    corners = corners / corners.norm(dim=1, keepdim=True) * 10 ** 0.5
    turn = torch.linalg.qr(torch.randn(D, D, generator=fl.generator(0), dtype=torch.float64))[0]
    return corners @ turn[:N]


def at_its_kkt_point() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Three units per point: [w, b] = lambda |v| [x, 1], lambda = (|x|^2 + 1)^(-1/2): theta = sum lambda y grad f.

    grad_w f = v x, grad_b f = v, grad_v f = w.x + b = lambda |v| (|x|^2 + 1) = |v| / lambda; times lambda y = sign(v)
    this is [w, b] and v. So the multipliers are all lambda.
    """
    x = simplex()
    y = torch.tensor([1.0, -1.0] * (N // 2), dtype=torch.float64)
    lam = 11 ** -0.5
    first, last = nn.Linear(D, 3 * N, dtype=torch.float64), nn.Linear(3 * N, 1, bias=False, dtype=torch.float64)
    size = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).repeat(N)
    with torch.no_grad():
        first.weight.copy_(lam * size[:, None] * x.repeat_interleave(3, 0))
        first.bias.copy_(lam * size)
        last.weight.copy_((y.repeat_interleave(3) * size)[None])
    return nn.Sequential(first, nn.ReLU(), last), x, y


def layers_of(network: nn.Sequential) -> list[nn.Linear]:
    return [m for m in network if isinstance(m, nn.Linear)]


def test_theta_is_exact_at_the_training_points_and_nowhere_else() -> None:
    network, x, y = at_its_kkt_point()
    layers = layers_of(network)
    theta = theta_of(layers)
    multipliers = N * 11 ** -0.5 * y                                # residual() takes the mean over candidates
    assert abs(float(residual(x, multipliers, theta, 1e6))) < 1e-12
    assert float(residual(x + 0.1, multipliers, theta, 1e6)) > 1e-2
    assert float(residual(x, 1.1 * multipliers, theta, 1e6)) > 1e-2


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, False), (False, True, False)])
def test_the_residual_is_the_published_one_and_so_is_its_slope(biases: tuple[bool, ...]) -> None:
    """The slow twin writes the gradient of f by theta out and differentiates twice."""
    sizes, rng = (5, 9, 7, 1), fl.generator(3)
    layers = [nn.Linear(a, b, bias=c, dtype=torch.float64)
              for a, b, c in zip(sizes[:-1], sizes[1:], biases, strict=True)]
    for p in nn.ModuleList(layers).parameters():
        p.data.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    x = torch.randn(6, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    c = torch.randn(6, generator=rng, dtype=torch.float64, requires_grad=True)
    z = x
    for i, layer in enumerate(layers):
        z = layer(z) if i == len(layers) - 1 else SmoothedReLU.apply(layer(z), 3.0)
    theta = [p for layer in layers for p in layer.parameters()]
    grads = torch.autograd.grad((z[:, 0] * c).mean(), theta, create_graph=True)
    slow = sum((p.detach() - g).square().sum() for p, g in zip(theta, grads, strict=True))
    fast = residual(x, c, theta_of(layers), 3.0)
    assert torch.allclose(slow, fast, rtol=1e-12)
    for a, b in zip(torch.autograd.grad(slow, (x, c)), torch.autograd.grad(fast, (x, c)), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_the_smoothed_relu_is_exact_forward_and_smooth_backward() -> None:
    z = torch.tensor([-1.0, -0.01, 0.01, 2.0], dtype=torch.float64, requires_grad=True)
    out = SmoothedReLU.apply(z, 50.0)
    assert torch.equal(out.detach(), z.detach().clamp(min=0))
    (g,) = torch.autograd.grad(out.sum(), z, create_graph=True)
    assert torch.allclose(g, torch.sigmoid(50 * z))
    (second,) = torch.autograd.grad(g.sum(), z)
    assert float(second[1]) > 1                                     # what moves candidates across a fold


def test_the_residual_falls_until_theta_is_explained() -> None:
    network, _, _ = at_its_kkt_point()

    def run(epochs: int) -> float:
        fit = solve_kkt(layers_of(network), streams=Streams(fl.generator(0)), low=None, high=None, m=24, lr=0.02,
                        lambda_lr=0.02, sigma_x=1.0, alpha=20.0, lambda_min=0.01, epochs=epochs)
        assert fit.note == "" and fit.samples.shape == (24, D) and bool((fit.weights >= 0).all())
        return fit.residual

    early, late = run(10), run(800)
    assert early > 0.5 and late < 0.02


def test_watching_steers_nothing() -> None:
    network, _, _ = at_its_kkt_point()
    seen: list[tuple[int, Tensor]] = []
    ask = {"m": 8, "lr": 0.02, "lambda_lr": 0.02, "sigma_x": 1.0, "epochs": 50, "method": "kkt", "box": None}
    watched = fl.reconstruct(network, rng=fl.generator(0), watch=lambda i, x: seen.append((i, x.clone())), **ask)
    assert [i for i, _ in seen] == [0, 20, 40] and not torch.equal(seen[0][1], seen[-1][1])
    assert torch.equal(watched.samples, fl.reconstruct(network, rng=fl.generator(0), **ask).samples)
    assert "watch" not in watched.to_dict()["provenance"]["parameters"]


def test_a_loop_that_diverges_says_so_and_keeps_its_best() -> None:
    network, _, _ = at_its_kkt_point()
    found = fl.reconstruct(network, method="kkt", rng=fl.generator(0), m=8, lr=1e6, lambda_lr=1e3, epochs=400, box=None)
    assert found.status.code == "diverged" and "smaller learning rates" in found.status.message
    assert bool(found.samples.isfinite().all()) and len(found.samples) == 8


def test_frank_wolfe_explains_the_first_layer_with_few_atoms() -> None:
    network, _, _ = at_its_kkt_point()
    layers = layers_of(network)
    fit = solve_atoms(layers, streams=Streams(fl.generator(1)), low=None, high=None)
    assert fit.residual < 1e-6 and len(fit.samples) <= 2 * N and bool((fit.weights > 0).all())
    # Said once more, slowly: each atom adds c s(x) [x, 1]^T with s its back-propagated signal.
    A = torch.cat([layers[0].weight, layers[0].bias[:, None]], 1).detach()
    x = torch.cat([fit.samples, torch.ones(len(fit.samples), 1, dtype=torch.float64)], 1)
    s = (x @ A.T > 0) * layers[1].weight.detach()                    # (m, h)
    terms = torch.stack([torch.outer(a, b).flatten() for a, b in zip(s, x, strict=True)])
    c = torch.linalg.lstsq(terms.T, A.flatten()[:, None], driver="gelsd").solution[:, 0]
    assert float((c @ terms - A.flatten()).norm() / A.norm()) < 1e-6
    found = fl.reconstruct(network, method="atoms", rng=fl.generator(1), box=None)
    assert found.status.ok and "stationarity residual" in found.status.message
    assert found.weights.tolist() == sorted(found.weights.tolist(), reverse=True)


def test_the_presets_are_the_published_ones_and_the_clock_stops_the_loop() -> None:
    assert PRESETS["mnist-a"]["alpha"] == 19.21 and len(PRESETS) == 4
    network, mean, _, _ = planted(10, h=60)
    found = fl.reconstruct(network, method="kkt", preset="mnist-b", m=6, seconds=0.05, rng=fl.generator(0), mean=mean,
                           image_shape=MNIST)
    assert found.samples.shape == (6, 784) and found.provenance.parameters["preset"] == "mnist-b"


@pytest.mark.parametrize(("settings", "says"), [({"preset": "mnits"}, "no preset"), ({"m": 1}, "two candidates")])
def test_wrong_settings_are_refused(settings: dict[str, object], says: str) -> None:
    network, _, _ = at_its_kkt_point()
    with pytest.raises(BadInput, match=says):
        fl.reconstruct(network, method="kkt", rng=fl.generator(0), **settings)


@pytest.mark.parametrize("network", [
    nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)),
    nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1)),
    nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))])
@pytest.mark.parametrize("method", ["kkt", "atoms"])
def test_the_published_algebra_is_for_relu_networks_with_one_output(network: nn.Module, method: str) -> None:
    with pytest.raises(Refused, match="one output"):
        fl.reconstruct(network, method=method, rng=fl.generator(0))


def test_inversion_pushes_half_up_and_half_down_inside_the_box() -> None:
    network, mean, _, _ = planted(10, h=60)
    found = fl.invert(network, rng=fl.generator(0), m=10, mean=mean, image_shape=MNIST, steps=60)
    raw = found.samples + mean
    assert float(raw.min()) >= -1e-9 and float(raw.max()) <= 1 + 1e-9
    with torch.no_grad():
        at = network(found.samples)[:, 0].sort().values
        start = network(torch.zeros(1, 784, dtype=torch.float64))[0, 0]
    assert int((at > start).sum()) == int((at < start).sum()) == 5
    assert "nothing says that they are training rows" in found.status.message
    with pytest.raises(BadInput, match="at least one start"):
        fl.invert(network, rng=fl.generator(0), m=0)


def test_inversion_of_several_outputs_aims_at_each_class() -> None:
    network = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    found = fl.invert(network, rng=fl.generator(0), m=8, steps=200, box=(-3.0, 3.0))
    with torch.no_grad():
        assert len(network(found.samples).argmax(1).unique()) >= 3
