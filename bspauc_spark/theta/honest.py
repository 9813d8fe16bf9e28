"""Honest judgement: a row's score by the member of θ that did not learn from it, and what each member learns from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from bspauc_spark.arrays import Float32Array, FloatArray, IntArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.folds import Keys, dense_keys, sparse_keys
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Batch, Rows, SparseBatch
from bspauc_spark.statistics import ClassScores, pair_sum
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.mixing import MixedNetwork, rising
from bspauc_spark.theta.networks import QUANTILES, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.scoring import score_rows
from bspauc_spark.theta.spread import quantiles_of_mean

Scored: TypeAlias = dict[str, Float32Array]
Folds: TypeAlias = npt.NDArray[np.uint8]

# Of each class, for the losses of the members on rows that they learned from; all workers together.
_SAMPLE_ROWS = 2048
# Below this part of its mean a deviation is rounding.
_ROUNDING = 1e-6
# Of each member's scores, for its quantiles; so many rows at least lie beyond the outermost ones.
_QUANTILE_ROWS, _BEYOND = 100_000, 5
# How many of the negatives are witnesses, and which share of them at most; fewer than the last number say too little,
# so that there are none at all.
_WITNESSES, _WITNESS_SHARE, _FEWEST_WITNESSES = 1000, 0.05, 20
# All copies of a row are witnesses or none is. Where too many are, the next slice of the hashes is taken.
_SLICES_TRIED = 16


class Judges:
    """The folds of a worker's own training rows. Member k judges the rows of fold k and learns from all others.

    From a few negatives, the *witnesses*, no member learns. They tell how much members differ on rows that are new to
    all of them, and so by how much less the mean of all spreads than one member, by which training rows are judged.
    """

    def __init__(self, rows: Mapping[str, Rows], spec: NetworkSpec, group: Group) -> None:
        self.members = spec.members
        keys = {kind: keys_of_rows(rows[kind], spec.fold_seed) for kind in (POSITIVES, NEGATIVES)}
        self.fold = {kind: folds_by(some, spec.members) for kind, some in keys.items()}
        self.witness = witnesses(keys[NEGATIVES], group)

    @classmethod
    def of(cls, rows: Mapping[str, Rows], spec: NetworkSpec, group: Group) -> Judges | None:
        """Who judges these rows, if θ has members."""
        return cls(rows, spec, group) if spec.members else None

    def learned(self, kind: str, index: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each member learns from the rows at ``index``: rows × members."""
        mask: npt.NDArray[np.bool_] = self.fold[kind][index, None] != np.arange(self.members)
        if kind == NEGATIVES:
            mask &= ~self.witness[index, None]
        return mask

    def score(self, average: MixedNetwork, rows: Mapping[str, Rows], group: Group, threads: int) -> Scored:
        """Honest scores of all rows; members are brought to one scale anew for them."""
        raw = {kind: raw_scores(average, rows[kind], fold, threads) for kind, fold in self.fold.items()}
        refuse_bad(raw, average, group)
        rows_judged, deviations = self._moments(raw, group)
        # Some rows are to lie beyond the outermost quantiles.
        least = min(_BEYOND / max(1.0, rows_judged.min()), 0.5)
        shares = np.clip(QUANTILES, least, 1.0 - least)
        quantiles = self._quantiles(raw, shares, rows_judged, group)
        if isinstance(average, Members):
            average.standardise(quantiles, deviations)
        elif deviations.any():
            average.judge(rising(quantiles).mean(axis=0))
        if deviations.any():
            self._mix(average, shares, rows[NEGATIVES], group)
        scores = {kind: standardised(average, raw[kind], fold) for kind, fold in self.fold.items()}
        # No member learns from validation rows, so all judge them.
        others = {kind: score_rows(average, rows[kind], threads) for kind in rows if kind not in self.fold}
        refuse_bad(others, average, group)
        return {**scores, **others}

    def _moments(self, scores: Scored, group: Group) -> tuple[FloatArray, FloatArray]:
        """Number of the rows that each member judges, and deviation of their scores."""
        sums = np.zeros((3, self.members))
        for kind, fold in self.fold.items():
            values = scores[kind].astype(np.float64)
            for row, powers in enumerate((np.ones(len(values)), values, values**2)):
                sums[row] += np.bincount(fold, powers, self.members)
        (every,) = group.gather([sums.ravel()])
        shared = np.frombuffer(group.share(every.reshape(-1, sums.size).sum(axis=0).tobytes()))
        count, total, squares = shared.reshape(sums.shape)
        means = total / count
        deviations = np.sqrt(np.maximum(squares / count - means**2, 0.0))
        return count, np.where(deviations > _ROUNDING * np.abs(means), deviations, 0.0)

    def _quantiles(self, scores: Scored, shares: FloatArray, counts: FloatArray, group: Group) -> FloatArray:
        """Of each member's scores of rows that it judges; where these are very many, of an even sample."""
        own = list[Float32Array]()
        for number, count in enumerate(counts):
            every = [values[self.fold[kind] == number] for kind, values in scores.items()]
            own.append(np.concatenate([some[:: math.ceil(count / _QUANTILE_ROWS)] for some in every]))
        gathered = group.gather(own)
        found = [np.quantile(one.astype(np.float64), shares) for one in gathered] if group.rank == 0 else []
        return np.frombuffer(group.share(np.array(found).tobytes())).reshape(self.members, -1)

    def _mix(self, average: MixedNetwork, shares: FloatArray, negatives: Rows, group: Group) -> None:
        """Bring the mean of all members to the scale of one, if there are witnesses."""
        index = np.flatnonzero(self.witness)
        if not int(group.counts(len(index)).sum()):
            return
        own = list[Float32Array]()
        for number in range(self.members):
            scores = torch.from_numpy(score_rows(average.member(number), negatives, index=index)).to(average.device)
            own.append(average.standardised(number, scores).cpu().numpy())
        (gathered,) = group.gather([np.stack(own, axis=1).astype(np.float64).ravel()])
        mixed = np.empty(0)
        if group.rank == 0:
            judged = average.judged.cpu().double().numpy()
            mixed = quantiles_of_mean(judged, shares, gathered.reshape(-1, self.members))
        average.mix(np.frombuffer(group.share(mixed.tobytes())).copy())

    def loss(
        self,
        average: Members,
        rows: Mapping[str, Rows],
        weights: Mapping[str, Float32Array],
        group: Group,
    ) -> float:
        """On rank 0 the mean pair loss of the members, each on rows that it learns from: a sample of the kept ones."""
        sample = {kind: self._sample(weights[kind], group) for kind in self.fold}
        losses = []
        for number in range(self.members):
            own = list[Float32Array]()
            for kind, index in sample.items():
                index = index[self.learned(kind, index)[:, number]]
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
    return folds_by(keys_of_rows(rows, seed), folds)


def folds_by(keys: Keys, folds: int) -> Folds:
    """The same, of rows with these keys."""
    found: Folds = (keys % np.uint64(folds)).astype(np.uint8)
    return found


def witnesses(keys: Keys, group: Group) -> npt.NDArray[np.bool_]:
    """Which of the own negatives are witnesses: those whose hash lies in a slice, the same for any number of ranks."""
    total = int(group.counts(len(keys)).sum())
    slices = max(round(1 / _WITNESS_SHARE), total // _WITNESSES)
    # The fold is a remainder of the hash, the slice is in its upper bits: one says nothing of the other.
    place = ((keys >> np.uint64(32)) * np.uint64(slices)) >> np.uint64(32)
    own = np.bincount(place[place < _SLICES_TRIED].astype(np.int64), minlength=_SLICES_TRIED)
    (parts,) = group.gather([own])
    counts = np.frombuffer(group.share(parts.reshape(-1, _SLICES_TRIED).sum(axis=0).tobytes()), dtype=np.int64)
    wanted = total / slices
    fit = np.flatnonzero((counts >= _FEWEST_WITNESSES) & (counts <= 2 * wanted) & (wanted >= _FEWEST_WITNESSES))
    chosen: npt.NDArray[np.bool_] = place == np.uint64(fit[0]) if len(fit) else np.zeros(len(keys), dtype=bool)
    return chosen


def honest_scores(average: MixedNetwork, rows: Rows, fold: Folds) -> Float32Array:
    """Scores of each row by the member whose fold the row is in, on the scale of all members."""
    return standardised(average, raw_scores(average, rows, fold), fold)


def raw_scores(average: MixedNetwork, rows: Rows, fold: Folds, threads: int = 1) -> Float32Array:
    """The same, on the scale of that member."""
    scores = np.empty(len(rows), dtype=np.float32)
    for number in range(average.spec.members):
        index = np.flatnonzero(fold == number)
        scores[index] = score_rows(average.member(number), rows, threads, index)
    return scores


def standardised(average: MixedNetwork, raw: Float32Array, fold: Folds) -> Float32Array:
    """Scores by the members of these folds, on the scale of all."""
    scores = np.empty_like(raw)
    for number in range(average.spec.members):
        own = fold == number
        values = torch.from_numpy(raw[own]).to(average.device)
        scores[own] = average.standardised(number, values).cpu().numpy()
    return scores


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
