"""Whether it pays to leave rows out, by scores of rows that no compared model learned from."""

from __future__ import annotations

import numpy as np

from bspauc_spark.arrays import Float32Array, FloatArray
from bspauc_spark.theta import evidence

# In standard errors: what both gains together are to exceed, what neither may fall below, and what the second one alone
# is to exceed.
_TOGETHER, _LEAST, _ALONE = 1.5, -1.0, 3.0


def compared(positives: Float32Array, negatives: Float32Array) -> FloatArray:
    """The gains of the second row of scores over the first: in AUC, its standard error, in Youden's J, and its own."""
    one, other = zip(positives.astype(np.float64), negatives.astype(np.float64), strict=True)
    return evidence.verdict(one, other)


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
    return evidence.told(verdict, pays(verdict))
