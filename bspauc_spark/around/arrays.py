"""The loop on arrays, without Spark: learners are functions, as those of sklearn are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from bspauc_spark.around.rounds import Fit, Kept, Outcome, Sample, View
from bspauc_spark.around.scale import Scale
from bspauc_spark.arrays import BoolArray, Float32Array, FloatArray
from bspauc_spark.rows.folds import counted, dense_keys, most_folds
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.statistics import ClassScores, OrderedScores

Score: TypeAlias = Callable[[Any], Any]
Learner: TypeAlias = Callable[[Any, BoolArray, FloatArray], Score]
"""Fits on rows, labels and weights, and returns a function that scores rows."""


class ArraySide:
    """Rows of an array, learners that are functions, and their models."""

    def __init__(self, x: Any, positive: BoolArray, learners: Sequence[Learner], folds: int, seed: int = 0) -> None:
        self.x, self.positive, self.learners = x, positive, learners
        keys = dense_keys(np.asarray(x, dtype=np.float32) + np.float32(0), seed)
        counts = {kind: counted(keys[mask], folds) for kind, mask in ((POSITIVES, positive), (NEGATIVES, ~positive))}
        self.folds = most_folds(folds, counts)
        self.fold = (keys % np.uint64(max(self.folds, 1))).astype(np.int64)
        self._models: dict[Fit, list[Score]] = {}

    def models(self, fit: Fit) -> list[Score]:
        """The score functions of all learners, fitted as ``fit`` says."""
        if fit not in self._models:
            weights = np.where(np.isin(self.fold, list(fit.left_out)), 0.0, 1.0)
            if fit.kept is not None:
                weights *= self._weights(fit.kept)
            kept = weights > 0
            rows = self.x[kept], self.positive[kept], weights[kept]
            self._models[fit] = [learner(*rows) for learner in self.learners]
        return self._models[fit]

    def _weights(self, kept: Kept) -> FloatArray:
        raw = kept.scored.sample().raw[kept.view]
        scores, selection = kept.scale.scores(raw, self.fold), kept.selection
        return np.where(self.positive, selection.positive_weights(scores), selection.negative_weights(scores))

    @contextlib.contextmanager
    def scored(self, views: Mapping[View, Mapping[int, Fit]]) -> Iterator[ArrayScores]:
        """Fit what is not fitted yet, and score each fold of each view."""
        raw: dict[View, Float32Array] = {}
        for view, fits in views.items():
            raw[view] = np.full((len(self.learners), len(self.x)), np.nan, dtype=np.float32)
            for fold, fit in fits.items():
                own = self.fold == fold
                raw[view][:, own] = self.raw(fit, self.x[own])
        yield ArrayScores(Sample(self.positive, self.fold, raw))

    def scores(self, found: Outcome, x: Any) -> Float32Array:
        """Scores of new rows, as the outcome says."""
        of_folds = np.stack([self.raw(found.models[k], self.x) for k in range(self.folds)])
        return found.scale.aligned(self.raw(found.final, self.x), of_folds).of_new(self.raw(found.final, x))

    def raw(self, fit: Fit, x: Any) -> Float32Array:
        """Scores by the models of a fit, learners × rows."""
        return np.array([score(x) for score in self.models(fit)], dtype=np.float32)


class ArrayScores:
    """Scores of all rows; all of them are evidence."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def sample(self) -> Sample:
        """All rows."""
        return self._sample

    def classes(self, view: View, scale: Scale) -> tuple[OrderedScores, OrderedScores]:
        """The scores of positives and negatives in the folds of the scale."""
        sample = self._sample
        inside = np.isin(sample.fold, scale.folds)
        scores = scale.scores(sample.raw[view], sample.fold)
        pos, neg = (ClassScores.from_array(scores[inside & mask]) for mask in (sample.positive, ~sample.positive))
        return pos, neg
