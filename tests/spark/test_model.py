"""``BSPAUCModel``: transform, audit, Params, saving and loading, and its forms without Spark."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from pyspark.errors import PythonException
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from scipy import sparse

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidDataError, ModelFormatError
from bspauc_spark.theta.table import TableNetwork
from tests.helpers.fits import FAST

# The scores of both networks are those of the audit too: nobody else judges the training rows.
FITS = {
    "mlp": {**FAST, "stepsPerRound": 60, "learningRate": 0.01},
    "table": {"folds": 0, "rounds": 2, "paceEnd": 0.8, "verbose": False},
}


@pytest.fixture(scope="module", params=FITS)
def model(request: pytest.FixtureRequest, moons: DataFrame) -> BSPAUCModel:
    return BSPAUCClassifier(**FITS[request.param]).fit(moons)


@pytest.fixture(scope="module")
def features(moons: DataFrame) -> np.ndarray:
    return moons.select(*(f"x{i}" for i in range(6))).toPandas().to_numpy()


def scored(model: BSPAUCModel, frame: DataFrame) -> pd.DataFrame:
    """Rows in the order of the input: a cached DataFrame keeps it."""
    table = model.transform(frame).toPandas()
    table["score"] = [raw[1] for raw in table["rawPrediction"]]
    return table


@pytest.fixture(scope="module")
def transformed(model: BSPAUCModel, moons: DataFrame) -> pd.DataFrame:
    return scored(model, moons)


@pytest.fixture(scope="module")
def audited(model: BSPAUCModel, moons: DataFrame) -> pd.DataFrame:
    return model.audit(moons).toPandas()


def test_transform_adds_three_columns_and_keeps_the_others(model: BSPAUCModel, moons: DataFrame) -> None:
    schema = model.transform(moons).schema
    assert schema.names == [*moons.columns, "rawPrediction", "probability", "prediction"]
    assert isinstance(schema["rawPrediction"].dataType, VectorUDT)
    assert isinstance(schema["probability"].dataType, VectorUDT)
    assert isinstance(schema["prediction"].dataType, st.DoubleType)
    assert schema["features"].metadata == moons.schema["features"].metadata


def test_raw_predictions_are_minus_f_and_f(transformed: pd.DataFrame) -> None:
    raw = np.array([r.toArray() for r in transformed["rawPrediction"]])
    assert np.array_equal(raw[:, 0], -raw[:, 1])
    assert raw[:, 1].std() > 0


def test_probabilities_sum_to_one_and_rise_with_the_score(model: BSPAUCModel, transformed: pd.DataFrame) -> None:
    probability = np.array([p.toArray() for p in transformed["probability"]])
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert ((probability >= 0) & (probability <= 1)).all()
    assert (np.diff(probability[np.argsort(transformed["score"]), 1]) >= 0).all()
    # Calibrated: on the training rows the mean probability is the share of positive labels.
    assert probability[:, 1].mean() == pytest.approx(transformed["label"].mean(), abs=0.02)


def test_the_default_threshold_maximises_balanced_accuracy(model: BSPAUCModel, transformed: pd.DataFrame) -> None:
    label, score = transformed["label"] == 1, transformed["score"]
    assert np.array_equal(transformed["prediction"], (score > model.getThreshold()).astype(float))

    def accuracy(threshold: float) -> float:
        return ((score[label] > threshold).mean() + (score[~label] <= threshold).mean()) / 2

    best = max(accuracy(cut) for cut in np.quantile(score, np.linspace(0, 1, 400)))
    assert accuracy(model.getThreshold()) >= best


def test_a_threshold_that_was_set_decides(model: BSPAUCModel, moons: DataFrame, transformed: pd.DataFrame) -> None:
    cut = float(transformed["score"].quantile(0.9))
    other = model.copy().setThreshold(cut)
    assert (other.getThreshold(), other.isSet("threshold"), model.isSet("threshold")) == (cut, True, False)
    predicted = other.transform(moons).agg(sf.sum("prediction")).first()[0]
    assert predicted == (transformed["score"] > cut).sum()
    per_call = model.transform(moons, {model.threshold: cut}).agg(sf.sum("prediction")).first()[0]
    assert per_call == predicted


@pytest.mark.parametrize("left_out", ["rawPrediction", "probability", "prediction"])
def test_an_empty_output_column_is_left_out(model: BSPAUCModel, moons: DataFrame, left_out: str) -> None:
    other = model.copy()._set(**{f"{left_out}Col": ""})
    table = other.transform(moons.limit(5))
    assert set(table.columns) - set(moons.columns) == {"rawPrediction", "probability", "prediction"} - {left_out}
    assert len(table.collect()) == 5


def test_output_columns_can_be_renamed(model: BSPAUCModel, moons: DataFrame) -> None:
    other = model.copy().setRawPredictionCol("raw").setProbabilityCol("p").setPredictionCol("y")
    assert other.transform(moons).columns[-3:] == ["raw", "p", "y"]
    renamed = moons.withColumnRenamed("features", "inputs")
    assert other.setFeaturesCol("inputs").transform(renamed).columns[-3:] == ["raw", "p", "y"]


def test_vectors_and_arrays_of_the_same_rows_score_the_same_bits(
    model: BSPAUCModel, moons: DataFrame, transformed: pd.DataFrame
) -> None:
    to_sparse = sf.udf(lambda v: SparseVector(len(v), range(len(v)), v), VectorUDT())
    for column in (vector_to_array("features"), to_sparse("features")):
        other = scored(model, moons.withColumn("features", column))
        assert np.array_equal(other["score"], transformed["score"])


@pytest.mark.parametrize("form", ["array", "vector"])
def test_rows_straight_from_a_file_are_scored_and_audited(
    spark: SparkSession, model: BSPAUCModel, moons: DataFrame, transformed: pd.DataFrame, tmp_path: Path, form: str
) -> None:
    features = "features" if form == "vector" else vector_to_array("features").alias("features")
    moons.select("x0", "label", features).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    score = {"transform": vector_to_array("rawPrediction")[1], "audit": sf.col("score")}
    for method, column in score.items():
        # Written and not collected: only then are columns handed on as columns.
        getattr(model, method)(rows).write.parquet(str(tmp_path / method))
        found = spark.read.parquet(str(tmp_path / method)).select("x0", column.alias("score")).toPandas()
        assert np.array_equal(found["score"], transformed.set_index("x0")["score"].loc[found["x0"]])


def test_a_score_does_not_depend_on_batches_or_partitions(
    spark: SparkSession, model: BSPAUCModel, moons: DataFrame, transformed: pd.DataFrame
) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "97")
    try:
        other = scored(model, moons.repartition(3))
    finally:
        spark.conf.set(key, before)
    wanted = transformed.sort_values("x0")["score"]
    assert np.array_equal(other.sort_values("x0")["score"], wanted)


def test_an_empty_dataframe_gives_no_rows(model: BSPAUCModel, moons: DataFrame) -> None:
    assert model.transform(moons.limit(0)).collect() == []


def test_labels_one_and_two_are_predicted_as_such(moons: DataFrame) -> None:
    frame = moons.withColumn("label", sf.col("label") + 1)
    model = BSPAUCClassifier(**FAST, positiveLabel=2.0).fit(frame)
    table = scored(model, frame)
    assert set(table["prediction"]) == {1.0, 2.0}
    assert np.array_equal(table["prediction"] == 2, table["score"] > model.getThreshold())
    assert table["score"][table["label"] == 2].mean() > table["score"][table["label"] == 1].mean()
    assert (model.getPositiveLabel(), model.numClasses, model.numFeatures) == (2.0, 2, 6)


def test_audit_keeps_the_rows_and_adds_their_score(audited: pd.DataFrame, transformed: pd.DataFrame) -> None:
    assert list(audited.columns)[-4:] == ["score", "loss", "weight", "suspicion"]
    assert np.array_equal(audited["x0"], transformed["x0"])
    assert np.array_equal(audited["score"], transformed["score"])


def test_audit_weights_are_those_of_the_selection(model: BSPAUCModel, audited: pd.DataFrame) -> None:
    selection, positive = model.scorer.selection, audited["label"] == 1
    score, weight = audited["score"].to_numpy(), audited["weight"].to_numpy()
    assert ((weight >= 0) & (weight <= 1)).all()
    assert np.array_equal(weight[positive], selection.positive_weights(score[positive]))
    assert np.array_equal(weight[~positive], selection.negative_weights(score[~positive]))
    assert weight[positive].mean() == pytest.approx(selection.positive_fraction, abs=1e-6)
    assert weight[~positive].mean() == pytest.approx(selection.negative_fraction, abs=1e-6)
    assert 0 < weight.mean() < 1


def test_audit_losses_equal_brute_force_over_all_pairs(audited: pd.DataFrame) -> None:
    positive = (audited["label"] == 1).to_numpy()
    score, weight = audited["score"].to_numpy(), audited["weight"].to_numpy()
    hinge = np.maximum(0, 1 - score[positive][:, None] + score[~positive][None, :])
    loss = np.empty(len(score))
    loss[positive] = (hinge * weight[~positive][None, :]).mean(axis=1)
    loss[~positive] = (hinge * weight[positive][:, None]).mean(axis=0)
    np.testing.assert_allclose(audited["loss"], loss, atol=1e-3)


def test_flipped_labels_are_the_most_suspicious(audited: pd.DataFrame) -> None:
    flipped = audited["label"] != audited["clean"]
    assert audited["suspicion"].between(0, 1).all()
    top = audited["suspicion"].nlargest(50).index
    assert flipped.mean() < 0.15
    assert flipped[top].mean() > 0.6


def test_spark_save_and_load_bring_back_the_same_model(
    model: BSPAUCModel, moons: DataFrame, transformed: pd.DataFrame, tmp_path: Path
) -> None:
    path = str(tmp_path / "model")
    model.copy().setPredictionCol("out").save(path)
    loaded = BSPAUCModel.load(path)
    assert (loaded.uid, loaded.getPredictionCol(), loaded.numFeatures) == (model.uid, "out", 6)
    assert loaded.getThreshold() == model.getThreshold()
    assert loaded.isSet("threshold") is False
    assert np.array_equal(scored(loaded, moons)["score"], transformed["score"])
    assert loaded.scorer.to_blobs() == model.scorer.to_blobs()
    pd.testing.assert_frame_equal(loaded.summary.history, model.summary.history)
    assert loaded.summary.best_round == model.summary.best_round
    with pytest.raises(Exception, match="already exists"):
        model.save(path)


def test_loading_another_stage_names_both_classes(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    BSPAUCClassifier().save(path)
    with pytest.raises(
        ModelFormatError, match=r"holds a bspauc_spark\.estimator\.BSPAUCClassifier, not a bspauc_spark"
    ):
        BSPAUCModel.load(path)


def test_a_saved_folder_holds_no_pickle(model: BSPAUCModel, tmp_path: Path) -> None:
    model.write().overwrite().save(str(tmp_path / "model"))
    parts = {p.parent.name for p in (tmp_path / "model").rglob("part-*")}
    assert parts == {"metadata", "data"}
    names = {p.name for p in (tmp_path / "model").rglob("*") if p.is_file() and not p.name.startswith((".", "_"))}
    assert all(name.endswith(".parquet") or name == "part-00000" or name.endswith(".txt") for name in names)


def test_local_files_and_numpy_give_the_scores_of_transform_to_the_bit(
    model: BSPAUCModel, features: np.ndarray, transformed: pd.DataFrame, tmp_path: Path
) -> None:
    model.saveLocal(tmp_path / "local")
    loaded = BSPAUCModel.loadLocal(tmp_path / "local")
    wanted = transformed["score"].to_numpy().astype(np.float32)
    assert np.array_equal(wanted.astype(float), transformed["score"])
    assert np.array_equal(model.score_numpy(features), wanted)
    assert np.array_equal(loaded.score_numpy(features), wanted)
    assert np.array_equal(loaded.score_numpy(features[100:103]), wanted[100:103])
    np.testing.assert_allclose(loaded.score_numpy(sparse.csr_matrix(features)), wanted, atol=1e-5)


def test_labels_and_threshold_are_the_same_in_a_local_copy_and_a_pickled_one(moons: DataFrame, tmp_path: Path) -> None:
    rows = moons.withColumn("label", sf.col("label") + 1)
    model = BSPAUCClassifier(**FAST, positiveLabel=2.0, threshold=0.3).fit(rows)
    model.saveLocal(tmp_path)
    wanted = transform_and_audit(model, rows)
    assert {row["prediction"] for row in wanted} == {1.0, 2.0}
    for again in (BSPAUCModel.loadLocal(tmp_path), pickle.loads(pickle.dumps(model))):
        assert again.getThreshold() == 0.3
        assert transform_and_audit(again, rows) == wanted


def transform_and_audit(model: BSPAUCModel, rows: DataFrame) -> list[Row]:
    predicted = model.transform(rows).select("features", "label", "prediction")
    judged = model.audit(predicted).select("prediction", "score", "loss", "weight", "suspicion")
    return sorted(judged.collect())


def test_rows_of_a_session_that_was_stopped_are_refused() -> None:
    script = """
from pyspark.sql import SparkSession
from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import InvalidDataError
from tests.helpers.models import scorer
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(1)
spark.stop()
model = BSPAUCModel(scorer("mlp"))
for use in (BSPAUCClassifier().fit, model.transform, model.audit):
    try:
        use(frame)
    except InvalidDataError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    message = "the session of this DataFrame was stopped. Read the rows again in a session that runs."
    assert done.stdout.splitlines() == 3 * [message]


PLAIN = {"mlp": {torch.nn.Linear, torch.nn.ReLU, torch.nn.Flatten}, "table": {TableNetwork}}


def test_to_torch_is_plain_layers_with_the_same_scores(
    model: BSPAUCModel, features: np.ndarray, transformed: pd.DataFrame
) -> None:
    plain = model.toTorch()
    assert {type(layer) for layer in plain} == PLAIN[model.scorer.spec.kind]
    with torch.no_grad():
        scores = plain(torch.from_numpy(features).float()).numpy()
    np.testing.assert_allclose(scores, transformed["score"], atol=1e-5)


def test_a_copy_has_its_own_params_and_the_same_theta(model: BSPAUCModel) -> None:
    other = model.copy({model.predictionCol: "other", model.threshold: 0.25})
    assert (other.getPredictionCol(), model.getPredictionCol()) == ("other", "prediction")
    assert (other.getThreshold(), other.uid) == (0.25, model.uid)
    assert other.scorer is model.scorer
    assert not model.isSet("threshold")


def test_none_leaves_a_param_unset() -> None:
    """``None`` is the default that the signature shows; set, it predicts all rows negative and cannot be loaded."""
    assert not BSPAUCClassifier(threshold=None).isSet("threshold")


def test_a_model_that_was_not_fitted_says_so_but_has_params(moons: DataFrame) -> None:
    empty = BSPAUCModel().copy()
    assert "featuresCol" in empty.explainParams()
    with pytest.raises(InvalidDataError, match="was not fitted"):
        empty.transform(moons)


def test_the_summary_plots_the_rounds(model: BSPAUCModel) -> None:
    figure = model.summary.plot()
    assert isinstance(figure, Figure)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    assert written.getvalue().startswith(b"\x89PNG")
    assert [axis.get_legend() is not None for axis in figure.axes] == [True] * 4


def test_the_summary_counts_the_rows(model: BSPAUCModel, transformed: pd.DataFrame) -> None:
    counts: Any = model.summary.counts
    assert counts["positives"] == (transformed["label"] == 1).sum()
    assert counts["negatives"] == (transformed["label"] == 0).sum()


def test_a_wide_sparse_model_scores_sparse_dense_and_array_rows_alike(spark: SparkSession) -> None:
    width, rows = 1500, 300
    matrix = sparse.random(rows, width, density=0.01, format="csr", random_state=0, dtype=np.float64)
    half = matrix.toarray()[:, :700].sum(axis=1)
    data = [
        (i, SparseVector(width, matrix[[i]].indices, matrix[[i]].data), float(half[i] > np.median(half)))
        for i in range(rows)
    ]
    schema = st.StructType(
        [
            st.StructField("id", st.IntegerType()),
            st.StructField("features", VectorUDT()),
            st.StructField("label", st.DoubleType()),
        ]
    )
    frame = spark.createDataFrame(data, schema).repartition(2).cache()
    model = BSPAUCClassifier(**FAST).fit(frame)
    assert model.scorer.sparse
    table = scored(model, frame).sort_values("id")
    assert np.array_equal(model.score_numpy(matrix).astype(float), table["score"])
    as_array = frame.withColumn("features", vector_to_array("features"))
    as_dense = as_array.withColumn("features", array_to_vector("features"))
    for other in (as_array, as_dense):
        np.testing.assert_allclose(scored(model, other).sort_values("id")["score"], table["score"], atol=1e-6)
    assert model.audit(frame).where("suspicion BETWEEN 0 AND 1").count() == rows
    np.testing.assert_allclose(model.score_numpy(matrix.toarray()), table["score"], atol=1e-5)
    with pytest.raises(PythonException, match="rows of a batch are of another size"):
        model.transform(frame.withColumn("features", sf.array(sf.lit(1.0)))).collect()
