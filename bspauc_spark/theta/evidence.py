"""What honest scores say about networks that judge the same rows: how much to trust each."""

from __future__ import annotations

import numpy as np

from bspauc_spark.arrays import Float32Array, FloatArray

# A network that ranks worse than the best one by this many standard errors still counts for 1/√e of it.
_ERRORS = 2.0


def shares(positives: Float32Array, negatives: Float32Array) -> FloatArray:
    """What share each of several networks gets; its scores of rows of both classes are a row of each array.

    A network whose AUC is behind the best one's by less than chance explains counts as much as that one; one that is
    clearly behind counts for nothing. So many rows choose, and few rows average. Both AUCs are of the same rows, and
    what is uncertain is their difference: its standard error is DeLong's.
    """
    placed = [_placements(s.astype(np.float64), r.astype(np.float64)) for s, r in zip(positives, negatives, strict=True)]
    aucs = [above.mean() for above, _ in placed]
    best_above, best_below = placed[int(np.argmax(aucs))]
    weights = []
    for above, below in placed:
        more, less = best_above - above, best_below - below
        behind = more.mean()
        error = np.sqrt(more.var() / len(more) + less.var() / len(less))
        weights.append(np.exp(-0.5 * (behind / (_ERRORS * error)) ** 2) if error > 0 else float(behind <= 0))
    found: FloatArray = np.array(weights) / np.sum(weights)
    return found


def _placements(positive: FloatArray, negative: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of each positive the share of negatives below it, and of each negative the share of positives above it."""
    s, r = np.sort(positive), np.sort(negative)
    below = (np.searchsorted(r, positive, "left") + np.searchsorted(r, positive, "right")) / (2 * len(r))
    above = 1 - (np.searchsorted(s, negative, "left") + np.searchsorted(s, negative, "right")) / (2 * len(s))
    return below, above
