"""Which share each of several learners gets in their blend, by honest scores."""

from __future__ import annotations

import numpy as np

from bspauc_spark.arrays import FloatArray

# Learners that are picked one after the other, each as often as it helps; and how many samples of rows pick.
_PICKS, _SAMPLES = 20, 10
# What counts for next to nothing costs as much time as the others when rows are scored.
_LEAST_SHARE = 0.05


def blended(positives: FloatArray, negatives: FloatArray, seed: int = 0) -> FloatArray:
    """The share of each learner; its scores of rows of both classes, on a common scale, are a row of each array.

    Greedy selection with replacement (Caruana et al., 2004): begin with the learner that ranks best, and go on adding
    the one with which the sum ranks best by AUC. What few rows favour by chance, samples of them do not agree about:
    the shares are the mean over random halves of the rows.
    """
    learners = len(positives)
    if learners == 1:
        return np.ones(1)
    random, found = np.random.default_rng(seed), np.zeros(learners)
    for _ in range(_SAMPLES):
        halves = [
            some[:, random.permutation(some.shape[1])[: -(-some.shape[1] // 2)]] for some in (positives, negatives)
        ]
        found += _picked(halves[0], halves[1])
    found /= found.sum()
    found[found < _LEAST_SHARE] = 0.0
    kept: FloatArray = found / found.sum()
    return kept


def _picked(positives: FloatArray, negatives: FloatArray) -> FloatArray:
    counts = np.zeros(len(positives))
    sums = np.zeros(positives.shape[1]), np.zeros(negatives.shape[1])
    for _ in range(_PICKS):
        aucs = [auc(sums[0] + p, sums[1] + n) for p, n in zip(positives, negatives, strict=True)]
        best = int(np.argmax(aucs))
        counts[best] += 1.0
        sums = sums[0] + positives[best], sums[1] + negatives[best]
    found: FloatArray = counts / counts.sum()
    return found


def auc(positive: FloatArray, negative: FloatArray) -> float:
    """Area under the ROC curve; ties count one half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / (2 * len(ordered)))
