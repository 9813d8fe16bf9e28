"""Scores of a class that is too large for the driver: a histogram, and the exact scores of the few bins that matter.

A bin is the upper 22 of the 32 bits of a float32. It is as wide as 2⁻¹³ of its scores, and holds at most 1,024
different ones. A bin that lies wholly on one side of every threshold and every kink enters all sums exactly, by its
count and its sum. Whoever asks for something inside a bin gets an answer as if all rows of the bin had its mean score,
and the bin is remembered. ``exact_on_bins`` then fetches the remembered bins score by score and computes again, until
nobody asks for anything inside an unknown bin. The last result is then that of the sorted scores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from bspauc_spark import statistics
from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import CollapseError, InvalidScoresError
from bspauc_spark.statistics import ClassScores, CountArray, OrderedScores, ScoreArray, as_scores, segment_sums

P = ParamSpec("P")
T = TypeVar("T")
Keys = npt.NDArray[np.uint32]
Bins = npt.NDArray[np.int32]

_SHIFT = 10
_BINS = 1 << (32 - _SHIFT)
_SIGN = np.uint32(1 << 31)
_CHUNK = 1 << 22
# From bins the AUC is known up to half the pairs that share a bin, and the mean pair loss up to the pairs whose margin
# ends inside a bin. Bins are fetched until no more than this is unknown.
AUC_BOUND = 1e-5
LOSS_BOUND = 1e-5


def _keys(scores: ScoreArray) -> Keys:
    """Integers that have the order of the scores; −0 counts as 0."""
    bits: Keys = (scores + np.float32(0)).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def bins_of(scores: ScoreArray) -> Bins:
    """The bin of each score."""
    found: Bins = (_keys(scores) >> _SHIFT).astype(np.int32)
    return found


def _of_keys(keys: Keys) -> ScoreArray:
    return np.where(keys & _SIGN, keys & ~_SIGN, ~keys).astype(np.uint32).view(np.float32)


class Histogram(NamedTuple):
    """The bins that hold scores, ascending, with the number and the sum of the scores in each."""

    bins: Bins
    counts: CountArray
    sums: FloatArray

    @classmethod
    def of(cls, scores: ScoreArray) -> Histogram:
        """The histogram of scores in any order."""
        counts, sums = np.zeros(_BINS, dtype=np.int64), np.zeros(_BINS)
        for start in range(0, scores.size, _CHUNK):
            part = scores[start : start + _CHUNK]
            if not np.isfinite(part).all():
                raise InvalidScoresError("scores are NaN or infinite: the network diverged. Lower learningRate.")
            bins = (_keys(part) >> _SHIFT).astype(np.intp)
            counts += np.bincount(bins, minlength=_BINS)
            sums += np.bincount(bins, weights=part, minlength=_BINS)
        return cls._filled(counts, sums)

    @classmethod
    def merge(cls, parts: Iterable[Histogram]) -> Histogram:
        """The histogram of the scores of all parts."""
        counts, sums = np.zeros(_BINS, dtype=np.int64), np.zeros(_BINS)
        for part in parts:
            # A bin may occur more than once, where histograms of workers were joined end to end.
            np.add.at(counts, part.bins, part.counts)
            np.add.at(sums, part.bins, part.sums)
        return cls._filled(counts, sums)

    @classmethod
    def _filled(cls, counts: CountArray, sums: FloatArray) -> Histogram:
        bins = np.flatnonzero(counts)
        return cls(bins.astype(np.int32), counts[bins], sums[bins])


class Contents(NamedTuple):
    """The different scores in some bins, ascending, and how often each of them occurs."""

    scores: ScoreArray
    counts: CountArray

    @classmethod
    def of(cls, scores: ScoreArray, bins: Bins) -> Contents:
        """Those of ``scores`` that lie in these bins."""
        wanted = np.zeros(_BINS, dtype=bool)
        wanted[bins] = True
        parts = []
        for start in range(0, scores.size, _CHUNK):
            part = scores[start : start + _CHUNK]
            inside = part[wanted[_keys(part) >> _SHIFT]] + np.float32(0)
            parts.append(cls(*np.unique(inside, return_counts=True)))
        return cls.merge(parts)

    @classmethod
    def merge(cls, parts: Iterable[Contents]) -> Contents:
        """The contents of all parts."""
        every = list(parts)
        if not every:
            return cls(np.empty(0, np.float32), np.empty(0, np.int64))
        scores, place = np.unique(np.concatenate([part.scores for part in every]), return_inverse=True)
        counts = np.zeros(scores.size, dtype=np.int64)
        np.add.at(counts, place, np.concatenate([part.counts for part in every]))
        return cls(scores, counts)


Fetch = Callable[[Bins], Contents]


class BinnedScores:
    """The scores of one class as ascending points: a point is a known score, or the mean of a bin.

    ``fetch`` gets the contents of bins from the workers.
    """

    def __init__(self, unknown: Histogram, fetch: Fetch, known: Contents | None = None) -> None:
        if not unknown.bins.size and known is None:
            raise InvalidScoresError("there are no scores. A class needs at least one row.")
        self._fetch = fetch
        self._looked_into: set[int] = set()
        self.collecting = False
        self._set(unknown, known or Contents.merge([]))

    def _set(self, unknown: Histogram, known: Contents) -> None:
        first: Keys = unknown.bins.astype(np.uint32) << np.uint32(_SHIFT)
        low, high = _of_keys(first), _of_keys(first | np.uint32((1 << _SHIFT) - 1))
        single = unknown.counts == 1
        low[single] = high[single] = unknown.sums[single]
        exact = known.scores.astype(np.float64)
        order = np.argsort(np.concatenate([low, known.scores]), kind="stable")
        self._unknown, self._known = unknown, known
        self.lows = np.concatenate([low, known.scores])[order].astype(np.float64)
        self.highs = np.concatenate([high, known.scores])[order].astype(np.float64)
        self.counts = np.concatenate([unknown.counts, known.counts])[order]
        self.sums = np.concatenate([unknown.sums, exact * known.counts])[order]
        # The mean of a bin rounds to one of its scores, or to a number between two of them.
        self.values = np.clip(np.concatenate([unknown.sums / unknown.counts, exact])[order], self.lows, self.highs)
        self._bins = np.concatenate([np.where(single, -1, unknown.bins), np.full(exact.size, -1)])[order]
        self._ends = np.cumsum(self.counts)
        self._starts = self._ends - self.counts
        self._before = np.concatenate([[0], self._ends])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return (
            f"BinnedScores({len(self):,} scores in {self._unknown.bins.size:,} bins, {self._known.scores.size:,} known)"
        )

    def look_into(self, points: int | npt.NDArray[np.integer[Any]]) -> None:
        """Remember to fetch those of these points that are bins."""
        bins = np.atleast_1d(self._bins[points])
        self._looked_into.update(bins[bins >= 0].tolist())

    def refine(self) -> bool:
        """Fetch the bins that were looked into; returns whether there were any."""
        if not self._looked_into:
            return False
        wanted = np.array(sorted(self._looked_into), dtype=np.int32)
        self._looked_into.clear()
        bins, counts, sums = self._unknown
        left = ~np.isin(bins, wanted)
        self._set(Histogram(bins[left], counts[left], sums[left]), Contents.merge([self._known, self._fetch(wanted)]))
        return True

    def at(self, rank: int) -> float:
        """The score at this rank."""
        point = int(self._ends.searchsorted(rank, "right"))
        self.look_into(point)
        return float(self.values[point])

    def many(self, ranks: CountArray) -> ScoreArray:
        """The scores at these ranks."""
        points = self._ends.searchsorted(ranks, "right")
        self.look_into(points)
        return as_scores(self.values[points])

    def count_below(self, x: float) -> int:
        """How many scores are < x."""
        point = int(self.highs.searchsorted(x, "left"))
        if point == self.highs.size:
            return len(self)
        if self.lows[point] < x:
            self.look_into(point)
        return int(self._ends[point] if self.values[point] < x else self._starts[point])

    def count_at_most(self, x: float) -> int:
        """How many scores are ≤ x."""
        return int(self.counts_at_most(np.array([x], dtype=np.float64))[0])

    def counts_at_most(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_at_most`` for an array."""
        # The last point that begins at or below x; it may end above x.
        points = self.lows.searchsorted(x, "right") - 1
        inside = (points >= 0) & (self.highs[points] > x)
        self.look_into(points[inside])
        return self.rough_at_most(x)

    def rough_below(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_below`` for an array, as if all rows of a bin had the bin's mean."""
        return np.asarray(self._before[self.values.searchsorted(x, "left")])

    def rough_at_most(self, x: FloatArray | ScoreArray) -> CountArray:
        """``count_at_most`` for an array, as if all rows of a bin had the bin's mean."""
        return np.asarray(self._before[self.values.searchsorted(x, "right")])

    def range_sum(self, first: int, last: int) -> float:
        """Sum of the scores at ranks ``first`` to ``last - 1``."""
        if first >= last:
            return 0.0
        a, b = (int(point) for point in self._ends.searchsorted([first, last - 1], "right"))
        for point, whole in ((a, first == self._starts[a]), (b, last == self._ends[b])):
            if not whole:
                self.look_into(point)
        if a == b:
            return self._part(a, first, last)
        ends = self._part(a, first, int(self._ends[a])) + self._part(b, int(self._starts[b]), last)
        return ends + float(np.add.reduce(self.sums[a + 1 : b]))

    def _part(self, point: int, first: int, last: int) -> float:
        whole = last - first == self.counts[point]
        return float(self.sums[point] if whole else (last - first) * self.values[point])

    def segment_sums(self, edges: CountArray) -> FloatArray:
        """The sum between each two consecutive ranks of ``edges``, which must not fall."""
        points = self._ends.searchsorted(edges, "right")
        inside = np.append(self.values, 0.0)[points] * (edges - np.append(self._starts, len(self))[points])
        return np.asarray(segment_sums(self.sums, points) + np.diff(inside))

    def points(self, first: float, last: float) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The points from position ``first`` to ``last`` with their weights; ends may be fractional."""
        if first >= last:
            return
        a, b = int(self._ends.searchsorted(first, "right")), int(self._starts.searchsorted(last, "left"))
        weights = np.minimum(self._ends[a:b], last) - np.maximum(self._starts[a:b], first)
        yield self.values[a:b], weights


def _fetch_nothing(bins: Bins) -> Contents:
    raise AssertionError("these scores are gone, so their bins cannot be fetched.")


def ordered(scores: ScoreArray | Histogram, fetch: Fetch = _fetch_nothing, copy: bool = True) -> OrderedScores:
    """The ordered scores of a class: of all its scores (sorted in place with ``copy=False``) or of a histogram."""
    return BinnedScores(scores, fetch) if isinstance(scores, Histogram) else ClassScores.from_array(scores, copy)


def exact_on_bins(compute: Callable[Concatenate[OrderedScores, OrderedScores, P], T]) -> Callable[..., T]:
    """Make ``compute(pos, neg, …)`` exact on binned scores too: fetch the bins that it looks into, and repeat it."""

    @functools.wraps(compute)
    def settle(pos: OrderedScores, neg: OrderedScores, *args: P.args, **kwargs: P.kwargs) -> T:
        binned = [one for one in (pos, neg) if isinstance(one, BinnedScores)]
        # If another such function called this one, the outer one fetches the bins, for all of its parts together.
        if any(one.collecting for one in binned):
            return compute(pos, neg, *args, **kwargs)
        while True:
            for one in binned:
                one.collecting = True
            try:
                result, collapse = compute(pos, neg, *args, **kwargs), None
            except CollapseError as error:
                collapse = error
            finally:
                for one in binned:
                    one.collecting = False
            if not sum(one.refine() for one in binned):
                if collapse is not None:
                    raise collapse
                return result

    return settle


def auc(pos: OrderedScores, neg: OrderedScores) -> float:
    """Area under the ROC curve, in which tied pairs count one half; from binned scores exact to ``AUC_BOUND``."""
    if isinstance(pos, ClassScores) and isinstance(neg, ClassScores):
        return statistics.auc(pos, neg)
    p, n, pairs = _as_points(pos), _as_points(neg), float(len(pos)) * len(neg)
    while True:
        first, last = n.highs.searchsorted(p.lows, "left"), n.lows.searchsorted(p.highs, "right")
        below, at_most = n._before[first], n._before[last]
        # Two scores in one bin may stand in either order, unless they are equal.
        bins = (p.lows < p.highs) | (n.lows < n.highs)[np.minimum(first, n.lows.size - 1)]
        doubt = np.where(bins, p.counts * (at_most - below) / 2.0, 0.0) / pairs
        if doubt.sum() < AUC_BOUND:
            return float((p.counts * ((below + at_most) / (2.0 * pairs))).sum())
        _fetch_worst(p, n, doubt, first, last, AUC_BOUND)


def sharpen(pos: OrderedScores, neg: OrderedScores, positive_kept: float, negative_kept: float) -> float:
    """Fetch bins until the mean pair loss is known well enough; returns by how much it may still be too low.

    The bins with the first rows that are left out are fetched in any case.
    """
    if isinstance(pos, ClassScores) and isinstance(neg, ClassScores):
        return 0.0
    p, n, pairs = _as_points(pos), _as_points(neg), float(len(pos)) * len(neg)
    p.at(min(int(len(p) - positive_kept), len(p) - 1))
    n.at(min(int(negative_kept), len(n) - 1))
    p.refine()
    n.refine()
    while True:
        # Away from its kink the hinge is a line, so bins enter it exactly. The exception are pairs of bins in which the
        # margin may end: they are wrong by at most a quarter of their two widths.
        first, last = n.highs.searchsorted(p.lows - 1.0, "right"), n.lows.searchsorted(p.highs - 1.0, "left")
        last = np.maximum(first, last)
        spread = np.concatenate([[0.0], np.cumsum(n.counts * (n.highs - n.lows))])
        near = (p.highs - p.lows) * (n._before[last] - n._before[first]) + spread[last] - spread[first]
        doubt = p.counts * near / (4.0 * pairs)
        total = float(doubt.sum())
        if total < LOSS_BOUND or not _fetch_worst(p, n, doubt, first, last, LOSS_BOUND):
            return total


def _fetch_worst(
    p: BinnedScores, n: BinnedScores, doubt: FloatArray, first: CountArray, last: CountArray, bound: float
) -> bool:
    """Fetch the points of ``p`` that add most to the error, and the first and last of ``n`` that each of them meets."""
    order = np.argsort(-doubt)
    worst = order[: int(np.searchsorted(np.cumsum(doubt[order]), doubt.sum() - bound / 2)) + 1]
    p.look_into(worst)
    n.look_into(np.unique(np.concatenate([first[worst], last[worst] - 1])))
    return bool(p.refine() + n.refine())


def _as_points(scores: OrderedScores) -> BinnedScores:
    if isinstance(scores, BinnedScores):
        return scores
    assert isinstance(scores, ClassScores)
    return BinnedScores(Histogram.merge([]), _fetch_nothing, Contents(*np.unique(scores.sorted, return_counts=True)))
