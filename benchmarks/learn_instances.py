"""The networks of the learning benchmarks, each from a seed, and the error they are judged by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foldline.networks.one_hidden import Network, from_sequential
from foldline.randomness import generator

D = torch.float64


def network(W: Tensor, b: Tensor, a: Tensor) -> Network:
    return Network(W, b, a.reshape(1, -1), torch.zeros(1, W.shape[1], dtype=D), torch.zeros(1, dtype=D))


def generic(k: int, d: int, seed: int) -> Network:
    g = generator(seed)
    W = torch.randn(k, d, generator=g, dtype=D) / d**0.5
    b = 0.5 * torch.randn(k, generator=g, dtype=D)
    return network(W, b, torch.randn(k, generator=g, dtype=D))


def clusters(seed: int, k: int = 60, groups: int = 12, d: int = 20) -> Network:
    """Units of a group lie at distances 1e-2 to 1e-9 (log-uniform) from its centre, then scaled by 0.5 to 1.5."""
    g = generator(seed)
    W, b = [], []
    for i in range(k):
        if i % (k // groups) == 0:
            centre = torch.randn(d + 1, generator=g, dtype=D) * torch.tensor([d**-0.5] * d + [0.5], dtype=D)
        e = torch.randn(d + 1, generator=g, dtype=D)
        e = e / e.norm() * 10 ** (-2 - 7 * torch.rand(1, generator=g, dtype=D))
        unit = (centre + e) * (0.5 + torch.rand(1, generator=g, dtype=D))
        W.append(unit[:d])
        b.append(unit[d])
    return network(torch.stack(W), torch.stack(b), torch.randn(k, generator=g, dtype=D))


def cancelling(seed: int, k: int = 40, d: int = 20, gap: float = 1e-4, steps_only: bool = False) -> Network:
    """Pairs: relu(z) - relu(z + gap); relu(z) - relu(gap - z); relu(z) + relu(-z - gap); relu(z) - relu(almost z).

    steps_only: only the first kind, so that the whole function is steps of height gap.
    """
    g = generator(seed)
    W, b, a = [], [], []
    for i in range(k // 2):
        w = torch.randn(d, generator=g, dtype=D) / d**0.5
        c = 0.5 * torch.randn((), generator=g, dtype=D)
        s = torch.randn((), generator=g, dtype=D)
        near = (1 + gap) * w + gap * torch.randn(d, generator=g, dtype=D)
        twin, bias, weight = ((w, c + gap, -s), (-w, gap - c, -s), (-w, -c - gap, s), (near, c, -s))[
            0 if steps_only else i % 4]
        W += [w, twin]
        b += [c, bias]
        a += [s, weight]
    return network(torch.stack(W), torch.stack(b), torch.stack(a))


def bump(seed: int, d: int, width: float = 1e-2, share: float = 0.02, k: int = 20) -> Network:
    """A generic network of k units plus Example 1.2's bump with `share` of its variance (k = 0: the bump alone)."""
    g = generator(seed)
    n = torch.randn(d, generator=g, dtype=D)
    n = n / n.norm()
    c = 1.5 * torch.rand((), generator=g, dtype=D) - 0.75
    W, b = torch.stack([n, n, 2 * n]), torch.stack([-c, -c - width, -2 * c - width])
    a = torch.tensor([1.0, 1.0, -1.0], dtype=D)
    # The bump is a triangle of height and half-width width/2: its second moment is width^3 / 12 times the density.
    density = torch.exp(-0.5 * (c + width / 2) ** 2) / (2 * torch.pi) ** 0.5
    moment = width**3 / 12 * density
    if k == 0:
        return network(W, b, a / moment**0.5)
    base = generic(k, d, seed + 1000)
    x = torch.randn(50_000, d, generator=g, dtype=D)
    a = a * (share * base(x).var() / moment) ** 0.5
    return network(torch.cat([base.W, W]), torch.cat([base.b, b]), torch.cat([base.A[0], a]))


def trained(seed: int, k: int = 512, outputs: int = 1) -> Network:
    """Trained on 64 of scikit-learn's 8 x 8 digits from PyTorch's default start: is it 5 or more (or: which)?"""
    from sklearn.datasets import load_digits
    data = load_digits()
    g = generator(seed)
    pick = torch.randperm(len(data.target), generator=g)[:64]
    x = torch.from_numpy(data.data).float()[pick] / 16
    label = torch.from_numpy(data.target).long()[pick]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, k), nn.ReLU(), nn.Linear(k, outputs))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(400):
        y = model(x)
        loss = nn.functional.soft_margin_loss(y[:, 0], 2.0 * (label >= 5) - 1) if outputs == 1 \
            else nn.functional.cross_entropy(y, label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = from_sequential(model)
    assert found is not None
    return found


def parameters(net: Network) -> int:
    k, d, m = len(net.W), net.in_features, net.out_features
    return k * (d + 1 + m) + m


def relative_error(truth: Network, learnt: nn.Module, n: int = 400_000) -> float:
    """sqrt(E |F - F'|^2) / sqrt(Var F) over n Gaussian points."""
    g = generator(987_654_321)
    r = y1 = y2 = torch.zeros((), dtype=D)
    chunk = 20_000
    for _ in range(n // chunk):
        x = torch.randn(chunk, truth.in_features, generator=g, dtype=D)
        y = truth(x)
        r = r + (y - learnt(x)).square().sum() / n
        y1, y2 = y1 + y.sum(0) / n, y2 + y.square().sum() / n
    return float((r / (y2 - y1.square().sum())).sqrt())
