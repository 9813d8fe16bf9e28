"""Label noise for experiments: flips of rows far from a discriminant hyperplane, as in the paper."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def flip_labels(
    features: npt.ArrayLike,
    is_positive: npt.ArrayLike,
    proportion: float,
    far_quantile: float = 0.0,
    seed: int = 0,
) -> BoolArray:
    """Which rows to flip: ``proportion`` of all rows, drawn among those far from a linear discriminant.

    Parameters
    ----------
    features
        Rows as a 2-d array.
    is_positive
        True labels.
    proportion
        Share of all rows to flip, 0 to 1.
    far_quantile
        Rows whose distance is below this quantile are spared: 0 draws among all rows, 0.25 among the farthest
        75 %.
    seed
        Seed of the draw.

    Returns
    -------
    mask
        True for rows whose label is to be flipped.
    """
    y = np.asarray(is_positive, dtype=bool)
    count = round(proportion * len(y))
    candidates = np.arange(len(y))
    if far_quantile > 0:
        distance = np.abs(linear_margin(np.asarray(features, dtype=np.float64), y))
        candidates = np.flatnonzero(distance >= np.quantile(distance, far_quantile))
    if count > len(candidates):
        raise ValueError(
            f"proportion {proportion:g} of {len(y):,} rows is more than the {len(candidates):,} rows beyond "
            f"far_quantile {far_quantile:g}: lower one of them."
        )
    mask = np.zeros(len(y), dtype=bool)
    mask[np.random.default_rng(seed).choice(candidates, count, replace=False)] = True
    return mask


def linear_margin(features: FloatArray, is_positive: BoolArray, ridge: float = 1.0) -> FloatArray:
    """Signed distance (up to scale) from the hyperplane of an L2-penalised logistic regression, by Newton steps."""
    x = np.column_stack([features, np.ones(len(features))])
    penalty = np.full(x.shape[1], ridge)
    penalty[-1] = 1e-8
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        gradient = x.T @ (p - is_positive) + penalty * w
        hessian: Any = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        w = w - step
        if np.abs(step).max() < 1e-8:
            break
    margin: FloatArray = x @ w
    return margin
