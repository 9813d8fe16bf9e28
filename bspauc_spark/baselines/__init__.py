"""The systems that the paper compares with, on arrays: for comparison, not for clusters.

Each takes a 2-d array or a scipy CSR matrix and boolean labels: ``fit(x, y)`` returns itself, ``score(x)`` one number a
row. ``CrossEntropy`` is no system of the paper but the usual choice. TSAM and DSAM are
``BSPAUCClassifier(selfPaced=False)`` with ``network="kernel"`` and ``"mlp"``.
"""

from bspauc_spark.baselines.cross_entropy import CrossEntropy
from bspauc_spark.baselines.koil import KOIL
from bspauc_spark.baselines.opauc import OPAUC
from bspauc_spark.baselines.ppd import PPD

__all__ = ["KOIL", "OPAUC", "PPD", "CrossEntropy"]
