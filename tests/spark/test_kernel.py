"""The kernel as a Spark ML stage, and what the experiments take from Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidParamError
from bspauc_spark.noise import flip_dataframe
from tests.helpers.fits import FAST

KERNEL = {**FAST, "network": "kernel", "numRandomFeatures": 300, "stepsPerRound": 60, "learningRate": 0.01}


def scores(model: BSPAUCModel, dataset: DataFrame) -> np.ndarray:
    rows = model.transform(dataset).select("x0", "rawPrediction").orderBy("x0").collect()
    return np.array([row["rawPrediction"][1] for row in rows])


def test_the_kernel_ranks_a_curved_boundary_and_is_saved_without_its_frequencies(
    moons: DataFrame, tmp_path: Path
) -> None:
    model = BSPAUCClassifier(**KERNEL).fit(moons)
    clean = np.array([row["clean"] for row in moons.select("x0", "clean").orderBy("x0").collect()])
    found = scores(model, moons)
    assert roc_auc_score(clean, found) > 0.95
    model.saveLocal(str(tmp_path / "model"))
    assert set(model.scorer.weights) == {"alpha"}
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 4 * 300 * 6 + 2 * 300 * 4 + 80_000
    loaded = BSPAUCModel.loadLocal(str(tmp_path / "model"))
    assert np.array_equal(scores(loaded, moons), found)


@pytest.mark.thorough
def test_the_kernel_on_two_workers_learns_what_one_process_learns(moons: DataFrame) -> None:
    estimator = BSPAUCClassifier(**KERNEL, featuresPerStep=100, selfPaced=False)
    alone = estimator.fit(moons).summary.history
    two = estimator.copy({estimator.numProcesses: 2}).fit(moons).summary.history
    np.testing.assert_allclose(two["train_auc"], alone["train_auc"], atol=2e-3)
    # MLlib's models hold the session in their plans: the workers' job must have left it as it was.
    assert flip_dataframe(moons, 0.2, far_quantile=0.5).where("flipped").count() > 0


def test_the_width_is_the_one_given_or_the_median_distance(moons: DataFrame) -> None:
    x = np.array([row["features"].toArray() for row in moons.select("features").collect()])
    given = BSPAUCClassifier(**{**KERNEL, "rounds": 1}, kernelWidth=2.5).fit(moons)
    found = BSPAUCClassifier(**{**KERNEL, "rounds": 1}).fit(moons)
    assert given.scorer.spec.kernel_width == 2.5
    pairs = np.random.default_rng(0).integers(0, len(x), (2, 20_000))
    median = np.median(np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1))
    assert found.scorer.spec.kernel_width == pytest.approx(median, rel=0.05)


def test_a_table_of_frequencies_that_is_too_large_is_refused(moons: DataFrame) -> None:
    with pytest.raises(InvalidParamError, match=r"numRandomFeatures 200000000 for 6 features needs a table of 4\.8 GB"):
        BSPAUCClassifier(**{**KERNEL, "numRandomFeatures": 200_000_000}).fit(moons)


def test_a_dataframe_is_flipped_far_from_the_hyperplane_whatever_its_partitions(moons: DataFrame) -> None:
    truth = moons.withColumn("label", sf.col("clean")).withColumn("original", sf.col("clean"))
    flipped = flip_dataframe(truth, 0.2, far_quantile=0.5, seed=3)
    assert set(flipped.columns) == {*truth.columns, "flipped"}
    rows = flipped.select("x0", "label", "original", "flipped").collect()
    assert np.mean([row["flipped"] for row in rows]) == pytest.approx(0.2, abs=0.03)
    assert all((row["label"] != row["original"]) == row["flipped"] for row in rows)
    again = flip_dataframe(truth.repartition(7), 0.2, far_quantile=0.5, seed=3)
    # Rows just at the cut may change sides with the last bits of the regression.
    assert len({r["x0"] for r in again.where("flipped").collect()} ^ {r["x0"] for r in rows if r["flipped"]}) <= 2
    uniform = flip_dataframe(truth, 0.3, seed=1).agg(sf.avg(sf.col("flipped").cast("int"))).first()
    assert uniform[0] == pytest.approx(0.3, abs=0.03)
    with pytest.raises(ValueError, match="lower one of them"):
        flip_dataframe(truth, 0.6, far_quantile=0.5)
