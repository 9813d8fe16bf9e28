"""Ten million hashed features through fit, transform, save and load: nothing has the full width but a lookup table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.linalg import SparseVector
from pyspark.sql import DataFrame, SparkSession
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel

WIDTH = 10_000_000
ROWS, FILLED = 600, 8


@pytest.fixture(scope="module")
def wide(spark: SparkSession) -> DataFrame:
    """A third of the rows have a feature of their class, at the very end of the range; the others are rare."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(ROWS):
        label = float(i % 3 == 0)
        places = rng.choice(WIDTH - 10, FILLED, replace=False)
        names = sorted({*places.tolist(), WIDTH - 1 - int(label)})
        rows.append((i, SparseVector(WIDTH, names, np.ones(len(names))), label))
    return spark.createDataFrame(rows, ["id", "features", "label"]).cache()


@pytest.mark.parametrize("network", ["mlp", "linear"])
def test_ten_million_features_are_learned_from(wide: DataFrame, network: str, tmp_path: Path) -> None:
    training, test = wide.where("id < 400"), wide.where("id >= 400")
    model = BSPAUCClassifier(network=network, rounds=2, stepsPerRound=40, verbose=False).fit(training)
    used = {name for row in training.collect() for name in row["features"].indices.tolist()}
    assert model.numFeatures == WIDTH
    assert model.scorer.weights["first.columns"].tolist() == sorted(used)
    assert len(model.scorer.weights["first.weight"]) == len(used)

    # Nearly every other feature of these rows was never seen.
    found = [(row["label"], row["rawPrediction"][1]) for row in model.transform(test).collect()]
    assert roc_auc_score(*zip(*found, strict=True)) == 1.0

    path = str(tmp_path / "model")
    model.write().overwrite().save(path)
    again = BSPAUCModel.load(path)
    assert [row["rawPrediction"][1] for row in again.transform(test).collect()] == [score for _, score in found]
    # A weight of 64 numbers for each of the features that occur, and some thousands besides.
    assert sum(file.stat().st_size for file in Path(path).rglob("*")) < 300 * len(used) + 200_000
