"""Training images under a start that was never forgotten: default initialisation, no weight decay, few images.

The first layer is W = W0 + sum_i c_i s(x_i) x_i^T, with s(x) the signal that back-propagation sends to its units. In
the spectrum all but a few of the images drown in W0, whose edge is sigma (sqrt(h) + sqrt(d)). But W0 is noise of known
size, pictures have a known spectrum, and s is a known function of the image: gates of a network that hardly changed.
With the signals known, what an image left is read off at sigma per pixel instead of at the edge, and smoothness does
the rest (the true signals of 10 CIFAR-10 images, all colours alike in the prior, give them back at NCC 0.81 to 0.92).
So: the most likely images,

    minimise  |W - sum_i t_i y_i^T|^2 / (2 sigma^2) + |Sigma^(-1/2) y_i|^2 / 2,      t_i = +-s(x_i) / |s(x_i)|,

over what each leaves, y_i, with x_i the picture of usual contrast that points the same way, and Sigma the 1 / f^2
spectrum of pictures at the least strength that explains the layer. It is y that is small where an image is weak, not x:
with a free multiplier beside x smoothness would cost nothing, and the search ends in noise.

The gates are smoothed, less and less, so that images find their units. There are more candidates than images, and
mixtures among them; but each start ends in other mixtures and in the same images. So the search runs three times, and
what comes back is ranked by how often it was found. Cost: no queries; 40 candidates of CIFAR-10 take five seconds a
start.

Differs from paper 003: the likelihood of the first layer alone, in which the start is noise; a prior of pictures; no
multipliers, no search for hyper-parameters, no number of images to be given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foldline.images import cosines, rows_of, size_of
from foldline.randomness import Streams
from foldline.reconstruction.basis import Rows
from foldline.reconstruction.kkt import Theta, linear_layers, theta_of
from foldline.reconstruction.noise_edge import Edge
from foldline.reconstruction.peel import ncc
from foldline.reconstruction.start_left import ADVICE, start_size
from foldline.reconstruction.starts import live_pixels
from foldline.results import Progress, Status

CANDIDATES = 40
STARTS = 3
STEPS, RATE = 400, 0.05
SOFT, SHARP = 1.0, 4.0  # gates are sigmoid(sharp z / median |z|), soft at first
STRENGTHS = (0.28, 0.56, 1.12)          # what an image leaves, relative to the edge: the first that explains the layer
CHROMA = 0.1            # power of colours relative to grey
CONTRAST = 0.25         # deviation of a picture's pixels, in units of the box
FIRST = 0.05            # of the strength: candidates begin with this much
FAINTEST = 0.1          # variance of a wave, relative to the noise
MOST = 40_000_000       # numbers in all waves together
SAME = 0.8              # NCC above which two candidates are one
LIKE = 0.9              # NCC above which an unmixed row is the same image
LEAST = 4               # images that every start finds; fewer are prototypes
EXPLAINED = 1.05        # largest singular value that is left, over the edge: 0.99 to 1.01 after SGD, Adam 1.1 to 2.5
CODE = "faint"


@dataclass(frozen=True, eq=False)
class Faint:
    images: Tensor          # (q, d) of usual contrast, most often found first
    found: Tensor           # (q,) in how many of the starts
    votes: Tensor           # (q,) candidates that ended there
    left: float             # largest singular value of what the candidates leave of the layer, over the edge


def rows_under_start(network: nn.Module, remains: Status, edge: Edge, A: Tensor, image_shape: tuple[int, ...] | None,
                     above: Tensor | None, scale: float, unmixed: Tensor, *, streams: Streams,
                     progress: Progress) -> tuple[Rows, Status] | None:
    """Images under the start of A (h, d + 1) = [W, b], or None where there are none.

    remains: what was said of the start; above (d,): the mean over the box's lower end, None where it is not known;
    scale: of the box; unmixed (r, d): rows of the span above the edge, for joined().
    """
    layers = linear_layers(network)
    if layers is None or image_shape is None or len(layers) < 2:
        return None
    sigma = start_size(edge, *A.shape)
    seen = solve_faint(theta_of(layers), sigma, image_shape, CONTRAST * scale, live_pixels(A[:, :-1], above),
                       streams=streams, progress=progress)
    everywhere = int((seen.found == STARTS).sum())
    if everywhere < LEAST:
        return None
    rest = (f"without them the layer is noise (its largest singular value is {seen.left:.2f} of the edge)"
            if seen.left < EXPLAINED else f"they do not explain all of the layer (its largest singular value falls "
            f"from {float(edge.singular_values[0]) / edge.edge:.2g} to {seen.left:.2g} times the edge), as after Adam")
    said = remains.message.removesuffix(ADVICE)
    status = Status(CODE, f"{said}Under it are {len(seen.images)} images, {everywhere} of them found from each of "
                    f"{STARTS} starts; {rest}. Of up to some 20 training images most are among them, blurred; of more "
                    f"these are mixtures.")
    weights = 0.9 * (seen.found / STARTS + seen.votes / seen.votes.max()) / 2
    rows = joined(seen.images, unmixed)
    more = len(rows) - len(seen.images)                             # no start found these, so they come last

    def padded(values: Tensor) -> Tensor:
        return torch.cat([values.double(), values.new_zeros(more).double()])

    evidence = {"found": padded(seen.found), "votes": padded(seen.votes)}
    return Rows(rows, padded(weights), evidence, 0, everywhere, []), status


def joined(images: Tensor, unmixed: Tensor) -> Tensor:
    """Images (q, d), with the row of unmixed (r, d) that looks like one in its place, and those that are like none.

    Smoothness has not touched what was unmixed, and what stands high above the edge is in it as it is.
    """
    if not len(unmixed):
        return images
    alike = ncc(images, unmixed)                                    # (q, r)
    nearest, best = alike.max(1)
    sharp = torch.where((nearest > LIKE)[:, None], unmixed[best], images)
    return torch.cat([sharp, unmixed[alike.amax(0) < SAME]])


def solve_faint(theta: Theta, sigma: float, image_shape: tuple[int, ...], contrast: float, live: Tensor, *,
                streams: Streams, progress: Progress) -> Faint:
    """theta: of a ReLU network; sigma: deviation of its first layer's start; live (d,) bool: pixels that can have ink.

    contrast: deviation of a picture's inputs.
    """
    W = theta[0][0] / sigma                                         # (h, d)
    h, d = W.shape
    edge = math.sqrt(h) + math.sqrt(d)
    seeds = directions(theta[-1][0].shape[0])                       # (m, k)
    radius = contrast * math.sqrt(d)
    later = [(V.float(), None if b is None else b.float()) for V, b in theta]

    def ended(start: int, strength: float) -> tuple[Tensor, float]:
        """(y (m, d), the largest singular value of what they leave, over the edge)"""
        waves = prior(image_shape, strength * edge) * live          # (p, d)
        seen = Seen((waves @ W.T).float(), (waves @ waves.T).float(), sigma * radius)
        u = FIRST * torch.randn(len(seeds), len(waves), generator=streams(f"faint {start} {strength}"))
        u, t = descend(u, seen, later, seeds, lambda share: progress(
            "looking under the start", {"done": start + share, "total": float(STARTS)}))
        y = u.double() @ waves
        rest = W - t.double().T @ y
        return y, float(torch.linalg.eigvalsh(rest @ rest.T)[-1]) ** 0.5 / edge

    strength = STRENGTHS[0]
    for strength in STRENGTHS:                                      # the tightest prior that leaves nothing but noise
        first, left = ended(0, strength)
        if left < EXPLAINED:
            break
    ends = [first, *(ended(start, strength)[0] for start in range(1, STARTS))]
    return merged(torch.stack(ends), seeds, radius, left)


@dataclass(frozen=True, eq=False)
class Seen:
    """All that the search needs of layer and prior, in the prior's coordinates u: y = u waves."""

    P: Tensor           # (p, h) y W^T = u P
    G: Tensor           # (p, p) y y^T = u G u^T
    scale: float        # x W^T in the network's units, for y of length 1


def descend(u: Tensor, seen: Seen, theta: Theta, seeds: Tensor,
            progress: Callable[[float], None]) -> tuple[Tensor, Tensor]:
    """(u (m, p), t (m, h)) at the end of Adam's way from u, coordinates in which the prior is a unit Gaussian."""
    u = u.requires_grad_(True)
    seeds = seeds.clone().requires_grad_(seeds.shape[1] > 1)        # which classes compete differs by image
    optimiser = torch.optim.Adam([u, seeds] if seeds.requires_grad else [u], lr=RATE)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * (0.01 + 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        along, inner = u @ seen.P, u @ seen.G @ u.T                 # (m, h), (m, m)
        t = signals(along, inner, seen.scale, theta, seeds, SOFT * (SHARP / SOFT) ** (step / STEPS))
        # |W - t^T y|^2 but for |W|^2, through Gram matrices.
        misfit = ((t @ t.T) * inner).sum() - 2 * (t * along).sum()
        optimiser.zero_grad()
        (misfit / 2 + u.square().sum() / 2).backward()
        optimiser.step()
        if step % 20 == 0:
            progress(step / STEPS)
    u = u.detach()
    return u, signals(u @ seen.P, u @ seen.G @ u.T, seen.scale, theta, seeds.detach(), SHARP)


def signals(along: Tensor, inner: Tensor, scale: float, theta: Theta, seeds: Tensor, sharp: float) -> Tensor:
    """(m, h) of unit length: what back-propagation sends from seeds (m, k) at the outputs, through smoothed gates.

    along (m, h) = y W^T and inner (m, m) = y y^T: the picture is y at unit length, times scale.
    """
    z = scale * along / inner.diagonal().clamp(min=1e-30).sqrt()[:, None]
    gates = []
    for i, (W, b) in enumerate(theta[:-1]):
        z = z if i == 0 else z.clamp(min=0) @ W.T
        z = z if b is None else z + b
        usual = z.detach().abs().median(1, keepdim=True).values.clamp(min=1e-30)
        gates.append(torch.sigmoid(sharp * z / usual))
    s = seeds
    for (W, _), gate in zip(reversed(theta[1:]), reversed(gates), strict=True):
        s = (s @ W) * gate
    unit: Tensor = s / s.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return unit


def directions(k: int) -> Tensor:
    """(m, k) what the loss asks of the outputs: one output up or down, one class up and the others down."""
    if k == 1:
        return torch.tensor([1.0, -1.0]).repeat(CANDIDATES // 2)[:, None]
    one = torch.eye(k) - (1 - torch.eye(k)) / (k - 1)
    return one.repeat(math.ceil(CANDIDATES / k), 1)


def prior(image_shape: tuple[int, ...], strength: float) -> Tensor:
    """(p, d) the waves of a picture of that length, each as long as it usually is: a picture is N(0, 1) of each.

    Products of cosines with power 1 / (1 + f^2), of three colours grey and the two opponents. Waves too weak to be seen
    in noise of deviation 1 are left out.
    """
    height, width, channels = size_of(image_shape)
    power = 1 / (1 + torch.arange(height)[:, None] ** 2 + torch.arange(width) ** 2).double()
    colours, mix = torch.ones(channels).double(), torch.eye(channels).double()
    if channels == 3:
        colours[1:] = CHROMA
        mix = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=torch.float64)
        mix = mix / mix.norm(dim=1, keepdim=True)
    power = power[..., None] * colours                              # (H, W, C)
    power = strength ** 2 * power / power.sum()
    room = max(1, MOST // power.numel())                            # waves of large pictures would not fit in memory
    least = max(FAINTEST, float(power.flatten().topk(min(room + 1, power.numel())).values[-1]) if room < power.numel()
                else 0.0)
    i, j, c = torch.nonzero(power > least, as_tuple=True)
    images = torch.einsum("ph,pw,pc->phwc", cosines(height)[i], cosines(width)[j], mix[c])
    return power[i, j, c].sqrt()[:, None] * rows_of(images, image_shape)


def merged(ends: Tensor, seeds: Tensor, radius: float, left: float) -> Faint:
    """Candidates ends (starts, m, d) as one list: each group that at least two starts share, by its size."""
    starts, m = ends.shape[:2]
    rows = ends.flatten(0, 1)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    run, kind = torch.arange(starts).repeat_interleave(m), seeds.argmax(1).repeat(starts)
    if seeds.shape[1] == 1:
        kind = (seeds[:, 0] > 0).long().repeat(starts)
    alike = ncc(rows, rows).masked_fill(kind[:, None] != kind, -1.0)
    near, free = alike > SAME, torch.ones(len(rows), dtype=torch.bool)
    groups = []
    while True:
        size = (near & free).sum(1) * free
        group = near[int(size.argmax())] & free
        if int(size.max()) < 2:
            break
        free &= ~group
        if len(run[group].unique()) > 1:
            groups.append(group)
    images = [rows[g].mean(0) for g in groups]
    found = torch.tensor([len(run[g].unique()) for g in groups])
    votes = torch.tensor([int(g.sum()) for g in groups])
    stacked = torch.stack(images) if images else rows[:0]
    return Faint(radius * stacked / stacked.norm(dim=1, keepdim=True).clamp(min=1e-300), found, votes, left)
