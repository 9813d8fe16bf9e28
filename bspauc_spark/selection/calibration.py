"""λ for what is to be kept: a fraction of all rows, or one of each class."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bspauc_spark.errors import BSPAUCWarning, CollapseError, InvalidPaceError
from bspauc_spark.selection.solution import Selection, check_range, solve
from bspauc_spark.selection.stationarity import (
    LAMBDA_FLOOR,
    Balance,
    lambda_of_everything,
    pace_of_classes,
    stationary_points,
    zero_loss_fraction,
)
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.statistics.binned import exact_on_bins

# A kept fraction this close to the one asked for counts as reached.
FRACTION_TOLERANCE = 0.01


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InvalidPaceError(f"{name} must be > 0 and <= 1, not {value}.")


@dataclass(frozen=True)
class Calibration:
    """The selection that keeps what was asked for, or the nearest that can be reached; λ and μ are in it."""

    selection: Selection
    gap: float
    """Distance from what was asked: of ``(V + U)/2``, or the larger one of V's and U's."""

    @property
    def fraction(self) -> float:
        """``(V + U)/2``."""
        return sum(self.selection.fractions) / 2.0

    @property
    def reached(self) -> bool:
        """Whether the gap is negligible."""
        return self.gap <= FRACTION_TOLERANCE


def calibrate(
    pos: OrderedScores, neg: OrderedScores, fraction: float, mu: float | None = None, nu: float | None = None
) -> float:
    """λ with which ``solve``, started from everything, keeps ``(V + U)/2 = fraction``.

    Give either μ, or ν for ``μ = ν·λ``. Warns if the fraction cannot be reached; the λ returned then keeps
    the nearest one that can.
    """
    found = calibrate_fraction(pos, neg, fraction, mu, nu, cold=True)
    if not found.reached:
        warnings.warn(
            f"no lam keeps {fraction:.1%} of these rows; the nearest is {found.fraction:.1%} at "
            f"lam={found.selection.lam:.6g}. Ask for that fraction, or change mu or nu.",
            BSPAUCWarning,
            stacklevel=2,
        )
    return found.selection.lam


@exact_on_bins
def calibrate_fraction(
    pos: OrderedScores,
    neg: OrderedScores,
    fraction: float,
    mu: float | None = None,
    nu: float | None = None,
    cold: bool = False,
) -> Calibration:
    """λ and μ that keep ``(V + U)/2 = fraction``, verified by ``solve``.

    λ is read off the losses at the two thresholds of a block-optimal point. Such a point may be a saddle,
    which ``solve`` leaves; λ is then searched on what ``solve`` itself keeps. Below ρ_min, the fraction that
    costs nothing, ρ_min is kept. ``cold`` verifies with solves that start from everything, not from the
    point found.
    """
    _check_fraction("fraction", fraction)
    balance = _balance(mu, nu)
    tried: list[Calibration] = []

    def attempt(lam: float, start: tuple[float, float] | None = None) -> float:
        """Solve with this λ and remember it; the kept fraction, 0 if a class was emptied."""
        try:
            kept = solve(pos, neg, lam, balance.strength(lam), None if cold else start)
        except CollapseError:
            return 0.0
        half = sum(kept.fractions) / 2.0
        tried.append(Calibration(kept, abs(half - fraction)))
        return half

    # Points far off balance may exist below ρ_min (one positive, all negatives), but K is better at ρ_min.
    free = 0.0 if cold else zero_loss_fraction(pos, neg)
    if fraction <= free:
        attempt(LAMBDA_FLOOR, (free, free))
        # ρ_min itself is found by bisection, so next to nothing may be left of it.
        if tried:
            return tried[0]
    for lam, V, U in stationary_points(pos, neg, fraction, balance):
        attempt(lam, (V, U))
        if tried and tried[-1].reached:
            return tried[-1]
    most = lambda_of_everything(pos, neg)
    if attempt(most) > fraction > attempt(LAMBDA_FLOOR):
        _search(attempt, fraction, np.geomspace(LAMBDA_FLOOR, most, 25).tolist())
        nearest = min(tried, key=lambda one: one.gap)
        if not nearest.reached:
            # What is kept need not grow with λ, since solve may switch basins: look closer.
            _search(attempt, fraction, (nearest.selection.lam * np.geomspace(1 / 3, 3, 49)).tolist())
    return min(tried, key=lambda one: one.gap)


def _balance(mu: float | None, nu: float | None) -> Balance:
    if mu is not None and nu is None:
        check_range("mu", mu)
        return Balance(mu=float(mu))
    if nu is not None and mu is None:
        check_range("nu", nu)
        return Balance(nu=float(nu))
    raise InvalidPaceError("give either mu, or nu for mu = nu * lam.")


def _search(keep: Callable[[float], float], fraction: float, grid: list[float]) -> None:
    """Bisect log λ between points of the grid until ``keep`` gives the fraction, or jumps over it."""
    below = [keep(lam) < fraction for lam in grid]
    for (low, high), (below_low, below_high) in zip(pairwise(grid), pairwise(below), strict=True):
        for _ in range(25 if below_low != below_high else 0):
            lam = math.sqrt(low * high)
            kept = keep(lam)
            if abs(kept - fraction) < FRACTION_TOLERANCE / 10.0:
                return
            low, high = (lam, high) if (kept < fraction) == below_low else (low, lam)


@exact_on_bins
def calibrate_classes(
    pos: OrderedScores,
    neg: OrderedScores,
    positive_fraction: float,
    negative_fraction: float,
    mu: float | None = None,
    nu: float | None = None,
) -> Calibration:
    """λ, μ and the lead δ that keep V of the positives and U of the negatives, verified by ``solve``.

    μ is the given one, or ``ν·λ``, or up to 64 times as much where that does not hold the fractions.

    Without a lead μ pulls both classes to the same fraction, so no λ and μ could keep a third of the positives
    and nearly all negatives: what data need whose positive labels are mostly wrong.
    """
    _check_fraction("positive_fraction", positive_fraction)
    _check_fraction("negative_fraction", negative_fraction)
    weak = _balance(mu, nu)
    check_range("nu" if mu is None else "mu", sum(weak), positive=True)

    def gap(kept: Selection) -> float:
        return max(abs(kept.positive_fraction - positive_fraction), abs(kept.negative_fraction - negative_fraction))

    tried = []
    # A weak balance can make the point a saddle, which solve leaves; a stronger one holds it.
    for times in (1, 4, 16, 64):
        lam, strength, lead = pace_of_classes(pos, neg, positive_fraction, negative_fraction, weak.times(times))
        with suppress(CollapseError):
            kept = solve(pos, neg, lam, strength, (positive_fraction, negative_fraction), lead=lead)
            tried.append(Calibration(kept, gap(kept)))
            if tried[-1].reached:
                break
    if not tried:
        # Only rows that all cost the same leave nothing to hold on to: keep them all.
        everything = calibrate_fraction(pos, neg, 1.0, mu, nu).selection
        return Calibration(everything, gap(everything))
    return min(tried, key=lambda found: found.gap)
