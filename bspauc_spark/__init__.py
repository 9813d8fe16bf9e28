"""Balanced self-paced AUC maximisation as a Spark ML pipeline stage."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bspauc_spark.errors import BSPAUCError
from bspauc_spark.version import __version__

if TYPE_CHECKING:
    from bspauc_spark.around.classifier import SelfPacedClassifier
    from bspauc_spark.around.model import SelfPacedModel
    from bspauc_spark.estimator import BSPAUCClassifier
    from bspauc_spark.flavor import log_model
    from bspauc_spark.model import BSPAUCModel

__all__ = [
    "BSPAUCClassifier",
    "BSPAUCError",
    "BSPAUCModel",
    "SelfPacedClassifier",
    "SelfPacedModel",
    "__version__",
    "log_model",
]

# Found on first use, so that the workers and a saved model's scorer need no pyspark.
_LAZY = {
    "BSPAUCClassifier": "bspauc_spark.estimator",
    "BSPAUCModel": "bspauc_spark.model",
    "SelfPacedClassifier": "bspauc_spark.around.classifier",
    "SelfPacedModel": "bspauc_spark.around.model",
    "log_model": "bspauc_spark.flavor",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
