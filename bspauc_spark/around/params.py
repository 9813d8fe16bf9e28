"""The Params of ``SelfPacedClassifier`` and ``SelfPacedModel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasWeightCol,
)

from bspauc_spark.around.keys import LEAST_FOLDS, MOST_FOLDS
from bspauc_spark.spark.converters import CheckedParam, CheckedParams, anything, column, flag, integer, number

if TYPE_CHECKING:
    pass


class SelfPacedModelParams(
    CheckedParams, HasFeaturesCol, HasLabelCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol
):
    """Params that the fitted model uses too."""

    featuresCol = column("features column name; unset: the classifier's", default="features")
    labelCol = column("label column name, of labels 0 and 1; unset: the classifier's", default="label")
    predictionCol = column("prediction column name; unset: the classifier's", empty=True, default="prediction")
    rawPredictionCol = column(
        "raw prediction column name; unset: the classifier's", empty=True, default="rawPrediction"
    )
    probabilityCol = column("probability column name; unset: the classifier's", empty=True, default="probability")
    foldCol = column(
        "column of whole numbers that says which fold a row is in, for rows that belong together; unset: a hash of the "
        "row's features"
    )
    threshold = number(
        "rows of a higher probability are predicted positive, where the probability is the model's own and not the "
        "classifier's",
        0,
        1,
        default=0.5,
        learning=False,
    )

    def getFoldCol(self) -> str | None:
        """Value of ``foldCol``; None: folds are by a hash of the features."""
        return self.getOrDefault(self.foldCol) if self.isDefined(self.foldCol) else None

    def getThreshold(self) -> float:
        """Value of ``threshold``."""
        return self.getOrDefault(self.threshold)


class SelfPacedParams(SelfPacedModelParams, HasWeightCol, HasSeed):
    """Params of the fit."""

    classifier: Param[Any] = Param(Params._dummy(), "classifier", "the binary classifier that the selection is around")
    classifiers: Param[Any] = Param(
        Params._dummy(),
        "classifiers",
        "several binary classifiers, which are blended; unset, and without a classifier: a random forest, "
        "BSPAUCClassifier, and XGBoost where it is installed",
    )
    weightCol = column("column of weights, for classifiers that take them; unset: the classifier's")
    seed = CheckedParam("int", "random seed (a whole number) of the folds", "a whole number", int, anything, default=0)
    folds = integer("number of folds", LEAST_FOLDS, MOST_FOLDS, default=3)
    parallelism = integer("how many classifiers are fitted at once", 1, default=1, learning=False)
    ensemble = flag(
        "True: the model is the mean of the models of the folds, which takes folds times as long to score; False: it "
        "is fitted once more, on all rows that are kept",
        default=False,
    )
    keepFoldModels = flag(
        "keep the models of the folds in the fitted model, which audit needs", default=True, learning=False
    )
    exactRows = integer(
        "up to so many rows of a class the driver sorts all scores, 4 bytes each; of a larger class it gets a "
        "histogram and the few bins that matter, and the selection is the same",
        0,
        2**40,
        default=50_000_000,
    )

    def getClassifier(self) -> Estimator[Any] | None:
        """Value of ``classifier``, if it is set."""
        return self.getOrDefault(self.classifier) if self.isDefined(self.classifier) else None

    def getClassifiers(self) -> list[Estimator[Any]] | None:
        """Value of ``classifiers``, if it is set."""
        return self.getOrDefault(self.classifiers) if self.isDefined(self.classifiers) else None

    def getFolds(self) -> int:
        """Value of ``folds``."""
        return self.getOrDefault(self.folds)

    def getParallelism(self) -> int:
        """Value of ``parallelism``."""
        return self.getOrDefault(self.parallelism)

    def getEnsemble(self) -> bool:
        """Value of ``ensemble``."""
        return self.getOrDefault(self.ensemble)

    def getKeepFoldModels(self) -> bool:
        """Value of ``keepFoldModels``."""
        return self.getOrDefault(self.keepFoldModels)

    def getExactRows(self) -> int:
        """Value of ``exactRows``."""
        return self.getOrDefault(self.exactRows)
