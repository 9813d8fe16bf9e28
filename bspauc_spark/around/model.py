"""``SelfPacedModel``: the fitted classifiers, the audit by the models of the folds, and how they are saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.around.judged import AUDIT_COLUMNS, Judged
from bspauc_spark.around.keys import by_rows, fold_of, key_of
from bspauc_spark.around.learners import output_of, outputs_of, score_of
from bspauc_spark.around.params import SelfPacedModelParams
from bspauc_spark.around.saving import ModelReader, ModelWriter
from bspauc_spark.around.summary import SelfPacedSummary
from bspauc_spark.errors import InvalidDataError
from bspauc_spark.rows.columns import check_features, check_frame, check_labels, check_outputs, quoted
from bspauc_spark.spark.compat import arrow_udf

_SCORED, _RAW = "__bspauc_scored", "__bspauc_raw"
_OUTPUTS = ("predictionCol", "rawPredictionCol", "probabilityCol")
_RATED = st.StructType().add("score", "double").add("probability", "double")
_AUDITED = st.StructType([st.StructField(name, st.DoubleType()) for name in AUDIT_COLUMNS])


class SelfPacedModel(Model, SelfPacedModelParams, MLReadable["SelfPacedModel"], MLWritable):
    """A classifier that was fitted on the rows that a self-paced selection keeps, or a blend of several.

    ``transform`` adds the columns of the classifier. Where rows were left out, and for a blend, ``probability`` is
    calibrated on honest scores, and ``prediction`` follows from it; ``bestModel`` alone does not do that. ``audit``
    says which labels the model does not believe.
    """

    def __init__(
        self,
        models: Sequence[Model] = (),
        foldModels: Sequence[Sequence[Model]] = (),
        judged: Judged | None = None,
        summary: SelfPacedSummary | None = None,
        ensemble: bool = False,
        foldValues: Sequence[int] = (),
        numFeatures: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.models, self.foldModels = tuple(models), tuple(tuple(some) for some in foldModels)
        """The fitted classifiers, those that score new rows; for each fold those that did not learn from it."""
        self.judged = judged
        self.ensemble, self.numFeatures = ensemble, numFeatures
        self._summary, self._fold_values, self._seed = summary, tuple(foldValues), seed

    @property
    def summary(self) -> SelfPacedSummary:
        """What the fit did."""
        self._fitted()
        assert self._summary is not None
        return self._summary

    @property
    def bestModel(self) -> Model:
        """The classifier's own model, which scores without this package; of several the one with the largest share."""
        self._fitted()
        if not self.models:
            raise InvalidDataError(
                "an ensemble has no bestModel: its scores are the mean of foldModels. Fit with ensemble=False for one."
            )
        shares = [share for share in self.summary.shares.values() if share > 0]
        return self.models[int(np.argmax(shares))] if len(shares) == len(self.models) else self.models[0]

    def setThreshold(self, value: float) -> SelfPacedModel:
        """Set the probability above which a row is predicted positive."""
        return self._set(threshold=value)

    def setFeaturesCol(self, value: str) -> SelfPacedModel:
        """Set ``featuresCol``."""
        return self._set(featuresCol=value)

    def setPredictionCol(self, value: str) -> SelfPacedModel:
        """Set ``predictionCol``; empty: not added."""
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> SelfPacedModel:
        """Set ``rawPredictionCol``; empty: not added."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> SelfPacedModel:
        """Set ``probabilityCol``; empty: not added."""
        return self._set(probabilityCol=value)

    def _fitted(self) -> None:
        if self._summary is None:
            raise InvalidDataError(
                "this SelfPacedModel was not fitted: get one from SelfPacedClassifier.fit or load()."
            )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check(dataset, {name: self.getOrDefault(name) for name in _OUTPUTS})
        if self._is_the_classifiers_own:
            (model,) = self.models
            return self._renamed(model, model.transform(dataset))
        frame, raw = self._raw(dataset)
        keep_raw = not self.ensemble and len(self.models) == 1 and bool(output_of(self.models[0], "rawPredictionCol"))
        score = sf.col(_SCORED)["score"]
        frame = frame.withColumn(_SCORED, self._rated(raw))
        probability = sf.col(_SCORED)["probability"]
        made = {
            self.getRawPredictionCol(): None if keep_raw else array_to_vector(sf.array(-score, score)),
            self.getProbabilityCol(): array_to_vector(sf.array(1 - probability, probability)),
            self.getPredictionCol(): sf.when(probability > self.getThreshold(), 1.0).otherwise(0.0),
        }
        for name, column in made.items():
            if name and column is not None:
                frame = frame.withColumn(name, column)
        return frame.select(*map(quoted, [*dataset.columns, *self._added(frame, dataset, made)]))

    @property
    def _is_the_classifiers_own(self) -> bool:
        """Whether the model is one classifier, on all rows: its outputs are not to be touched."""
        return self.judged is None or not (self.ensemble or len(self.models) > 1 or self.summary.uses_selection)

    def _renamed(self, model: Model, frame: DataFrame) -> DataFrame:
        for param in _OUTPUTS:
            made, wanted = output_of(model, param), self.getOrDefault(param)
            if made and not wanted:
                frame = frame.drop(made)
            elif made and made != wanted:
                frame = frame.withColumnRenamed(made, wanted)
        return frame

    def _added(self, frame: DataFrame, dataset: DataFrame, made: Any) -> list[str]:
        """The new columns in the order that classifiers of Spark have: raw prediction, probability, prediction."""
        ours = [name for name in made if name in frame.columns]
        others = [
            name for name in frame.columns if name not in {*dataset.columns, *ours} and not name.startswith("__bspauc")
        ]
        return [*ours, *others]

    def _raw(self, dataset: DataFrame) -> tuple[DataFrame, Column]:
        """The rows with the outputs of a single model, and an array of the scores by all models."""
        frame, raw = dataset, []
        every = self.models if not self.ensemble else [model for some in self.foldModels for model in some]
        single = len(every) == 1
        for place, model in enumerate(every):
            frame = model.transform(frame).withColumn(f"{_RAW}_{place}", score_of(model))
            raw.append(sf.col(f"{_RAW}_{place}"))
            frame = self._renamed(model, frame) if single else frame.drop(*outputs_of(model))
        return frame, sf.array(*raw)

    def _rated(self, raw: Column) -> Column:
        """Score and probability, from the scores by all models."""
        assert self.judged is not None
        scale, noise = self.judged.scale, self.judged.noise
        learners, folds = len(scale.shares), len(scale.folds)
        used = np.flatnonzero(scale.shares)
        ensemble = self.ensemble

        def rate(arrays: pa.Array) -> pa.Array:
            flat = arrays.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
            if ensemble:
                scores = scale.of_all(_spread(flat.reshape(-1, folds, len(used)).transpose(1, 2, 0), used, learners))
            else:
                scores = scale.of_new(_spread(flat.reshape(-1, len(used)).T, used, learners))
            probability = noise.probability(scores)
            return pa.StructArray.from_arrays(
                [pa.array(scores.astype(np.float64)), pa.array(probability)], names=_RATED.names
            )

        return arrow_udf(rate, _RATED)(raw)

    def audit(self, dataset: DataFrame) -> DataFrame:
        """Add what the model thinks of each row's label.

        ``score``: by the models that learned from no row with these features (or, with ``foldCol``, from no row of its
        fold), on the scale of all. ``loss``: the row's weighted pair loss, l⁺ or l⁻. ``weight``: v or u, 0 for rows
        that are left out. ``suspicion``: the probability that the label is wrong; order by it, descending, to see the
        rows worth a second look.
        """
        self._fitted()
        self._check(dataset, dict(zip(AUDIT_COLUMNS, AUDIT_COLUMNS, strict=True)))
        check_labels(dataset, self.getLabelCol())
        judged = self.judged
        if judged is None:
            raise InvalidDataError(f"this model has no honest scores to audit by: {self.summary.verdict}")
        if not self.foldModels:
            raise InvalidDataError(
                "the models of the folds, which an audit needs, were not kept. Fit with keepFoldModels=True."
            )
        fold, frame = self._fold(dataset)
        frame = frame.withColumn(_SCORED, fold)
        scores = []
        used = np.flatnonzero(judged.scale.shares)
        for number in range(len(used)):
            column: Any = None
            for place, models in enumerate(self.foldModels):
                name, model = f"{_RAW}_{place}_{number}", models[number]
                frame = model.transform(frame).withColumn(name, score_of(model)).drop(*outputs_of(model))
                here = sf.col(_SCORED) == place
                column = sf.when(here, sf.col(name)) if column is None else column.when(here, sf.col(name))
            scores.append(column)
        label = quoted(self.getLabelCol()).cast("double")
        positive = sf.when(~sf.isnan(label), label == 1.0)
        raw = sf.array(sf.col(_SCORED).cast("float"), *scores)
        frame = frame.withColumn(_RAW, _auditor(judged)(raw, positive))
        audited = (sf.col(_RAW)[name].alias(name) for name in AUDIT_COLUMNS)
        return frame.select(*map(quoted, dataset.columns), *audited)

    def _fold(self, dataset: DataFrame) -> tuple[Column, DataFrame]:
        """A row's place among the folds; that of a row in no fold is 0, whose models did not learn from it either."""
        by = self.getFoldCol()
        if by is None:
            frame = by_rows(dataset, self.getFeaturesCol())
            key = key_of(dataset, self.getFeaturesCol(), self.numFeatures, self._seed)
            return fold_of(key, len(self.foldModels)), frame
        place: Any = None
        for number, value in enumerate(self._fold_values):
            here = quoted(by) == value
            place = sf.when(here, number) if place is None else place.when(here, number)
        return sf.coalesce(place.otherwise(0), sf.lit(0)), dataset

    def _check(self, dataset: DataFrame, added: dict[str, str]) -> None:
        self._fitted()
        check_frame(dataset)
        check_features(dataset, self.getFeaturesCol())
        check_outputs(dataset, added)
        check_outputs(dataset, {"": _SCORED})

    def copy(self, extra: Any = None) -> SelfPacedModel:
        """A copy with ``extra`` Params, of which those of the classifiers go to their models."""
        copied: SelfPacedModel = super().copy(extra)
        copied.models = tuple(model.copy(extra) for model in self.models)
        copied.foldModels = tuple(tuple(model.copy(extra) for model in some) for some in self.foldModels)
        return copied

    def write(self) -> ModelWriter:
        """A writer: ``model.write().overwrite().save(path)``."""
        self._fitted()
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        """A reader: ``SelfPacedModel.read().load(path)``."""
        return ModelReader(cls)


def _spread(scores: Any, used: Any, learners: int) -> Any:
    """Scores of the learners that are used, the last axis but one, in places of their own among all."""
    found = np.zeros((*scores.shape[:-2], learners, scores.shape[-1]), dtype=np.float32)
    found[..., used, :] = scores
    return found


def _auditor(judged: Judged) -> Any:
    """The audit of a column of lists, a row's fold and its scores by the learners that are used, and of labels."""
    used = np.flatnonzero(judged.scale.shares)

    def audit(raw: pa.Array, is_positive: pa.Array) -> pa.Array:
        matrix = raw.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(used) + 1).astype(np.float32)
        every = _spread(matrix[:, 1:].T, used, len(judged.scale.shares))
        scores = judged.scale.scores(every, matrix[:, 0].astype(np.int64))
        unlabelled = is_positive.is_null().to_numpy(zero_copy_only=False)
        positive = is_positive.fill_null(False).to_numpy(zero_copy_only=False)
        found = judged.audit(scores, positive)
        columns = [pa.array(scores.astype(np.float64)), *(pa.array(one, mask=unlabelled) for one in found)]
        return pa.StructArray.from_arrays(columns, names=list(AUDIT_COLUMNS))

    return arrow_udf(audit, _AUDITED)
