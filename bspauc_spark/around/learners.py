"""The classifiers that a fit is given: what they may be, which columns they read, and the score of a row."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from bspauc_spark.errors import InvalidParamError, LearnerError, cause
from bspauc_spark.estimator import BSPAUCClassifier
from bspauc_spark.rows.columns import quoted

WEIGHT = "__bspauc_weight"
# While folds are scored, so that no column of the user's is in the way.
_INNER = {name: f"__bspauc_{name}" for name in ("predictionCol", "rawPredictionCol", "probabilityCol")}
# Its raw prediction is the number of rows of each class in a leaf, which says how large the leaf is.
_BY_PROBABILITY = ("DecisionTreeClassificationModel",)
_LEAST_PROBABILITY = 1e-15


@dataclass(frozen=True)
class Learner:
    """A classifier with the columns of a fit.

    Attributes
    ----------
    classifier : Estimator
        A copy that reads and writes the columns of ``columns``.
    columns : mapping
        The names of ``featuresCol``, ``labelCol``, and of the outputs of the final model.
    weight : str or None
        The user's column of weights.
    """

    classifier: Estimator[Any]
    columns: Mapping[str, str]
    weight: str | None

    @property
    def name(self) -> str:
        """What it is called in messages and tables."""
        return type(self.classifier).__name__

    @property
    def weighs(self) -> bool:
        """Whether it takes a column of weights."""
        return self.classifier.hasParam("weightCol")

    def fit(self, frame: DataFrame, weighted: bool, outputs: bool = False) -> Model:
        """A model of these rows, which have a column of weights if it is ``weighted``.

        With ``outputs`` its output columns have the names that the user wants.
        """
        wanted = dict(self.columns) if outputs else {**self.columns, **_INNER}
        weight = WEIGHT if weighted else self.weight
        if self.weighs and weight:
            wanted["weightCol"] = weight
        copy = self.classifier.copy()
        _set(copy, wanted)
        model: Model = copy.fit(frame)
        if self.weighs and weighted:
            _forget_weights(model, self.weight)
        return model

    def renamed(self, model: Model) -> Model:
        """The model with the output columns of the user."""
        copy: Model = model.copy()
        _set(copy, self.columns)
        return copy

    def with_score(self, model: Model, frame: DataFrame, name: str) -> DataFrame:
        """The rows with the model's score in the column ``name``, and without its outputs."""
        scored = model.transform(frame)
        return scored.withColumn(name, score_of(model)).drop(*outputs_of(model))

    def failed(self, left_out: Sequence[int], folds: int, error: Exception) -> str:
        """What went wrong in the fit without these folds."""
        rows = f"the rows outside fold {' and '.join(map(str, left_out))} of {folds}" if left_out else "the kept rows"
        return (
            f"{self.name} failed on {rows}: {cause(error)}. Fit it on your rows by itself; if it fits them all and not "
            "some of them, lower folds or change its Params."
        )


def score_of(model: Any) -> Column:
    """A row's score: half the difference of its raw predictions, the margin of most classifiers, or else log odds."""
    raw, probability = (output_of(model, name) for name in ("rawPredictionCol", "probabilityCol"))
    if raw and (type(model).__name__ not in _BY_PROBABILITY or not probability):
        values = vector_to_array(quoted(raw))
        return ((sf.element_at(values, 2) - sf.element_at(values, 1)) / 2).cast("float")
    if not probability:
        raise LearnerError(
            f"{type(model).__name__} writes neither rawPrediction nor probability, so its rows cannot be ranked. Set "
            "rawPredictionCol, or take another classifier."
        )
    least = sf.lit(_LEAST_PROBABILITY)
    share = sf.greatest(least, sf.least(1 - least, sf.element_at(vector_to_array(quoted(probability)), 2)))
    return sf.log(share / (1 - share)).cast("float")


def outputs_of(model: Any) -> list[str]:
    """The output columns of a model."""
    return [name for name in (output_of(model, param) for param in _INNER) if name]


def output_of(model: Any, name: str) -> str:
    """The name of an output column of a model; empty if it has none."""
    return str(model.getOrDefault(name)) if model.hasParam(name) and model.isDefined(name) else ""


def _set(stage: Any, wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if stage.hasParam(name):
            stage.set(stage.getParam(name), value)


def _forget_weights(model: Any, weight: str | None) -> None:
    """A model's Params are shown and saved: they do not name a column that only the fit had."""
    if model.hasParam("weightCol") and model.isSet("weightCol"):
        if weight:
            model.set(model.getParam("weightCol"), weight)
        else:
            model.clear(model.getParam("weightCol"))


def check_classifier(classifier: Any) -> None:
    """Refuse what cannot rank rows, before anything starts."""
    kind = f"{type(classifier).__module__}.{type(classifier).__qualname__}"
    if isinstance(classifier, type):
        raise InvalidParamError(
            f"classifier must be an estimator, not the class {classifier.__qualname__}. Call it: "
            f"{classifier.__qualname__}()."
        )
    if not isinstance(classifier, Estimator):
        fitted = " It is a fitted model: give the estimator that it came from." if isinstance(classifier, Model) else ""
        raise InvalidParamError(
            f"classifier must be a Spark ML classifier, such as LogisticRegression(), not a {kind}.{fitted}"
        )
    missing = [name for name in ("featuresCol", "labelCol") if not classifier.hasParam(name)]
    outputs = [name for name in ("rawPredictionCol", "probabilityCol") if classifier.hasParam(name)]
    if missing or not outputs:
        lacks = " and ".join(missing or ["rawPredictionCol or probabilityCol"])
        raise InvalidParamError(
            f"{type(classifier).__name__} has no {lacks}, so it is no classifier that can rank rows. Give a binary "
            "classifier, such as GBTClassifier() or SparkXGBClassifier(); put what prepares features before this stage."
        )


def has_xgboost() -> bool:
    """Whether XGBoost is installed."""
    return importlib.util.find_spec("xgboost") is not None


def forest(seed: int = 0) -> Estimator[Any]:
    """MLlib's random forest with leaves of five rows or more."""
    from pyspark.ml.classification import RandomForestClassifier

    return RandomForestClassifier(
        numTrees=100, minInstancesPerNode=5, maxDepth=15, featureSubsetStrategy="sqrt", seed=seed
    )


def boosted(seed: int = 0) -> Estimator[Any]:
    """XGBoost with many small steps of small trees, which wrong labels mislead less than its defaults."""
    from xgboost.spark import SparkXGBClassifier

    settings: dict[str, Any] = {"n_estimators": 300, "learning_rate": 0.05, "max_depth": 4, "min_child_weight": 10}
    settings |= {"subsample": 0.8, "colsample_bytree": 0.8, "reg_lambda": 5, "seed": seed}
    found: Estimator[Any] = SparkXGBClassifier(**settings)
    return found


def ready(seed: int, connect: bool = False) -> list[Estimator[Any]]:
    """The learners of a blend that nobody chose: a forest, our network, and XGBoost where it is installed.

    XGBoost asks for the context of Spark, which a client of Spark Connect does not have.
    """
    found = [forest(seed), BSPAUCClassifier(seed=seed, verbose=False, tracking="off")]
    return [*found, boosted(seed)] if has_xgboost() and not connect else found
