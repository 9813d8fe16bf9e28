"""Which share each of several learners gets in their blend, by honest scores."""

from __future__ import annotations

import numpy as np

from bspauc_spark.arrays import FloatArray
from bspauc_spark.theta.evidence import shares

# Picks on each sample of the rows, and how many picks the shares are worth from which it begins.
_PICKS, _WORTH, _SAMPLES = 10, 20, 4
# What counts for next to nothing costs as much time as the others when rows are scored.
_LEAST_SHARE = 0.05


def blended(positives: FloatArray, negatives: FloatArray, seed: int = 0) -> FloatArray:
    """The share of each learner; its scores of rows of both classes, on a common scale, are a row of each array.

    Greedy selection with replacement (Caruana et al., 2004): go on picking the learner with which the sum ranks best by
    AUC. A learner that ranks worse by itself is picked if it errs on other rows. But where labels are wrong or rows are
    few, AUCs differ by chance. So it begins from shares that are alike unless a learner is behind by more than chance
    explains, and picks on random halves of the rows, which do not agree about chance.
    """
    learners = len(positives)
    if learners == 1:
        return np.ones(1)
    first = shares(positives.astype(np.float32), negatives.astype(np.float32))
    random, found = np.random.default_rng(seed), np.zeros(learners)
    for _ in range(_SAMPLES):
        p, n = (some[:, random.permutation(some.shape[1])[: -(-some.shape[1] // 2)]] for some in (positives, negatives))
        found += _picked(first, p, n)
    found /= found.sum()
    found[found < _LEAST_SHARE] = 0.0
    kept: FloatArray = found / found.sum()
    return kept


def _picked(first: FloatArray, positives: FloatArray, negatives: FloatArray) -> FloatArray:
    counts = _WORTH * first
    sums = counts @ positives, counts @ negatives
    for _ in range(_PICKS):
        aucs = [auc(sums[0] + p, sums[1] + n) for p, n in zip(positives, negatives, strict=True)]
        best = int(np.argmax(aucs))
        counts[best] += 1.0
        sums = sums[0] + positives[best], sums[1] + negatives[best]
    return counts


def auc(positive: FloatArray, negative: FloatArray) -> float:
    """Area under the ROC curve; ties count one half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / (2 * len(ordered)))
