"""The θ block of ``network="table"`` in closed form: ridge regression of labels on features, outside of each fold.

Up to its scale, the function that ranks best by the squared pair loss ``Σ v_i u_j (1 − f(x_i) + f(x_j))²`` is the
discriminant of Fisher, which is also what a regression of the labels gives. So sums of features and of their products
are all that is needed of the rows. Those of all rows but one fold are a difference, and any number of decays costs one
factorisation each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bspauc_spark.arrays import FloatArray

DECAYS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""What θ is pulled to 0 by, as so many rows would: from one that follows single rows to one that follows averages."""
_USUAL, _DECADES, _LINE = 1.0, 0.8, 0.3
_ROWS = 4096
# Of the mean variance of a feature, so that rounding cannot make a matrix singular.
_LEAST = 1e-5
# Directions in which landmarks differ less than this part of the largest difference are rounding.
_SINGULAR = 1e-5


def prior(decays: Sequence[float], kinds: int) -> FloatArray:
    """What each candidate counts for before there is evidence: kinds × decays, of which the first kind is the line.

    A decay far from 1 is as rarely the best one as a normal distribution has it, and so is a line alone.
    """
    away = np.log10(np.maximum(decays, 1e-9) / _USUAL) / _DECADES
    by_decay = np.exp(-0.5 * away**2) if len(decays) > 1 else np.ones(1)
    found: FloatArray = np.outer(np.r_[_LINE, np.ones(kinds - 1)], by_decay).ravel()
    return found


def sums(features: Tensor, labels: Tensor, weights: Tensor, folds: Tensor, count: int) -> Tensor:
    """``Σ w z zᵀ`` of ``z = (features, 1, label)`` over the rows of each fold, in float64."""
    size = features.shape[1] + 2
    found = torch.zeros(count, size, size, dtype=torch.float64, device=features.device)
    for start in range(0, len(features), _ROWS):
        part = slice(start, start + _ROWS)
        ones = torch.ones_like(labels[part])
        z = torch.cat([features[part], torch.stack([ones, labels[part]], dim=1)], dim=1)
        for fold in range(count):
            own = torch.nonzero((folds[part] == fold) & (weights[part] > 0))[:, 0]
            rows = z[own]
            found[fold] += (rows.T @ (rows * weights[part][own, None])).double()
    return found


def solve(sums: Tensor, decays: Sequence[float]) -> Tensor:
    """Coefficients of the features and the constant for each decay, (features + 1) × decays, from ``Σ w z zᵀ``.

    Scores are 0 in the mean, so that those of different folds can be compared. Without rows all is 0.
    """
    rows, size = sums[-2, -2], len(sums) - 2
    if not rows > 0:
        return sums.new_zeros(size + 1, len(decays))
    means, share = sums[:size, -2] / rows, sums[-1, -2] / rows
    covariance = sums[:size, :size] / rows - torch.outer(means, means)
    target = sums[:size, -1] / rows - means * share
    identity = torch.eye(size, dtype=torch.float64, device=sums.device)
    least = _LEAST * covariance.diagonal().mean() + 1e-12
    found = []
    for decay in decays:
        factor = _factor(covariance + (decay / rows) * identity, least * identity)
        own = torch.cholesky_solve(target[:, None], factor)[:, 0]
        found.append(torch.cat([own, -(own @ means)[None]]))
    return torch.stack(found, dim=1)


def _factor(matrix: Tensor, least: Tensor) -> Tensor:
    """The Cholesky factor of ``matrix + least``, of which a larger multiple is added where rounding needs it."""
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix + least)
        if not failed:
            found: Tensor = factor
            return found
        least = 10 * least


def whitening(similarities: Tensor) -> Tensor:
    """A matrix W with which the nearness to landmarks, times W, has the kernel as its inner product (Nyström)."""
    values, vectors = torch.linalg.eigh(similarities.double())
    kept = values > _SINGULAR * values[-1]
    found: Tensor = vectors[:, kept] / values[kept].sqrt()
    return found


def pair_scale(positive: FloatArray, negative: FloatArray, v: FloatArray, u: FloatArray) -> tuple[float, float]:
    """``a`` and ``c`` with which ``a·f + c`` has the least squared pair loss on these rows, and classes around 0.

    A class of which nothing is kept counts as a whole.
    """
    v, u = (weights if weights.any() else np.ones_like(weights) for weights in (v, u))
    means = [np.average(f, weights=w) for f, w in ((positive, v), (negative, u))]
    every = zip((positive, negative), means, (v, u), strict=True)
    variances = [np.average((f - m) ** 2, weights=w) for f, m, w in every]
    ahead = float(means[0] - means[1])
    square = ahead**2 + float(sum(variances))
    # Scores that rank worse than chance keep their order, for the next selection to see.
    scale = ahead / square if ahead > 0 else 0.01 / max(square, 1e-12) ** 0.5
    return scale, -scale * float(sum(means)) / 2
