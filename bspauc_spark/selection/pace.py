"""The learning pace: λ and μ of each round, and the rows that it keeps for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bspauc_spark.selection.calibration import calibrate_classes, calibrate_fraction
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.selection.solution import Selection, solve
from bspauc_spark.statistics import OrderedScores

# So few wrong labels do no harm, but the rows left out for them would be the hardest ones, which teach most: where
# positives are very rare, a handful of negatives that score high look just like it.
_LEAST_WRONG = 0.005
# However wrong the labels look, some rows must be left to learn from.
_LEAST_FRACTION = 0.02
# Fractions that differ by class are held by the balance term, so it cannot be off.
_LEAST_PULL = 1e-3


class Pace(Protocol):
    """Which rows each round keeps."""

    def select(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> Selection:
        """The rows of round ``t = 1, 2, …``, given the scores that it starts from and the rows of the round before."""


class EveryRow:
    """Keeps all rows in all rounds: not self-paced."""

    def select(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> Selection:
        """Every row."""
        return Selection.everything(pos, neg)


def ramp(t: int, rounds: int) -> float:
    """0 in the first round, 1 in the last, linear between."""
    return (t - 1) / (rounds - 1) if rounds > 1 else 1.0


@dataclass(frozen=True)
class FractionPace:
    """The kept fraction ``(V + U)/2`` rises linearly from ``first`` to ``last``; λ follows from it.

    λ has the scale of the losses, which fall as θ trains, so it is not monotone here and must not be forced to
    be: an old, larger λ would select nearly everything.
    """

    first: float
    last: float
    rounds: int
    nu: float
    mu: float | None = None

    def select(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> Selection:
        """The rows of this round's fraction."""
        fraction = self.first + (self.last - self.first) * ramp(t, self.rounds)
        nu = self.nu if self.mu is None else None
        return calibrate_fraction(pos, neg, fraction, mu=self.mu, nu=nu).selection


@dataclass(frozen=True)
class AutomaticPace:
    """Of each class all rows are kept but its estimated share of wrong labels, estimated anew each round.

    With ``first`` the fractions rise from it, otherwise they are so from the first round on: half of the rows are
    soon a margin apart and teach nothing more, so a slow start mostly wastes rounds (docs/defaults.md).
    """

    first: float | None
    rounds: int
    nu: float
    mu: float | None = None
    guess: bool = False
    """Leave out what only may be wrong, too: where a verdict decides afterwards whether that pays."""

    def select(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> Selection:
        """The rows of this round's fractions of both classes."""
        wrong = estimate_label_noise(pos, neg, self.guess).wrong_shares
        V, U = (self._fraction(_believed(share), t) for share in wrong)
        if self.mu is not None:
            return calibrate_classes(pos, neg, V, U, mu=max(self.mu, _LEAST_PULL)).selection
        return calibrate_classes(pos, neg, V, U, nu=max(self.nu, _LEAST_PULL)).selection

    def _fraction(self, last: float, t: int) -> float:
        if self.first is None:
            return last
        return self.first + (last - self.first) * ramp(t, self.rounds)


def _believed(wrong_share: float) -> float:
    return 1.0 if wrong_share < _LEAST_WRONG else max(1.0 - wrong_share, _LEAST_FRACTION)


@dataclass(frozen=True)
class ExplicitPace:
    """Algorithm 1, line 8: ``λ_t = min(c·λ_{t−1}, λ_∞)``, or linear; ``μ = ν·λ_∞`` unless given.

    Without ``first`` the λ of round 1 is the one that keeps ``fraction`` of the rows.
    """

    first: float | None
    largest: float
    rounds: int
    growth: float | None
    mu: float
    fraction: float

    def select(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> Selection:
        """The rows that this round's λ keeps; ``solve`` starts from those of the round before, in round 1 from all."""
        start = None if previous is None else previous.fractions
        return solve(pos, neg, self._lam(t, pos, neg, previous), self.mu, start)

    def _lam(self, t: int, pos: OrderedScores, neg: OrderedScores, previous: Selection | None) -> float:
        if previous is None:
            if self.first is None:
                return min(calibrate_fraction(pos, neg, self.fraction, mu=self.mu).selection.lam, self.largest)
            return self.first if self.growth is None else min(self.first, self.largest)
        if self.growth is not None:
            return min(self.growth * previous.lam, self.largest)
        # What is left to rise, shared evenly among the rounds that are left.
        return previous.lam + (self.largest - previous.lam) / (self.rounds - t + 1)
