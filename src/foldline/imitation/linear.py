"""Linear students by algebra: z = W x + c from explanations and values, without a step of descent.

An explanation of a linear model is M(x) * w_j (explain.py), whatever the noise or the path, so every explained number
is one equation for one weight, and every value one equation for a row of them. Least squares over both:

    sum_i |M_i * w_j - e_ij|^2 / a + sum_i (w_j . x_i + c_j - z_ij)^2 / b,

with a and b the sizes of the answers; (d + 1) x (d + 1) normal equations per output. One raw gradient and one value
fix a linear target. Log-probabilities fix differences between outputs only; they are centred over the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foldline.imitation.losses import Lesson

PASSIVE = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Softmax, nn.LogSoftmax, nn.Sigmoid)
SMALL = 1e-7                        # of the mean diagonal: decides only weights that no answer touches
REFINEMENTS = 3


@dataclass(frozen=True, eq=False)
class Affine:
    W: Tensor                       # (k, d)
    c: Tensor                       # (k,)


def only_linear(student: nn.Module) -> nn.Linear | None:
    """The student's one linear layer, if it is nothing else."""
    leaves = [m for m in student.modules() if not list(m.children())]
    linear = [m for m in leaves if isinstance(m, nn.Linear)]
    rest = [m for m in leaves if not isinstance(m, (nn.Linear, *PASSIVE))]
    return linear[0] if len(linear) == 1 and not rest else None


def solve_affine(lesson: Lesson) -> Affine | None:
    """The least-squares affine map, or None where the answers are not linear in the weights."""
    z, e, of = lesson.values.double(), lesson.explanations, lesson.of
    k = z.shape[1]
    if lesson.space == "probabilities" or lesson.form != "signed":
        return None
    if lesson.space == "log-probabilities":
        if e is not None and e.shape[1] != k:
            return None
        z = z - z.mean(1, keepdim=True)
        e = None if e is None else e - e.mean(1, keepdim=True)
    x = lesson.x.double()
    n, d = x.shape
    X = torch.cat([x, x.new_ones(n, 1)], 1)                                     # (n, d + 1)
    if e is None or of is None:
        found = torch.linalg.lstsq(X, z, driver="gelsd").solution.T             # (k, d + 1), the smallest that fits
        return Affine(found[:, :d], found[:, d])
    e = e.double()
    factor = lesson.factor()
    M = torch.ones_like(x) if factor is None else factor.double().expand(n, d)                                  # (n, d)
    a, b = max(lesson.explanation_scale, 1e-300), max(lesson.value_scale, 1e-300)
    told = torch.zeros(n, k, dtype=torch.float64).scatter_(1, of, 1.0)          # (n, k): which outputs are explained
    gram = X.T @ X / b                                                          # (d + 1, d + 1)
    right = X.T @ z / b                                                         # (d + 1, k)
    rhs = torch.zeros(k, d, dtype=torch.float64)
    for m in range(e.shape[1]):
        rhs.index_add_(0, of[:, m], M * e[:, m])
    W, c = torch.zeros(k, d, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    same = bool((told == told[:1]).all()) and bool((told[0] == told[0, 0]).all())
    groups = [list(range(k))] if same else [[j] for j in range(k)]
    for js in groups:
        weight = (told[:, js[:1]] * M.square()).sum(0) / a                      # (d,)
        A = gram.clone()
        A.diagonal()[:d] += weight
        y = right[:, js] + torch.cat([rhs[js].T / a, rhs.new_zeros(1, len(js))])
        factors = torch.linalg.lu_factor(A + SMALL * A.diagonal().mean() * torch.eye(d + 1, dtype=torch.float64))
        solved = torch.linalg.lu_solve(*factors, y)                             # (d + 1, len(js))
        for _ in range(REFINEMENTS):                                            # takes the small term out again
            solved = solved + torch.linalg.lu_solve(*factors, y - A @ solved)
        W[js], c[js] = solved[:d].T, solved[d]
    # The bias is never explained: given W, the mean residual of the values is its best value.
    c = (z - x @ W.T).mean(0)
    return Affine(W, c)


def put(layer: nn.Linear, affine: Affine) -> None:
    with torch.no_grad():
        layer.weight.copy_(affine.W)
        if layer.bias is not None:
            layer.bias.copy_(affine.c)
