"""v and u as four numbers, and ``solve``, which finds them for λ and μ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import BSPAUCError, CollapseError, InvalidPaceError
from bspauc_spark.schema import flag, real, record, whole
from bspauc_spark.selection.alternation import (
    Problem,
    alternate,
    kept_count,
    objective,
)
from bspauc_spark.statistics import OrderedScores, Ranking, as_scores
from bspauc_spark.statistics.binned import exact_on_bins

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
    def fractions(self) -> tuple[float, float]:
        """(V, U): ``solve`` can start from them."""
        return self.positive_fraction, self.negative_fraction

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
    check_range("lam", lam, positive=True)
    check_range("mu", mu)
    V, U = (1.0, 1.0) if start is None else start
    if not (0.0 <= V <= 1.0 and 0.0 <= U <= 1.0):
        raise InvalidPaceError(f"start must be two fractions between 0 and 1, not {start}.")
    problem = Problem.of(pos, neg, float(lam), float(mu), float(lead))
    # The first update is that of v, so V itself is never read.
    for point in alternate(problem, float(U), max_updates, tol):
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


def solve_again(last: Selection, pos: OrderedScores, neg: OrderedScores) -> Selection:
    """What the λ and μ of ``last`` keep at these scores.

    If they would empty a class, the thresholds of ``last`` stay. A selection of everything has no λ, and keeps
    everything again.
    """
    if last.lam == 0.0:
        return Selection.everything(pos, neg)
    try:
        return solve(pos, neg, last.lam, last.mu, last.fractions, lead=last.lead)
    except CollapseError:
        return replace(last, scores=(pos, neg))


def check_range(name: str, value: float, positive: bool = False) -> None:
    """Refuse what is not finite, negative, or with ``positive`` 0."""
    if not (math.isfinite(value) and (value > 0.0 if positive else value >= 0.0)):
        raise InvalidPaceError(f"{name} must be finite and {'> 0' if positive else '>= 0'}, not {value}.")
