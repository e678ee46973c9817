"""Hidden units from the folds of one line: what d - 1 more directions say about each fold.

On the line x0 + t u a unit shows its fold t_i and its jump of slope kappa_i (k numbers). Scale it so that w_i.u = 1;
then it is z_i = (t - t_i) + sum_j r_ij s_j at x0 + t u + sum_j s_j E_j, with the E_j orthogonal to u, and the
unknowns are r_ij. In a piece, the step s along E_j measures J_j = P_j + sum_{t_i < t} kappa_i r_ij. Between two
measured pieces the difference is K r with the jumps of the folds between them as columns of K (k, n): as many as k
folds can share one difference, so a network with k outputs needs only about h / k + 1 measured pieces.

Cost: d - 1 rows per measured piece, plus the few whose step crossed a fold (seen afterwards, since the r they give
then puts the fold exactly at the step's end or nearer) and are asked again with another step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.fft import dct
from torch import Tensor

from foldline.extract.line_pieces import FoldLine
from foldline.extract.units import Units

PILOT = 8                   # directions asked first, to learn how far steps may go
SHARE = 0.01                # of the distance to the nearest fold, for the pilot's steps; folds far off may be steep
COARSE = 0.1                # the same when answers are noisy
CLEAR = 5.0                 # later steps keep this many typical r away from a fold
CONDITION = 60.0            # of the jumps that share one difference
FILL = 0.8                  # of the outputs, how many folds share one difference: the rest are spare equations
UNLIKE = 4.0                # times the median |r| of the pilot's directions that their mean square may be
AGAIN = 8                   # rounds of asking again


@dataclass(frozen=True, eq=False)
class Frame:
    """x0 (d,), u (d,), E (d - 1, d): orthogonal to u and of its length, with no coordinate of x preferred."""

    x0: Tensor
    u: Tensor
    E: Tensor

    @classmethod
    def of(cls, x0: Tensor, u: Tensor, rng: torch.Generator) -> Frame:
        # The reflection that takes the first axis to u / |u| takes the others to its complement. Those are nearly axes,
        # and the inputs of a trained network are not alike: cosines with random signs mix them.
        d, length = len(u), u.norm()
        v = u / length
        v = v + torch.sign(v[0] if v[0] != 0 else v.new_tensor(1.0)) * torch.eye(d, dtype=u.dtype)[0]
        H = torch.eye(d, dtype=u.dtype) - 2 * torch.outer(v, v) / (v @ v)
        sign = torch.randint(0, 2, (d - 1, 1), generator=rng).to(u.dtype) * 2 - 1
        E = torch.from_numpy(dct((sign * H[1:]).numpy(), axis=0, norm="ortho")) if d > 1 else H[1:]
        return cls(x0, u, E * length)

    def at(self, t: Tensor) -> Tensor:
        return self.x0 + t[:, None] * self.u                         # (n, d)


@dataclass(frozen=True, eq=False)
class Measured:
    units: Units
    error: Tensor               # (m,) what noise does to each r of a unit
    affine_error: float         # and to each slope of the affine part
    crossed: int                # steps that still cross a fold


def chosen_pieces(line: FoldLine, width: Tensor) -> list[int]:
    """Which pieces to measure: as few as the jumps allow, and wide ones among them."""
    m, k = line.jump.shape
    chosen = [0]
    while chosen[-1] < m:
        start = chosen[-1]
        last = start + 1
        for end in range(start + 1, min(m, start + max(1, int(FILL * k))) + 1):
            K = line.jump[start:end].T                               # (k, n)
            K = K / K.norm(dim=0).clamp_min(1e-300)
            sv = torch.linalg.svdvals(K)
            if float(sv[0]) <= CONDITION * float(sv[-1]):
                last = end
            elif end - start > 1:
                break
        options = range(start + max(1, (3 * (last - start) + 3) // 4), last + 1)
        # The number of pieces still needed must not grow: shorten a group only if the rest allows it.
        size = last - start
        need = -(-(m - start) // size)
        options_ok = [e for e in options if -(-(m - e) // size) <= need - 1] or [last]
        chosen.append(max(options_ok, key=lambda e: float(width[e])))
    return chosen


def recover_units(ask: Callable[[Tensor], Tensor], line: FoldLine, frame: Frame, *, noise: Callable[[Tensor], Tensor],
                  known: int | None = None, room: Callable[[Tensor], Tensor] | None = None,
                  coarse: bool = False) -> Measured:
    """Units behind the folds of `line`. ask: x (n, d) -> y (n, k); noise: x (n, d) -> (n,).

    known: a piece whose function is known to be zero (a residual's), so that it need not be measured. room: x (n, d)
    -> (n,), the longest step (in units of E) that stays where the target may be asked. coarse: answers are noisy, so
    the pilot takes longer steps and is asked again.
    """
    m, k = line.jump.shape
    d = len(frame.u)
    lo, hi = line.ends
    inner = 1.0 + line.t.abs()
    left = max(lo, float(line.t[0] - inner[0])) if m else 0.5 * (lo + hi)
    right = min(hi, float(line.t[-1] + inner[-1])) if m else left
    edges = line.t.new_tensor([left - 1, left + 1])
    if m:
        edges = torch.cat([2 * left - line.t[:1], line.t, 2 * right - line.t[-1:]])
    edges = edges.clamp(lo, hi)
    width = edges.diff()                                             # (m + 1,)
    pieces = chosen_pieces(line, width) if m else [0]
    pick = torch.tensor(pieces)
    t = 0.5 * (edges[:-1] + edges[1:])[pick]                         # (p,)
    solve = Solver(line, pick, known)
    steep = (1 + line.t.square()).sqrt()                             # a far fold is a steep one: w.u is small
    first = min(PILOT, d - 1)
    step = torch.zeros(len(pick), d - 1, dtype=torch.float64)        # (p, d - 1)
    J = torch.zeros(len(pick), d - 1, k, dtype=torch.float64)        # slopes along E
    measure = Measure(ask, line, frame, pick, known, room, noise)

    def reach(t: Tensor, rho: Tensor) -> Tensor:
        """(p,) how far a step may go from each t."""
        if m == 0:
            return torch.ones(len(t), dtype=torch.float64)
        return ((t[:, None] - line.t).abs() / rho).min(1).values

    def settled(n: int) -> tuple[Tensor, int]:
        """(r (m, n), steps that still cross) of the first n directions; steps that crossed a fold are asked again."""
        for _ in range(AGAIN):
            r = solve(J[:, :n])
            bad = crossing_steps(r, base[:, :n], step[:, :n], line.t)            # (p, n)
            if known is not None:
                bad[pick == known] = False
            if not bool(bad.any()):
                return r, 0
            step[:, :n][bad] = shorter(r, base[:, :n], step[:, :n], line.t, bad)
            measure.some(base, step, J, torch.cat([bad, bad.new_zeros(len(bad), d - 1 - n)], 1))
        return solve(J[:, :n]), int(bad.sum())

    if d == 1:
        return Measured(assembled(line, frame, pick, J, solve(J), known), line.t.new_zeros(m), 0.0, 0)
    base = t[:, None].expand(len(pick), d - 1).clone()               # where on the line each step starts
    step[:, :first] = (COARSE if coarse else SHARE) * reach(t, steep)[:, None]
    measure(t, step, J, torch.arange(first))
    r, crossed = settled(first)                                      # (m, first)
    if d - 1 > first or coarse:
        size = r.square().mean(1).sqrt().minimum(UNLIKE * r.abs().median(1).values)
        noisy = solve.error(measure.noise(t[:, None]) / step[:, 0].abs().clamp_min(1e-300))
        # Where noise is most of what the pilot saw, a unit is as steep as units are.
        true = (size.square() - noisy.square()).clamp_min(0.0).sqrt()
        rho = CLEAR * torch.where(noisy > 0.5 * size, true.clamp(steep, 3 * steep), size.clamp_min(2e-4))
        t = balanced(t, line.t, edges, pick, rho) if m else t
        first = 0 if coarse else first                               # noisy answers: the pilot's are not good enough
        base[:, first:], step[:, first:] = t[:, None], reach(t, rho)[:, None]
        measure(t, step, J, torch.arange(first, d - 1))
        r, crossed = settled(d - 1)
    live = step.abs().clamp_min(1e-300)
    off = measure.noise(base) * live.pow(-2).mean(1).sqrt()          # (p,): the pilot's short steps weigh most
    if known is not None:
        off[pick == known] = 0.0
    return Measured(assembled(line, frame, pick, J, r, known), solve.error(off),
                    0.0 if known is not None else float(off[0]), crossed)


class Measure:
    """Asks x(t_p) + s E_j and writes the slopes along E_j."""

    def __init__(self, ask: Callable[[Tensor], Tensor], line: FoldLine, frame: Frame, pick: Tensor,
                 known: int | None, room: Callable[[Tensor], Tensor] | None,
                 exact: Callable[[Tensor], Tensor]) -> None:
        self.exact = exact
        self.asked: dict[tuple[int, float], Tensor] = {}
        self.ask, self.line, self.frame, self.pick, self.known, self.room = ask, line, frame, pick, known, room

    def value(self, p: Tensor, t: Tensor) -> Tensor:
        """(n, k): the line's own value at t in piece p"""
        return self.line.at(self.pick[p], t)

    def __call__(self, t: Tensor, step: Tensor, J: Tensor, which: Tensor) -> None:
        mask = torch.zeros(step.shape, dtype=torch.bool)
        mask[:, which] = True
        if self.known is not None:
            mask[self.pick == self.known] = False
        if bool(mask.any()):
            self.some(t[:, None].expand(step.shape), step, J, mask)

    def some(self, base: Tensor, step: Tensor, J: Tensor, mask: Tensor) -> None:
        p, j = mask.nonzero(as_tuple=True)
        t = base[p, j]
        on = self.frame.at(t)
        if self.room is not None:
            most = self.room(on)
            step[p, j] = torch.minimum(step[p, j].abs(), most) * step[p, j].sign()
        s = step[p, j]
        y = self.ask(on + s[:, None] * self.frame.E[j])
        J[p, j] = (y - self.origin(p, t)) / s[:, None]

    def origin(self, p: Tensor, t: Tensor) -> Tensor:
        """(n, k): the value to subtract; asked where the line, extrapolated from its supports, is less exact."""
        value = self.value(p, t)
        keys = list(zip(p.tolist(), t.tolist(), strict=True))
        far = self.line.value_error(self.pick[p], t) > 3 * self.exact(self.frame.at(t))
        new = {k: i for i, k in enumerate(keys) if bool(far[i]) and k not in self.asked}
        if new:
            rows = torch.tensor(list(new.values()))
            for k, y in zip(new, self.ask(self.frame.at(t[rows])), strict=True):
                self.asked[k] = y
        for i in far.nonzero().flatten().tolist():
            value[i] = self.asked[keys[i]]
        return value

    def noise(self, base: Tensor) -> Tensor:
        """(p,): of a difference"""
        t = base[:, -1]
        line = self.line.value_error(self.pick, t)
        exact = self.exact(self.frame.at(t))
        return torch.minimum(line, 3 * exact) + exact


class Solver:
    """J (p, d - 1, k) -> r (m, d - 1), group by group."""

    def __init__(self, line: FoldLine, pick: Tensor, known: int | None) -> None:
        self.line, self.pick = line, pick
        self.inverse = [torch.linalg.pinv(line.jump[a:b].T) for a, b in
                        zip(pick.tolist(), pick.tolist()[1:], strict=False)]             # each (n, k)

    def __call__(self, J: Tensor) -> Tensor:
        rows = [pinv @ (J[i + 1] - J[i]).T for i, pinv in enumerate(self.inverse)]       # (n, d - 1)
        return torch.cat(rows) if rows else J.new_zeros(0, J.shape[1])

    def error(self, per: Tensor) -> Tensor:
        """per (p,), of a slope -> (m,), of each r"""
        out = [pinv.norm(dim=1) * float((per[i]**2 + per[i + 1]**2).sqrt()) for i, pinv in enumerate(self.inverse)]
        return torch.cat(out) if out else per.new_zeros(0)


def balanced(t: Tensor, folds: Tensor, edges: Tensor, pick: Tensor, rho: Tensor) -> Tensor:
    """Inside each piece, the point from which steps may go farthest."""
    lo, hi = edges[:-1][pick], edges[1:][pick]
    best, best_reach = t.clone(), ((t[:, None] - folds).abs() / rho).min(1).values
    for share in (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9):
        here = lo + share * (hi - lo)
        reach = ((here[:, None] - folds).abs() / rho).min(1).values
        better = reach > best_reach
        best, best_reach = torch.where(better, here, best), torch.where(better, reach, best_reach)
    return best


def crossing_steps(r: Tensor, base: Tensor, step: Tensor, folds: Tensor) -> Tensor:
    """(p, d - 1): steps that reach a fold, by the r that they themselves helped to find."""
    bad = torch.zeros(base.shape, dtype=torch.bool)
    for i, ti in enumerate(folds.tolist()):
        z = base - ti                                                # (p, d - 1)
        bad |= z * (z + 1.02 * step * r[i]) <= 0
    return bad


def shorter(r: Tensor, base: Tensor, step: Tensor, folds: Tensor, bad: Tensor) -> Tensor:
    """New steps for the bad ones: the other way if there is more room, else shorter."""
    p, j = bad.nonzero(as_tuple=True)
    t, s = base[p, j], step[p, j]                                    # (n,)
    z = t[:, None] - folds                                           # (n, m)
    hit = -z / r[:, j].T                                             # (n, m): the step that reaches each fold
    up = torch.where(hit > 0, hit, torch.inf).min(1).values
    down = torch.where(hit < 0, -hit, torch.inf).min(1).values
    old = s.abs()
    # The way that crossed tells only that the fold is no farther than this.
    tried_up = s > 0
    other = torch.where(tried_up, down, up)
    return torch.where(other > 0.5 * old, -s.sign() * torch.minimum(0.5 * other, old), 0.25 * s)


def assembled(line: FoldLine, frame: Frame, pick: Tensor, J: Tensor, r: Tensor, known: int | None) -> Units:
    length2 = frame.u @ frame.u
    W = (frame.u + r @ frame.E) / length2                            # (m, d): w.u = 1 and w.E_j = r_j
    b = -line.t - W @ frame.x0
    first = int(pick[0])
    P = (torch.outer(line.slope[first], frame.u) + J[0].T @ frame.E) / length2           # (k, d)
    near = line.support[first, line.support[first].abs().argmin()][None]
    q = line.at(pick[:1], near)[0] - P @ frame.at(near)[0]
    u = Units(W, b, line.jump.T, P, q)
    if known is not None:
        # The affine part is what makes the known piece zero.
        x = frame.at(line.base[known:known + 1])
        on = (u.z(x) > 0)[0].double()
        u = Units(W, b, u.A, -(u.A * on) @ W, -(u.A * on) @ b)
    return u
