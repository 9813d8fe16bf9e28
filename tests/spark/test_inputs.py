"""Raw columns with gaps through Spark: the network for tables from the fit to the served model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidFeaturesError, InvalidParamError
from bspauc_spark.flavor import plain
from bspauc_spark.serving import Predictor
from tests.helpers.fits import FAST, noisy_moons, same_bits

NAMES = [f"x{k}" for k in range(6)]
TABLE = {**FAST, "network": "table", "folds": 2, "handleInvalid": "keep"}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Columns of very different sizes, of which two have gaps: as NULL, and as NaN."""
    rows = noisy_moons(1500)
    rng = np.random.default_rng(0)
    rows["x1"] = 1e6 * rows["x1"]
    rows["x3"] = np.exp(5 * rows["x3"])
    rows.loc[rng.random(len(rows)) < 0.2, "x0"] = np.nan
    rows.loc[rng.random(len(rows)) < 0.1, "x2"] = np.nan
    made = spark.createDataFrame(rows).withColumn("x2", sf.when(~sf.isnan("x2"), sf.col("x2")))
    return made.select(*NAMES, "label", "clean").cache()


def stages(**params: object) -> Pipeline:
    assembler = VectorAssembler(inputCols=NAMES, outputCol="features", handleInvalid="keep")
    return Pipeline(stages=[assembler, BSPAUCClassifier(**{**TABLE, **params})])


def last(pipeline: PipelineModel) -> BSPAUCModel:
    return pipeline.stages[-1]  # type: ignore[return-value]


@pytest.fixture(scope="module")
def pipeline(frame: DataFrame) -> PipelineModel:
    return stages().fit(frame)


@pytest.fixture(scope="module")
def vectors(frame: DataFrame) -> DataFrame:
    return VectorAssembler(inputCols=NAMES, outputCol="features", handleInvalid="keep").transform(frame)


def test_rows_with_gaps_are_learned_scored_audited_saved_and_served(
    pipeline: PipelineModel, frame: DataFrame, vectors: DataFrame, tmp_path: Path
) -> None:
    model = last(pipeline)
    shown = pipeline.transform(frame).toPandas()
    scores = np.array([raw[1] for raw in shown["rawPrediction"]])
    assert roc_auc_score(shown["clean"], scores) > 0.8
    audited = model.audit(vectors).toPandas()
    honest = roc_auc_score(audited["label"], audited["score"])
    assert honest == pytest.approx(model.summary.rounds[-1].train_auc, abs=1e-12)

    matrix = shown[NAMES].to_numpy(dtype=np.float64)
    assert np.isnan(matrix).sum() > 300
    assert np.array_equal(model.score_numpy(matrix), scores.astype(np.float32))
    served = plain(pipeline)
    assert served is not None
    served.save(tmp_path / "served")
    found = Predictor.load(tmp_path / "served").predict(shown[NAMES])
    assert np.array_equal(found["score"], scores)

    model.write().save(str(tmp_path / "model"))
    loaded = BSPAUCModel.load(str(tmp_path / "model"))
    assert same_bits(loaded, model)
    assert np.array_equal(loaded.audit(vectors).toPandas()["score"], audited["score"])


@pytest.mark.thorough
def test_arrays_in_other_partitions_give_the_same_model(pipeline: PipelineModel, frame: DataFrame) -> None:
    arrays = frame.withColumn("features", sf.array(*NAMES)).repartition(5, "label")
    assert same_bits(BSPAUCClassifier(**TABLE).fit(arrays), last(pipeline))


def test_infinite_features_are_errors_still(pipeline: PipelineModel, vectors: DataFrame) -> None:
    infinite = vectors.sparkSession.createDataFrame([(Vectors.dense([np.inf] * 6), 1.0)], ["features", "label"])
    with pytest.raises(PySparkException, match="1 of 1 rows of a batch are infinite or too large"):
        last(pipeline).transform(infinite).collect()
    with pytest.raises(InvalidFeaturesError, match=r"'features' has infinite or too large .* Mend or scale them"):
        BSPAUCClassifier(**TABLE).fit(infinite)


def test_without_keep_a_gap_stays_an_error(frame: DataFrame) -> None:
    with pytest.raises(InvalidFeaturesError, match="has NaN, infinite or too large values"):
        stages(handleInvalid="error").fit(frame)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"handleInvalid": "keep", "network": "mlp"}, "handleInvalid is 'keep', and without inputs 'auto' a NaN would"),
        ({"handleInvalid": "keep", "network": "kernel"}, "handleInvalid is 'keep', and without inputs 'auto' a NaN"),
        ({"inputs": "raw", "network": "table"}, "network 'table' needs inputs 'auto', and inputs is 'raw'"),
        ({"inputs": "auto", "network": "kernel"}, "inputs 'auto' is not for network 'kernel'"),
    ],
)
def test_params_that_contradict_each_other_are_refused(frame: DataFrame, params: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidParamError, match=says):
        BSPAUCClassifier(**params).fit(frame)
