"""The closed-form v- and u-updates, and their alternation to a block-optimal point.

``K(v,u) = (1/nm) Σ v_i u_j ξ_ij − λ(V + U) + μ(V − U − δ)²`` with ``V = mean(v)``, ``U = mean(u)`` is the paper's
objective with θ fixed. The paper's δ is 0: both classes are kept in equal proportions. A lead δ of the positives
serves data whose classes are not equally clean, and changes no proof, since each block stays convex. v keeps the
top-scoring positives and u the bottom-scoring negatives, so the two fractions V and U say everything about them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bspauc_spark.statistics import OrderedScores, Ranking, loss_sum, pair_sum

_PLAIN_ROUNDS = 8
_JUMP_UPDATES = 60
_STEPS = 32


def kept_count(fraction: float, size: int) -> float:
    """``fraction · size``, made whole where only rounding keeps it from being so.

    Without that a row beyond the threshold would be selected with a weight of 1e-10.
    """
    count = fraction * size
    whole = float(round(count))
    return whole if abs(count - whole) <= 1e-12 + 1e-14 * size else count


def threshold_losses(
    own: Ranking, opposite: Ranking, own_fraction: float, opposite_fraction: float
) -> tuple[float, float]:
    """Loss of the last member kept and of the first one left out; one and the same if that is split.

    ``−inf`` and ``inf`` stand for the member that does not exist when none or all are kept.
    """
    kept = kept_count(own_fraction, len(own))
    opposite_kept = kept_count(opposite_fraction, len(opposite))
    last, first_out = math.ceil(kept) - 1, math.floor(kept)
    low = opposite.loss(own.hardness(last), opposite_kept) if kept > 0 else -math.inf
    if last == first_out:
        return low, low
    return low, opposite.loss(own.hardness(first_out), opposite_kept) if kept < len(own) else math.inf


def _update(own: Ranking, opposite: Ranking, opposite_fraction: float, balanced: float, lam: float, mu: float) -> float:
    """Minimise K over one class's weights, as a binary search; ``balanced`` is the fraction that μ pulls to."""
    size = len(own)
    opposite_kept = kept_count(opposite_fraction, len(opposite))

    def excess(rank: int) -> float:
        loss = opposite.loss(own.hardness(rank), opposite_kept)
        return loss - lam + 2.0 * mu * ((rank + 1) / size - balanced)

    # l_p < λ − 2μ(p/n − U) holds up to some p and fails from there on: excess is increasing.
    first_failing = bisect_left(range(size), 0.0, key=excess)
    if first_failing == size:
        return 1.0
    if mu == 0.0:
        return first_failing / size
    loss = opposite.loss(own.hardness(first_failing), opposite_kept)
    stationary = balanced - (loss - lam) / (2.0 * mu)
    return min(max(stationary, first_failing / size), (first_failing + 1) / size)


def update_v(
    pos: OrderedScores, neg: OrderedScores, negative_fraction: float, lam: float, mu: float, lead: float = 0.0
) -> float:
    """V of the v that minimises K while u keeps ``negative_fraction`` (the paper's closed form of v)."""
    return Problem.of(pos, neg, lam, mu, lead).v(negative_fraction)


def update_u(
    pos: OrderedScores, neg: OrderedScores, positive_fraction: float, lam: float, mu: float, lead: float = 0.0
) -> float:
    """U of the u that minimises K while v keeps ``positive_fraction`` (the paper's closed form of u)."""
    return Problem.of(pos, neg, lam, mu, lead).u(positive_fraction)


def objective(
    pos: OrderedScores,
    neg: OrderedScores,
    positive_fraction: float,
    negative_fraction: float,
    lam: float,
    mu: float,
    lead: float = 0.0,
) -> float:
    """``K(v,u)`` at the given fractions, in O(n log m) over the class that keeps fewer."""
    pairs = pair_sum(pos, neg, kept_count(positive_fraction, len(pos)), kept_count(negative_fraction, len(neg)))
    balance = positive_fraction - negative_fraction - lead
    return pairs / len(pos) / len(neg) - lam * (positive_fraction + negative_fraction) + mu * balance * balance


@dataclass(frozen=True)
class Problem:
    """Both classes, easiest first, with λ, μ and the positives' lead δ: all that the updates need."""

    pos: Ranking
    neg: Ranking
    lam: float
    mu: float
    lead: float = 0.0

    @classmethod
    def of(
        cls, pos: OrderedScores, neg: OrderedScores, lam: float = 0.0, mu: float = 0.0, lead: float = 0.0
    ) -> Problem:
        """The problem of these scores."""
        return cls(Ranking(pos, positive=True), Ranking(neg, positive=False), lam, mu, lead)

    def v(self, negative_fraction: float) -> float:
        """The v-update."""
        return _update(self.pos, self.neg, negative_fraction, negative_fraction + self.lead, self.lam, self.mu)

    def u(self, positive_fraction: float) -> float:
        """The u-update."""
        return _update(self.neg, self.pos, positive_fraction, positive_fraction - self.lead, self.lam, self.mu)

    def slope(self, V: float, U: float) -> float:
        """Where K wants V to go with U at its best: by the envelope theorem ``l⁺ − λ + 2μ(V − U − δ)``.

        l⁺ jumps from one positive to the next, so this is an interval; returned is its end nearest to 0,
        or 0 where it holds 0.
        """
        low, high = threshold_losses(self.pos, self.neg, V, U)
        shift = 2.0 * self.mu * (V - U - self.lead) - self.lam
        return max(low + shift, 0.0) + min(high + shift, 0.0)

    def lowers(self, old: tuple[float, float], new: tuple[float, float]) -> bool:
        """Whether ``K(new) < K(old)``, from the losses of the rows in between alone.

        Exact where K itself would round the difference away. A bound in O(log n log m) decides most cases.
        """
        (old_v, old_u), (new_v, new_u) = old, new
        old_d, new_d = old_v - old_u - self.lead, new_v - new_u - self.lead
        rest = self.mu * (new_d - old_d) * (new_d + old_d) - self.lam * (new_v - old_v + new_u - old_u)
        return any(
            rest + mean(self.pos, old_v, new_v, self.neg, old_u) + mean(self.neg, old_u, new_u, self.pos, new_v) < 0.0
            for mean in (_most_gained, _gained)
        )


def _gained(own: Ranking, old: float, new: float, opposite: Ranking, opposite_fraction: float) -> float:
    """What K's pair term gains when ``own`` goes from keeping ``old`` to keeping ``new``."""
    first, last = sorted((kept_count(old, len(own)), kept_count(new, len(own))))
    total = loss_sum(own, first, last, opposite, kept_count(opposite_fraction, len(opposite)))
    return math.copysign(total / len(own), new - old)


def _most_gained(own: Ranking, old: float, new: float, opposite: Ranking, opposite_fraction: float) -> float:
    """An upper bound of ``_gained``: losses grow with the rank, so the far end of a step bounds it."""
    edges = np.linspace(old, new, _STEPS + 1)[1:].tolist()
    ends = (threshold_losses(own, opposite, edge, opposite_fraction)[int(new < old)] for edge in edges)
    # A step too short to hold a row may end where there is none, at ±inf.
    return sum(loss for loss in ends if math.isfinite(loss)) * (new - old) / _STEPS


class Point(NamedTuple):
    """Where the alternation stands after ``updates`` closed-form updates."""

    V: float
    U: float
    updates: int
    converged: bool = False


def alternate(
    problem: Problem,
    U: float = 1.0,
    max_updates: int = 1000,
    tol: float = 1e-9,
    accelerate: bool = True,
) -> Iterator[Point]:
    """Update v and u in turn, from u at ``U``, until they stand still; K never increases from one point to the next.

    In the last point U is optimal for V, and V within ``tol`` of optimal for U. Plain alternation can creep
    (large μ, small λ), so after some rounds V jumps to the next minimum of ``K(V, U(V))``, if K falls.
    """
    V = problem.v(U)
    yield Point(V, U, 1)
    U = problem.u(V)
    yield Point(V, U, 2)
    updates, rounds, last_move = 2, 0, math.inf
    while updates < max_updates:
        better = problem.v(U)
        move = abs(better - V)
        updates, rounds = updates + 1, rounds + 1
        # Fast convergence is followed down to rounding: it is cheap, and every weight is then exact.
        if move <= 1e-15 or (move < tol and move > last_move / 2):
            yield Point(V, U, updates, converged=True)
            return
        if accelerate and rounds % _PLAIN_ROUNDS == 0 and move > last_move / 4:
            jump_v, jump_u, used = _jump(problem, V, U, better)
            updates += used
            if problem.lowers((V, U), (jump_v, jump_u)):
                V, U, last_move = jump_v, jump_u, math.inf
                yield Point(V, U, updates)
                continue
        V = better
        yield Point(V, U, updates)
        U = problem.u(V)
        updates += 1
        yield Point(V, U, updates)
        last_move = move


def _jump(problem: Problem, V: float, U: float, better: float) -> tuple[float, float, int]:
    """Find a minimum of ``K(V, U(V))`` beyond ``better``: expand until its slope turns, then close in."""
    best_u = {V: U}

    def slope(x: float) -> float:
        best_u[x] = problem.u(x)
        return problem.slope(x, best_u[x])

    size = len(problem.pos)
    a, at_a = V, problem.slope(V, U)
    b = better
    at_b = slope(b)
    # Signs are compared without a product, which would be 0 for slopes of 1e-200.
    while (min(at_a, at_b) > 0.0 or max(at_a, at_b) < 0.0) and len(best_u) < _JUMP_UPDATES:
        # The secant's guess, a little further so that the slope turns, within bounds.
        gain = at_a / at_b - 1.0
        reach = min(max(1.1 / gain if gain > 0.0 else math.inf, 2.0), 32.0) * (b - a)
        a, at_a = b, at_b
        b = min(max(b + reach, 0.0), 1.0)
        at_b = slope(b)
    halve = False
    while at_b != 0.0 and abs(b - a) > 1e-15 and len(best_u) < _JUMP_UPDATES:
        width = abs(b - a)
        x = (a + b) / 2.0 if halve else b - at_b * (b - a) / (at_b - at_a)
        # Minima sit on whole ranks as a rule, where l⁺ jumps: try those as long as there are any between.
        whole = round(x * size) / size
        if min(a, b) < whole < max(a, b):
            x = whole
        if x in best_u:
            x = (a + b) / 2.0
        at_x = slope(x)
        if (at_x > 0.0) == (at_b > 0.0) or at_x == 0.0:
            b, at_b = x, at_x
        else:
            a, at_a = x, at_x
        halve = abs(b - a) > width / 2.0
    return b, best_u[b], len(best_u)
