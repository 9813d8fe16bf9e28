"""What a user does with the stage, on every kind of session: local, a cluster of two executors, Spark Connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from tests.helpers.fits import noisy_moons

pytestmark = pytest.mark.everywhere


def scores(frame: DataFrame) -> np.ndarray:
    return np.array([row["rawPrediction"][1] for row in frame.orderBy("x0").select("rawPrediction").collect()])


def test_fit_transform_audit_save_overwrite_and_load(moons: DataFrame, where: dict[str, Any], tmp_path: Path) -> None:
    model = BSPAUCClassifier(rounds=2, verbose=False, **where).fit(moons)
    scored = scores(model.transform(moons))
    auc = BinaryClassificationEvaluator(labelCol="clean").evaluate(model.transform(moons))
    assert auc > 0.8
    audited = model.audit(moons).toPandas()
    flipped = audited["label"] != audited["clean"]
    assert roc_auc_score(flipped, audited["suspicion"]) > 0.8

    path = str(tmp_path / "model")
    model.write().save(path)
    with pytest.raises(Exception, match="exist"):
        model.write().save(path)
    model.copy({model.threshold: 0.25}).write().overwrite().save(path)
    loaded = BSPAUCModel.load(path)
    assert loaded.getThreshold() == 0.25
    assert np.array_equal(scores(loaded.transform(moons)), scored)


def test_a_pipeline_under_a_cross_validator_is_saved_and_loaded(
    spark: SparkSession, where: dict[str, Any], tmp_path: Path
) -> None:
    data = spark.createDataFrame(noisy_moons(600))
    assembler = VectorAssembler(inputCols=[f"x{i}" for i in range(6)], outputCol="features")
    classifier = BSPAUCClassifier(rounds=2, verbose=False, **where)
    pipeline = Pipeline(stages=[assembler, classifier])
    # Workers on executors of one session take turns: they need all its slots.
    validator = CrossValidator(
        estimator=pipeline,
        estimatorParamMaps=ParamGridBuilder().addGrid(classifier.seed, [0, 1]).build(),
        evaluator=BinaryClassificationEvaluator(),
        numFolds=2,
    )
    if where:
        # Six launches on executors would show nothing that one does not.
        classifier.setLocalMode(True)
    tuned = validator.fit(data)
    assert len(tuned.avgMetrics) == 2
    tuned.write().overwrite().save(str(tmp_path / "tuned"))
    tuned.bestModel.write().overwrite().save(str(tmp_path / "best"))
    best = scores(tuned.transform(data))
    assert np.array_equal(scores(CrossValidatorModel.load(str(tmp_path / "tuned")).transform(data)), best)
    assert np.array_equal(scores(PipelineModel.load(str(tmp_path / "best")).transform(data)), best)
