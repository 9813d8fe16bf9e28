"""Whether it pays to leave rows out, by scores of rows that no compared model learned from."""

from __future__ import annotations

from bspauc_spark.arrays import Float32Array, FloatArray
from bspauc_spark.theta.evidence import weighed

# In standard errors: what both gains together are to exceed, what neither may fall below, and what the second one alone
# is to exceed.
_TOGETHER, _LEAST, _ALONE = 1.5, -1.0, 3.0


def compared(positives: Float32Array, negatives: Float32Array) -> FloatArray:
    """The gains of the second row of scores over the first: in AUC, its standard error, in Youden's J, and its own."""
    return weighed(positives, negatives, twins=1)[1]


def pays(verdict: FloatArray) -> bool:
    """Whether to believe that the selection ranks better.

    Labels are as given, so wrong ones hide a gain: of a large gain in true AUC a few standard errors are left. Both
    measures together are to show more than chance, and neither a loss. But where labels are wrong far from the
    boundary, a model that learned them has the better AUC against them, though it ranks worse. They do not move
    Youden's J, which counts rows on either side of one threshold. So J decides alone where it is sure.
    """
    auc, youden = _in_errors(verdict)
    return youden > _ALONE or (auc + youden > _TOGETHER and min(auc, youden) > _LEAST)


def _in_errors(verdict: FloatArray) -> tuple[float, float]:
    auc, auc_error, youden, youden_error = verdict.tolist()
    return auc / auc_error if auc_error else 0.0, youden / youden_error if youden_error else 0.0


def told(verdict: FloatArray) -> str:
    """A verdict in words."""
    auc, auc_error, youden, youden_error = verdict.tolist()
    if not verdict.any():
        return "All rows are kept: with part of them, honest scores show no wrong labels."
    gains = (
        f"the AUC changes by {auc:+.4f} ± {auc_error:.4f} and the largest difference of true and false positive rates "
        f"by {youden:+.4f} ± {youden_error:.4f}, against labels as given, on rows not learned from"
    )
    if pays(verdict):
        return f"The selection of rows is used: with it {gains}."
    return f"All rows are kept, since leaving rows out does not rank better by more than chance: with it {gains}."
