"""The attacks of paper 003 behind fl.reconstruct(method="kkt" or "atoms"): what both need, and their result.

Both fit theta = sum_i lambda_i y_i grad_theta f(x_i), the stationarity of the margin problem, for a network with one
output: "kkt" as published, over all layers (kkt.py); "atoms" over the first layer as a measure (atoms.py).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from foldline.errors import Refused
from foldline.randomness import Streams
from foldline.reconstruction.kkt import linear_layers
from foldline.reconstruction.noise_edge import noise_edge
from foldline.reconstruction.result import Leak, ReconstructionResult, best_first
from foldline.reconstruction.weights import Mean, checked_mean, checked_shape, first_layer
from foldline.results import Progress, Provenance, Status, silent


def reconstruct_published(network: nn.Module, *, method: Literal["kkt", "atoms"], rng: torch.Generator,
                          image_shape: tuple[int, ...] | None = None, mean: Mean = None,
                          box: tuple[float, float] | None = (0.0, 1.0), progress: Progress = silent,
                          **settings: Any) -> ReconstructionResult:
    streams = Streams(rng)
    layers = relu_layers(network)
    A, _ = first_layer(network)
    d = A.shape[1] - 1
    shape, notes = checked_shape(image_shape, d, A[:, :-1])
    offset, _ = checked_mean(mean, d)
    low, high = (box[0] - offset, box[1] - offset) if box is not None else (None, None)     # rows, network coordinates
    if method == "kkt":
        from foldline.reconstruction.kkt import solve_kkt
        fit = solve_kkt(layers, streams=streams, low=low, high=high, progress=progress, **settings)
    else:
        from foldline.reconstruction.atoms import solve_atoms
        fit = solve_atoms(layers, streams=streams, low=low, high=high, progress=progress, **settings)
    edge, _ = noise_edge(A)
    weights = fit.weights / fit.weights.max().clamp(min=1e-300) if len(fit.weights) else fit.weights
    samples, weights, evidence = best_first(fit.samples, weights, {"multiplier": weights})
    said = f"The stationarity residual is {fit.residual:.3g} of the weights' norm."
    status = Status("diverged", f"{fit.note} {said}", tuple(notes)) if fit.note else Status("ok", said, tuple(notes))
    certificate = Leak(edge.rank, edge.edge, edge.gap, 0, False)
    plain = {k: v for k, v in settings.items() if not isinstance(v, Tensor) and not callable(v)}
    parameters = {"method": method, **plain}
    return ReconstructionResult(
        status=status, queries=0,
        certificate=certificate, provenance=Provenance("reconstruct", streams.seed, parameters), samples=samples,
        weights=weights, evidence=evidence, estimated_n=len(samples), singular_values=edge.singular_values,
        image_shape=shape)


def relu_layers(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a ReLU network with one output; anything else is refused with the reason."""
    linear = linear_layers(network)
    if linear is None or linear[-1].out_features != 1:
        raise Refused("The published attack needs linear layers with ReLU between them and one output.")
    return linear
