"""The sorted scores of one class, and sums over all pairs of two classes without an n × m table.

With θ fixed, the loss of a row depends on its score alone and is monotone in it. So the order of the losses is the
order of the scores: a selection keeps the positives with the highest scores and the negatives with the lowest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import InvalidScoresError

ScoreArray: TypeAlias = NDArray[np.float32]
CountArray: TypeAlias = NDArray[np.int64]

GROUP = 1024
_CHUNK = 1 << 16
_LARGEST = float(np.finfo(np.float32).max)


def as_scores(scores: ArrayLike) -> ScoreArray:
    """Scores as float32, which sorting, thresholds and weights all use."""
    with np.errstate(over="ignore"):
        return np.asarray(scores).astype(np.float32, copy=False)


class OrderedScores(Protocol):
    """The scores of one class in ascending order, sorted or in bins; ranks count from 0.

    Where scores are held in bins, methods whose names begin with ``rough_`` may be wrong by the rows of one bin.
    """

    def __len__(self) -> int:
        """The number of scores."""

    def at(self, rank: int) -> float:
        """The score at this rank."""

    def many(self, ranks: CountArray) -> ScoreArray:
        """The scores at these ranks."""

    def count_below(self, x: float) -> int:
        """How many scores are < x, exactly, for any float64 x."""

    def count_at_most(self, x: float) -> int:
        """How many scores are ≤ x, exactly, for any float64 x."""

    def counts_at_most(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_at_most`` for an array."""

    def rough_below(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_below`` for an array."""

    def rough_at_most(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_at_most`` for an array."""

    def range_sum(self, first: int, last: int) -> float:
        """Sum of the scores at ranks ``first`` to ``last - 1``, in float64."""

    def segment_sums(self, edges: CountArray) -> FloatArray:
        """The sum between each two consecutive ranks of ``edges``, which must not fall."""

    def points(self, first: float, last: float) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The scores from position ``first`` to ``last``, part by part, with their weights; ends may be fractional."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassScores:
    """The scores of one class, ascending, with sums over groups of 1,024.

    Build it with :meth:`from_array` or :meth:`merge`: the constructor does not check its argument.
    """

    sorted: ScoreArray

    @classmethod
    def from_array(cls, scores: ArrayLike, copy: bool = True) -> ClassScores:
        """Sort a 1-d array of scores, in any order and of any float type; with ``copy=False`` sort the array itself."""
        given = np.asarray(scores)
        if given.ndim != 1:
            raise InvalidScoresError(f"scores must be 1-d, not of shape {given.shape}. Use scores.ravel().")
        if given.size == 0:
            raise InvalidScoresError("there are no scores. A class needs at least one row.")
        ordered = as_scores(given).copy() if copy else as_scores(given)
        ordered.sort()
        # Sorting puts −inf first, and +inf and NaN last: it is enough to look at the two ends.
        if not (np.isfinite(ordered[0]) and np.isfinite(ordered[-1])):
            bad = int(np.count_nonzero(~np.isfinite(ordered)))
            raise InvalidScoresError(
                f"{bad:,} of {ordered.size:,} scores are NaN, infinite or beyond float32. "
                "The network diverged or its input is not finite: lower learningRate or scale the features."
            )
        ordered.setflags(write=False)
        return cls(ordered)

    @classmethod
    def merge(cls, parts: Iterable[ArrayLike]) -> ClassScores:
        """One class from several arrays of scores, for example one from each worker; some may be empty."""
        # numpy's sort of float32 is vectorised: to sort again is faster than to merge sorted parts.
        arrays = [as_scores(part) for part in parts]
        return cls.from_array(np.concatenate(arrays) if arrays else np.empty(0, np.float32))

    def __len__(self) -> int:
        return int(self.sorted.size)

    def __repr__(self) -> str:
        return f"ClassScores({len(self):,} scores, {self.sorted[0]:.6g} to {self.sorted[-1]:.6g})"

    def at(self, rank: int) -> float:
        """The score at this rank."""
        return float(self.sorted[rank])

    def many(self, ranks: CountArray) -> ScoreArray:
        """The scores at these ranks."""
        return self.sorted[ranks]

    def count_below(self, x: float) -> int:
        """How many scores are < x, exactly, for any float64 x."""
        if abs(x) > _LARGEST:
            return len(self) if x > 0 else 0
        # With a float64 key searchsorted would convert the whole array to float64: round the key, and choose the side.
        key = np.float32(x)
        return int(self.sorted.searchsorted(key, "left" if float(key) >= x else "right"))

    def count_at_most(self, x: float) -> int:
        """How many scores are ≤ x, exactly, for any float64 x."""
        if abs(x) > _LARGEST:
            return len(self) if x > 0 else 0
        key = np.float32(x)
        return int(self.sorted.searchsorted(key, "right" if float(key) <= x else "left"))

    def counts_below(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_below`` for an array."""
        key = as_scores(x)
        with np.errstate(over="ignore"):
            key = np.where(key < x, np.nextafter(key, np.float32(np.inf)), key)
        return self.sorted.searchsorted(key, "left").astype(np.int64, copy=False)

    def counts_at_most(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_at_most`` for an array."""
        key = as_scores(x)
        with np.errstate(over="ignore"):
            key = np.where(key > x, np.nextafter(key, np.float32(-np.inf)), key)
        return self.sorted.searchsorted(key, "right").astype(np.int64, copy=False)

    rough_below, rough_at_most = counts_below, counts_at_most

    @cached_property
    def _levels(self) -> list[NDArray[Any]]:
        """The scores, the sums of each 1,024 of them, the sums of each 1,024 of these, …; full groups only."""
        levels: list[NDArray[Any]] = [self.sorted]
        # To sum some thousand float64 is faster than to use one more level.
        while levels[-1].size >= (2 if len(levels) == 1 else 16) * GROUP:
            below = levels[-1]
            full = below.size // GROUP
            levels.append(below[: full * GROUP].reshape(full, GROUP).sum(axis=1, dtype=np.float64))
        return levels

    def range_sum(self, first: int, last: int) -> float:
        """``Σ sorted[first:last]`` in float64, from whole groups and two incomplete ones at the ends.

        These are sums of groups, not differences of prefix sums: a single score of −1e30 would wipe out every prefix
        sum after it, but here it changes only the ranges that hold it.
        """
        total = 0.0
        for level in self._levels:
            inner_first, inner_last = -(-first // GROUP), last // GROUP
            if inner_first >= inner_last or level is self._levels[-1]:
                return total + float(np.add.reduce(level[first:last], dtype=np.float64))
            total += float(np.add.reduce(level[first : inner_first * GROUP], dtype=np.float64))
            total += float(np.add.reduce(level[inner_last * GROUP : last], dtype=np.float64))
            first, last = inner_first, inner_last
        return total

    def segment_sums(self, edges: CountArray) -> FloatArray:
        """``Σ sorted[edges[i]:edges[i+1]]``, for edges that do not fall."""
        return segment_sums(self.sorted, edges)

    def points(self, first: float, last: float) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The scores from position ``first`` to ``last``, part by part, with their weights; ends may be fractional."""
        stop = int(np.ceil(last))
        for start in range(int(first), stop, _CHUNK):
            ranks = np.arange(start, min(start + _CHUNK, stop))
            weights = np.minimum(ranks + 1.0, last) - np.maximum(ranks, first)
            yield self.sorted[start : start + ranks.size].astype(np.float64), weights


def segment_sums(values: NDArray[Any], edges: CountArray) -> FloatArray:
    """``Σ values[edges[i]:edges[i+1]]`` in float64, for edges that do not fall."""
    # For an empty segment reduceat gives an element and not 0, so it gets only segments that are not empty.
    sums = np.zeros(max(edges.size - 1, 0))
    filled = np.flatnonzero(np.diff(edges))
    starts, ends = edges[filled], edges[filled + 1]
    first = 0
    while first < filled.size:
        # reduceat makes a float64 copy of all that it gets, so it gets one part at a time.
        last = max(first + 1, int(ends.searchsorted(starts[first] + _CHUNK, "right")))
        part, places = values[starts[first] : ends[last - 1]], starts[first:last] - starts[first]
        one = last == first + 1
        sums[filled[first:last]] = (
            part.sum(dtype=np.float64) if one else np.add.reduceat(part, places, dtype=np.float64)
        )
        first = last
    return sums


@dataclass(frozen=True)
class Ranking:
    """A class with its easiest member first: the *hardness* h is ``−s`` for positives and ``s`` for negatives.

    The hinge of a pair is then ``ξ_ij = max(0, 1 + h_i + h_j)``. It is the same from both sides, so one implementation
    serves v and u. Ranks count from 0. ``kept`` is Σv or Σu, a real number: the class keeps its ``kept`` easiest
    members, the last one of them with a fractional weight.
    """

    scores: OrderedScores
    positive: bool

    def __len__(self) -> int:
        return len(self.scores)

    def hardness(self, rank: int) -> float:
        """The hardness of the member at this rank."""
        return -self.scores.at(len(self) - 1 - rank) if self.positive else self.scores.at(rank)

    def members(self, first: float, last: float) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Hardness and weight of the members from position ``first`` to ``last``; ends may be fractional."""
        if not self.positive:
            yield from self.scores.points(first, last)
            return
        for scores, weights in self.scores.points(len(self) - last, len(self) - first):
            yield -scores, weights

    def count_at_most(self, hardness: float) -> int:
        """How many members are at most this hard."""
        if self.positive:
            return len(self) - self.scores.count_below(-hardness)
        return self.scores.count_at_most(hardness)

    def count_below(self, hardness: float) -> int:
        """How many members are easier than this."""
        if self.positive:
            return len(self) - self.scores.count_at_most(-hardness)
        return self.scores.count_below(hardness)

    def loss(self, hardness: float, kept: float) -> float:
        """``(1/m) Σ_j u_j max(0, 1 + h + h_j)`` over this class, for one member of the other class."""
        edge = -1.0 - hardness
        whole = int(kept)
        first = self.count_at_most(edge)
        total = 0.0
        if first < whole:
            total = self._sum(first, whole) - (whole - first) * edge
        if kept > whole:
            total += (kept - whole) * (self.hardness(whole) - edge)
        # It is below 0 only where none of the kept members lies beyond the edge.
        return max(0.0, total) / len(self)

    def losses(self, hardness: FloatArray, kept: float) -> FloatArray:
        """``loss`` for an array in any order, by one pass over this class."""
        edge = -1.0 - hardness
        whole = int(kept)
        scores, n = self.scores, len(self)
        ranks = n - scores.rough_below(-edge) if self.positive else scores.rough_at_most(edge)
        starts, place = np.unique(np.minimum(ranks, whole), return_inverse=True)
        # Sums from each start to the last kept member, added up from that end, so that no easier member is in them.
        tails = np.empty(starts.size)
        tails[-1:] = [self._sum(int(start), whole) for start in starts[-1:]]
        tails[:-1] = tails[-1:] + np.cumsum(self._segments(starts)[::-1])[::-1]
        total = tails[place] - (whole - starts[place]) * edge
        if kept > whole:
            total += (kept - whole) * (self.hardness(whole) - edge)
        return np.asarray(np.maximum(0.0, total) / n)

    def _sum(self, first: int, last: int) -> float:
        if self.positive:
            return -self.scores.range_sum(len(self) - last, len(self) - first)
        return self.scores.range_sum(first, last)

    def _segments(self, ranks: CountArray) -> FloatArray:
        if self.positive:
            return -self.scores.segment_sums(len(self) - ranks[::-1])[::-1]
        return self.scores.segment_sums(ranks)


def loss_sum(own: Ranking, first: float, last: float, opposite: Ranking, kept: float) -> float:
    """Sum of the losses of the members of ``own`` from position ``first`` to ``last``, which may be fractional.

    Divided by ``len(own)``, it is the increase of the pair term of K when ``own`` keeps ``last`` members instead of
    ``first``, while the opposite class keeps ``kept``.
    """
    return sum(float(weights @ opposite.losses(hardness, kept)) for hardness, weights in own.members(first, last))


def positive_loss(score: float, neg: OrderedScores, kept: float | None = None) -> float:
    """Loss of one positive, ``l⁺(s) = (1/m) Σ_j u_j max(0, 1 − s + s_j)``; ``kept`` is Σu, None means all."""
    return Ranking(neg, positive=False).loss(-float(score), len(neg) if kept is None else kept)


def negative_loss(score: float, pos: OrderedScores, kept: float | None = None) -> float:
    """Loss of one negative, ``l⁻(s) = (1/n) Σ_i v_i max(0, 1 − s_i + s)``; ``kept`` is Σv, None means all."""
    return Ranking(pos, positive=True).loss(float(score), len(pos) if kept is None else kept)


def positive_losses(scores: ArrayLike, neg: OrderedScores, kept: float | None = None) -> FloatArray:
    """``positive_loss`` for a 1-d array of scores, in their order."""
    hardness = -as_scores(scores).astype(np.float64)
    return Ranking(neg, positive=False).losses(hardness, len(neg) if kept is None else kept)


def negative_losses(scores: ArrayLike, pos: OrderedScores, kept: float | None = None) -> FloatArray:
    """``negative_loss`` for a 1-d array of scores, in their order."""
    hardness = as_scores(scores).astype(np.float64)
    return Ranking(pos, positive=True).losses(hardness, len(pos) if kept is None else kept)


def pair_sum(
    pos: OrderedScores,
    neg: OrderedScores,
    positive_kept: float | None = None,
    negative_kept: float | None = None,
) -> float:
    """``Σ_ij v_i u_j max(0, 1 − s_i + s_j)`` over the top ``positive_kept`` and bottom ``negative_kept``.

    Takes O(n log m) for the class that keeps fewer, and one pass over the other.
    """
    v, u = Ranking(pos, positive=True), Ranking(neg, positive=False)
    kept_v = float(len(pos)) if positive_kept is None else positive_kept
    kept_u = float(len(neg)) if negative_kept is None else negative_kept
    if kept_v <= kept_u:
        return loss_sum(v, 0.0, kept_v, u, kept_u) * len(neg)
    return loss_sum(u, 0.0, kept_u, v, kept_v) * len(pos)


def auc(pos: OrderedScores, neg: OrderedScores) -> float:
    """Exact area under the ROC curve; tied pairs count one half."""
    few, many = (pos, neg) if len(pos) <= len(neg) else (neg, pos)
    twice = 0
    for scores, _ in few.points(0, len(few)):
        twice += int(many.rough_below(scores).sum() + many.rough_at_most(scores).sum())
    pairs = 2 * len(pos) * len(neg)
    return twice / pairs if few is pos else (pairs - twice) / pairs
