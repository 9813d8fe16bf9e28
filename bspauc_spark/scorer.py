"""A fitted model without Spark: θ, its calibration and the audit's curves."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bspauc_spark import saved
from bspauc_spark.arrays import FloatArray, as_array, as_csr, finite_floats, is_sparse
from bspauc_spark.errors import InvalidFeaturesError
from bspauc_spark.rows.arrow import CheckedFeatures, DenseFeatures, SparseFeatures
from bspauc_spark.rows.rows import Batch, DenseRows, Rows, SparseBatch, SparseRows
from bspauc_spark.rows.storage import on_disk
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise, estimate_label_noise
from bspauc_spark.statistics import CountArray, OrderedScores, as_scores, negative_losses, positive_losses
from bspauc_spark.statistics.binned import exact_on_bins
from bspauc_spark.theta.honest import folds_of, honest_scores
from bspauc_spark.theta.inputs import inputs_of
from bspauc_spark.theta.members import build
from bspauc_spark.theta.mixing import MixedNetwork
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.scoring import ChunkScorer, score_chunks

_CURVE_POINTS = 1025
FEWEST_VALIDATION_ROWS = 50
"""Of each class, for probability and threshold."""


@dataclass(frozen=True, eq=False)
class LossCurves:
    """``l⁺`` and ``l⁻`` as functions of the score, at many points; both are convex and piecewise linear."""

    scores: FloatArray
    positive: FloatArray
    negative: FloatArray

    @classmethod
    def of(cls, pos: OrderedScores, neg: OrderedScores, selection: Selection) -> LossCurves:
        """The curves for the rows that ``selection`` keeps."""
        kept = (selection.positive_fraction * len(pos), selection.negative_fraction * len(neg))
        return cls(*_curves(pos, neg, *kept))

    def losses(self, scores: npt.ArrayLike, is_positive: npt.NDArray[np.bool_]) -> FloatArray:
        """Loss of rows with these scores and labels; outside the curve it goes on as a line."""
        x = np.asarray(scores, dtype=np.float64)
        return np.where(is_positive, self._at(x, self.positive), self._at(x, self.negative))

    def _at(self, x: FloatArray, curve: FloatArray) -> FloatArray:
        low, high = self.scores[0], self.scores[-1]
        below = np.minimum(x - low, 0) * (curve[1] - curve[0]) / (self.scores[1] - low)
        above = np.maximum(x - high, 0) * (curve[-1] - curve[-2]) / (high - self.scores[-2])
        line: FloatArray = np.interp(x, self.scores, curve) + below + above
        return np.maximum(line, 0.0)


@exact_on_bins
def _curves(
    pos: OrderedScores, neg: OrderedScores, positive_kept: float, negative_kept: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Points, and both losses at them.

    ``l⁺`` bends at the negatives' scores + 1 and ``l⁻`` at the positives' − 1. Between two neighbouring points a line
    is off by at most a quarter of their distance times the share of rows at whose scores the curve bends there.
    Quantiles of the bends bound that share by 1/1024, equidistant points the distance by 1/1024 of the whole range: the
    error is below the range / 4,000,000, however the scores lie. Of a class with fewer rows every bend is a point, so
    there is no error at all.
    """
    bends = [neg.many(_spread_ranks(len(neg))) + 1.0, pos.many(_spread_ranks(len(pos))) - 1.0]
    low, high = min(float(b.min()) for b in bends), max(float(b.max()) for b in bends)
    # Beyond the last bends, so that the curves end as the lines by which they go on.
    low, high = low - max(1.0, 1e-6 * abs(low)), high + max(1.0, 1e-6 * abs(high))
    most = float(np.finfo(np.float32).max)
    points = np.clip(np.concatenate([*bends, np.linspace(low, high, _CURVE_POINTS)]), -most, most)
    # As float32, in which losses are computed; two points may have become one.
    scores = np.unique(as_scores(points)).astype(np.float64)
    return scores, positive_losses(scores, neg, negative_kept), negative_losses(scores, pos, positive_kept)


def _spread_ranks(rows: int) -> CountArray:
    """Ranks at equal distances and, since tails are thin, at distances that double from both ends."""
    doubling = 2 ** np.arange(int(rows).bit_length())
    even = np.linspace(0, rows - 1, min(rows, _CURVE_POINTS)).astype(np.int64)
    return np.unique(np.clip(np.concatenate([even, doubling - 1, rows - doubling]), 0, rows - 1))


@dataclass(frozen=True, eq=False)
class Scorer:
    """All that scoring and auditing need."""

    spec: NetworkSpec
    sparse: bool
    weights: Mapping[str, npt.NDArray[np.float32]]
    threshold: float
    negative_label: float
    label_noise: LabelNoise
    selection: Selection
    curves: LossCurves
    summary: Mapping[str, Any]
    positive_label: float = 1.0

    def __post_init__(self) -> None:
        # Scores of all rows of a fit, up to 400 MB, would live as long as the model; of them it needs the objective.
        if self.selection.scores is not None:
            object.__setattr__(self, "selection", Selection.from_dict(self.selection.to_dict()))

    @cached_property
    def network(self) -> ScoringNetwork:
        """The network with its weights, ready to score."""
        columns = self.weights.get(f"{'members.0.' if self.spec.members else ''}first.columns")
        inputs = inputs_of(self.weights, self.spec.num_features)
        network = build(self.spec, None, None if columns is None else torch.from_numpy(np.array(columns)), inputs)
        network.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in self.weights.items()})
        return network.eval()

    @cached_property
    def _chunks(self) -> ChunkScorer:
        return ChunkScorer(self.network)

    def score(self, rows: Batch) -> npt.NDArray[np.float32]:
        """Scores of any number of rows, in chunks of the size that training used."""
        return self._finite(score_chunks(self._chunks, len(rows), partial(_slice, rows)))

    @staticmethod
    def _finite(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        bad = len(scores) - int(np.isfinite(scores).sum())
        if bad:
            raise InvalidFeaturesError(
                f"the scores of {bad:,} of {len(scores):,} rows are NaN or infinite: their features are far larger "
                "than those that the model was fitted on. Scale or drop them."
            )
        return scores

    def score_features(self, block: CheckedFeatures) -> npt.NDArray[np.float32]:
        """Scores of the rows of an Arrow batch."""
        if isinstance(block, SparseFeatures):
            return self.score(_sparse_batch(block.columns, block.values, block.pointers))
        assert isinstance(block, DenseFeatures)
        return self.score(torch.from_numpy(block.matrix))

    def judge_features(self, block: CheckedFeatures) -> npt.NDArray[np.float32]:
        """Honest scores of the rows of an Arrow batch: of each row by the member that learned from none like it."""
        network = self.network
        if not isinstance(network, MixedNetwork) or not self.spec.members:
            return self.score_features(block)
        if isinstance(block, SparseFeatures):
            part = (block.pointers.astype(np.int64), block.columns, block.values)
            rows: Rows = SparseRows([part], self.spec.num_features)
        else:
            assert isinstance(block, DenseFeatures)
            rows = DenseRows([block.matrix], self.spec.num_features)
        return self._finite(honest_scores(network, rows, folds_of(rows, self.spec.members, self.spec.fold_seed)))

    def score_numpy(self, features: Any) -> npt.NDArray[np.float32]:
        """Scores of a 2-d array or a scipy CSR matrix."""
        given = as_csr(features) if is_sparse(features) else as_array(features)
        if given.ndim != 2 or given.shape[1] != self.spec.num_features:
            raise InvalidFeaturesError(
                f"features have shape {given.shape}; the model was fitted on {self.spec.num_features} columns."
            )
        if isinstance(given, np.ndarray):
            return self.score(torch.from_numpy(finite_floats(given, self.spec.gaps)))
        # The arrays may be longer than what is stored in them.
        stored = slice(given.indptr[-1])
        return self.score(
            _sparse_batch(given.indices[stored], finite_floats(given.data[stored], self.spec.gaps), given.indptr)
        )

    def to_blobs(self) -> dict[str, bytes]:
        """The model as two files: names, numbers and curves' shapes as JSON, arrays as safetensors."""
        description = {
            "network": {**asdict(self.spec), "hidden_layers": list(self.spec.hidden_layers)},
            "sparse": self.sparse,
            "threshold": self.threshold,
            "negativeLabel": self.negative_label,
            "positiveLabel": self.positive_label,
            "calibration": self.label_noise.to_dict(),
            "selection": self.selection.to_dict(),
            "summary": self.summary,
        }
        arrays = {f"theta.{name}": np.ascontiguousarray(w) for name, w in self.weights.items()}
        arrays |= {f"curves.{name}": array for name, array in vars(self.curves).items()}
        return saved.pack(description, arrays)

    @classmethod
    def from_blobs(cls, blobs: Mapping[str, bytes], source: str = "the saved model") -> Scorer:
        """The inverse of ``to_blobs``; errors call it ``source``."""
        stored, arrays = saved.unpack(blobs, source)
        return cls(
            spec=stored["network"],
            sparse=stored["sparse"],
            weights={n.removeprefix("theta."): a for n, a in arrays.items() if n.startswith("theta.")},
            threshold=stored["threshold"],
            negative_label=stored["negativeLabel"],
            label_noise=stored["calibration"],
            selection=stored["selection"],
            curves=LossCurves(*(arrays[f"curves.{name}"] for name in ("scores", "positive", "negative"))),
            summary=stored["summary"],
            positive_label=stored.get("positiveLabel", 1.0),
        )

    def save(self, path: str | Path) -> None:
        """Write the model's two files into the folder ``path``, which is made if need be."""
        folder = on_disk(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, blob in self.to_blobs().items():
            (folder / name).write_bytes(blob)

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """Read what ``save`` wrote."""
        source = saved.named(path)
        return cls.from_blobs(saved.read(path, source), source)


@exact_on_bins
def balanced_threshold(pos: OrderedScores, neg: OrderedScores) -> float:
    """The score above which "positive" maximises balanced accuracy, midway between two neighbouring scores.

    Balanced accuracy is linear in the rates of both classes, so labels that are wrong at a constant rate per
    class do not move the best threshold.
    """
    # The best cut lies just below a positive's score.
    best, cut, done = -1.0, 0.0, 0.0
    for scores, weights in pos.points(0, len(pos)):
        gain = neg.rough_below(scores) / len(neg) - (done + np.cumsum(weights) - weights) / len(pos)
        place = int(np.argmax(gain))
        if gain[place] > best:
            best, cut = float(gain[place]), float(scores[place])
        done += weights.sum()
    ranks = pos.count_below(cut), neg.count_below(cut)
    lower = [scores.at(rank - 1) for scores, rank in zip((pos, neg), ranks, strict=True) if rank]
    return (cut + max(lower)) / 2 if lower else cut - 1.0


def judged(scores: Scores, pays: bool = False) -> tuple[LabelNoise, float, LabelNoise | None]:
    """What labels say about the scores with which a fit ended: label noise, threshold, and that of validation rows.

    Suspicion is always that of training rows. Probability and threshold are for new rows, which a network that learned
    from the training rows scores otherwise; so they are of the validation rows where there are enough of both classes.
    A selection that ``pays`` is evidence of wrong labels beside what the scores show.
    """
    noise, held = estimate_label_noise(scores.positive, scores.negative, pays), scores.validation
    if held is None or min(map(len, held)) < FEWEST_VALIDATION_ROWS:
        return noise, balanced_threshold(scores.positive, scores.negative), None
    found = estimate_label_noise(*held, pays)
    return replace(noise, knots=found.knots, values=found.values), balanced_threshold(*held), found


_loaded: dict[str, Scorer] = {}


def cached_scorer(digest: str, blobs: Mapping[str, bytes]) -> Scorer:
    """The scorer of ``blobs``, built once per process: a Spark worker runs many tasks of one transform."""
    if digest not in _loaded:
        torch.set_num_threads(1)
        if not gc.get_freeze_count():
            # Spark's workers collect garbage in every task, and torch's import leaves hundreds of thousands of objects
            # to look through: set aside, they cost a task nothing. Once, for what is set aside is never collected.
            gc.collect()
            gc.freeze()
        if len(_loaded) >= 8:
            _loaded.pop(next(iter(_loaded)))
        _loaded[digest] = Scorer.from_blobs(blobs)
    return _loaded[digest]


def _sparse_batch(columns: npt.ArrayLike, values: npt.ArrayLike, pointers: npt.ArrayLike) -> SparseBatch:
    return SparseBatch(
        torch.from_numpy(np.asarray(columns, dtype=np.int32)),
        torch.from_numpy(np.asarray(values, dtype=np.float32)),
        torch.from_numpy(np.array(pointers, dtype=np.int32)[:-1]),
    )


def _slice(rows: Batch, start: int, stop: int) -> Batch:
    if isinstance(rows, SparseBatch):
        begin = int(rows.offsets[start])
        end = int(rows.offsets[stop]) if stop < len(rows) else len(rows.indices)
        return SparseBatch(rows.indices[begin:end], rows.values[begin:end], rows.offsets[start:stop] - begin)
    return rows[start:stop]
