"""The methods that the paper compares with, on arrays: they are here for comparison and do not run on clusters.

Each takes a 2-d array or a scipy CSR matrix, and boolean labels. ``fit(x, y)`` returns the object itself, ``score(x)``
one number for each row. ``CrossEntropy`` is not in the paper; it is what most people would use. TSAM and DSAM are
``BSPAUCClassifier(selfPaced=False)`` with ``network="kernel"`` and ``"mlp"``.
"""

from bspauc_spark.baselines.cross_entropy import CrossEntropy
from bspauc_spark.baselines.koil import KOIL
from bspauc_spark.baselines.opauc import OPAUC
from bspauc_spark.baselines.ppd import PPD

__all__ = ["KOIL", "OPAUC", "PPD", "CrossEntropy"]
