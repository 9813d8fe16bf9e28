"""``BSPAUCModel``: the fitted transformer, its audit, and its plain torch and numpy forms."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, PlacementError
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.rows.arrow import CheckedFeatures, checked_features
from bspauc_spark.rows.columns import (
    check_features,
    check_frame,
    check_labels,
    check_outputs,
    declared_width,
    feature_struct,
    quoted,
    row_size,
)
from bspauc_spark.saved import JSON_NAME, named, reading
from bspauc_spark.schema import within
from bspauc_spark.scorer import Scorer, cached_scorer
from bspauc_spark.spark.compat import arrow_udf
from bspauc_spark.spark.params import BSPAUCModelParams
from bspauc_spark.spark.persistence import ModelReader, ModelWriter
from bspauc_spark.spark.session import is_connect

if TYPE_CHECKING:
    from torch import nn

# What the rest of a message takes is little.
_MOST_MESSAGE_BYTES = 127 << 20
AUDIT_COLUMNS = ("score", "loss", "weight", "suspicion")


class BSPAUCModel(Model, BSPAUCModelParams, MLReadable["BSPAUCModel"], MLWritable):
    """A fitted ranking model.

    ``transform`` adds ``rawPrediction`` ``[−f, f]``, ``probability`` (the share of positive labels at that
    score) and ``prediction`` (by ``threshold``). ``audit`` says which labels it does not believe.
    """

    def __init__(self, scorer: Scorer | None = None) -> None:
        super().__init__()
        self._scorer = scorer
        self._summary: TrainingSummary | None = None

    @property
    def scorer(self) -> Scorer:
        """The model without Spark."""
        if self._scorer is None:
            raise InvalidDataError("this BSPAUCModel was not fitted: get one from BSPAUCClassifier.fit or load().")
        return self._scorer

    @property
    def numFeatures(self) -> int:
        """Number of features the model was fitted on."""
        return self.scorer.spec.num_features

    @property
    def numClasses(self) -> int:
        """Always 2: positive, and all the rest."""
        return 2

    # Not a cached_property: pyspark looks for Params among all attributes that are not plain properties.
    @property
    def summary(self) -> TrainingSummary:
        """What the fit did."""
        if self._summary is None:
            self._summary = TrainingSummary.from_dict(self.scorer.summary)
        return self._summary

    def getThreshold(self) -> float:
        """Score above which a row is predicted positive."""
        if self.isDefined(self.threshold):
            return self.getOrDefault(self.threshold)
        return self.scorer.threshold

    def setThreshold(self, value: float) -> BSPAUCModel:
        """Set the score above which a row is predicted positive."""
        return self._set(threshold=value)

    def setFeaturesCol(self, value: str) -> BSPAUCModel:
        """Set ``featuresCol``."""
        return self._set(featuresCol=value)

    def setPredictionCol(self, value: str) -> BSPAUCModel:
        """Set ``predictionCol``; empty: not added."""
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> BSPAUCModel:
        """Set ``rawPredictionCol``; empty: not added."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> BSPAUCModel:
        """Set ``probabilityCol``; empty: not added."""
        return self._set(probabilityCol=value)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check(dataset, self._outputs())
        scored = sf.col(_SCORED)
        outputs = {
            self.getRawPredictionCol(): scored["raw"],
            self.getProbabilityCol(): scored["probability"],
            self.getPredictionCol(): sf.when(scored["score"] > self.getThreshold(), self.getPositiveLabel()).otherwise(
                self.scorer.negative_label
            ),
        }
        wanted = {name: column for name, column in outputs.items() if name}
        scores = self._scores(dataset, Scorer.score_features)

        def rate(features: pa.Array) -> pa.Array:
            return _with_vectors(*scores(features))

        udf = arrow_udf(rate, _VECTORS)
        rated = self._by_rows(dataset).withColumn(_SCORED, udf(self._features(dataset)))
        # Not by name: other columns may share one, after a join for example.
        return rated.select("*", *(c.alias(n) for n, c in wanted.items())).drop(_SCORED)

    def audit(self, dataset: DataFrame) -> DataFrame:
        """Add what the model thinks of each row's label.

        ``score``: f(x); with ``folds`` by the member that learned from no row with these features, which differs from
        ``rawPrediction``, the score by all members on the same scale. ``loss``: the row's weighted pair loss, l⁺ or
        l⁻. ``weight``: v or u, 0 for rows that the last round would leave out. ``suspicion``: the probability that the
        label is wrong, calibrated from the scores; order by it, descending, to see the rows worth a second look.
        """
        self._check(dataset, dict(zip(AUDIT_COLUMNS, AUDIT_COLUMNS, strict=True)))
        check_labels(dataset, self.getLabelCol())
        label = quoted(self.getLabelCol()).cast("double")
        is_positive = sf.when(~sf.isnan(label), label == self.getPositiveLabel())
        scores = self._scores(dataset, Scorer.judge_features)

        def judge(features: pa.Array, is_positive: pa.Array) -> pa.Array:
            return _with_audit(*scores(features), is_positive)

        udf = arrow_udf(judge, st.StructType([st.StructField(name, st.DoubleType()) for name in AUDIT_COLUMNS]))
        scored = self._by_rows(dataset).withColumn(_SCORED, udf(self._features(dataset), is_positive))
        return scored.select("*", *(sf.col(_SCORED)[n].alias(n) for n in AUDIT_COLUMNS)).drop(_SCORED)

    def _check(self, dataset: DataFrame, added: dict[str, str]) -> None:
        check_frame(dataset)
        features = self.getFeaturesCol()
        check_features(dataset, features)
        check_outputs(dataset, added)
        # It stands beside the others for a moment.
        check_outputs(dataset, {"": _SCORED})
        declared = declared_width(dataset, features) or self.numFeatures
        if declared != self.numFeatures:
            raise InvalidFeaturesError(
                f"column {features!r} (featuresCol) has {declared:,} features; the model was fitted on "
                f"{self.numFeatures:,}. Assemble the columns of the fit, in the same order."
            )

    def _check_message(self, dataset: DataFrame, blobs: Mapping[str, bytes]) -> None:
        """Refuse a model that does not fit into a message of Spark Connect, with which it would travel."""
        size = sum(map(len, blobs.values()))
        if size > _MOST_MESSAGE_BYTES and is_connect(dataset.sparkSession):
            raise PlacementError(
                f"the model has {size / 2**20:,.0f} MiB, and a message of Spark Connect holds at most 128 MiB. Load "
                "and apply it in a classic session, or score rows in this process by score_numpy()."
            )

    def _features(self, dataset: DataFrame) -> Any:
        return feature_struct(dataset, self.getFeaturesCol(), self.scorer.sparse)

    def _by_rows(self, dataset: DataFrame) -> DataFrame:
        """All rows, by way of a filter that Spark cannot see through.

        Spark 4.3 hands columns that come straight from a file to an Arrow UDF as columns, in a form that has no
        vectors, and fails. What a filter lets through are rows.
        """
        size = row_size(dataset, self.getFeaturesCol())
        return dataset.where(sf.coalesce(size, sf.lit(0)) >= -1)

    def _scores(
        self, dataset: DataFrame, score: Callable[[Scorer, CheckedFeatures], npt.NDArray[np.float32]]
    ) -> Callable[[pa.Array], tuple[Scorer, npt.NDArray[np.float32]]]:
        """A function for Python workers, which hold the network from one batch to the next."""
        blobs, column = self.scorer.to_blobs(), self.getFeaturesCol()
        self._check_message(dataset, blobs)
        digest = hashlib.sha256(b"".join(blobs.values())).hexdigest()

        def scores(features: pa.Array) -> tuple[Scorer, npt.NDArray[np.float32]]:
            scorer = cached_scorer(digest, blobs)
            block = checked_features(features, scorer.spec.num_features, scorer.sparse, scorer.spec.gaps)
            if block.problem:
                raise InvalidFeaturesError(
                    f"column {column!r} (featuresCol): {block.problem}; the model was fitted on "
                    f"{scorer.spec.num_features:,} finite features. Drop or mend such rows first."
                )
            return scorer, score(scorer, block)

        return scores

    def toTorch(self) -> nn.Sequential:
        """The network as plain torch layers: dense features in, one score a row out."""
        return self.scorer.network.to_sequential()

    def score_numpy(self, features: Any) -> npt.NDArray[np.float32]:
        """Scores of a 2-d array or a scipy CSR matrix, without Spark."""
        return self.scorer.score_numpy(features)

    def saveLocal(self, path: str | Path) -> None:
        """Write the model into a local folder, without Spark."""
        whole = dataclasses.replace(self.scorer, positive_label=self.getPositiveLabel(), threshold=self.getThreshold())
        whole.save(path)

    @classmethod
    def loadLocal(cls, path: str | Path) -> BSPAUCModel:
        """Read what ``saveLocal`` wrote, without Spark; columns have their default names."""
        scorer = Scorer.load(path)
        model = cls(scorer)
        model._set(positiveLabel=scorer.positive_label)
        with reading(named(path)), within(JSON_NAME):
            # Asked for now, so that it is refused now.
            _ = model.summary
        return model

    def write(self) -> ModelWriter:
        """A writer: ``model.write().overwrite().save(path)``."""
        return ModelWriter(self, self.scorer)

    @classmethod
    def read(cls) -> ModelReader:
        """A reader: ``BSPAUCModel.read().load(path)``."""
        return ModelReader(cls)


_SCORED = "__bspauc_scored"
_VECTORS = st.StructType().add("score", "double").add("raw", VectorUDT()).add("probability", VectorUDT())


def _with_vectors(scorer: Scorer, scores: npt.NDArray[np.float32]) -> pa.Array:
    score, probability = scores.astype(np.float64), scorer.label_noise.probability(scores)
    return pa.StructArray.from_arrays(
        [pa.array(score), _vectors(-score, score), _vectors(1 - probability, probability)], names=_VECTORS.names
    )


def _vectors(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> pa.Array:
    """Dense vectors of two values as VectorUDT stores them; ``array_to_vector`` in the JVM takes far longer."""
    rows = len(first)
    offsets = pa.array(np.arange(0, 2 * rows + 1, 2, dtype=np.int32))
    values = pa.ListArray.from_arrays(offsets, pa.array(np.stack([first, second], axis=1).reshape(-1)))
    dense = pa.array(np.ones(rows, dtype=np.int8))
    unused = [pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.list_(pa.int32()))]
    return pa.StructArray.from_arrays([dense, *unused, values], names=VectorUDT.sqlType().names)


def _with_audit(scorer: Scorer, scores: npt.NDArray[np.float32], is_positive: pa.Array) -> pa.Array:
    # A row without a label has a score and nothing to audit.
    unlabelled = is_positive.is_null().to_numpy(zero_copy_only=False)
    positive = is_positive.fill_null(False).to_numpy(zero_copy_only=False)
    selection = scorer.selection
    weights = np.where(positive, selection.positive_weights(scores), selection.negative_weights(scores))
    judged = (
        scorer.curves.losses(scores, positive),
        weights,
        scorer.label_noise.suspicion(scores, positive),
    )
    columns = [pa.array(scores.astype(np.float64)), *(pa.array(column, mask=unlabelled) for column in judged)]
    return pa.StructArray.from_arrays(columns, names=list(AUDIT_COLUMNS))
