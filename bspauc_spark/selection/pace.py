"""The learning pace: which λ and μ each round uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from bspauc_spark.selection import Calibration, calibrate_classes, calibration
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import OrderedScores


@dataclass(frozen=True)
class PaceStep:
    """λ, μ and lead δ of one round, and the (V, U) to start ``solve`` from; none: where the last round ended."""

    lam: float
    mu: float
    start: tuple[float, float] | None = None
    lead: float = 0.0

    @classmethod
    def of(cls, found: Calibration) -> PaceStep:
        """The step that a calibration asks for."""
        return cls(found.lam, found.mu, found.start, found.lead)


# So few wrong labels do no harm, but the rows left out for them would be the hardest ones, which teach most: where
# positives are very rare, a handful of negatives that score high look just like it.
_LEAST_WRONG = 0.005
# However wrong the labels look, some rows must be left to learn from.
_LEAST_FRACTION = 0.02
# Fractions that differ by class are held by the balance term, so it cannot be off.
_LEAST_NU = 1e-3
_LARGEST_EXPONENT = 700.0


class Pace(Protocol):
    """What each round's λ and μ are."""

    def at(self, t: int, pos: OrderedScores, neg: OrderedScores) -> PaceStep:
        """The pace of round ``t = 1, 2, …``, given the scores it starts from."""


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

    def at(self, t: int, pos: OrderedScores, neg: OrderedScores) -> PaceStep:
        """The λ that keeps this round's fraction."""
        fraction = self.first + (self.last - self.first) * ramp(t, self.rounds)
        if self.mu is not None:
            return PaceStep.of(calibration(pos, neg, fraction, mu=self.mu))
        return PaceStep.of(calibration(pos, neg, fraction, nu=self.nu))


@dataclass(frozen=True)
class AutomaticPace:
    """Of each class all rows are kept but its estimated share of wrong labels, estimated anew each round.

    With ``first`` the fractions rise from it, otherwise they are so from the first round on: half of the rows are
    soon a margin apart and teach nothing more, so a slow start mostly wastes rounds (docs/defaults.md).
    """

    first: float | None
    rounds: int
    nu: float

    def at(self, t: int, pos: OrderedScores, neg: OrderedScores) -> PaceStep:
        """λ and μ that keep this round's fractions of both classes."""
        wrong = estimate_label_noise(pos, neg).wrong_shares
        V, U = (self._fraction(_believed(share), t) for share in wrong)
        return PaceStep.of(calibrate_classes(pos, neg, V, U, max(self.nu, _LEAST_NU)))

    def _fraction(self, last: float, t: int) -> float:
        if self.first is None:
            return last
        return self.first + (last - self.first) * ramp(t, self.rounds)


def _believed(wrong_share: float) -> float:
    return 1.0 if wrong_share < _LEAST_WRONG else max(1.0 - wrong_share, _LEAST_FRACTION)


@dataclass
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

    def at(self, t: int, pos: OrderedScores, neg: OrderedScores) -> PaceStep:
        """The λ of the schedule; ``solve`` starts where the last round ended, in round 1 from everything."""
        if self.first is None:
            self.first = min(calibration(pos, neg, self.fraction, mu=self.mu).lam, self.largest)
        if self.growth is not None:
            # A power beyond all floats is an error in Python, and beyond λ_∞ here.
            beyond = (t - 1) * math.log(self.growth) > _LARGEST_EXPONENT
            lam = self.largest if beyond else min(self.first * self.growth ** (t - 1), self.largest)
        else:
            lam = self.first + (self.largest - self.first) * ramp(t, self.rounds)
        return PaceStep(lam, self.mu)
