"""``SelfPacedClassifier`` around classifiers of Spark ML: fits, transforms, audits, saving, and what it refuses."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import (
    DecisionTreeClassifier,
    GBTClassifier,
    LinearSVC,
    LogisticRegression,
    RandomForestClassifier,
)
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier, SelfPacedClassifier, SelfPacedModel
from bspauc_spark.around import frames
from bspauc_spark.errors import BSPAUCError
from bspauc_spark.rows.folds import dense_keys
from tests.helpers.fits import FAST
from tests.helpers.flipped import far_flips_table

FEATURES = [f"x{i}" for i in range(4)]


@pytest.fixture(scope="module")
def flipped(spark: SparkSession) -> DataFrame:
    frame = spark.createDataFrame(far_flips_table())
    cached = VectorAssembler(inputCols=FEATURES, outputCol="features").transform(frame).repartition(2).cache()
    assert cached.count() == 1200
    return cached


@pytest.fixture(scope="module")
def model(flipped: DataFrame) -> SelfPacedModel:
    return SelfPacedClassifier(classifier=LogisticRegression(regParam=0.001)).fit(flipped)


def margins(rows: pd.DataFrame, column: str = "rawPrediction") -> np.ndarray:
    return np.array([vector[1] - vector[0] for vector in rows[column]])


def true_auc(model: Any, frame: DataFrame) -> float:
    rows = model.transform(frame).select("clean", "rawPrediction").toPandas()
    return float(roc_auc_score(rows["clean"], margins(rows)))


@pytest.mark.everywhere
def test_leaving_out_wrong_labels_ranks_better(flipped: DataFrame, model: SelfPacedModel) -> None:
    bare = LogisticRegression(regParam=0.001).fit(flipped)
    assert model.summary.uses_selection
    assert true_auc(model, flipped) > true_auc(bare, flipped) + 0.01


def test_the_columns_are_those_of_the_classifier(flipped: DataFrame, model: SelfPacedModel) -> None:
    bare = LogisticRegression().fit(flipped)
    mine, theirs = model.transform(flipped), bare.transform(flipped)
    assert mine.columns == theirs.columns
    assert [field.dataType for field in mine.schema] == [field.dataType for field in theirs.schema]


def test_probability_is_calibrated_on_labels_as_given(flipped: DataFrame, model: SelfPacedModel) -> None:
    rows = model.transform(flipped).select("label", "probability", "prediction", "rawPrediction").toPandas()
    probability = np.array([vector[1] for vector in rows["probability"]])
    assert probability.mean() == pytest.approx(rows["label"].mean(), abs=0.03)
    assert ((probability > 0.5) == (rows["prediction"] == 1.0)).all()
    assert (np.diff(probability[np.argsort(margins(rows))]) >= 0).all()


def test_the_audit_finds_the_wrong_labels(flipped: DataFrame, model: SelfPacedModel) -> None:
    rows = model.audit(flipped).toPandas()
    assert len(rows) == flipped.count()
    assert roc_auc_score(rows["label"] != rows["clean"], rows["suspicion"]) > 0.95
    assert rows["weight"].between(0, 1).all()
    positive = rows["label"] == 1
    V, U = model.summary.kept
    assert rows["weight"][positive].mean() == pytest.approx(V, abs=0.01)
    assert rows["weight"][~positive].mean() == pytest.approx(U, abs=0.01)


def test_rows_without_a_label_have_a_score_and_no_suspicion(flipped: DataFrame, model: SelfPacedModel) -> None:
    some = flipped.withColumn("label", sf.when(sf.col("row") > 5, sf.col("label"))).where("row < 10")
    rows = model.audit(some).orderBy("row").toPandas()
    assert rows["score"].notna().all()
    assert rows["suspicion"].isna().tolist() == [True] * 6 + [False] * 4


def test_a_row_is_audited_by_the_model_that_did_not_learn_from_it(flipped: DataFrame, model: SelfPacedModel) -> None:
    rows = model.audit(flipped).toPandas()
    x = np.stack(rows["features"].map(lambda vector: vector.toArray())).astype(np.float32)
    fold = dense_keys(x, 0) % np.uint64(3)
    assert model.judged is not None
    for k, (judge,) in enumerate(model.foldModels):
        own = rows[fold == k]
        raw = x[fold == k].astype(float) @ judge.coefficients.toArray() + judge.intercept
        expected = model.judged.scale.scores(raw.astype(np.float32)[None], np.full(len(own), k))
        assert np.allclose(own["score"], expected, atol=1e-4)


def test_dense_sparse_and_array_rows_are_in_the_same_folds(spark: SparkSession, flipped: DataFrame) -> None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import Vectors, VectorUDT

    from bspauc_spark.around.keys import by_rows, fold_of, key_of

    sparse = sf.udf(lambda v: Vectors.sparse(4, range(4), v.toArray()), VectorUDT())
    forms = flipped.select("row", "features", sparse("features").alias("s"), vector_to_array("features").alias("a"))
    folds = [
        by_rows(forms, name)
        .select("row", fold_of(key_of(forms, name, 4, 7), 3).alias("fold"))
        .orderBy("row")
        .toPandas()
        for name in ("features", "s", "a")
    ]
    x = np.stack(far_flips_table()[FEATURES].to_numpy()).astype(np.float32)
    assert folds[0]["fold"].tolist() == (dense_keys(x, 7) % np.uint64(3)).tolist()
    assert folds[0].equals(folds[1])
    assert folds[0].equals(folds[2])


def test_the_summary_tells_rounds_noise_and_verdict(model: SelfPacedModel) -> None:
    summary = model.summary
    assert summary.history["round"].tolist() == [1, 2]
    assert "is used" in summary.verdict
    assert summary.fits == 10
    wrong_positives, wrong_negatives = summary.wrong_shares or (0.0, 0.0)
    assert wrong_positives > 0.5
    assert summary.kept == pytest.approx((1 - wrong_positives, 1 - wrong_negatives), abs=0.02)
    assert summary.counts == {"positives": 535, "negatives": 665} or sum(summary.counts.values()) == 1200


def test_right_labels_give_the_classifiers_own_model(flipped: DataFrame) -> None:
    right = flipped.withColumn("label", sf.col("clean"))
    classifier = LogisticRegression(regParam=0.01)
    model = SelfPacedClassifier(classifier=classifier).fit(right)
    assert not model.summary.uses_selection
    assert model.summary.fits == 4
    bare = classifier.fit(right)
    assert model.transform(right).orderBy("row").collect() == bare.transform(right).orderBy("row").collect()


def test_nothing_stays_persisted(spark: SparkSession, flipped: DataFrame) -> None:
    if hasattr(spark, "_jsparkSession"):
        before = spark.sparkContext._jsc.getPersistentRDDs().size()
        SelfPacedClassifier(classifier=LogisticRegression()).fit(flipped)
        assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


class Interrupted(LogisticRegression):
    """Its fourth fit gets what Ctrl-C sends."""

    fits: ClassVar[list[str]] = []

    def _fit(self, dataset: DataFrame) -> Any:
        self.fits.append(self.uid)
        if len(self.fits) == 4:
            signal.raise_signal(signal.SIGINT)
        return super()._fit(dataset)


@pytest.mark.classic
def test_ctrl_c_leaves_nothing_persisted(spark: SparkSession, flipped: DataFrame) -> None:
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    with pytest.raises(KeyboardInterrupt):
        SelfPacedClassifier(classifier=Interrupted()).fit(flipped)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before
    assert flipped.count() == 1200


def test_rows_above_exact_rows_come_in_bins_and_give_the_same_selection(
    flipped: DataFrame, model: SelfPacedModel
) -> None:
    binned = SelfPacedClassifier(classifier=LogisticRegression(regParam=0.001), exactRows=10).fit(flipped)
    assert binned.judged is not None
    assert model.judged is not None
    assert binned.judged.selection.to_dict(objective=False) == model.judged.selection.to_dict(objective=False)


def test_a_sample_of_many_rows_is_enough_for_scale_and_evidence(
    flipped: DataFrame, model: SelfPacedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MOST_SAMPLED", 300)
    sampled = SelfPacedClassifier(classifier=LogisticRegression(regParam=0.001)).fit(flipped)
    assert sampled.summary.rounds != model.summary.rounds
    for one, other in zip(sampled.summary.rounds, model.summary.rounds, strict=False):
        assert one.positive_fraction == pytest.approx(other.positive_fraction, abs=0.1)


@pytest.mark.thorough
def test_without_a_choice_three_learners_are_blended(flipped: DataFrame, where: dict[str, Any]) -> None:
    if where:
        pytest.skip("the network's stagingDir cannot be given")
    model = SelfPacedClassifier(parallelism=2).fit(flipped.limit(600))
    names = ["RandomForestClassifier", "BSPAUCClassifier", "SparkXGBClassifier"]
    assert [*model.summary.shares] == names[: len(model.summary.shares)]
    assert len(model.summary.shares) >= 2
    assert true_auc(model, flipped) > 0.9


def test_a_saved_model_is_the_same(flipped: DataFrame, model: SelfPacedModel, tmp_path: Path) -> None:
    model.write().overwrite().save(str(tmp_path / "model"))
    again = SelfPacedModel.load(str(tmp_path / "model"))
    assert again.uid == model.uid
    assert again.summary == model.summary
    for rows in (SelfPacedModel.transform, SelfPacedModel.audit):
        assert rows(again, flipped).orderBy("row").collect() == rows(model, flipped).orderBy("row").collect()


def test_a_saved_classifier_is_the_same(tmp_path: Path) -> None:
    one = SelfPacedClassifier(classifier=LogisticRegression(regParam=0.25), folds=4, ensemble=True)
    one.save(str(tmp_path / "one"))
    again = SelfPacedClassifier.load(str(tmp_path / "one"))
    assert again.getFolds() == 4
    assert again.getEnsemble()
    assert again.getClassifier().getRegParam() == 0.25
    several = SelfPacedClassifier(classifiers=[LogisticRegression(), GBTClassifier(maxIter=3)])
    several.save(str(tmp_path / "several"))
    kinds = [type(each) for each in SelfPacedClassifier.load(str(tmp_path / "several")).getClassifiers() or []]
    assert kinds == [LogisticRegression, GBTClassifier]


def test_in_a_pipeline_that_is_saved(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(far_flips_table(rows=600))
    assembler = VectorAssembler(inputCols=FEATURES, outputCol="features")
    stages = [assembler, SelfPacedClassifier(classifier=LogisticRegression())]
    model = Pipeline(stages=stages).fit(frame)
    model.write().overwrite().save(str(tmp_path / "pipeline"))
    again = PipelineModel.load(str(tmp_path / "pipeline"))
    assert again.transform(frame).orderBy("row").collect() == model.transform(frame).orderBy("row").collect()


@pytest.mark.thorough
def test_under_cross_validation_of_the_classifiers_params(flipped: DataFrame) -> None:
    inner = LogisticRegression()
    stage = SelfPacedClassifier(classifier=inner, keepFoldModels=False)
    grid = ParamGridBuilder().addGrid(inner.regParam, [0.001, 100.0]).build()
    search = CrossValidator(
        estimator=stage, estimatorParamMaps=grid, evaluator=BinaryClassificationEvaluator(), numFolds=2, parallelism=2
    )
    best = search.fit(flipped).bestModel
    assert best.bestModel.getRegParam() == 0.001


@pytest.mark.parametrize(
    "classifier",
    [
        lambda: RandomForestClassifier(numTrees=5, maxDepth=4, seed=1),
        lambda: DecisionTreeClassifier(maxDepth=3),
        lambda: LinearSVC(maxIter=5),
        lambda: GBTClassifier(maxIter=3, seed=1),
    ],
    ids=["forest", "tree", "support vectors", "boosted trees"],
)
def test_around_classifiers_of_spark(flipped: DataFrame, classifier: Callable[[], Any]) -> None:
    model = SelfPacedClassifier(classifier=classifier(), parallelism=2).fit(flipped)
    assert true_auc(model, flipped) > 0.85
    assert model.audit(flipped).agg(sf.count("suspicion")).first()[0] == 1200


def test_around_our_own_classifier(flipped: DataFrame, where: dict[str, Any]) -> None:
    model = SelfPacedClassifier(classifier=BSPAUCClassifier(**FAST, **where)).fit(flipped)
    assert true_auc(model, flipped) > 0.9


@pytest.mark.classic
def test_around_xgboost(flipped: DataFrame, tmp_path: Path) -> None:
    spark_xgboost = pytest.importorskip("xgboost.spark")
    classifier = spark_xgboost.SparkXGBClassifier(n_estimators=20, max_depth=3)
    model = SelfPacedClassifier(classifier=classifier).fit(flipped)
    assert true_auc(model, flipped) > 0.9
    model.save(str(tmp_path / "model"))
    again = SelfPacedModel.load(str(tmp_path / "model"))
    assert true_auc(again, flipped) == true_auc(model, flipped)


def test_an_ensemble_is_the_mean_of_the_models_of_the_folds(flipped: DataFrame, tmp_path: Path) -> None:
    model = SelfPacedClassifier(classifier=LogisticRegression(), ensemble=True).fit(flipped)
    assert true_auc(model, flipped) > 0.98
    with pytest.raises(BSPAUCError, match="an ensemble has no bestModel"):
        _ = model.bestModel
    model.save(str(tmp_path / "model"))
    again = SelfPacedModel.load(str(tmp_path / "model"))
    assert again.transform(flipped).orderBy("row").collect() == model.transform(flipped).orderBy("row").collect()


def test_a_blend_is_as_good_as_its_best_learner(flipped: DataFrame, tmp_path: Path) -> None:
    tree, linear = DecisionTreeClassifier(maxDepth=2), LogisticRegression(regParam=0.001)
    model = SelfPacedClassifier(classifiers=[tree, linear]).fit(flipped)
    assert sum(model.summary.shares.values()) == pytest.approx(1)
    assert true_auc(model, flipped) > 0.97
    assert model.transform(flipped).columns == [*flipped.columns, "rawPrediction", "probability", "prediction"]
    rows = model.audit(flipped).toPandas()
    assert roc_auc_score(rows["label"] != rows["clean"], rows["suspicion"]) > 0.9
    model.save(str(tmp_path / "model"))
    again = SelfPacedModel.load(str(tmp_path / "model"))
    assert again.transform(flipped).orderBy("row").collect() == model.transform(flipped).orderBy("row").collect()


def test_weights_of_the_user_count(flipped: DataFrame) -> None:
    # Rows of wrong labels weigh next to nothing, so nothing is left to be found.
    weighted = flipped.withColumn("w", sf.when(sf.col("label") == sf.col("clean"), 1.0).otherwise(1e-6))
    model = SelfPacedClassifier(classifier=LogisticRegression(weightCol="w")).fit(weighted)
    assert true_auc(model, flipped) > 0.995


def test_folds_by_a_column(flipped: DataFrame) -> None:
    folded = flipped.withColumn("group", (sf.col("row") % 3 + 5).cast("int"))
    model = SelfPacedClassifier(classifier=LogisticRegression(), foldCol="group").fit(folded)
    rows = model.audit(folded).toPandas()
    assert model.judged is not None
    judge = model.foldModels[1][0]
    own = rows[rows["group"] == 6]
    x = np.stack(own["features"].map(lambda vector: vector.toArray()))
    raw = (x @ judge.coefficients.toArray() + judge.intercept).astype(np.float32)
    assert np.allclose(own["score"], model.judged.scale.scores(raw[None], np.full(len(own), 1)), atol=1e-4)


def test_other_names_of_columns(flipped: DataFrame) -> None:
    renamed = flipped.withColumnsRenamed({"features": "my features", "label": "wrong"})
    stage = SelfPacedClassifier(
        classifier=LogisticRegression(), featuresCol="my features", labelCol="wrong", probabilityCol="p"
    )
    model = stage.fit(renamed)
    assert model.transform(renamed).columns[-3:] == ["rawPrediction", "p", "prediction"]
    assert model.audit(renamed).count() == 1200


def test_too_few_rows_for_folds_give_the_classifiers_own_model(flipped: DataFrame) -> None:
    few = flipped.orderBy("row").limit(20)
    model = SelfPacedClassifier(classifier=LogisticRegression()).fit(few)
    assert "too few for 3 folds" in model.summary.verdict
    assert model.transform(few).count() == 20
    with pytest.raises(BSPAUCError, match=r"no honest scores to audit by: All rows are kept: they are too few"):
        model.audit(few)


def test_an_audit_needs_the_models_of_the_folds(flipped: DataFrame) -> None:
    model = SelfPacedClassifier(classifier=LogisticRegression(), keepFoldModels=False).fit(flipped)
    with pytest.raises(BSPAUCError, match="Fit with keepFoldModels=True"):
        model.audit(flipped)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"classifier": LinearRegression}, "not the class LinearRegression. Call it"),
        ({"classifier": "forest"}, r"must be a Spark ML classifier, such as .* not a builtins.str"),
        ({"classifiers": []}, "must be a list of one Spark ML classifier or more"),
        ({"folds": 2}, "folds must be a whole number from 3 to 10"),
    ],
)
def test_bad_params_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(BSPAUCError, match=message):
        SelfPacedClassifier(**params)


def test_a_regressor_is_refused() -> None:
    with pytest.raises(BSPAUCError, match=r"LinearRegression has no rawPredictionCol or probabilityCol"):
        SelfPacedClassifier(classifier=LinearRegression())


def test_classifier_and_classifiers_are_not_set_both(flipped: DataFrame) -> None:
    both = SelfPacedClassifier(classifier=LogisticRegression(), classifiers=[LinearSVC()])
    with pytest.raises(BSPAUCError, match="Leave one or the other out"):
        both.fit(flipped)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("label + 1", r"1,200 rows|labels other than 0 and 1"),
        ("row % 3", r"labels other than 0 and 1 in 1,200 rows, and 3 different ones"),
        ("1", r"column 'label' is 1 in all 1,200 rows"),
        ("if(row = 3, null, label)", r"column 'label' has 1 null or NaN values in 1,200 rows"),
    ],
)
def test_bad_labels_are_refused(flipped: DataFrame, change: str, message: str) -> None:
    with pytest.raises(BSPAUCError, match=message):
        SelfPacedClassifier(classifier=LogisticRegression()).fit(flipped.withColumn("label", sf.expr(change)))


def test_a_column_that_is_not_there_is_refused(flipped: DataFrame) -> None:
    with pytest.raises(BSPAUCError, match=r"column 'nope' \(featuresCol\) is not in the DataFrame"):
        SelfPacedClassifier(classifier=LogisticRegression(featuresCol="nope")).fit(flipped)


def test_a_classifier_that_fails_in_a_fold_says_in_which(spark: SparkSession, flipped: DataFrame) -> None:
    before = spark.sparkContext._jsc.getPersistentRDDs().size() if hasattr(spark, "_jsparkSession") else 0
    bad = LogisticRegression(lowerBoundsOnIntercepts=None, elasticNetParam=0.5, family="multinomial", threshold=0.5)
    bad.set(bad.thresholds, [0.1, 0.2, 0.7])
    with pytest.raises(BSPAUCError, match=r"LogisticRegression failed on the rows outside fold 0 of 3"):
        SelfPacedClassifier(classifier=bad, parallelism=2).fit(flipped)
    if hasattr(spark, "_jsparkSession"):
        assert spark.sparkContext._jsc.getPersistentRDDs().size() == before
