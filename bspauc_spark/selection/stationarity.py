"""For which λ and μ given fractions (V, U) are optimal in both blocks: what calibration inverts.

At a split row in each class, ``l⁺ = λ − 2μ(V − U)`` and ``l⁻ = λ + 2μ(V − U)`` for the losses at the two
thresholds. At a whole rank the loss is an interval, from the last row kept to the first one left out; where
all rows are kept it has no upper end. Treating all three as intervals leaves no special cases.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bspauc_spark.selection.alternation import Problem, threshold_losses
from bspauc_spark.statistics import OrderedScores

# Rows a full margin apart have loss 0 and stay for any λ > 0. The margin is 1, so this λ is next to none.
LAMBDA_FLOOR = 1e-6
_GRID = 33
_MOST_POINTS = 4


class Balance(NamedTuple):
    """The pull between the classes: μ given, or ``μ = ν·λ``; the other one is 0."""

    mu: float = 0.0
    nu: float = 0.0

    def strength(self, lam: float) -> float:
        """μ at this λ."""
        return self.mu + self.nu * lam

    def times(self, factor: float) -> Balance:
        """A pull so many times as strong."""
        return Balance(self.mu * factor, self.nu * factor)

    def lam(self, loss: float, lead: float) -> float:
        """λ for which a class that leads the other's fraction by ``lead`` has this threshold loss.

        ``loss = λ − 2μ·lead``; inf where no λ does.
        """
        factor = 1.0 - 2.0 * self.nu * lead
        return (loss + 2.0 * self.mu * lead) / factor if factor > 0.0 else math.inf


class LambdaRange(NamedTuple):
    """The λ that suit both classes, from ``low`` to ``high``; none if ``side`` is not 0."""

    low: float
    high: float
    side: int
    """1 if the positives ask for a larger λ than the negatives allow, −1 the other way round."""

    @property
    def middle(self) -> float:
        """A λ inside; just above ``low`` where there is no upper end, and never nothing."""
        inside = self.low * (1.0 + 1e-6) if math.isinf(self.high) else (self.low + self.high) / 2.0
        return max(inside, LAMBDA_FLOOR)


def lambda_range(problem: Problem, V: float, U: float, balance: Balance) -> LambdaRange:
    """Which λ make (V, U) optimal in both blocks; ``problem``'s own λ and μ do not matter."""
    low_v, high_v = (balance.lam(x, V - U) for x in threshold_losses(problem.pos, problem.neg, V, U))
    low_u, high_u = (balance.lam(x, U - V) for x in threshold_losses(problem.neg, problem.pos, U, V))
    side = 1 if low_v > high_u else -1 if high_v < low_u else 0
    return LambdaRange(max(low_v, low_u), min(high_v, high_u), side)


def lambda_of_everything(pos: OrderedScores, neg: OrderedScores) -> float:
    """A λ that keeps every row, whatever μ is."""
    return lambda_range(Problem.of(pos, neg), 1.0, 1.0, Balance()).middle


def zero_loss_fraction(pos: OrderedScores, neg: OrderedScores) -> float:
    """``ρ_min``: the largest fraction of both classes, easiest rows first, that is a full margin apart.

    These rows have loss 0 and stay selected for any λ > 0, so no λ balances the classes below it.
    """
    problem = Problem.of(pos, neg)
    low, high = 0.0, 1.0
    if threshold_losses(problem.pos, problem.neg, 1.0, 1.0)[0] == 0.0:
        return 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2.0
        free = threshold_losses(problem.pos, problem.neg, middle, middle)[0] <= 0.0
        low, high = (middle, high) if free else (low, middle)
    return low


def stationary_points(
    pos: OrderedScores, neg: OrderedScores, fraction: float, balance: Balance
) -> list[tuple[float, float, float]]:
    """``(λ, V, U)`` of up to four block-optimal points with ``V + U = 2·fraction``, most balanced first.

    The more V exceeds U, the more λ do positives ask for, and the less negatives, so a minimum is where
    the first demand overtakes the second. That can happen more than once, hence a grid before bisection.
    """
    problem = Problem.of(pos, neg)
    total = 2.0 * fraction

    def at(V: float) -> LambdaRange:
        return lambda_range(problem, V, min(max(total - V, 0.0), 1.0), balance)

    grid: list[float] = np.linspace(max(0.0, total - 1.0), min(1.0, total), _GRID).tolist()
    sides = [at(V).side for V in grid]
    found = [V for V, side in zip(grid, sides, strict=True) if side == 0]
    for (a, b), (side_a, side_b) in zip(pairwise(grid), pairwise(sides), strict=True):
        if side_a < 0 < side_b:
            while b - a > 1e-15:
                V = (a + b) / 2.0
                side = at(V).side
                a, b = (V, b) if side < 0 else (a, V) if side > 0 else (V, V)
            found.append((a + b) / 2.0)
    inside = sorted((V for V in found if 0.0 < V < total), key=lambda V: abs(2.0 * V - total))
    ranges = [(V, at(V)) for V in inside[:_MOST_POINTS]]
    return [(at_v.middle, V, total - V) for V, at_v in ranges if math.isfinite(at_v.low)]


def pace_of_classes(
    pos: OrderedScores, neg: OrderedScores, V: float, U: float, balance: Balance
) -> tuple[float, float, float]:
    """λ, μ and the lead δ for which (V, U) is optimal in both blocks.

    ``l⁺ = λ − 2μ(V − U − δ)`` and ``l⁻ = λ + 2μ(V − U − δ)`` give ``λ = (l⁺ + l⁻)/2`` and
    ``δ = V − U − (l⁻ − l⁺)/4μ``: whatever the fractions, there is such a pace.
    """
    problem = Problem.of(pos, neg)
    at_v = _inside(*threshold_losses(problem.pos, problem.neg, V, U))
    at_u = _inside(*threshold_losses(problem.neg, problem.pos, U, V))
    lam = max((at_v + at_u) / 2.0, LAMBDA_FLOOR)
    mu = balance.strength(lam)
    return lam, mu, V - U - (at_u - at_v) / (4.0 * mu)


def _inside(low: float, high: float) -> float:
    """A threshold between two losses; just above the first where all rows are kept."""
    return low * (1.0 + 1e-6) + LAMBDA_FLOOR if math.isinf(high) else (low + high) / 2.0
