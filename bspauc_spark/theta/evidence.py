"""What honest scores say about networks that judge the same rows: how much to trust each."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from bspauc_spark.arrays import FloatArray

Pair: TypeAlias = tuple[FloatArray, FloatArray]

# A network that ranks worse than the best one by this many standard errors still counts for 1/√e of it.
_ERRORS = 2.0
_LEAST_SHARE = 0.3
# Of a gain by leaving rows out, so many standard errors: twins are the safe choice.
_SURE = 3.0


def shares(positives: FloatArray, negatives: FloatArray, prior: FloatArray | None = None) -> FloatArray:
    """What share each of several networks gets; its scores of rows of both classes are a row of each array.

    The ``prior`` says what each one counts for where nothing tells them apart.

    A network whose AUC is behind the best one's by less than chance explains counts as much as that one; one that is
    clearly behind counts for nothing. So many rows choose, and few rows average. Both AUCs are of the same rows, and
    what is uncertain is their difference: its standard error is DeLong's.
    """
    placed = [_placements(*one) for one in zip(positives, negatives, strict=True)]
    aucs = [above.mean() for above, _ in placed]
    best_above, best_below = placed[int(np.argmax(aucs))]
    weights = []
    for above, below in placed:
        more, less = best_above - above, best_below - below
        behind = more.mean()
        error = np.sqrt(more.var() / len(more) + less.var() / len(less))
        weights.append(np.exp(-0.5 * (behind / (_ERRORS * error)) ** 2) if error > 0 else float(behind <= 0))
    found = np.array(weights) * (1.0 if prior is None else prior)
    if not found.any():
        found = np.array(weights)
    # What counts for next to nothing costs as much time as the others when rows are scored.
    found[found < _LEAST_SHARE * found.max()] = 0.0
    kept: FloatArray = found / found.sum()
    return kept


def _placements(positive: FloatArray, negative: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of each positive the share of negatives below it, and of each negative the share of positives above it."""
    s, r = np.sort(positive), np.sort(negative)
    below = (np.searchsorted(r, positive, "left") + np.searchsorted(r, positive, "right")) / (2 * len(r))
    above = 1 - (np.searchsorted(s, negative, "left") + np.searchsorted(s, negative, "right")) / (2 * len(s))
    return below, above


def verdict(one: Pair, other: Pair) -> FloatArray:
    """By how much the ``other`` scores of positives and negatives rank better than ``one``.

    The gain in AUC and in the largest difference of true and false positive rates (Youden's J), each with its standard
    error.
    """
    return np.array([*_auc_gain(one, other), *_youden_gain(one, other)])


def pays(found: FloatArray) -> bool:
    """Whether a verdict says that it pays to leave rows out: J gains by more than three standard errors.

    Labels that are wrong in a systematic way are themselves easy to learn, so the AUC on given labels falls where that
    on true ones rises, and says little. J is not misled by what is far from the threshold.
    """
    _, _, youden, youden_error = found.tolist()
    return bool(youden > _SURE * youden_error)


def _auc_gain(one: Pair, other: Pair) -> tuple[float, float]:
    (above, below), (more_above, more_below) = _placements(*one), _placements(*other)
    return _mean_and_error(more_above - above, more_below - below)


def _youden_gain(one: Pair, other: Pair) -> tuple[float, float]:
    ours, theirs = ([scores > _youden_cut(*pair) for scores in pair] for pair in (one, other))
    gains = [b.astype(np.float64) - a for a, b in zip(ours, theirs, strict=True)]
    difference = float(gains[0].mean() - gains[1].mean())
    return difference, _mean_and_error(*gains)[1]


def _youden_cut(positive: FloatArray, negative: FloatArray) -> float:
    """The score above which true positives are most ahead of false ones, as shares of their classes."""
    cuts = np.unique(np.concatenate([positive, negative]))
    s, r = np.sort(positive), np.sort(negative)
    ahead = np.searchsorted(r, cuts, "right") / len(r) - np.searchsorted(s, cuts, "right") / len(s)
    return float(cuts[int(np.argmax(ahead))])


def _mean_and_error(of_positives: FloatArray, of_negatives: FloatArray) -> tuple[float, float]:
    error = np.sqrt(of_positives.var() / len(of_positives) + of_negatives.var() / len(of_negatives))
    return float(of_positives.mean()), float(error)


def told(found: FloatArray, used: bool) -> str:
    """A verdict in words, and whether the selection is ``used``."""
    if not found.any():
        return "All rows are kept: no labels were seen to be wrong."
    auc, auc_error, youden, youden_error = found.tolist()
    gains = (
        f"the AUC changes by {auc:+.4f} ± {auc_error:.4f} and the largest difference of true and false positive rates "
        f"by {youden:+.4f} ± {youden_error:.4f}, against labels as given, on rows not learned from"
    )
    if used:
        return f"The selection of rows is used: with it {gains}."
    return f"All rows are kept, since leaving rows out does not clearly pay: with it {gains}."
