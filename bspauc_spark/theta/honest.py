"""Honest judgement: a row's score by the member of θ that did not learn from it, and what each member learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import Float32Array, FloatArray, IntArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.folds import Keys, dense_keys, sparse_keys
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Batch, Rows, SparseBatch
from bspauc_spark.statistics import ClassScores, pair_sum
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.networks import ScoringNetwork
from bspauc_spark.theta.scoring import score_rows

Scored: TypeAlias = dict[str, Float32Array]
Folds: TypeAlias = npt.NDArray[np.uint8]

# Of each class, for the losses of the members on rows that they learned from; all workers together.
_SAMPLE_ROWS = 2048
# Below this part of its mean a deviation is rounding.
_ROUNDING = 1e-6


class Judges:
    """The folds of a worker's own training rows. Member k judges the rows of fold k and learns from all others."""

    def __init__(self, rows: Mapping[str, Rows], members: int, seed: int) -> None:
        self.members = members
        self._fold = {kind: folds_of(rows[kind], members, seed) for kind in (POSITIVES, NEGATIVES)}

    def learned(self, kind: str, index: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each member learns from the rows at ``index``: rows × members."""
        mask: npt.NDArray[np.bool_] = self._fold[kind][index, None] != np.arange(self.members)
        return mask

    def score(self, average: Members, rows: Mapping[str, Rows], group: Group, threads: int) -> Scored:
        """Honest scores of all rows; members are standardised anew for them."""
        scores = {kind: raw_scores(average, rows[kind], fold, threads) for kind, fold in self._fold.items()}
        refuse_bad(scores, average, group)
        average.standardise(*self._moments(scores, group))
        scores = {kind: _standardised(average, scores[kind], fold) for kind, fold in self._fold.items()}
        # No member learns from validation rows, so all judge them.
        others = {kind: score_rows(average, rows[kind], threads) for kind in rows if kind not in self._fold}
        refuse_bad(others, average, group)
        return {**scores, **others}

    def _moments(self, scores: Scored, group: Group) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation of each member's scores of all rows that it judges."""
        sums = np.zeros((3, self.members))
        for kind, fold in self._fold.items():
            values = scores[kind].astype(np.float64)
            for row, powers in enumerate((np.ones(len(values)), values, values**2)):
                sums[row] += np.bincount(fold, powers, self.members)
        (every,) = group.gather([sums.ravel()])
        shared = np.frombuffer(group.share(every.reshape(-1, sums.size).sum(axis=0).tobytes()))
        count, total, squares = shared.reshape(sums.shape)
        means = total / count
        deviations = np.sqrt(np.maximum(squares / count - means**2, 0.0))
        return means, np.where(deviations > _ROUNDING * np.abs(means), deviations, 0.0)

    def loss(
        self,
        average: Members,
        rows: Mapping[str, Rows],
        weights: Mapping[str, Float32Array],
        group: Group,
    ) -> float:
        """On rank 0 the mean pair loss of the members, each on rows that it learns from: a sample of the kept ones."""
        sample = {kind: self._sample(weights[kind], group) for kind in self._fold}
        losses = []
        for number in range(self.members):
            own = list[Float32Array]()
            for kind, index in sample.items():
                index = index[self._fold[kind][index] != number]
                own += [score_rows(average.member(number), rows[kind], index=index), weights[kind][index]]
            losses.append(_mean_loss(*group.gather(own)))
        return float(np.mean(losses))

    @staticmethod
    def _sample(weights: Float32Array, group: Group) -> IntArray:
        """The first of the own rows that are kept: rows stand in the order of hashes, so these are as good as any."""
        kept = np.flatnonzero(weights)
        total = int(group.counts(len(kept)).sum())
        return kept[: -(-_SAMPLE_ROWS * len(kept) // max(total, 1))]


def keys_of(batch: Batch, seed: int) -> Keys:
    """The hash of each row, of which its fold is the remainder."""
    if not isinstance(batch, SparseBatch):
        return dense_keys(batch.numpy(), seed)
    pointers = np.append(batch.offsets.numpy(), len(batch.indices))
    return sparse_keys(pointers, batch.indices.numpy(), batch.values.numpy(), seed)


def keys_of_rows(rows: Rows, seed: int) -> Keys:
    """The same for all rows."""
    parts = (rows.between(start, start + CHUNK_ROWS) for start in range(0, len(rows), CHUNK_ROWS))
    return np.concatenate([np.empty(0, np.uint64), *(keys_of(part, seed) for part in parts)])


def folds_of(rows: Rows, folds: int, seed: int) -> Folds:
    """The fold of each row."""
    found: Folds = (keys_of_rows(rows, seed) % np.uint64(folds)).astype(np.uint8)
    return found


def honest_scores(average: Members, rows: Rows, fold: Folds) -> Float32Array:
    """Scores of each row by the member whose fold the row is in, on the scale of all members."""
    return _standardised(average, raw_scores(average, rows, fold), fold)


def raw_scores(average: Members, rows: Rows, fold: Folds, threads: int = 1) -> Float32Array:
    """The same, each on the member's own scale."""
    scores = np.empty(len(rows), dtype=np.float32)
    for number, member in enumerate(average.networks()):
        index = np.flatnonzero(fold == number)
        scores[index] = score_rows(member, rows, threads, index)
    return scores


def _standardised(average: Members, scores: Float32Array, fold: Folds) -> Float32Array:
    scale, shift = average.scale.cpu().numpy(), average.shift.cpu().numpy()
    standardised: Float32Array = scores * scale[fold] + shift[fold]
    return standardised


def refuse_bad(scores: Scored, network: ScoringNetwork, group: Group) -> None:
    """Refuse scores that are NaN or infinite, on all ranks if any of them has some."""
    bad = int(group.counts(sum(len(s) - int(np.isfinite(s).sum()) for s in scores.values())).sum())
    if bad:
        narrow = ", or kernelWidth is far below the distances of rows" if network.spec.kind == "kernel" else ""
        raise DivergedError(
            f"{bad:,} scores are NaN or infinite: θ diverged, or features are huge{narrow}. Lower learningRate, or "
            "scale the features to [-1, 1]."
        )


def _mean_loss(s: Float32Array, v: Float32Array, r: Float32Array, u: Float32Array) -> float:
    """``Σ v_i u_j ξ_ij / Σ v_i u_j``; 0 without pairs."""
    pairs = float(v.sum(dtype=np.float64)) * float(u.sum(dtype=np.float64))
    total = sum(
        float(a) * float(b) * pair_sum(ClassScores.from_array(s[v == a]), ClassScores.from_array(r[u == b]))
        for a in np.unique(v)
        for b in np.unique(u)
    )
    return total / pairs if pairs else 0.0
