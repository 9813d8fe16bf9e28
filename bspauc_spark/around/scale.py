"""One scale for the scores of several models, on which they can be compared and mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import Float32Array, FloatArray
from bspauc_spark.schema import many, real, record

_LOW = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, *(0.05 * k for k in range(2, 10)))
SHARES = (*_LOW, 0.5, *(1.0 - share for share in reversed(_LOW)))
"""Of the rows that a model judges; close to each other at both ends, where rare classes have thresholds."""

# Some rows are to lie beyond the outermost quantiles.
_BEYOND = 5
# Neighbouring knots differ by at least this part of the deviation, and of the largest score, as float32 too.
_LEAST_GAP, _ROUNDING = 1e-4, 1e-6

Folds = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Scale:
    """Scores of learners' models, one model for each fold, as one number a row.

    Models of different folds, and of different learners, have scales of their own. So each one is standardised on the
    rows of its fold, which it did not learn from: quantiles of its scores, the ``knots``, become the ``levels``, those
    of a normal distribution, with straight lines between them. So what counts is a row's rank, also for the estimate of
    label noise: margins of boosted trees show it in some tables only, their ranks in more. The number is then the mean
    of the learners with their ``shares``.

    Attributes
    ----------
    folds : tuple of int
        The folds that have models.
    knots : FloatArray
        Learners × folds × quantiles.
    levels : FloatArray
        Quantiles.
    shares : FloatArray
        One for each learner; they sum to 1.
    new_knots, new_levels : FloatArray
        For the learners' final models, which are of no fold: learners × quantiles. Made by ``aligned``.
    """

    folds: tuple[int, ...]
    knots: FloatArray
    levels: FloatArray
    shares: FloatArray
    new_knots: FloatArray
    new_levels: FloatArray

    @classmethod
    def of(cls, raw: Float32Array, fold: Folds, folds: Iterable[int]) -> Scale:
        """The scale of scores, learners × rows, in which all learners have the same share."""
        own = tuple(folds)
        sizes = [int(np.count_nonzero(fold == k)) for k in own]
        least = min(_BEYOND / max(min(sizes), 1), 0.5)
        at = np.clip(SHARES, least, 1.0 - least)
        knots = np.stack([[rising(np.quantile(some[fold == k], at), some[fold == k]) for k in own] for some in raw])
        levels = rising(np.array([NormalDist().inv_cdf(share) for share in at]), np.ones(1))
        same = np.tile(levels, (len(raw), 1))
        return cls(own, knots, levels, np.full(len(raw), 1.0 / len(raw)), knots.mean(axis=1), same)

    def with_shares(self, shares: FloatArray) -> Scale:
        """The same scale, with these shares of the learners."""
        return replace(self, shares=shares)

    def aligned(self, final: Float32Array, of_folds: Float32Array) -> Scale:
        """The same scale, for final models that give these scores, learners × rows, to some of the training rows.

        A final model's scores can be on quite another scale than those of the folds' models, but its scores of rows
        that it learned from are no measure of its scores of new rows. So models are compared on the same rows, from
        most of which they all learned: ``of_folds`` are the scores by the folds' models, folds × learners × rows.
        """
        least = min(_BEYOND / final.shape[1], 0.5)
        at = np.clip(SHARES, least, 1.0 - least)
        means = self.knots.mean(axis=1)
        knots, levels = np.empty_like(means), np.empty_like(means)
        for learner, scores in enumerate(final):
            theirs = np.mean([np.quantile(some[learner], at) for some in of_folds], axis=0)
            knots[learner] = rising(np.quantile(scores, at), scores)
            levels[learner] = rising(bent(theirs, means[learner], self.levels), np.ones(1))
        return replace(self, new_knots=knots, new_levels=levels)

    def each(self, raw: Float32Array, fold: Folds) -> FloatArray:
        """The scores of rows that are in these folds by each learner, learners × rows, on the common scale."""
        found = np.full(raw.shape, np.nan)
        for learner, scores in enumerate(raw):
            for place, k in enumerate(self.folds):
                own = fold == k
                found[learner, own] = bent(scores[own], self.knots[learner, place], self.levels)
        return found

    def scores(self, raw: Float32Array, fold: Folds) -> Float32Array:
        """One score a row; of a row in no fold that has models it is NaN."""
        used = self.shares > 0
        some = replace(self, knots=self.knots[used], shares=self.shares[used])
        mixed: Float32Array = (some.shares @ some.each(raw[used], fold)).astype(np.float32)
        return mixed

    def of_new(self, raw: Float32Array) -> Float32Array:
        """Scores of rows by a model of each learner that is of no fold."""
        every = zip(self.shares, raw, self.new_knots, self.new_levels, strict=True)
        mixed = [share * bent(scores, knots, levels) for share, scores, knots, levels in every if share > 0]
        return np.asarray(mixed).sum(axis=0, dtype=np.float64).astype(np.float32)  # type: ignore[no-any-return]

    def of_all(self, raw: Float32Array) -> Float32Array:
        """Scores of rows by the models of all folds, folds × learners × rows: the mean of the folds."""
        of_folds = [self.scores(one, np.full(one.shape[1], k)) for k, one in zip(self.folds, raw, strict=True)]
        found: Float32Array = (np.stack(of_folds).sum(axis=0, dtype=np.float64) / len(of_folds)).astype(np.float32)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {
            "folds": list(self.folds),
            "knots": self.knots.tolist(),
            "levels": self.levels.tolist(),
            "shares": self.shares.tolist(),
            "new_knots": self.new_knots.tolist(),
            "new_levels": self.new_levels.tolist(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "scale") -> Scale:
        """The inverse of ``to_dict``; ``MalformedError`` names the place ``where`` something is wrong."""
        values = _STORED(stored, where)
        arrays = {name: np.array(value, dtype=np.float64) for name, value in values.items() if name != "folds"}
        return cls(tuple(int(k) for k in values["folds"]), **arrays)


_STORED = record(
    {
        "folds": many(real(0.0), least=1),
        "knots": many(many(many(real(), least=2), least=1), least=1),
        "levels": many(real(), least=2),
        "shares": many(real(0.0, 1.0), least=1),
        **dict.fromkeys(("new_knots", "new_levels"), many(many(real(), least=2), least=1)),
    }
)


def bent(scores: npt.ArrayLike, knots: FloatArray, levels: FloatArray) -> FloatArray:
    """Scores on the lines through the points (``knots``, ``levels``); beyond them, with their overall slope."""
    given = np.asarray(scores, dtype=np.float64)
    slope = (levels[-1] - levels[0]) / (knots[-1] - knots[0])
    found: FloatArray = np.interp(given, knots, levels) + slope * (given - np.clip(given, knots[0], knots[-1]))
    return found


def rising(quantiles: FloatArray, scores: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """Quantiles of these scores that rise: where many rows have one score, neighbouring quantiles are the same."""
    largest = float(np.abs(quantiles).max())
    gap = max(_LEAST_GAP * float(np.std(scores, dtype=np.float64)), _ROUNDING * largest, 1e-12)
    least = gap * np.arange(len(quantiles))
    found: FloatArray = np.maximum.accumulate(quantiles - least) + least
    return found
