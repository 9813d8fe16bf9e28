"""Cross-fitting through Spark: honest scores from the staged rows to the audit, saved models, fits that resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidParamError
from tests.helpers.fits import FAST, noisy_moons, same_bits
from tests.helpers.paces import before_each_round, interrupt_in_round_2

MEMBERS = {**FAST, "folds": 3}
FITS = {"members": MEMBERS, "a table": {"rounds": 2, "verbose": False}}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    frame = spark.createDataFrame(noisy_moons(1200))
    assembler = VectorAssembler(inputCols=[f"x{k}" for k in range(6)], outputCol="features")
    return assembler.transform(frame).select("features", "label", "clean").cache()


@pytest.fixture(scope="module", params=FITS)
def params(request: pytest.FixtureRequest) -> dict[str, Any]:
    return FITS[request.param]


@pytest.fixture(scope="module")
def model(rows: DataFrame, params: dict[str, Any]) -> BSPAUCModel:
    return BSPAUCClassifier(**params).fit(rows)


def audited(model: BSPAUCModel, frame: DataFrame) -> np.ndarray:
    return np.array([row["score"] for row in model.audit(frame).select("score").collect()])


def test_the_audit_judges_training_rows_by_the_scores_of_the_fit(model: BSPAUCModel, rows: DataFrame) -> None:
    found = model.audit(rows).select("score", "label").toPandas()
    assert roc_auc_score(found["label"], found["score"]) == pytest.approx(model.summary.rounds[-1].train_auc, abs=1e-12)
    shown = model.transform(rows).select("rawPrediction", "label").toPandas()
    everyone = np.array([raw[1] for raw in shown["rawPrediction"]])
    assert not np.array_equal(everyone, found["score"])
    members = model.scorer.network
    x = torch.from_numpy(np.array([v.toArray() for v in rows.toPandas()["features"]], dtype=np.float32))
    with torch.no_grad():
        np.testing.assert_allclose(members(x), everyone, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.toTorch()(x), everyone, rtol=1e-5, atol=1e-5)


def test_threshold_and_report_are_of_honest_scores_and_hold_for_what_transform_adds(
    model: BSPAUCModel, rows: DataFrame
) -> None:
    found = model.audit(rows).select("score", "label").toPandas()
    s, r = (found["score"][found["label"] == label].to_numpy() for label in (1.0, 0.0))
    best = max((s > cut).mean() + (r <= cut).mean() for cut in found["score"])
    assert (s > model.getThreshold()).mean() + (r <= model.getThreshold()).mean() == pytest.approx(best)
    headline = model.summary.headline
    assert (headline.rows, headline.auc) == ("out-of-fold", model.summary.rounds[-1].train_auc)
    # Three rounds of a small network are not much: what counts is that both scales are one.
    new = VectorAssembler(inputCols=[f"x{k}" for k in range(6)], outputCol="features").transform(
        rows.sparkSession.createDataFrame(noisy_moons(4000, seed=1))
    )
    taken = model.transform(new).agg(sf.avg((sf.col("prediction") == 1).cast("double"))).first()[0]
    assert taken == pytest.approx((found["score"] > model.getThreshold()).mean(), abs=0.04)


def test_a_row_has_the_same_judge_in_every_form(model: BSPAUCModel, rows: DataFrame) -> None:
    """As a vector, dense or sparse, with zeros that are written down, and as an array of numbers."""
    dense = np.array([v.toArray() for v in rows.limit(200).toPandas()["features"]])
    dense[::3, 2] = 0.0
    dense[::5, 4] = -0.0
    spark = rows.sparkSession
    forms = {
        "dense": [Vectors.dense(x) for x in dense],
        "sparse": [Vectors.sparse(6, np.flatnonzero(x), x[x != 0]) for x in dense],
        "zeros": [Vectors.sparse(6, range(6), x) for x in dense],
        "array": dense.tolist(),
    }
    scores = {
        name: audited(model, spark.createDataFrame([(v, 1.0) for v in values], ["features", "label"]))
        for name, values in forms.items()
    }
    for name in forms:
        assert np.array_equal(scores[name], scores["dense"]), name


def test_saved_and_loaded_it_judges_alike(model: BSPAUCModel, rows: DataFrame, tmp_path: Path) -> None:
    wanted = audited(model, rows)
    model.write().save(str(tmp_path / "spark"))
    model.saveLocal(str(tmp_path / "local"))
    for loaded in (BSPAUCModel.load(str(tmp_path / "spark")), BSPAUCModel.loadLocal(str(tmp_path / "local"))):
        assert np.array_equal(audited(loaded, rows), wanted)
        assert same_bits(loaded, model)


def test_the_partitioning_changes_no_bit(model: BSPAUCModel, rows: DataFrame, params: dict[str, Any]) -> None:
    for given in (rows.repartition(7, "label"), rows.orderBy("label").coalesce(1)):
        assert same_bits(BSPAUCClassifier(**params).fit(given), model)


def test_two_processes_learn_what_one_does(rows: DataFrame, params: dict[str, Any]) -> None:
    other = BSPAUCClassifier(**params, selfPaced=False, numProcesses=2).fit(rows)
    alone = BSPAUCClassifier(**params, selfPaced=False).fit(rows)
    np.testing.assert_allclose(audited(other, rows), audited(alone, rows), rtol=0.02, atol=0.02)
    wanted = alone.summary.rounds[-1]
    found = other.summary.rounds[-1]
    assert found.block_before == pytest.approx(wanted.block_before, rel=1e-3)
    assert found.block_after == pytest.approx(wanted.block_after, rel=1e-3)


def test_a_fit_that_was_interrupted_goes_on_to_the_same_bits(
    model: BSPAUCModel, rows: DataFrame, params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = BSPAUCClassifier(**params, checkpointDir=str(tmp_path))
    with monkeypatch.context() as patch:
        before_each_round(patch, interrupt_in_round_2)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(rows)
    assert same_bits(estimator.fit(rows), model)


@pytest.mark.parametrize(("given", "members"), [(MEMBERS, 3), ({**FAST, "network": "table"}, 4)])
def test_wide_sparse_rows_are_cross_fitted_by_layers(
    spark: SparkSession, given: dict[str, Any], members: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    chosen = [np.sort(rng.choice(3000, 6, replace=False)) for _ in range(900)]
    data = [
        (Vectors.sparse(3000, names, np.ones(6)), float(min(names) < 300 or rng.random() < 0.1)) for names in chosen
    ]
    frame = spark.createDataFrame(data, ["features", "label"])
    model = BSPAUCClassifier(**given).fit(frame)
    assert (model.scorer.spec.kind, model.scorer.spec.members) == ("mlp", members)
    found = model.audit(frame).select("score", "label").toPandas()
    assert roc_auc_score(found["label"], found["score"]) == pytest.approx(model.summary.rounds[-1].train_auc, abs=1e-12)
    model.saveLocal(str(tmp_path))
    assert np.array_equal(audited(BSPAUCModel.loadLocal(str(tmp_path)), frame), found["score"])


def test_too_few_rows_of_a_class_make_fewer_folds(rows: DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    few = rows.where("label = 0").union(rows.where("label = 1").orderBy(sf.xxhash64("features")).limit(12))
    model = BSPAUCClassifier(**FAST, folds=20).fit(few)
    assert 0 <= model.scorer.spec.members < 5
    assert "not each of 20 folds would have 5 different rows of both classes: the fit has" in caplog.text
    alone = rows.where("label = 0").union(rows.where("label = 1").limit(1))
    for params in ({**FAST, "folds": 2}, FITS["a table"]):
        model = BSPAUCClassifier(**params).fit(alone)
        assert model.scorer.spec.members == 0
        assert model.summary.headline.rows == "training"
    assert "the fit has no folds" in caplog.text


def test_a_single_fold_is_refused_before_anything_starts(rows: DataFrame) -> None:
    with pytest.raises(InvalidParamError, match="folds is 1, and a single fold leaves no rows to learn from"):
        BSPAUCClassifier(**FAST, folds=1).fit(rows)
