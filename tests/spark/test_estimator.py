"""``BSPAUCClassifier`` as a Spark ML stage: fits, Params, determinism, validation, tuning."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import BSPAUCError, CollapseError, DeviceError, DivergedError, WorkerError
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.rows.staging import StagedData
from bspauc_spark.selection import Selection
from bspauc_spark.theta import cuda
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.worker import Worker
from tests.helpers.fits import FAST, noisy_moons
from tests.helpers.paces import before_each_round


def scores_by_row(model: Any, dataset: DataFrame) -> np.ndarray:
    rows = model.transform(dataset).select("x0", "rawPrediction").orderBy("x0").collect()
    return np.array([row["rawPrediction"][1] for row in rows])


def test_default_params_rank_the_clean_labels_well(moons: DataFrame) -> None:
    model = BSPAUCClassifier(verbose=False).fit(moons)
    rows = model.transform(moons).select("clean", "rawPrediction").collect()
    assert roc_auc_score([r["clean"] for r in rows], [r["rawPrediction"][1] for r in rows]) > 0.97


def test_a_no_argument_constructor_works_and_every_param_has_doc_getter_and_setter() -> None:
    estimator = BSPAUCClassifier()
    for param in estimator.params:
        title = param.name[0].upper() + param.name[1:]
        assert param.doc, param.name
        assert callable(getattr(estimator, f"set{title}")), param.name
        if estimator.isDefined(param):
            value = estimator.getOrDefault(param)
            assert getattr(estimator, f"get{title}")() == value
            assert getattr(estimator, f"set{title}")(value) is estimator


def test_the_same_seed_gives_the_same_bits_however_the_rows_are_partitioned(moons: DataFrame) -> None:
    estimator = BSPAUCClassifier(**FAST, seed=7)
    one = scores_by_row(estimator.fit(moons.repartition(1)), moons)
    seven = scores_by_row(estimator.fit(moons.repartition(7)), moons.repartition(3))
    other_seed = scores_by_row(estimator.copy({estimator.seed: 8}).fit(moons), moons)
    assert one.tobytes() == seven.tobytes()
    assert not np.array_equal(one, other_seed)


def test_dense_vectors_sparse_vectors_and_arrays_give_the_same_bits(spark: SparkSession, moons: DataFrame) -> None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import SparseVector, VectorUDT

    as_array = moons.withColumn("features", vector_to_array("features"))
    to_sparse = sf.udf(lambda v: SparseVector(len(v), range(len(v)), v), VectorUDT())
    mixed = moons.withColumn("features", sf.when(sf.col("x0") > 0, to_sparse("features")).otherwise(sf.col("features")))
    estimator = BSPAUCClassifier(**FAST)
    fitted = [estimator.fit(frame).scorer.weights for frame in (moons, as_array, mixed)]
    for weights in fitted[1:]:
        assert all(np.array_equal(fitted[0][name], weights[name]) for name in fitted[0])


def test_history_has_a_row_a_round_and_the_fractions_rise_to_pace_end(moons: DataFrame) -> None:
    model = BSPAUCClassifier(**{**FAST, "rounds": 4}, paceStart=0.4, paceEnd=0.7).fit(moons)
    history = model.summary.history
    assert list(history["round"]) == [1, 2, 3, 4]
    kept = (history["positive_fraction"] + history["negative_fraction"]) / 2
    assert kept.iloc[0] == pytest.approx(0.4, abs=0.02)
    assert kept.iloc[-1] == pytest.approx(0.7, abs=0.02)
    expected = {
        *(
            "round",
            "lam",
            "positive_fraction",
            "negative_fraction",
            "apd",
            "objective_before",
            "objective_after",
        ),
        *("train_auc", "validation_auc", "score_seconds", "solve_seconds", "train_seconds"),
    }
    assert expected <= set(history.columns)
    np.testing.assert_allclose(history["apd"], abs(history["positive_fraction"] - history["negative_fraction"]))


def test_objectives_equal_the_formula_summed_over_all_pairs(moons: DataFrame) -> None:
    params = {**FAST, "rounds": 1, "optimizer": "adam", "regParam": 0.01, "averaging": 0.0}
    model = BSPAUCClassifier(**params, paceSchedule="linear", lambdaInit=5.0, lambdaMax=5.0, nu=1.0).fit(moons)
    row = model.summary.history.iloc[0]
    V, U = row["positive_fraction"], row["negative_fraction"]
    rows = model.transform(moons).select("label", "rawPrediction").collect()
    theta = [p.detach().double().numpy() for p in model.scorer.network.parameters()]
    omega = 0.5 * sum(float((p**2).sum()) for p in theta)
    # All rows are kept at this λ, so every weight is 1 and the pair term needs no selection.
    assert (V, U) == (1.0, 1.0)
    s = {c: np.array([r["rawPrediction"][1] for r in rows if r["label"] == c]) for c in (0.0, 1.0)}
    pairs = np.maximum(0, 1 - s[1.0][:, None] + s[0.0][None, :]).mean()
    expected = pairs - row["lam"] * (V + U) + 0.01 * omega + row["mu"] * (V - U) ** 2
    assert row["objective_after"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("folds", [0, 3])
def test_the_weights_of_a_table_are_those_with_which_it_was_solved(moons: DataFrame, folds: int) -> None:
    """Of few wrong labels honest scores say that to leave rows out does not pay; without them nobody knows."""
    model = BSPAUCClassifier(rounds=2, folds=folds, paceStart=0.5, paceEnd=0.6, verbose=False).fit(moons)
    kept = (model.scorer.selection.positive_fraction + model.scorer.selection.negative_fraction) / 2
    assert kept == (1.0 if folds else pytest.approx(0.6, abs=0.05))
    assert ("verdict" in model.summary.about) == (folds > 0)


def test_self_paced_false_keeps_every_row(moons: DataFrame) -> None:
    history = BSPAUCClassifier(**FAST, selfPaced=False).fit(moons).summary.history
    assert (history["positive_fraction"] == 1).all()
    assert (history["negative_fraction"] == 1).all()


@pytest.mark.parametrize("params", [{**FAST, "learningRate": 0.02}, {"verbose": False}], ids=["mlp", "table"])
def test_validation_keeps_the_best_round_and_patience_stops(moons: DataFrame, params: dict[str, Any]) -> None:
    params = {**params, "rounds": 12, "patience": 2}
    model = BSPAUCClassifier(**params, validationIndicatorCol="validation", selfPaced=False).fit(moons)
    history, best = model.summary.history, model.summary.best_round
    assert history["validation_auc"].max() == history["validation_auc"].iloc[best - 1]
    assert len(history) == min(12, best + 2)
    validation = moons.where("validation")
    auc = BinaryClassificationEvaluator().evaluate(model.transform(validation))
    assert auc == pytest.approx(history["validation_auc"].iloc[best - 1], abs=1e-6)
    assert model.summary.counts["validation_positives"] + model.summary.counts["validation_negatives"] == (
        validation.count()
    )


def test_ensure_descent_never_raises_what_a_block_minimises(moons: DataFrame) -> None:
    params = {**FAST, "rounds": 5, "optimizer": "sgd", "learningRate": 5.0, "regParam": 0.0, "averaging": 0.0}
    params["hiddenLayers"] = [8]
    free = BSPAUCClassifier(**params, selfPaced=False).fit(moons).summary.history
    held = BSPAUCClassifier(**params, selfPaced=False, ensureDescent=True).fit(moons).summary.history
    assert (held["block_after"] <= held["block_before"] + 1e-12).all()
    assert (free["block_after"] > free["block_before"]).any()
    assert (held["learning_rate_factor"] < 1).any()


@pytest.mark.parametrize("network", [FAST, {"verbose": False}], ids=["mlp", "table"])
def test_explicit_lambda_schedules_follow_algorithm_1(moons: DataFrame, network: dict[str, Any]) -> None:
    params = {**network, "rounds": 4, "lambdaInit": 0.4, "lambdaMax": 0.9, "nu": 1.0}
    geometric = BSPAUCClassifier(**params, paceSchedule="geometric", lambdaGrowth=1.5).fit(moons).summary.history
    linear = BSPAUCClassifier(**params, paceSchedule="linear").fit(moons).summary.history
    np.testing.assert_allclose(geometric["lam"], [0.4, 0.6, 0.9, 0.9])
    np.testing.assert_allclose(linear["lam"], np.linspace(0.4, 0.9, 4))
    np.testing.assert_allclose(geometric["mu"], 0.9)


def test_a_lambda_that_empties_a_class_is_an_error_of_its_own(moons: DataFrame) -> None:
    params = {
        **FAST,
        "pretrainSteps": 0,
        "paceSchedule": "linear",
        "lambdaInit": 0.05,
        "lambdaMax": 0.06,
        "mu": 0.01,
    }
    with pytest.raises(CollapseError, match=r"keeps no \w+ row at lam=0.05"):
        BSPAUCClassifier(**params).fit(moons)


def test_pipeline_fits_saves_loads_and_predicts_the_same(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(noisy_moons(1500))
    stages = [
        VectorAssembler(inputCols=[f"x{i}" for i in range(6)], outputCol="assembled"),
        MinMaxScaler(inputCol="assembled", outputCol="features"),
        BSPAUCClassifier(rounds=2, verbose=False),
    ]
    fitted = Pipeline(stages=stages).fit(frame)
    for _ in range(2):
        fitted.write().overwrite().save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(loaded.stages[-1], BSPAUCModel)
    before, after = (m.transform(frame).orderBy("x0").toPandas() for m in (fitted, loaded))
    for column in ("rawPrediction", "probability", "prediction"):
        assert before[column].tolist() == after[column].tolist()
    Pipeline(stages=stages).write().overwrite().save(str(tmp_path / "pipeline"))
    again = Pipeline.load(str(tmp_path / "pipeline")).fit(frame)
    assert np.array_equal(scores_by_row(again, frame), scores_by_row(fitted, frame))


@pytest.mark.thorough
def test_cross_validator_tunes_nu_and_pace_end_also_in_parallel(moons: DataFrame) -> None:
    estimator = BSPAUCClassifier(**FAST)
    grid = ParamGridBuilder().addGrid(estimator.nu, [0.5, 2.0]).addGrid(estimator.paceEnd, [0.6, 0.9]).build()
    metrics = []
    for parallelism in (1, 4):
        validator = CrossValidator(
            estimator=estimator,
            estimatorParamMaps=grid,
            evaluator=BinaryClassificationEvaluator(),
            numFolds=2,
            seed=1,
            parallelism=parallelism,
        )
        metrics.append(validator.fit(moons.limit(800)).avgMetrics)
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-12)
    assert len(set(metrics[0])) > 1


def test_staged_rows_are_gone_after_success_and_after_failure(
    moons: DataFrame, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mapped: list[bool] = []
    remove = StagedData.remove

    def seen_remove(self: StagedData) -> None:
        mapped.append(self.shards.directory in Path("/proc/self/maps").read_text())
        remove(self)

    monkeypatch.setattr(StagedData, "remove", seen_remove)
    BSPAUCClassifier(**FAST, stagingDir=str(tmp_path)).fit(moons)
    with pytest.raises(CollapseError):
        BSPAUCClassifier(
            **{**FAST, "pretrainSteps": 0},
            stagingDir=str(tmp_path),
            paceSchedule="linear",
            lambdaInit=0.05,
            lambdaMax=0.06,
            mu=0.01,
        ).fit(moons)
    assert mapped == [False, False]
    assert list(tmp_path.iterdir()) == []
    assert list(temporary.glob("bspauc-*")) == []


def test_a_fit_that_diverges_in_a_later_round_hands_over_a_model_that_saves_and_loads(
    moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    block = Worker.train

    def broken(self: Worker, selection: Selection, rate: float = 1.0) -> BlockReport:
        rates.append(rate)
        if len(rates) > 2:
            raise DivergedError("from round 3 on")
        return block(self, selection, rate)

    monkeypatch.setattr(Worker, "train", broken)
    with pytest.raises(DivergedError, match="from round 3 on") as caught:
        BSPAUCClassifier(**{**FAST, "rounds": 4}).fit(moons)
    assert rates == [1, 1, 1, 0.5, 0.25, 0.125]
    model = caught.value.model
    assert model is not None
    assert len(model.summary.rounds) == 2
    model.save(str(tmp_path / "model"))
    scores = scores_by_row(BSPAUCModel.load(str(tmp_path / "model")), moons)
    assert np.isfinite(scores).all()
    assert np.array_equal(scores, scores_by_row(model, moons))
    # Where that model cannot be made, the error is still the first one.
    rates.clear()
    monkeypatch.setattr(TrainingSummary, "to_dict", None)
    with pytest.raises(DivergedError, match="from round 3 on") as caught:
        BSPAUCClassifier(**{**FAST, "rounds": 4}).fit(moons)
    assert caught.value.model is None
    assert caught.value.weights is not None


@pytest.mark.parametrize("kind", [WorkerError, CollapseError])
def test_a_fit_that_fails_in_a_later_round_hands_over_the_model_of_the_rounds_before(
    kind: type[BSPAUCError], moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(t: int) -> None:
        if t == 3:
            raise kind("in round 3")

    before_each_round(monkeypatch, broken)
    with pytest.raises(kind, match="in round 3") as caught:
        BSPAUCClassifier(**{**FAST, "rounds": 4}).fit(moons)
    model = caught.value.model
    assert model is not None
    assert len(model.summary.rounds) == 2
    whole = BSPAUCClassifier(**{**FAST, "rounds": 2}).fit(moons)
    assert np.array_equal(scores_by_row(model, moons), scores_by_row(whole, moons))


def test_sgd_and_linear_networks_train(moons: DataFrame) -> None:
    model = BSPAUCClassifier(
        **{**FAST, "stepsPerRound": 60, "network": "linear"},
        optimizer="sgd",
        learningRate=0.3,
        regParam=0.0,
        pairing="matched",
    ).fit(moons)
    assert model.summary.history["train_auc"].iloc[-1] > 0.7  # of noisy labels; a curved boundary, a line
    assert [tuple(p.shape) for p in model.scorer.network.parameters()] == [(6, 1), (1,)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_use_gpu_without_one_says_so(moons: DataFrame) -> None:
    with pytest.raises(DeviceError, match=r"useGpu is True, but .* torch .* finds 0 there"):
        BSPAUCClassifier(useGpu=True).fit(moons)


def test_in_process_a_gpu_holds_the_rows_and_gives_the_model_of_a_cpu(
    moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands in for it."""
    on_cpu = BSPAUCClassifier(**FAST).fit(moons)
    asked: list[torch.device] = []
    monkeypatch.setattr(cuda, "count", lambda: 1)
    monkeypatch.setattr(cuda, "device", lambda index: torch.device("cpu", index))
    monkeypatch.setattr(cuda, "free_bytes", lambda device: asked.append(device) or 1 << 30)
    on_gpu = BSPAUCClassifier(**FAST, useGpu=True).fit(moons)
    assert asked == [torch.device("cpu", 0)]
    for name, array in on_cpu.scorer.weights.items():
        assert array.tobytes() == on_gpu.scorer.weights[name].tobytes()


def test_the_number_of_torch_threads_is_left_as_it_was(moons: DataFrame, two_threads: None) -> None:
    BSPAUCClassifier(**FAST).fit(moons)
    assert torch.get_num_threads() == 2
