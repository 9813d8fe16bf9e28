"""From scores to probabilities: that a label is positive, and that it is wrong.

The share of positive *labels* along the score, ``η̃(s)``, does not fall to 0 at the low end nor rise to 1 at
the high end when labels are wrong. With ``e0 = P(label + | truth −)`` and ``e1 = P(label − | truth +)``

    ``η̃(s) = e0 + (1 − e0 − e1) η(s)``,   ``η(s) = P(truth + | s)``,

so the levels of ``η̃`` at its two ends estimate ``e0`` and ``e1``, provided that they are plateaus; from these follow
the wrong share of either labelled class, which sets the automatic pace, and the audit's ``suspicion``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import MalformedError
from bspauc_spark.schema import many, real, record
from bspauc_spark.statistics import OrderedScores, ScoreArray
from bspauc_spark.statistics.binned import exact_on_bins

Rates: TypeAlias = tuple[float, float]

NONE: Rates = (0.0, 0.0)

BINS_PER_CLASS = 256
"""Quantiles of each class that cut the score axis into bins."""

FLAT_BY_SCORE, FLAT_BY_ORDER = 0.25, 0.1
"""A plateau rises by at most this share of what the transition between the ends would rise in its place. Networks press
their scores together at the ends, so there is less to see along the score than along its order."""


@dataclass(frozen=True)
class LabelNoise:
    """What a score says about a label. Made by :func:`estimate_label_noise`.

    Attributes
    ----------
    knots, values : tuple of float
        Isotonic share of positive labels: ``values`` at the scores ``knots``, linear between them.
    slope, intercept : float
        ``η(s) = σ(slope · s + intercept)``: the probability that the *truth* is positive. It is strictly
        increasing, so that it ranks inside the flat ends of the isotonic fit.
    e0, e1 : float
        Estimated rates at which true negatives are labelled positive, and true positives negative.
    positive_share : float
        Share of positive labels, ``π̃``.
    rate_floor : tuple of float
        Smallest ``e0`` and ``e1`` used in :meth:`suspicion`: half a row, so that clean data are ranked too.
    """

    knots: tuple[float, ...]
    values: tuple[float, ...]
    slope: float
    intercept: float
    e0: float
    e1: float
    positive_share: float
    rate_floor: tuple[float, float]

    def probability(self, scores: ArrayLike) -> FloatArray:
        """P(the label is positive | score), calibrated to the observed labels, non-decreasing in the score."""
        return np.interp(np.asarray(scores, dtype=np.float64), self.knots, self.values)

    def suspicion(self, scores: ArrayLike, is_positive_label: ArrayLike) -> FloatArray:
        """P(the label is wrong | score, label).

        ``(1 − η) e0 / η̃`` for a positive label, ``η e1 / (1 − η̃)`` for a negative one.
        """
        logit = self.slope * np.asarray(scores, dtype=np.float64) + self.intercept
        e0, e1 = max(self.e0, self.rate_floor[0]), max(self.e1, self.rate_floor[1])
        positive = np.asarray(is_positive_label, dtype=bool)
        # Bayes' odds of "right" against "wrong", in logs: far scores keep their order
        right_odds = np.where(positive, logit + math.log((1 - e1) / e0), math.log((1 - e0) / e1) - logit)
        return _sigmoid(-right_odds)

    @property
    def wrong_shares(self) -> tuple[float, float]:
        """Estimated shares of labelled positives and of labelled negatives whose label is wrong.

        ``(1 − π) e0 / π̃`` and ``π e1 / (1 − π̃)``, with ``π = (π̃ − e0) / (1 − e0 − e1)`` true positives.
        """
        return _wrong_shares(self.e0, self.e1, self.positive_share)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, ready for JSON."""
        return {
            "knots": list(self.knots),
            "values": list(self.values),
            "slope": self.slope,
            "intercept": self.intercept,
            "e0": self.e0,
            "e1": self.e1,
            "positive_share": self.positive_share,
            "rate_floor": list(self.rate_floor),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "calibration") -> LabelNoise:
        """The inverse of :meth:`to_dict`; ``MalformedError`` names the place ``where`` something is wrong."""
        found = cls(**_STORED(stored, where))
        if len(found.knots) != len(found.values):
            raise MalformedError(f"{where} has {len(found.knots):,} knots and {len(found.values):,} values")
        if list(found.knots) != sorted(found.knots) or list(found.values) != sorted(found.values):
            raise MalformedError(f"{where} does not rise from knot to knot")
        return found


# Open at 1, as 1 − e0 and 1 − e1 are divided and taken the logarithm of; the floor is above 0 for the same reason.
_ALMOST_ONE = math.nextafter(1.0, 0.0)
_TINY = math.ulp(0.0)
_STORED = record(
    {
        "knots": many(real(), least=1),
        "values": many(real(0.0, 1.0), least=1),
        "slope": real(),
        "intercept": real(),
        "e0": real(0.0, _ALMOST_ONE),
        "e1": real(0.0, _ALMOST_ONE),
        "positive_share": real(0.0, _ALMOST_ONE, above=0.0),
        "rate_floor": many(real(0.0, _ALMOST_ONE, above=0.0), 2, 2),
    }
)


def estimate_label_noise(pos: OrderedScores, neg: OrderedScores, guess: bool = False) -> LabelNoise:
    """Calibrate scores on the labels that came with them.

    Bins between class quantiles keep it linear in the number of rows. A four-parameter logistic curve,
    ``e0 + (1 − e0 − e1) σ(a s + b)``, takes as much noise as the labels can show, with a penalty on either rate. But
    noise explains many a curve that has none. So a wrong share is believed only if its end is seen to be a plateau
    (``_End``), and is 0 otherwise. Nobody knows the scale of a score, so the curve is fitted along the score itself and
    along its mere order. Both must show the plateau, and the smaller of their shares counts.

    Parameters
    ----------
    pos, neg
        Scores of the rows labelled positive and negative.
    guess
        Take the smaller share of the two also where no plateau is seen: for a selection that is tried, and used only if
        it turns out to pay.
    """
    center, p_count, n_count = _bins(pos, neg)
    total = p_count + n_count
    positive_share = len(pos) / (len(pos) + len(neg))
    low, high = _End.of(n_count, p_count), _End.of(p_count[::-1], n_count[::-1])
    excess = max((low.level + high.level) / 0.99, 1.0)  # scores that do not rank: the curve must still rise
    most = low.level / excess, high.level / excess
    wrong = [1.0, 1.0]
    for scale, most_rise in ((center, FLAT_BY_SCORE), (_order(p_count, n_count), FLAT_BY_ORDER)):
        slope, _, *rates = _fit_logistic(scale, p_count, n_count, NONE, most)
        ends = ((low, scale), (high, -scale[::-1]))
        seen = [guess or end.rises_by_at_most(most_rise, along, slope) for end, along in ends]
        shares = _wrong_shares(rates[0], rates[1], positive_share)
        wrong = [min(known, share) if flat else 0.0 for known, share, flat in zip(wrong, shares, seen, strict=True)]
    e0, e1 = _rates(wrong[0], wrong[1], positive_share)
    slope, intercept, e0, e1 = _fit_logistic(center, p_count, n_count, (e0, e1), (e0, e1))

    # one pseudo-row per bin, split as the curve says, keeps probabilities off 0 and 1 where a bin is small
    curve = e0 + (1 - e0 - e1) * _sigmoid(slope * center + intercept)
    values = _isotonic((p_count + curve) / (total + 1), total + 1)
    kept = np.ones(values.size, dtype=bool)
    kept[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return LabelNoise(
        knots=tuple(center[kept].tolist()),
        values=tuple(values[kept].tolist()),
        slope=slope,
        intercept=intercept,
        e0=e0,
        e1=e1,
        positive_share=positive_share,
        rate_floor=(0.5 / (len(neg) + 1), 0.5 / (len(pos) + 1)),
    )


def _wrong_shares(e0: float, e1: float, positive_share: float) -> Rates:
    identified = 1 - e0 - e1
    if identified <= 1e-9:
        return 0.0, 0.0
    pi = min(max((positive_share - e0) / identified, 0.0), 1.0)
    return min((1 - pi) * e0 / positive_share, 1.0), min(pi * e1 / (1 - positive_share), 1.0)


def _rates(positives: float, negatives: float, positive_share: float) -> Rates:
    """The inverse: ``e0`` and ``e1`` of these wrong shares of labelled positives and of labelled negatives."""
    wrong0, right0 = positive_share * positives, (1 - positive_share) * (1 - negatives)
    wrong1, right1 = (1 - positive_share) * negatives, positive_share * (1 - positives)
    return wrong0 / max(wrong0 + right0, _TINY), wrong1 / max(wrong1 + right1, _TINY)


@exact_on_bins
def _bins(pos: OrderedScores, neg: OrderedScores) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean score, positives and negatives of each bin; equal scores never part."""
    cuts = np.unique(np.concatenate([_quantiles(pos), _quantiles(neg)]))
    p_edge, n_edge = (np.concatenate([[0], scores.counts_at_most(cuts)]) for scores in (pos, neg))
    p_count, n_count = np.diff(p_edge), np.diff(n_edge)
    sums = pos.segment_sums(p_edge) + neg.segment_sums(n_edge)
    return sums / np.maximum(p_count + n_count, 1), p_count.astype(np.float64), n_count.astype(np.float64)


def _quantiles(scores: OrderedScores) -> ScoreArray:
    count = min(BINS_PER_CLASS, len(scores))
    return scores.many(np.arange(1, count + 1) * len(scores) // count - 1)


def _isotonic(shares: FloatArray, weights: FloatArray) -> FloatArray:
    """Non-decreasing least-squares fit, by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for share, weight in zip(shares.tolist(), weights.tolist(), strict=True):
        pool = (share, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            other, other_weight, length = pools.pop()
            both = other_weight + pool[1]
            pool = ((other * other_weight + pool[0] * pool[1]) / both, both, length + pool[2])
        pools.append(pool)
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


def _order(p_count: FloatArray, n_count: FloatArray) -> FloatArray:
    """Log odds of the place of each bin in the order of all rows, both classes counted alike."""
    mass = (p_count / p_count.sum() + n_count / n_count.sum()) / 2
    place = np.cumsum(mass) - mass / 2
    odds: FloatArray = np.log(place / (1 - place))
    return odds


@dataclass(frozen=True)
class _End:
    """One end of the score order.

    The side of a class goes from its end to where it stops getting ahead of the other class. It is cut into three parts
    with equally many rows of the class. On a plateau the share of the other label is the same in the outer two.

    Attributes
    ----------
    own : pair of FloatArray
        Rows of the class in the bins of the outer part, and in those of the middle one.
    level : float
        Share of the other label in the outer part.
    rise, error : float
        By how much the log odds of the other label rise from there to the middle part, and the standard error.
    """

    own: tuple[FloatArray, FloatArray]
    level: float
    rise: float
    error: float

    @classmethod
    def of(cls, own: FloatArray, other: FloatArray) -> _End:
        """The end with which these bins begin."""
        reached, passed = np.cumsum(own), np.cumsum(other)
        side = reached[np.argmax(reached / reached[-1] - passed / passed[-1])]
        first, last = (np.searchsorted(reached, side * np.array([1, 2]) / 3) + 1).tolist()
        outer, middle = np.zeros_like(own), np.zeros_like(own)
        outer[:first], middle[first:last] = own[:first], own[first:last]
        rows = np.array([outer.sum(), middle.sum()])
        wrong = np.array([other[:first].sum(), other[first:last].sum()])
        level = float(wrong[0] / (wrong[0] + rows[0]))
        if not rows[1]:
            return cls((outer, middle), level, 0.0, math.inf)
        odds = (wrong + 0.5) / rows
        error = math.sqrt(float((1 / (wrong + 0.5) + 1 / rows).sum()))
        return cls((outer, middle), level, math.log(odds[1] / odds[0]), error)

    def rises_by_at_most(self, share: float, scale: FloatArray, slope: float) -> bool:
        """Whether the rise is within ``share`` of what ``slope`` along ``scale`` promises, either way.

        The standard error is added to it: few rows show nothing.
        """
        if self.error == math.inf:
            return False
        outer, middle = (float(part @ scale / part.sum()) for part in self.own)
        return abs(self.rise) + self.error <= share * slope * (middle - outer)


def _fit_logistic(
    center: FloatArray, p_count: FloatArray, n_count: FloatArray, floor: Rates, cap: Rates
) -> tuple[float, float, float, float]:
    """``a, b, e0, e1`` of the most likely ``e0 + (1 − e0 − e1) σ(a s + b)`` with both rates from ``floor`` to ``cap``.

    Fisher scoring with Levenberg damping over ``log a``, ``b`` and the logits of the rates' places between their
    bounds, from little noise and from much, on scores standardised with both classes counted alike.
    """
    total = p_count + n_count
    balanced = p_count / p_count.sum() + n_count / n_count.sum()
    middle = float(balanced @ center / 2)
    spread = math.sqrt(float(balanced @ (center - middle) ** 2 / 2)) or 1.0
    z = (center - middle) / spread
    penalty = 0.5 * math.log(total.sum())
    width = np.array(cap) - np.array(floor)

    def model(theta: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        slope = math.exp(theta[0])
        rates = _sigmoid(theta[2:])
        e0, e1 = np.array(floor) + width * rates
        low, high = float(e0), 1 - float(e1)
        g = _sigmoid(slope * z + theta[1])
        q = np.clip(low + (high - low) * g, 1e-12, 1 - 1e-12)
        bend = (high - low) * g * (1 - g)
        d_rates = rates * (1 - rates)
        jacobian = np.stack([bend * slope * z, bend, (1 - g) * width[0] * d_rates[0], -g * width[1] * d_rates[1]])
        # priors: either rate costs up to `penalty`; log a ~ N(1, 2²) and b ~ N(0, 10²) hold on separated scores
        loss = -(p_count @ np.log(q) + n_count @ np.log1p(-q)) + penalty * rates.sum()
        loss += (theta[0] - 1) ** 2 / 8 + theta[1] ** 2 / 200
        gradient = jacobian @ ((total * q - p_count) / (q * (1 - q)))
        gradient[2:] += penalty * d_rates
        gradient[:2] += [(theta[0] - 1) / 4, theta[1] / 100]
        fisher = (jacobian * (total / (q * (1 - q)))) @ jacobian.T + np.diag([0.25, 0.01, 1e-3, 1e-3])
        return float(loss), gradient, fisher

    base = math.log(p_count.sum() / n_count.sum())
    best: tuple[float, FloatArray] = (math.inf, np.zeros(4))
    for start in (-3.0, 1.0) if width.any() else (-3.0,):
        theta = np.array([1.0, base, start, start])
        loss, gradient, fisher = model(theta)
        damping = 1e-3
        for _ in range(100):
            step = np.linalg.solve(fisher + damping * np.diag(np.diag(fisher)), -gradient)
            trial = theta + np.clip(step, -2, 2)
            trial = np.clip(trial, [-3, -60, -12, -12], [6, 60, 12, 12])
            new_loss, new_gradient, new_fisher = model(trial)
            if new_loss < loss:
                gain = loss - new_loss
                theta, loss, gradient, fisher = trial, new_loss, new_gradient, new_fisher
                damping = max(damping / 5, 1e-9)
                if gain < 1e-9 * (1 + abs(loss)):
                    break
            else:
                damping *= 10
                if damping > 1e9:
                    break
        if loss < best[0]:
            best = (loss, theta)
    log_a, b = best[1][:2].tolist()
    a = math.exp(log_a) / spread
    e0, e1 = (np.array(floor) + width * _sigmoid(best[1][2:])).tolist()
    return a, b - a * middle, e0, e1


def _sigmoid(x: FloatArray) -> FloatArray:
    return 0.5 * (1 + np.tanh(0.5 * x))
