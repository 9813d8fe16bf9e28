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
from bspauc_spark.theta.evidence import shares
from bspauc_spark.theta.group import Group
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.sample import in_sample
from bspauc_spark.theta.scoring import score_rows

Scored: TypeAlias = dict[str, Float32Array]
Folds: TypeAlias = npt.NDArray[np.uint8]

# Of each class, for the losses of the members on rows that they learned from; all workers together.
_SAMPLE_ROWS = 2048
# Of each class, for the shares of variants; all workers together.
_WEIGHING_ROWS = 20_000
# Below this part of its mean a deviation is rounding.
_ROUNDING = 1e-6
# How many of the negatives are witnesses, and which share of them at most; fewer than the last number say too little.
_WITNESSES, _WITNESS_SHARE, _FEWEST_WITNESSES = 1000, 0.05, 20
# All copies of a row are witnesses or none is. Where too many are, the next slice of the hashes is taken.
_SLICES_TRIED = 16


class Judges:
    """The folds of a worker's own training rows. Member k judges the rows of fold k and learns from all others.

    From a few negatives, the *witnesses*, no member learns. They tell how much members differ on rows that are new to
    all of them, and so by how much less the mean of all spreads than one member, as which training rows are judged.
    """

    def __init__(self, rows: Mapping[str, Rows], spec: NetworkSpec, group: Group) -> None:
        self.members, self._variants = spec.members, spec.variants
        keys = {kind: keys_of_rows(rows[kind], spec.fold_seed) for kind in (POSITIVES, NEGATIVES)}
        self._fold = {kind: folds_by(some, spec.members) for kind, some in keys.items()}
        self._witness = witnesses(keys[NEGATIVES], group)
        self._sampled = {kind: _even_sample(len(some), spec.fold_seed, group) for kind, some in keys.items()}

    def learned(self, kind: str, index: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each network learns from the rows at ``index``: rows × networks."""
        mask: npt.NDArray[np.bool_] = self._fold[kind][index, None] != np.arange(self.members)
        if kind == NEGATIVES:
            mask &= ~self._witness[index, None]
        return np.tile(mask, (1, self._variants))

    def score(self, average: Members, rows: Mapping[str, Rows], group: Group, threads: int) -> Scored:
        """Honest scores of all rows; networks are standardised, and their variants weighed, anew for them."""
        raw = {kind: raw_scores(average, rows[kind], fold, threads) for kind, fold in self._fold.items()}
        refuse_bad(raw, average, group)
        average.standardise(*self._moments(raw, group))
        if self._variants > 1:
            average.weigh(self._shares({k: _standardised(average, raw[k], f) for k, f in self._fold.items()}, group))
        scores = {kind: _mixed(average, raw[kind], fold) for kind, fold in self._fold.items()}
        self._widen(average, scores, rows[NEGATIVES], group)
        # No member learns from validation rows, so all judge them.
        others = {kind: score_rows(average, rows[kind], threads) for kind in rows if kind not in self._fold}
        refuse_bad(others, average, group)
        return {**scores, **others}

    def _moments(self, raw: Scored, group: Group) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation of each network's scores of all rows that it judges."""
        sums = np.zeros((3, self._variants, self.members))
        for kind, fold in self._fold.items():
            for variant, values in enumerate(raw[kind].astype(np.float64)):
                for row, powers in enumerate((np.ones(len(values)), values, values**2)):
                    sums[row, variant] += np.bincount(fold, powers, self.members)
        sums = sums.reshape(3, -1)
        (every,) = group.gather([sums.ravel()])
        shared = np.frombuffer(group.share(every.reshape(-1, sums.size).sum(axis=0).tobytes()))
        count, total, squares = shared.reshape(sums.shape)
        means = total / count
        deviations = np.sqrt(np.maximum(squares / count - means**2, 0.0))
        return means, np.where(deviations > _ROUNDING * np.abs(means), deviations, 0.0)

    def _shares(self, standardised: Scored, group: Group) -> FloatArray:
        """What share each variant gets, by how well it ranks a sample of the rows."""
        own = [standardised[kind][:, self._sampled[kind]].T for kind in (POSITIVES, NEGATIVES)]
        positives, negatives = group.gather([np.ascontiguousarray(part).ravel() for part in own])
        if group.rank == 0:
            found = shares(*(part.reshape(-1, self._variants).T for part in (positives, negatives)))
        else:
            found = np.zeros(self._variants)
        return np.frombuffer(group.share(found.tobytes())).copy()

    def _widen(self, average: Members, scores: Scored, negatives: Rows, group: Group) -> None:
        values = np.concatenate([scores[kind] for kind in self._fold]).astype(np.float64)
        (sums,) = group.gather([np.array([len(values), values.sum(), (values**2).sum()])])
        count, total, squares = np.frombuffer(group.share(sums.reshape(-1, 3).sum(axis=0).tobytes()))
        mean, variance = total / count, squares / count - (total / count) ** 2
        index = np.flatnonzero(self._witness)
        if not int(group.counts(len(index)).sum()) or not variance > 0.0:
            return
        every = np.stack([score_rows(one, negatives, index=index).astype(np.float64) for one in average.networks()])
        scale, shift, share = (one.cpu().numpy().astype(np.float64) for one in _constants(average))
        every = (every * scale[:, None] + shift[:, None]).reshape(self._variants, self.members, -1)
        spread = np.var(np.tensordot(share, every, axes=1), axis=0, ddof=1)
        (parts,) = group.gather([np.array([spread.sum(), len(index)])])
        total, count = np.frombuffer(group.share(parts.reshape(-1, 2).sum(axis=0).tobytes()))
        average.widen(mean, variance, float(total / count))

    def loss(
        self,
        average: Members,
        rows: Mapping[str, Rows],
        weights: Mapping[str, Float32Array],
        group: Group,
    ) -> float:
        """On rank 0 the mean pair loss of the networks, each on rows that it learns from: a sample of the kept ones."""
        sample = {kind: self._sample(weights[kind], group) for kind in self._fold}
        losses = []
        for number in range(self.members * self._variants):
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
    fit = np.flatnonzero((counts >= _FEWEST_WITNESSES) & (counts <= 2 * total / slices))
    chosen: npt.NDArray[np.bool_] = place == np.uint64(fit[0]) if len(fit) else np.zeros(len(keys), dtype=bool)
    return chosen


def honest_scores(average: Members, rows: Rows, fold: Folds) -> Float32Array:
    """Scores of each row by the member whose fold the row is in, on the scale of all members."""
    return _mixed(average, raw_scores(average, rows, fold), fold)


def raw_scores(average: Members, rows: Rows, fold: Folds, threads: int = 1) -> Float32Array:
    """The same by each variant of that member, on its own scale: variants × rows."""
    scores = np.empty((average.spec.variants, len(rows)), dtype=np.float32)
    for number, network in enumerate(average.networks()):
        variant, member = divmod(number, average.spec.members)
        index = np.flatnonzero(fold == member)
        scores[variant, index] = score_rows(network, rows, threads, index)
    return scores


def _standardised(average: Members, raw: Float32Array, fold: Folds) -> Float32Array:
    scale, shift, _ = (one.cpu().numpy() for one in _constants(average))
    by_variant = (average.spec.variants, average.spec.members)
    standardised: Float32Array = raw * scale.reshape(by_variant)[:, fold] + shift.reshape(by_variant)[:, fold]
    return standardised


def _mixed(average: Members, raw: Float32Array, fold: Folds) -> Float32Array:
    """Of the scores by a member's variants its own."""
    share = average.share.cpu().numpy()
    mixed: Float32Array = (_standardised(average, raw, fold) * share[:, None]).sum(axis=0)
    return mixed


def _constants(average: Members) -> tuple[Tensor, Tensor, Tensor]:
    return average.scale, average.shift, average.share


def _even_sample(own: int, seed: int, group: Group) -> npt.NDArray[np.bool_]:
    """Which of the own rows of a class are in a sample of all ranks' rows, the same for any number of ranks."""
    counts = group.counts(own)
    return in_sample(int(counts[: group.rank].sum()), own, int(counts.sum()), _WEIGHING_ROWS, seed)


def refuse_bad(scores: Scored, network: ScoringNetwork, group: Group) -> None:
    """Refuse scores that are NaN or infinite, on all ranks if any of them has some."""
    bad = int(group.counts(sum(s.size - int(np.isfinite(s).sum()) for s in scores.values())).sum())
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
