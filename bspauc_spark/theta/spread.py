"""By how much the mean of members spreads less than one of them: its quantiles, from theirs."""

from __future__ import annotations

import numpy as np
import torch

from bspauc_spark.arrays import FloatArray

# Of the scores that stand for all, and of witnesses for each point of the variance as a function of the score.
_SCORES, _WITNESSES_PER_POINT = 4001, 64
# Normal noise as three values with their weights, which have its first five moments.
_NOISE = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))
# Of the distance of two quantiles, so much is left at least.
_LEAST = 0.25


def quantiles_of_mean(quantiles: FloatArray, shares: FloatArray, witnesses: FloatArray) -> FloatArray:
    """Quantiles of the mean of members at ``shares``, where one member's scores of new rows have these ``quantiles``.

    ``witnesses`` are scores of rows that are new to all members, rows × members. A member's score is the mean of all
    and some noise, of ``(1 − 1/K)`` of the variance between members; at low scores it is not what it is at high ones.
    To add as much noise once more moves a quantile about as far as the noise did that is in it. So it is moved back by
    as much.
    """
    center, variance = _by_score(witnesses)
    # Between quantiles, and beyond the outermost, as normal scores have it.
    places = _normal((np.arange(_SCORES) + 0.5) / _SCORES)
    points, first = np.unique(shares, return_index=True)
    if len(points) == 1:
        return quantiles
    scores = _line(places, _normal(points), quantiles[first])
    size = np.sqrt(np.interp(scores, center, variance) * (1.0 - 1.0 / witnesses.shape[1]))
    moved = _quantiles([scores + value * size for value, _ in _NOISE], shares)
    moved -= _quantiles([scores for _ in _NOISE], shares)
    least = _LEAST * quantiles
    found: FloatArray = np.maximum.accumulate(quantiles - moved - least) + least
    return found


def _quantiles(values: list[FloatArray], shares: FloatArray) -> FloatArray:
    """At ``shares``, where those with one of the values of the noise count with its weight."""
    every = np.concatenate(values)
    order = np.argsort(every, kind="stable")
    weights = np.repeat([weight for _, weight in _NOISE], _SCORES)[order] / _SCORES
    found: FloatArray = np.interp(shares, np.cumsum(weights) - weights / 2, every[order])
    return found


def _by_score(witnesses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The variance between members, as a function of their mean: at the mean of so many rows each."""
    means, variances = witnesses.mean(axis=1), witnesses.var(axis=1, ddof=1)
    order = np.argsort(means, kind="stable")
    parts = np.array_split(order, max(1, len(order) // _WITNESSES_PER_POINT))
    return np.array([means[part].mean() for part in parts]), np.array([variances[part].mean() for part in parts])


def _normal(shares: FloatArray) -> FloatArray:
    places: FloatArray = torch.special.ndtri(torch.from_numpy(shares)).numpy()
    return places


def _line(x: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Linear between knots, and beyond the outermost."""
    slopes = np.diff(values) / np.diff(knots)
    outside = np.minimum(x - knots[0], 0.0) * slopes[0] + np.maximum(x - knots[-1], 0.0) * slopes[-1]
    line: FloatArray = np.interp(x, knots, values) + outside
    return line
