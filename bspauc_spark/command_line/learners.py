"""The learners that ``jobs/train.py`` puts a self-paced selection around, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.classification import GBTClassifier, LogisticRegression

from bspauc_spark.around import learners
from bspauc_spark.around.classifier import SelfPacedClassifier
from bspauc_spark.command_line.tables import nearest
from bspauc_spark.errors import InvalidParamError

OURS, BLEND = "bspauc", "blend"
_MADE: Mapping[str, Callable[[], Estimator[Any]]] = {
    "xgboost": learners.boosted,
    "gbt": lambda: GBTClassifier(maxIter=100, maxDepth=4, stepSize=0.1, subsamplingRate=0.8, minInstancesPerNode=10),
    "forest": learners.forest,
    "logistic": lambda: LogisticRegression(regParam=1e-3),
}
NAMES = (OURS, *_MADE, BLEND)
# Those columns are the job's to name.
_OURS = set(inspect.signature(SelfPacedClassifier.__init__).parameters) - {"self", "classifier", "classifiers"}


def self_paced(name: str, params: Mapping[str, Any]) -> SelfPacedClassifier:
    """The learner in a ``SelfPacedClassifier``, each with those of the Params that it has."""
    own = {key: value for key, value in params.items() if key in _OURS}
    others = {key: value for key, value in params.items() if key not in _OURS}
    if name == BLEND:
        _refuse(others, set(_OURS), "SelfPacedClassifier")
        return SelfPacedClassifier(**own)
    if name == "xgboost" and not learners.has_xgboost():
        raise InvalidParamError("--learner xgboost: XGBoost is not installed. pip install xgboost-cpu")
    inner = _MADE[name]()
    _refuse(others, {param.name for param in inner.params} | _OURS, type(inner).__name__)
    for key, value in others.items():
        try:
            inner.set(inner.getParam(key), value)
        except (TypeError, ValueError) as error:
            raise InvalidParamError(f"--param {key}: {error}") from error
    return SelfPacedClassifier(classifier=inner, **own)


def _refuse(params: Mapping[str, Any], known: set[str], kind: str) -> None:
    for key in params:
        if key not in known:
            raise InvalidParamError(f"--param {key}: {kind} has no such Param{nearest(key, sorted(known))}.")
