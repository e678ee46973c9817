"""Span of the first layer from labels alone.

Moves within the null space of what is known change a label only by a direction that is not known yet. So a search is
a confirmation: many random null moves in one batch; where a label changes, the segment is bisected to the boundary,
the normal is measured there in the directions that are still open (normals.py), and its direction joins the basis.
When a few hundred null moves, most of them from points beside the boundary, change no label, the span is complete.

Works for ReLU and smooth activations, any number of classes. Cost: about 46 rows per open direction and unit, so
about 46 d k, plus some 200 rows per unit for the search.

Differs from the paper (method="paper" runs its Algorithm 2 literally, see paper_labels.py): no threshold at 1 and no
smoothness needed, transversal bisection at the longest step that fits instead of an exponentially small one, normals
that fail their own checks are dropped, and the end is found instead of k being given.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput, BudgetExhausted
from foldline.oracles.protocols import LabelOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Status, fraction_upper_bound, silent
from foldline.span.boundary import BITS, balanced_pairs, bisect_segments, labels_at, two_labels
from foldline.span.normals import FINE, Normal, measure_normal
from foldline.span.result import SpanCertificate, SpanResult

SEARCH_ROWS = 4096          # random points before "one class only" is the answer
MOVES = 32                  # null moves in the first batch
CONFIRM = 256               # null moves without a change that end the search
RESTARTS = 6                # boundary points dropped in a row before giving up
REPEATS = 16                # points asked twice at the start


def recover_span_from_labels(lb: LabelOracle, *, rng: torch.Generator, method: Literal["default", "paper"] = "default",
                             k: int | None = None, data: Tensor | None = None, confirm: int | None = None,
                             fine: int = FINE, progress: Progress = silent) -> SpanResult:
    """The row space of the first layer, as far as the decision boundary shows it.

    k: stop at this rank (required by method="paper"). data: points of the kind the target was made for.
    confirm: null moves without a change of label that end the search (2 d, but 64 to 256). fine: bits measured at the
    longest step.
    """
    if not isinstance(lb, LabelOracle):
        raise BadInput(f"recover_span_from_labels needs a label oracle, not {type(lb).__name__}.")
    if method not in ("default", "paper"):
        raise BadInput(f"method is 'default' or 'paper', not {method!r}.")
    if k is not None and not 1 <= k <= lb.dim:
        raise BadInput(f"k must lie between 1 and the {lb.dim} inputs, not {k}.")
    if data is not None and (data.ndim != 2 or data.shape[1] != lb.dim or len(data) == 0):
        raise BadInput(f"data must have shape (n, {lb.dim}) with at least one row, not {tuple(data.shape)}.")
    if method == "paper":
        from foldline.span.paper_labels import recover_span_algorithm2
        if k is None:
            raise BadInput("method='paper' needs k, the rank to recover: Algorithm 2 is given it.")
        return recover_span_algorithm2(lb, k=k, rng=rng, progress=progress)
    confirm = min(CONFIRM, max(64, 2 * lb.dim)) if confirm is None else confirm
    streams, used = Streams(rng), lb.used
    search = LabelSearch(lb, streams, k=k, data=data, confirm=confirm, fine=fine, progress=progress)
    try:
        search.run()
    except BudgetExhausted:
        search.stopped = "budget"
    parameters = {"method": method, "k": k, "confirm": confirm, "fine": fine}
    return search.result(lb.used - used, Provenance("recover_span_from_labels", streams.seed, parameters))


class LabelSearch:
    def __init__(self, lb: LabelOracle, streams: Streams, *, k: int | None, data: Tensor | None, confirm: int,
                 fine: int, progress: Progress) -> None:
        self.lb, self.k, self.data, self.confirm, self.fine, self.progress = lb, k, data, confirm, fine, progress
        self.d = lb.dim
        self.rng, self.check_rng = streams("moves"), streams("checks")
        self.basis_rng, self.start_rng = streams("directions"), streams("start")
        self.V = torch.zeros(0, self.d, dtype=torch.float64)        # what is known
        self.near: list[tuple[Tensor, int]] = []                    # points beside the boundary, and their labels
        self.normals: list[Normal] = []
        self.points: list[Tensor] = []
        self.still = 0                                              # null moves without a change
        self.dropped = 0                                            # normals that failed their checks
        self.blurred = 0                                            # boundary points where labels flicker
        self.doubts = 0                                             # crossings in a row that were not there again
        self.stopped = ""

    def run(self) -> None:
        x, y = two_labels(self.lb, rng=self.start_rng, rows=SEARCH_ROWS, start=self.data)
        if len(y.unique()) < 2:
            self.stopped, self.searched = "one_class", len(x)
            return
        again = min(REPEATS, len(x))
        if not bool((self.lb(x[:again]) == y[:again]).all()):
            self.stopped = "nondeterministic"
            return
        self.x, self.y = x, y
        failures = 0
        while len(self.V) < (self.k or self.d):
            self.progress("normals", {"rank": len(self.V), "dropped": self.dropped, "rows": self.lb.used})
            found = self.crossing()
            if found is None:
                return
            failures = 0 if found else failures + 1
            if failures >= RESTARTS or self.stopped:
                self.stopped = self.stopped or ("nondeterministic" if self.blurred > self.dropped else "folds")
                return

    def crossing(self) -> bool | None:
        """One more direction: True; a dropped point: False; no null move changes a label: None."""
        if len(self.V) == 0:
            a, b, label = balanced_pairs(self.x, self.y, 2, rng=self.rng)
        else:
            moved = self.moves_that_change()
            if moved is None:
                return None
            a, b, label = moved
        at = bisect_segments(self.lb, a, b, label, BITS if self.lb.dtype == torch.float64 else 28)
        # Asked again, a little off the last bits: those may depend on the batch a row is asked in.
        aside = 1e3 * float(torch.finfo(self.lb.dtype).eps) * at.x.norm(dim=1, keepdim=True) + at.width[:, None]
        held = labels_at(self.lb, torch.cat([at.x - aside * at.v, at.x + aside * at.v])).reshape(2, -1) == label
        if not bool((held[0] & ~held[1]).any()):
            # A slanted boundary can fail this once; a target that answers at random fails it again and again.
            self.blurred += 1
            self.doubts += 1
            self.stopped = "nondeterministic" if self.doubts >= RESTARTS // 2 else ""
            return False
        self.doubts = 0
        E = self.open_directions()                                  # (d - r, d)
        for j in range(len(at.x)):
            normal = measure_normal(self.lb, at, j, E, rng=self.check_rng, fine=self.fine)
            if isinstance(normal, str):
                self.blurred += normal == "blurred"
                continue
            if not normal.good:
                self.dropped += 1
                return False
            self.keep(normal, at.x[j], at.v[j], int(label[j]))
            return True
        return False

    def keep(self, normal: Normal, x: Tensor, v: Tensor, label: int) -> None:
        w = normal.w - self.V.T @ (self.V @ normal.w)
        self.V = torch.cat([self.V, (w / w.norm())[None]])
        self.normals.append(normal)
        self.points.append(x)
        self.still = 0
        # Beside the boundary by little: a null move with any component on a missing direction shows there.
        gap = 1e-3 * max(float(x.norm()), 1e-3)
        for side in (-1.0, 1.0):
            beside = x + side * gap * v
            self.near.append((beside if self.lb.box is None else beside.clamp(*self.lb.box), -1))

    def open_directions(self) -> Tensor:
        """Random orthonormal rows spanning the complement of what is known."""
        g = torch.randn(self.d, self.d - len(self.V), generator=self.basis_rng, dtype=torch.float64)
        for _ in range(2):
            g = g - self.V.T @ (self.V @ g)
        Q: Tensor = torch.linalg.qr(g)[0]                           # (d, d - r)
        return Q.T.contiguous()

    def moves_that_change(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Two null moves that change a label, or None after `confirm` that do not."""
        rounds, cramped = MOVES, 0
        while self.still < self.confirm and cramped < 8 * self.confirm:
            n = min(rounds, self.confirm - self.still)
            base, label = self.bases(n)
            move = self.null_moves(base)
            end = base + move
            far = int((move.norm(dim=1) > 0.02 * base.norm(dim=1)).sum())
            changed = torch.nonzero(labels_at(self.lb, end) != label)[:, 0]
            if len(changed):
                pick = changed[:2]
                return base[pick], end[pick], label[pick]
            self.still += far                                       # in a box some moves meet a wall at once
            cramped += n - far
            rounds *= 4
        return None

    def bases(self, n: int) -> tuple[Tensor, Tensor]:
        """Half beside the boundary (their labels are asked once), half anywhere."""
        for i, (x, known) in enumerate(self.near):
            if known < 0:
                self.near[i] = (x, int(labels_at(self.lb, x[None])[0]))
        rows, labels = [], []
        for j in range(n):
            if j % 2 == 0 and self.near:
                x, y = self.near[int(torch.randint(len(self.near), (1,), generator=self.rng))]
            else:
                i = int(torch.randint(len(self.x), (1,), generator=self.rng))
                x, y = self.x[i], int(self.y[i])
            rows.append(x)
            labels.append(y)
        return torch.stack(rows), torch.tensor(labels)

    def null_moves(self, base: Tensor) -> Tensor:
        """(n, d): in the complement of what is known, as long as the base point, three or ten times that in turn."""
        n = len(base)
        u = torch.randn(n, self.d, generator=self.rng, dtype=torch.float64)
        if self.lb.box is not None:
            low, high = self.lb.box
            u = low + (high - low) * torch.rand(n, self.d, generator=self.rng, dtype=torch.float64) - base
        for _ in range(2):
            u = u - (u @ self.V.T) @ self.V
        if self.lb.box is not None:
            room = torch.where(u > 0, high - base, low - base) / torch.where(u == 0, torch.ones_like(u), u)
            fits = torch.where(u == 0, torch.full_like(u, 1.0), room).amin(1).clamp(0.0, 1.0)
            return fits[:, None] * u
        reach = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64)[torch.arange(n) % 3]
        length = base.norm(dim=1).clamp_min(1e-3) * reach
        moves: Tensor = u * (length / u.norm(dim=1).clamp_min(1e-300))[:, None]
        return moves

    # what comes out

    def result(self, queries: int, provenance: Provenance) -> SpanResult:
        r, d = len(self.V), self.d
        worst = max((n.error for n in self.normals), default=0.0)
        status = self.status()
        certificate = SpanCertificate(
            stable=self.still, fraction_bound=fraction_upper_bound(0, self.still, 0.95) if self.still else 1.0,
            confidence=0.95, null_moves=self.still, null_change=0.0, gap=1 / worst if worst > 0 else float("inf"),
            gap_confidence=0.95 if status.ok else 0.0)
        return SpanResult(
            status=status, queries=queries, certificate=certificate, provenance=provenance, basis=self.V.clone(),
            rank=r, upper_bound=r if status.ok else d, singular_values=torch.ones(r, dtype=torch.float64),
            directions=self.V.clone(), noise_floor=worst,
            gradients=torch.stack([n.w for n in self.normals]) if self.normals else self.V.clone(),
            values=torch.zeros(r, dtype=torch.float64),
            points=torch.stack(self.points) if self.points else self.V.clone(),
            outputs=torch.zeros(r, dtype=torch.int64), link="label", ranks=torch.arange(1, r + 1))

    def status(self) -> Status:
        r = len(self.V)
        notes: tuple[str, ...] = ()
        if self.dropped:
            notes += (f"{self.dropped} boundary points were dropped because folds meet there.",)
        if any(n.curved for n in self.normals):
            notes += ("The boundary is curved: normals are those of its tangents.",)
        if self.stopped == "one_class":
            return Status("one_class", f"All {self.searched} points that were tried have one label: there is no "
                          f"boundary to follow. Pass points of other classes as data=.", notes)
        if self.stopped == "nondeterministic":
            return Status("nondeterministic", f"Points were given two labels, or labels flicker around the boundary: "
                          f"bisection cannot be trusted. {r} directions were found before that showed.", notes)
        if self.stopped == "budget":
            return Status("budget", f"The budget ran out with {r} directions found; {self.still} null moves since the "
                          f"last changed no label.", notes)
        if self.stopped == "folds":
            return Status("folds", f"{r} directions were found; then {RESTARTS} boundary points in a row failed their "
                          f"checks.", notes)
        if r == self.d:
            return Status("ok", f"Full rank: all {self.d} directions matter and there is no null space.", notes)
        if self.k is not None and r >= self.k:
            return Status("ok", f"The {r} directions asked for were found.", notes)
        return Status("ok", f"{r} of at most {self.d} directions were found; {self.still} moves within their null "
                      f"space changed no label.", notes)
