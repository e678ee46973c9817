"""Training data from the weights of a trained network: `fl.reconstruct`.

Every row [w, b] of a trained first layer is a combination of the training points [x_i, 1] plus what is left of the
start, so its row space above the noise edge is the span of the training set (METHODS: "the span is the leak"). The
bias coordinate is 1 for every training point, which fixes sign and scale. Then layer.py. Cost: no queries. Where the
start was never forgotten, pictures are looked for under it as well (faint.py).

Holds for any layers after the first Linear one; a normalisation with running statistics before it is undone first.
Differs from paper 003: no KKT loss over all layers, no search for hyper-parameters; method="kkt" has those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foldline.errors import BadInput, Refused
from foldline.images import guessed_shape
from foldline.networks.one_hidden import Network
from foldline.randomness import Streams
from foldline.reconstruction.basis import Rows, rows_in, unconfirmed
from foldline.reconstruction.by_public import by_public, by_public_without_bias
from foldline.reconstruction.faint import rows_under_start
from foldline.reconstruction.features import Features, features_for
from foldline.reconstruction.layer import rows_with_bias
from foldline.reconstruction.noise_edge import Edge, noise_edge
from foldline.reconstruction.peel import ROUNDS
from foldline.reconstruction.result import Leak, ReconstructionResult, best_first, nothing
from foldline.reconstruction.separator import Separator
from foldline.reconstruction.start_left import start_in_weights
from foldline.reconstruction.strokes import prior_for
from foldline.reconstruction.two_sided import signal_of
from foldline.results import Progress, Provenance, Status, silent

MORE_THAN_UNITS = ("All directions that there are were unmixed: of more training points than units a few may lead in "
                   "one, but most of what is shown are mixtures, and nothing confirms an image.")
CONDENSED = 3           # a span of so few directions holds prototypes, not samples

Mean = Tensor | float | None


def reconstruct(network: nn.Module, *, rng: torch.Generator, image_shape: tuple[int, ...] | None = None,
                mean: Mean = None, box: tuple[float, float] | None = (0.0, 1.0), features: Features | None = None,
                method: Literal["unmix", "kkt", "atoms"] = "unmix", rounds: int = ROUNDS,
                public: Separator | Literal[False] | None = None, progress: Progress = silent,
                **settings: Any) -> ReconstructionResult:
    """Training rows of `network`, best first, in its input coordinates.

    mean: what was subtracted from raw pixels before they entered the network (a row, a number, or None: nothing
    known). box: where raw pixels lie; None: unknown, so nothing is snapped. features: see features.py. public: what
    other pictures of the kind teach (separator.py); None: pen strokes where the rows look drawn (strokes.py); False:
    neither.
    """
    if method != "unmix":
        if public not in (None, False):
            raise BadInput(f"public= belongs to method='unmix'; method={method!r} does not use it.")
        from foldline.reconstruction.published import reconstruct_published
        return reconstruct_published(network, method=method, rng=rng, image_shape=image_shape, mean=mean, box=box,
                                     progress=progress, **settings)
    if settings:
        raise BadInput(f"method='unmix' has no settings {sorted(settings)}.")
    streams = Streams(rng)
    A, undo = first_layer(network)                                   # (h, d + 1)
    d = A.shape[1] - 1
    shape, notes = checked_shape(image_shape, d, A[:, :-1])
    prior = prior_for(False if public is None and features is not None else public, shape)
    offset, centred = checked_mean(mean, d)
    edge, V = noise_edge(A)
    found, status = None, nothing_leaks(edge, A)
    more_than_units = status is not None and status.code == "full_rank" and len(A) < live_inputs(A)
    if status is None or more_than_units:
        found = rows_of_span(network, V[:edge.rank], A, offset, centred, box, features or features_for(shape),
                             streams=streams, rounds=rounds, prior=prior, progress=progress)
        found = unconfirmed(found) if more_than_units else found
        status = replace(status, notes=(*notes, *found.notes, MORE_THAN_UNITS)) if status is not None else \
            status_of(edge, found.exact, [*notes, *found.notes], A)
    remains = start_in_weights(edge, *A.shape)
    if remains is not None and features is None and (found is None or found.exact == 0):
        low, high = box or (0.0, 1.0)
        under = rows_under_start(network, remains, edge, A, shape, offset - low if centred else None, high - low,
                                 A.new_zeros(0, d) if found is None else found.rows, streams=streams, progress=progress)
        said = tuple(notes) if found is None else status.notes
        found, status = (under[0], replace(under[1], notes=said)) if under is not None else (found, status)
    samples, weights, evidence = nothing(d) if found is None else best_first(undo(found.rows), found.weights,
                                                                             found.evidence)
    return ReconstructionResult(
        status=status, queries=0, certificate=leak_of(edge, found.exact if found is not None else 0),
        provenance=Provenance("reconstruct", streams.seed, {"method": "unmix", "box": box, "image_shape": shape,
                                                            "mean": mean is not None, "rounds": rounds}),
        samples=samples, weights=weights, evidence=evidence, estimated_n=found.n if found is not None else 0,
        singular_values=edge.singular_values, image_shape=shape)


def rows_of_span(network: nn.Module, B: Tensor, A: Tensor, offset: Tensor, centred: bool,
                 box: tuple[float, float] | None, features: Features, *, streams: Streams, rounds: int,
                 prior: Separator | None, progress: Progress) -> Rows:
    """Training rows from a basis B (r, d + 1) of the span that A (h, d + 1) = [W, b] shows."""
    if float(B[:, -1].norm()) > 1e-6:
        found = rows_with_bias(B, A, offset, centred, box, features, signal=signal_of(network), streams=streams,
                               rounds=rounds, progress=progress)
        low = box[0] if box else 0.0
        raw, gauge = B[:, :-1] + B[:, -1:] * (offset - low), B[:, -1]
        return found if prior is None else by_public(found, raw, gauge, offset, box, prior, progress=progress)
    found = rows_in(B[:, :-1], offset, centred, box, features, streams=streams, rounds=rounds, progress=progress)
    return found if prior is None else by_public_without_bias(found, B[:, :-1], offset, centred, box, prior,
                                                              progress=progress)


def first_layer(network: nn.Module) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """([W, b] (h, d + 1) in float64, how to map rows back to the network's inputs)"""
    if isinstance(network, Network):
        A = torch.cat([network.W, network.b[:, None]], 1)
        return checked_weights(A), lambda rows: rows
    scale = shift = None
    for layer in network.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            raise Refused("The first layer is a convolution: its rows are combinations of patches, not of images, so "
                          "the span of the training set is not in them. Explanations still show it: "
                          "reconstruct_from_span(recover_span(...)).")
        if isinstance(layer, (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d)):
            raise Refused(f"{type(layer).__name__} before the first linear layer normalises each row by itself; what "
                          f"the weights span are the normalised rows, and the scale of each is lost.")
        if isinstance(layer, nn.BatchNorm1d):
            if layer.running_mean is None or layer.running_var is None:
                raise Refused("BatchNorm1d without running statistics comes before the first linear layer.")
            scale = 1 / (layer.running_var.double() + layer.eps).sqrt()
            gamma = layer.weight.detach().double() if layer.affine else torch.ones_like(scale)
            beta = layer.bias.detach().double() if layer.affine else torch.zeros_like(scale)
            scale = scale * gamma
            shift = beta - layer.running_mean.double() * scale
        if isinstance(layer, nn.Linear):
            W = layer.weight.detach().double().cpu()
            b = layer.bias.detach().double().cpu() if layer.bias is not None else W.new_zeros(len(W))
            A = checked_weights(torch.cat([W, b[:, None]], 1))
            return A, denormaliser(scale, shift)
    raise Refused(f"{type(network).__name__} has no linear layer to read a span from.")


def denormaliser(scale: Tensor | None, shift: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Rows that entered the first linear layer -> rows that entered the network."""
    if scale is None or shift is None:
        return lambda rows: rows
    divisor = torch.where(scale.abs() < 1e-12, torch.ones_like(scale), scale)
    return lambda rows: (rows - shift) / divisor


def checked_weights(A: Tensor) -> Tensor:
    if not bool(A.isfinite().all()):
        raise BadInput("The first layer's weights contain NaN or infinite numbers.")
    return A


def checked_shape(image_shape: tuple[int, ...] | None, d: int,
                  rows: Tensor | None = None) -> tuple[tuple[int, ...] | None, list[str]]:
    """rows (n, d): mixtures of images, by whose smoothness a layout is guessed where none is given."""
    if image_shape is not None:
        if len(image_shape) not in (2, 3) or torch.tensor(image_shape).prod() != d:
            raise BadInput(f"image_shape {tuple(image_shape)} does not hold the network's {d} inputs.")
        shape = tuple(int(v) for v in image_shape)
        smoother = guessed_shape(d, rows) if rows is not None and len(shape) == 3 else None
        if smoother in (None, shape) or sorted(smoother) != sorted(shape):
            return shape, []
        return shape, [f"The rows are smoother as images of shape {smoother} than {shape}; if the network flattens "
                       f"them so, pass that."]
    guess = guessed_shape(d, rows)
    if guess is None:
        return None, [f"{d} inputs are taken as columns of a table; pass image_shape= for images."]
    return guess, [f"Rows are taken as images of shape {guess}; pass image_shape= if they are not."]


def checked_mean(mean: Mean, d: int) -> tuple[Tensor, bool]:
    if mean is None:
        return torch.zeros(d, dtype=torch.float64), False
    row = torch.as_tensor(mean, dtype=torch.float64).reshape(-1)
    if row.numel() not in (1, d):
        raise BadInput(f"mean must be a number or a row of {d}, not {row.numel()} numbers.")
    if not bool(row.isfinite().all()):
        raise BadInput("mean contains NaN or infinite numbers.")
    return row.expand(d).clone(), True


def nothing_leaks(edge: Edge, A: Tensor) -> Status | None:
    h, d = len(A), live_inputs(A)
    if float(A.norm()) == 0:
        return Status("no_gap", "The first layer is zero: there is nothing in it.")
    if edge.rank == 0:
        return Status("no_gap", "No singular value of the first layer stands above the noise edge: the weights look "
                      "like a random start. Nothing can be read out of their span.")
    if edge.rank >= min(h, d):
        return Status("full_rank", f"The first layer has full rank ({min(h, d)}): the training set has at least as "
                      f"many points as the layer has rows or columns, or the start was never forgotten (little weight "
                      f"decay, Adam). The span does not tell how many.")
    if edge.rank <= CONDENSED:
        return Status("condensed", f"The first layer condensed into {edge.rank} directions: it holds prototypes of the "
                      f"classes, not training points.")
    return None


def live_inputs(A: Tensor) -> int:
    """Inputs that are always 0 are none."""
    return int((A.norm(dim=0) > 1e-9 * A.norm(dim=0).max()).sum())


def leak_of(edge: Edge, exact: int) -> Leak:
    return Leak(rank=edge.rank, noise_edge=edge.edge, gap=edge.gap, exact=exact, n_is_exact=edge.gap >= 2.0)


def status_of(edge: Edge, exact: int, notes: list[str], A: Tensor) -> Status:
    leak = leak_of(edge, exact)
    remains = start_in_weights(edge, *A.shape) if exact == 0 else None
    if remains is not None:
        return Status(remains.code, remains.message, tuple(notes))
    said = f"{edge.rank} directions stand above the noise edge {edge.edge:.2g} (gap {edge.gap:.3g})"
    if not leak.n_is_exact:
        notes = [*notes, "The spectrum sinks into the noise without a gap: the training set may have more points than "
                 "were seen, and what was found is blurred by what is missing."]
    return Status("ok", f"{said}; {leak.exact} images were confirmed by the pixel box.", tuple(notes))
