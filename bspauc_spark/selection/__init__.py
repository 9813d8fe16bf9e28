"""Which rows to learn from now: ``solve`` gives v and u for λ and μ, ``calibrate`` the λ for a fraction."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import BSPAUCError, BSPAUCWarning, CollapseError, InvalidPaceError
from bspauc_spark.schema import flag, real, record, whole
from bspauc_spark.selection.alternation import (
    Problem,
    alternate,
    kept_count,
    objective,
    update_u,
    update_v,
)
from bspauc_spark.selection.stationarity import (
    LAMBDA_FLOOR,
    Balance,
    lambda_of_everything,
    pace_of_classes,
    stationary_points,
    zero_loss_fraction,
)
from bspauc_spark.statistics import OrderedScores, Ranking, as_scores
from bspauc_spark.statistics.binned import exact_on_bins

__all__ = [
    "Calibration",
    "Selection",
    "calibrate",
    "calibrate_classes",
    "calibration",
    "solve",
    "update_u",
    "update_v",
]

# A kept fraction this close to the one asked for counts as reached.
FRACTION_TOLERANCE = 0.01
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Selection:
    """v and u as four numbers, hence a pure function of label and score.

    A positive has weight 1 above ``tau_positive``, ``phi_positive`` exactly on it and 0 below; a negative
    1 below ``tau_negative``, ``phi_negative`` on it and 0 above. Rows that tie at a threshold share its one
    fractional weight equally, which leaves K unchanged.
    """

    tau_positive: float
    phi_positive: float
    tau_negative: float
    phi_negative: float
    lam: float
    mu: float
    positive_fraction: float
    negative_fraction: float
    iterations: int
    converged: bool
    lead: float = 0.0
    scores: tuple[OrderedScores, OrderedScores] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def everything(cls, pos: OrderedScores, neg: OrderedScores, lam: float = 0.0, mu: float = 0.0) -> Selection:
        """Every row with weight 1, whatever its score: not self-paced."""
        return cls(-_LARGEST, 1.0, _LARGEST, 1.0, lam, mu, 1.0, 1.0, 0, True, scores=(pos, neg))

    @property
    def apd(self) -> float:
        """The paper's absolute proportion difference, ``|V − U|``."""
        return abs(self.positive_fraction - self.negative_fraction)

    @cached_property
    def objective(self) -> float:
        """``K(v,u)``; computed when first asked for, since it costs more than the selection itself."""
        if self.scores is None:
            raise BSPAUCError("this selection was stored without its objective: use to_dict(objective=True).")
        V, U = self.positive_fraction, self.negative_fraction
        return objective(*self.scores, V, U, self.lam, self.mu, self.lead)

    def positive_weights(self, scores: ArrayLike) -> FloatArray:
        """Weights v of positives with these scores, in the order given."""
        s = as_scores(scores)
        return np.where(s == self.tau_positive, self.phi_positive, (s > self.tau_positive).astype(np.float64))

    def negative_weights(self, scores: ArrayLike) -> FloatArray:
        """Weights u of negatives with these scores, in the order given."""
        s = as_scores(scores)
        return np.where(s == self.tau_negative, self.phi_negative, (s < self.tau_negative).astype(np.float64))

    def to_dict(self, objective: bool = True) -> dict[str, Any]:
        """Plain numbers, for JSON; ``objective=False`` spares its computation."""
        plain = {name: value for name, value in vars(self).items() if name not in ("scores", "objective")}
        return {**plain, "objective": self.objective} if objective else plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], where: str = "selection") -> Selection:
        """The selection that :meth:`to_dict` wrote; ``MalformedError`` names the place ``where`` something is wrong."""
        values = _STORED(plain, where)
        known = values.pop("objective", None)
        selection = cls(**values)
        if known is not None:
            vars(selection)["objective"] = known
        return selection

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Selection], tuple[dict[str, Any]]]:
        # The scores of a whole data set must not travel with four numbers.
        available = self.scores is not None or "objective" in vars(self)
        return Selection.from_dict, (self.to_dict(objective=available),)


_STORED = record(
    {
        **dict.fromkeys(("tau_positive", "tau_negative"), real()),
        **dict.fromkeys(("phi_positive", "phi_negative"), real(0.0, 1.0)),
        **dict.fromkeys(("positive_fraction", "negative_fraction"), real(0.0, 1.0)),
        **dict.fromkeys(("lam", "mu"), real(0.0)),
        "iterations": whole(),
        "converged": flag,
    },
    optional={"lead": real(), "objective": real()},
)


def _threshold(ranking: Ranking, fraction: float) -> tuple[float, float]:
    """Score at the threshold, and the weight that its ties share."""
    kept = kept_count(fraction, len(ranking))
    hardness = ranking.hardness(math.ceil(kept) - 1)
    easier, at_most = ranking.count_below(hardness), ranking.count_at_most(hardness)
    score = -hardness if ranking.positive else hardness
    return score, (kept - easier) / (at_most - easier)


@exact_on_bins
def solve(
    pos: OrderedScores,
    neg: OrderedScores,
    lam: float,
    mu: float,
    start: tuple[float, float] | None = None,
    max_updates: int = 1000,
    tol: float = 1e-9,
    lead: float = 0.0,
) -> Selection:
    """Alternate the closed forms of v and u to a point that is optimal in each of them.

    Parameters
    ----------
    pos, neg
        Scores of the two classes.
    lam
        λ > 0: the larger, the more rows.
    mu
        μ ≥ 0: the larger, the more equal the kept fractions of the classes.
    start
        Fractions (V, U) to start from; everything if not given.
    max_updates
        Closed-form updates after which to stop; ``converged`` is then False.
    tol
        Stop when V and U move less than this.
    lead
        δ: μ pulls V − U to this; 0 is the paper's balance.

    Raises
    ------
    CollapseError
        One class was emptied.
    """
    _check_range("lam", lam, positive=True)
    _check_range("mu", mu)
    V, U = (1.0, 1.0) if start is None else start
    if not (0.0 <= V <= 1.0 and 0.0 <= U <= 1.0):
        raise InvalidPaceError(f"start must be two fractions between 0 and 1, not {start}.")
    problem = Problem.of(pos, neg, float(lam), float(mu), float(lead))
    for point in alternate(problem, (float(V), float(U)), max_updates, tol):
        V, U, updates, converged = point
    emptied = [
        name
        for name, fraction, size in (("positive", V, len(pos)), ("negative", U, len(neg)))
        if kept_count(fraction, size) <= 0.0
    ]
    if emptied:
        raise CollapseError(
            f"the selection keeps no {emptied[0]} row at lam={lam:.6g}, mu={mu:.6g}: even the easiest one "
            "costs more than it earns. Raise lambdaInit or paceStart, raise nu or mu (with mu above 0.25 an "
            "untrained network cannot collapse), or pretrain longer."
        )
    return Selection(
        *_threshold(problem.pos, V),
        *_threshold(problem.neg, U),
        lam=float(lam),
        mu=float(mu),
        lead=float(lead),
        positive_fraction=V,
        negative_fraction=U,
        iterations=updates,
        converged=converged,
        scores=(pos, neg),
    )


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InvalidPaceError(f"{name} must be > 0 and <= 1, not {value}.")


def _check_range(name: str, value: float, positive: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0.0 if positive else value >= 0.0)):
        raise InvalidPaceError(f"{name} must be finite and {'> 0' if positive else '>= 0'}, not {value}.")


class Calibration(NamedTuple):
    """λ and μ that keep what was asked for, or the nearest that can be reached."""

    lam: float
    mu: float
    start: tuple[float, float]
    """(V, U) that ``solve`` keeps at this λ and μ; start it there to get them again."""
    fraction_reached: float
    """``(V + U)/2`` of ``start``."""
    gap: float
    """Distance from what was asked: of ``(V + U)/2``, or the larger one of V's and U's."""
    lead: float = 0.0
    """δ: by how much μ lets V exceed U; 0 is the paper's balance."""

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
    found = calibration(pos, neg, fraction, mu, nu, cold=True)
    if not found.reached:
        warnings.warn(
            f"no lam keeps {fraction:.1%} of these rows; the nearest is {found.fraction_reached:.1%} at "
            f"lam={found.lam:.6g}. Ask for that fraction, or change mu or nu.",
            BSPAUCWarning,
            stacklevel=2,
        )
    return found.lam


@exact_on_bins
def calibration(
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
        tried.append(_of_selection(kept, lambda V, U: abs((V + U) / 2.0 - fraction)))
        return tried[-1].fraction_reached

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
            _search(attempt, fraction, (nearest.lam * np.geomspace(1 / 3, 3, 49)).tolist())
    return min(tried, key=lambda one: one.gap)


def _of_selection(kept: Selection, gap: Callable[[float, float], float]) -> Calibration:
    V, U = kept.positive_fraction, kept.negative_fraction
    return Calibration(kept.lam, kept.mu, (V, U), (V + U) / 2.0, gap(V, U), kept.lead)


def _balance(mu: float | None, nu: float | None) -> Balance:
    if mu is not None and nu is None:
        _check_range("mu", mu)
        return Balance(mu=float(mu))
    if nu is not None and mu is None:
        _check_range("nu", nu)
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
    pos: OrderedScores, neg: OrderedScores, positive_fraction: float, negative_fraction: float, nu: float
) -> Calibration:
    """λ, ``μ ≥ ν·λ`` and the lead δ that keep V of the positives and U of the negatives, verified by ``solve``.

    Without a lead μ pulls both classes to the same fraction, so no λ and μ could keep a third of the positives
    and nearly all negatives: what data need whose positive labels are mostly wrong.
    """
    _check_fraction("positive_fraction", positive_fraction)
    _check_fraction("negative_fraction", negative_fraction)
    _check_range("nu", nu, positive=True)

    def gap(V: float, U: float) -> float:
        return max(abs(V - positive_fraction), abs(U - negative_fraction))

    tried = []
    # A weak balance can make the point a saddle, which solve leaves; a stronger one holds it.
    for strength in (nu, 4 * nu, 16 * nu, 64 * nu):
        lam, mu, lead = pace_of_classes(pos, neg, positive_fraction, negative_fraction, strength)
        with suppress(CollapseError):
            kept = solve(pos, neg, lam, mu, (positive_fraction, negative_fraction), lead=lead)
            tried.append(_of_selection(kept, gap))
            if tried[-1].reached:
                break
    if not tried:
        # Only rows that all cost the same leave nothing to hold on to: keep them all.
        everything = calibration(pos, neg, 1.0, nu=nu)
        return everything._replace(gap=gap(*everything.start))
    return min(tried, key=lambda found: found.gap)
