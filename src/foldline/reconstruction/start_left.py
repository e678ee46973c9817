"""Was the start forgotten? What an attacker can see of it, and the status that says so.

Weights: the tail of the spectrum obeys the law of a random matrix, which gives its standard deviation. Where weight
decay or a small start did their work the visible directions stand far above the tail's edge (measured: median 4 to
600,000 times). After AdamW or without decay the median is 1.1 to 1.5 times the edge, and the tail's standard deviation
is that of the default start to 3 %. From answers there is no such tail: gradients span the row space of the whole first
layer, start included. But a random start reaches pixels that no training row has (where the training mean is at the
box's lower end; a small start leaves a tenth to a third of white noise's share there), and it is white: neighbouring
pixels of its directions differ by twice their power, those of images by less, as long as they span a small part of the
input space (measured: at most 1.2 up to a sixth of it, 1.8 to 1.9 with the start).

Under it there are images all the same, and of few pictures faint.py finds most. Where there is no picture to look for
what unmixing gave is still returned, blurred as it is.
"""

from __future__ import annotations

import math

from torch import Tensor

from foldline.images import roughness, size_of
from foldline.reconstruction.noise_edge import SHORTEST_TAIL, Edge, median_singular_value
from foldline.results import Status

BARELY = 2.0            # median visible singular value over the edge: below it the start fills the layer
CLEAR = 2.0             # a gap that ends the spectrum whatever the start left
WHITE = 1.5             # power of neighbours' differences over the power of pixels; 2 for white noise
FEW = 1 / 6             # of the input space: more directions than that look white whatever they are
DEAD = 0.5              # power on pixels that are dead in the training set, over what white directions have there
CODE = "start_remains"
ADVICE = ("What is unmixed from them is blurred by it: prototypes and mixtures, single images at best when the "
          "training set is small.")


def start_in_weights(edge: Edge, h: int, d: int) -> Status | None:
    """h rows and d columns of the first layer, bias included."""
    s, r = edge.singular_values, edge.rank
    if edge.gap >= CLEAR or not 0 < r <= len(s) - SHORTEST_TAIL:
        return None
    height = float(s[:r].median()) / edge.edge
    if height >= BARELY:
        return None
    sigma = start_size(edge, h, d)
    default = 1 / math.sqrt(3 * (d - 1))                    # PyTorch draws from U(-1 / sqrt(d), 1 / sqrt(d))
    like = f", as PyTorch's default start has ({default:.2g})" if abs(sigma / default - 1) < 0.1 else ""
    return Status(CODE, f"The start was never forgotten (no weight decay, too few steps, or Adam): a random part with "
                  f"standard deviation {sigma:.2g}{like} fills the first layer, and the {r} directions above its edge "
                  f"stand only {height:.2g} times above it in the median. {ADVICE}")


def start_size(edge: Edge, h: int, d: int) -> float:
    """Standard deviation of what is below the edge, h rows and d columns."""
    s, r = edge.singular_values, edge.rank
    return float(s[r:].median()) / median_singular_value(min(h, d) - r, max(h, d) - r)


def start_in_span(basis: Tensor, shape: tuple[int, ...] | None, offset: Tensor | None = None) -> Status | None:
    """basis (r, d), orthonormal rows that answers gave; offset (d,): the training mean minus the box's lower end.

    Without a mean that is known, and without an image shape, nothing is said: None.
    """
    r, d = basis.shape
    sign = ""
    dead = offset.abs() < 1e-9 if offset is not None else None
    if dead is not None and r and not bool(dead.all()):              # a mean of zero everywhere is nobody's mean image
        power = float(basis[:, dead].square().sum() / basis.square().sum())
        if power > DEAD * int(dead.sum()) / d:
            sign = f"have {power:.0%} of their power on {int(dead.sum())} pixels that are zero in every training row"
    if not sign and shape is not None and min(size_of(shape)[:2]) >= 3 and 0 < r <= FEW * d and \
            (power := roughness(basis, shape)) > WHITE:
        sign = f"look like noise (neighbouring pixels differ by {power:.2g} times their power, 2 for noise)"
    if not sign:
        return None
    return Status(CODE, f"The start was never forgotten (no weight decay, too few steps, or Adam): the {r} directions "
                  f"{sign}, so they are rows of the first layer, not of the training set. {ADVICE}")
