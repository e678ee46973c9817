"""A one-hidden-layer ReLU network, exactly, from the explanations of all its outputs at a few points.

At a point x_n the Jacobian is J_n = sum_u d_nu a_u w_u^T with gates d_nu in {0, 1}: over n points a tensor with one
term for each unit, and such a tensor comes apart in one way only. The differences J_n - J_0 have row space span{w_u};
in it, what belongs to unit u is the only combination of columns E_r that is of rank one as a matrix (points x outputs),
p_u a_u^T with p_nu = +-(d_nu - d_0u). The 2 x 2 minors of sum_r q_r E_r are linear in q q^T and vanish for q = q_u: so
the symmetric matrices on which all of them vanish are spanned by the q_u q_u^T, and any two have the eigenvectors q_u
in common (De Lathauwer's way from canonical to simultaneous diagonalisation). The rest is read off: gates are rounded
to 0 or 1, the w_u follow by least squares, J_0 says which units are on at x_0, the values say the biases.

Cost: n points with (n - 1) k > h and (n - 1)(n - 2) k (k - 1) / 4 > h (h - 1) / 2; for 784-128-10, n = 21, where
counting numbers, h (d + k + 1) / (k (d + 1)), gives 13. Gates must tell units apart: 22 Gaussian points do, and 32 to
40 unlike pictures. Units that are on at all of them are one linear map there, and units that are off are missing.
Differs from paper 000, which extracts a network of one output from h log(1 / eps) gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST_UNITS = 150        # the minors' matrix has h (h + 1) / 2 rows
MOST_POINTS = 40        # more say nothing new, and cost their square
LINEAR = 1e-5           # change of the Jacobian, relative, up to which it is rounding: a linear map
FALL = 30.0             # of the spectrum behind the last unit: less is no rank
ROUNDS = 2              # of inverse iteration: the gap is many decades
SHIFT = 1e-12           # of the diagonal, so that a matrix with a null space has a Cholesky factor
DRAWS = 5               # pairs of matrices to share eigenvectors
POLISHED = 30           # alternations between rank one and the span
GATE = 0.25             # distance of a gate from 0 or 1 from which on it is no gate
FAR = 2.0               # spreads of the points beyond them up to which a unit that is always on stays so
WRONG = 1e-3            # relative residual above which the answers are not those of such a network


@dataclass(frozen=True, eq=False)
class OneHidden:
    """f(x) = A relu(W x + b) + c"""

    W: Tensor           # (h, d)
    b: Tensor           # (h,)
    A: Tensor           # (k, h)
    c: Tensor           # (k,)
    residual: float     # of explanations and of values, relative, the larger
    always_on: int = 0  # the last so many units stand for all that are on at every point: a linear map of that rank
    alike: int = 0      # units with the gates of another at every point: how the two share their folds is not told

    def said(self) -> str:
        q = self.always_on
        rest = "" if not q else f" More are on at every point asked: near those they are a linear map of rank {q}."
        if self.alike:
            rest += f" {self.alike} have the gates of another at every point asked, so their folds may lie elsewhere."
        return (f"The target is one hidden layer, of which {len(self.b) - q} units were solved for: all that it "
                f"answered agrees to {self.residual:.1g}.{rest} Units that are off at every point are missing.")

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.relu(x @ self.W.T + self.b) @ self.A.T + self.c
        return y


def solve_one_hidden(x: Tensor, y: Tensor, J: Tensor) -> OneHidden | None:
    """x (n, d), y (n, k) values, J (n, k, d) Jacobians. None where they are not of such a network, or not enough."""
    x, y, J = (t[:MOST_POINTS].double() for t in (x, y, J))
    n, k, _ = J.shape
    if n < 3 or k < 2 or not bool(J.isfinite().all() & y.isfinite().all()):
        return None
    change = (J[1:] - J[0]).flatten(0, 1)                           # ((n - 1) k, d)
    U, s, _ = torch.linalg.svd(change, full_matrices=False)
    h = rank_of(s) if float(s[0]) > LINEAR * float(J[0].norm()) else None
    minors = (n - 1) * (n - 2) // 2 * (k * (k - 1) // 2)
    if h is None or not 1 <= h <= MOST_UNITS or minors < h * (h - 1) // 2:
        return None
    E = U[:, :h].reshape(n - 1, k, h).contiguous()
    Q = rank_one_combinations(E)
    if Q is None:
        return None
    terms = (E.flatten(0, 1) @ Q).T.reshape(h, n - 1, k)
    left, _, right = torch.linalg.svd(terms, full_matrices=False)
    p, a = left[:, :, 0], right[:, 0]                               # (h, n - 1), (h, k)
    p = p / p.gather(1, p.abs().argmax(1, keepdim=True))            # the largest is 1
    if float((p - p.round()).abs().max()) > GATE or float(p.round().min()) < 0:
        return None
    return read_off(x, y, J, p.round(), a)


def rank_of(s: Tensor) -> int | None:
    """Where the spectrum (descending) falls most, if it falls far and before its end."""
    if len(s) < 2 or not float(s[0]) > 0:
        return None
    floor = s.clamp(min=1e-12 * float(s[0]))
    falls = floor[:-1] / floor[1:]
    last = int(falls.argmax())
    return last + 1 if float(falls[last]) > FALL else None


def rank_one_combinations(E: Tensor) -> Tensor | None:
    """Q (h, h): columns q for which sum_r q_r E[:, :, r] is of rank one, or None. E (m, k, h), columns orthonormal."""
    h = E.shape[2]
    if h == 1:
        return E.new_ones(1, 1)
    null = null_space(minors_gram(E), h)
    if null is None:
        return None
    r, c = torch.triu_indices(h, h)

    def symmetric(v: Tensor) -> Tensor:
        M = v.new_zeros(h, h)
        M[r, c] = v
        M[c, r] = v
        return M

    best, least = None, float("inf")
    rng = torch.Generator().manual_seed(0)                          # any combination does: nothing depends on which
    for _ in range(DRAWS):
        one, two = (symmetric(null @ torch.randn(h, generator=rng, dtype=null.dtype)) for _ in range(2))
        shared, singular = torch.linalg.solve_ex(two, one, left=False)
        if int(singular) or not bool(shared.isfinite().all()):
            continue
        values, vectors = torch.linalg.eig(shared)
        Q = polished(E, vectors.real)
        second = torch.linalg.svdvals((E.flatten(0, 1) @ Q).T.reshape(h, *E.shape[:2]))
        worst = float((second[:, 1] / second[:, 0].clamp(min=1e-300)).max())
        apart = float(torch.linalg.svdvals(Q / Q.norm(dim=0))[-1])
        if apart > 1e-9 and worst < least:
            best, least = Q, worst
        if least < 1e-6 and not bool(values.imag.any()):
            break
    return best if least < GATE else None


def minors_gram(E: Tensor) -> Tensor:
    """(N, N), N = h (h + 1) / 2: Gram matrix of the 2 x 2 minors as functions of the upper half of Q = q q^T.

    No minor is formed. With T = E Q E^T they are T_ia,jb - T_ib,ja, and their squares add up to
    (|Q|^2 - sum_ab <Q, C_ab Q C_ab>) / 2, C_ab = sum_i E_ia E_ib^T, since the columns of E are orthonormal.
    """
    _, k, h = E.shape
    C = torch.einsum("iar,ibt->abrt", E, E).reshape(k * k, h, h)
    r, c = torch.triu_indices(h, h)
    times = torch.where(r == c, 1.0, 2.0).to(E)                     # that an entry of the upper half stands in Q
    G = E.new_empty(len(r), len(r))
    for i in range(h):
        X = (C[:, i].T @ C.reshape(k * k, h * h)).reshape(h, h, h)  # (t, u, s): sum_ab C_ab[i, t] C_ab[u, s]
        X = (X + X.transpose(0, 1))[r, c, i:]                       # (N, h - i)
        G[r == i] = -0.25 * times[r == i, None] * times * X.T
    G.diagonal().add_(0.5 * times)
    return G


def null_space(G: Tensor, count: int) -> Tensor | None:
    """(N, count): the eigenvectors of the smallest eigenvalues, by inverse iteration with one Cholesky factor."""
    N = len(G)
    shifted = G.clone()
    shifted.diagonal().add_(SHIFT * float(G.diagonal().mean()))
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if bool(failed):
        return None
    rng = torch.Generator().manual_seed(0)
    V = torch.randn(N, min(N, count + 10), generator=rng, dtype=G.dtype)
    for _ in range(ROUNDS):
        V = torch.linalg.qr(torch.cholesky_solve(V, factor))[0]
    _, turn = torch.linalg.eigh(V.T @ G @ V)
    null: Tensor = V @ turn[:, :count]
    return null


def polished(E: Tensor, Q: Tensor) -> Tensor:
    """Columns moved back and forth between the nearest matrix of rank one and the span."""
    flat, (m, k, h) = E.flatten(0, 1), E.shape
    for _ in range(POLISHED):
        left, s, right = torch.linalg.svd((flat @ Q).T.reshape(h, m, k), full_matrices=False)
        nearest = s[:, :1, None] * left[:, :, :1] * right[:, :1]
        Q = torch.nn.functional.normalize(flat.T @ nearest.flatten(1).T, dim=0)
    return Q


def read_off(x: Tensor, y: Tensor, J: Tensor, p: Tensor, a: Tensor) -> OneHidden | None:
    """From changes of gates p (h, n - 1) in {0, 1} and directions a (h, k): everything else."""
    n, k, d = J.shape
    h = len(p)
    change = (J[1:] - J[0]).flatten(0, 1)
    for _ in range(2):                                              # w, then a again with gates that are now exact
        terms = (p.T[:, None, :] * a.T).reshape(-1, h)              # ((n - 1) k, h)
        w = torch.linalg.lstsq(terms, change, driver="gelsd").solution              # (h, d)
        within = torch.linalg.lstsq(w.T, (J[1:] - J[0]).reshape(-1, d).T, driver="gelsd").solution.T      # ((n-1) k, h)
        within = within.reshape(n - 1, k, h)
        a = torch.einsum("nku,un->uk", within, p) / p.sum(1).clamp(min=1)[:, None]
    size = w.norm(dim=1, keepdim=True)
    if float(size.min()) == 0:
        return None
    w, a = w / size, a * size
    # J_0 in the basis w: -a_u where the unit is on at x_0 (then it goes off where p is 1), nothing where it is off.
    share = (torch.linalg.lstsq(w.T, J[0].T, driver="gelsd").solution * -a).sum(1) / a.square().sum(1).clamp(min=1e-300)
    first = share > 0.5
    gates = torch.cat([first[None], first ^ (p.T > 0.5)])           # (n, h)
    a = torch.where(first[:, None], -a, a)
    up = upright(x @ w.T, gates)
    w, a = w * up[:, None], a * up[:, None]
    A, on = a.T, gates.double()
    linear = always_on(J[0] - (A * on[0]) @ w, x, float(J[0].norm()))
    if linear is None:
        return None
    v, level, B = linear                                            # (q, d), (q,), (k, q)
    explained = torch.einsum("ku,nu,ud->nkd", A, on, w) + B @ v
    b, c = biases(x, y, A, on, explained, gates, w)
    found = OneHidden(torch.cat([w, v]), torch.cat([b, level]), torch.cat([A, B], 1), c - B @ level, 0.0, len(v),
                      h - len(p.unique(dim=0)))
    residual = max(float((explained - J).norm() / J.norm()), float((found(x) - y).norm() / y.norm().clamp(min=1e-300)))
    return replace(found, residual=residual) if residual < WRONG else None


def always_on(rest: Tensor, x: Tensor, size: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """(v (q, d), their biases (q,), B (k, q)): units that stand for rest (k, d) = B v wherever points are like x, or
    None where its rank leaves nothing to check gates by."""
    U, s, V = torch.linalg.svd(rest, full_matrices=False)
    q = int((s > WRONG * size).sum())
    if q > max(0, len(rest) - 2):                                   # misread gates leave all ranks
        return None
    v = V[:q]
    seen = x @ v.T                                                  # (n, q)
    level = -seen.amin(0) + FAR * (seen.amax(0) - seen.amin(0))
    return v, level, U[:, :q] * s[:q]


def upright(seen: Tensor, gates: Tensor) -> Tensor:
    """(h,) signs of w with which every unit is on where it sees most. seen (n, h) = x w^T."""
    on = seen.masked_fill(~gates, float("nan")).nanmean(0)
    off = seen.masked_fill(gates, float("nan")).nanmean(0)
    return torch.where(on >= off, 1.0, -1.0).to(seen)


def biases(x: Tensor, y: Tensor, A: Tensor, on: Tensor, explained: Tensor, gates: Tensor,
           w: Tensor) -> tuple[Tensor, Tensor]:
    """(b (h,), c (k,)): y_n - J_n x_n = sum_u d_nu a_u b_u + c, each b_u between what its gates allow."""
    n, k = y.shape
    rest = (y - torch.einsum("nkd,nd->nk", explained, x)).flatten()
    terms = torch.cat([(on[:, None, :] * A).reshape(n * k, -1), torch.eye(k, dtype=y.dtype).repeat(n, 1)], 1)
    solution = torch.linalg.lstsq(terms, rest[:, None], driver="gelsd").solution[:, 0]
    seen = x @ w.T
    low = -seen.masked_fill(~gates, float("inf")).amin(0)           # on: w.x + b >= 0
    high = -seen.masked_fill(gates, -float("inf")).amax(0)
    b = torch.minimum(torch.maximum(solution[:-k], low), high)
    c = (rest - terms[:, :-k] @ b).reshape(n, k).mean(0)
    return b, c
