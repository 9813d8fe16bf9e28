"""Every row of docs/errors.md: each case below gives the very error that its row shows, and leaves nothing behind."""

from __future__ import annotations

import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.ml.classification import LinearSVC, LogisticRegression
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.ml.regression import LinearRegression
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark import BSPAUCClassifier, BSPAUCModel, SelfPacedClassifier, SelfPacedModel
from bspauc_spark.errors import BSPAUCError
from bspauc_spark.rows import staging
from tests.helpers.fits import FAST, noisy_moons

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
SCHEMA = st.StructType(
    [
        st.StructField("features", VectorUDT()),
        st.StructField("label", st.DoubleType()),
        st.StructField("validation", st.BooleanType()),
    ]
)
SECONDS = 20.0


def rows_of_the_page(cells: int, cell: int = 1) -> dict[str, str]:
    """The tables with so many columns: the first cell → the second, or another one."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what")]
    split = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in lines]
    found = [(row[0], row[cell].strip("`").replace("\\|", "|")) for row in split if len(row) == cells]
    assert len({name for name, _ in found}) == len(found), "two rows of one name"
    return dict(found)


class Bench:
    """What a case works with: a session, a fitted model, a folder to stage in, Params that every fit is given."""

    def __init__(self, spark: SparkSession, model: BSPAUCModel, folder: Path) -> None:
        self.spark, self.model, self.folder = spark, model, folder
        self.params: dict[str, Any] = {"stagingDir": str(folder)}

    def frame(self, rows: list[Any]) -> DataFrame:
        return self.spark.createDataFrame(rows, SCHEMA).coalesce(1)

    def good(self) -> DataFrame:
        return self.frame(GOOD)

    def fit(self, frame: DataFrame, **params: Any) -> BSPAUCModel:
        return BSPAUCClassifier(**{**FAST, **self.params, **params}).fit(frame)


D = Vectors.dense
GOOD = [(D(1, 2), 1.0, False), (D(3, 4), 0.0, False), (D(5, 6), 1.0, True), (D(7, 8), 0.0, True)]


def labels(*values: float | None, **params: Any) -> Callable[[Bench], Any]:
    rows = [(D(i, 2), None if value is None else float(value), False) for i, value in enumerate(values)]
    return lambda bench: bench.fit(bench.frame(rows), **params)


def features(*values: Any) -> Callable[[Bench], Any]:
    return lambda bench: bench.fit(bench.frame([*GOOD, *((value, 0.0, False) for value in values)]))


def validation(*values: bool | None) -> Callable[[Bench], Any]:
    rows = [(x, y, value) for (x, y, _), value in zip(GOOD, values, strict=True)]
    return lambda bench: bench.fit(bench.frame(rows), validationIndicatorCol="validation")


def fit(change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **params: Any) -> Callable[[Bench], Any]:
    return lambda bench: bench.fit(change(bench.good()), **params)


def column(name: str, expression: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withColumn(name, sf.expr(expression))


def params(**values: Any) -> Callable[[Bench], Any]:
    return lambda _: BSPAUCClassifier(**values)


def transform(change: Callable[[DataFrame], DataFrame]) -> Callable[[Bench], Any]:
    return lambda bench: bench.model.transform(change(bench.good())).collect()


def audit(change: Callable[[DataFrame], DataFrame]) -> Callable[[Bench], Any]:
    return lambda bench: bench.model.audit(change(bench.good())).collect()


def around(change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **params: Any) -> Callable[[Bench], Any]:
    """A fit around another classifier."""

    def run(bench: Bench) -> Any:
        given = {name: [LinearSVC()] if value == [] else value for name, value in params.items()}
        return SelfPacedClassifier(classifier=LogisticRegression(), **given).fit(change(bench.good()))

    return run


def misplaced(size: int) -> Callable[[Bench], Any]:
    """Spark's classes refuse such a vector when it is made; a file may hold one."""
    vector = SparseVector(size, [0], [1.0])
    vector.indices = np.array([size], dtype=np.int32)
    rows = [(SparseVector(size, [i], [1.0]), float(i), False) for i in range(2)]
    return lambda bench: bench.fit(bench.frame([*rows, (vector, 1.0, False)]))


def mllib_vectors(bench: Bench) -> Any:
    rows = [(OldVectors.dense(1, 2), 1.0), (OldVectors.dense(3, 4), 0.0)]
    return bench.fit(bench.spark.createDataFrame(rows, ["features", "label"]))


def wide_and_dense(bench: Bench) -> Any:
    row = sf.array_repeat(sf.col("id") + 1.0, 600_000)
    return bench.fit(bench.spark.range(2).select(row.alias("features"), sf.col("id").alias("label")))


def wide_kernel(bench: Bench) -> Any:
    row = SparseVector(10_000_000, [9_999_999], [1.0])
    return bench.fit(bench.frame([(row, 1.0, False), (row, 0.0, False)]), network="kernel")


def stream(bench: Bench) -> Any:
    frame = bench.spark.readStream.format("rate").load()
    return bench.fit(frame.selectExpr("array(1D) AS features", "1D AS label"))


COLLAPSING = {"paceSchedule": "linear", "lambdaInit": 0.05, "lambdaMax": 0.06, "mu": 0.01, "pretrainSteps": 0}

REFUSED: dict[str, Callable[[Bench], Any]] = {
    "a label is null": labels(0, 1, None, None),
    "a label is NaN": labels(0, 1, math.nan),
    "a label is infinite": labels(0, 1, math.inf, -math.inf),
    "labels are text": fit(column("label", "string(label)")),
    "all labels are negative": labels(0, 0, 0),
    "all labels are positive": labels(1, 1),
    "three labels, `positiveLabel` not set": labels(0, 1, 2),
    "no label is `positiveLabel`": labels(0, 1, 2, positiveLabel=7.0),
    "a row has no features": features(None, None),
    "no row has features": lambda bench: bench.fit(bench.frame([(None, 1.0, False), (None, 0.0, False)])),
    "a feature is NaN": features(D(math.nan, 1)),
    "a feature of a sparse vector is NaN": features(SparseVector(2, [0], [math.nan])),
    "a feature is infinite": features(D(math.inf, 1), D(1, -math.inf)),
    "a feature is beyond float32": features(D(1e300, 1)),
    "rows differ in size": features(D(1, 2, 3), SparseVector(9, [], [])),
    "an index of a sparse vector is beyond its size": misplaced(2),
    "the same in vectors of more than 512 features": misplaced(2000),
    "rows of size 0": lambda bench: bench.fit(bench.frame([(D([]), 1.0, False), (D([]), 0.0, False)])),
    "features are numbers, not vectors": fit(column("features", "1D")),
    "features are an array of text": fit(column("features", "array('x')")),
    "600,000 features, none of them zero": wide_and_dense,
    "vectors of `pyspark.mllib`": mllib_vectors,
    "the features' column is missing": fit(featuresCol="nope"),
    "the labels' column is missing": fit(labelCol="nope"),
    "two columns share the label's name": fit(lambda frame: frame.select("*", "label")),
    "two columns differ in case only": fit(lambda frame: frame.select("*", sf.lit(1.0).alias("LABEL"))),
    "rows that are no Spark DataFrame": lambda bench: bench.fit(bench.good().toPandas()),
    "no rows": fit(lambda frame: frame.limit(0)),
    "a stream": stream,
    "an output column exists, at fit": fit(column("prediction", "1D")),
    "an output column exists in other letters": fit(column("PREDICTION", "1D")),
    "the validation column is missing": fit(validationIndicatorCol="nope"),
    "the validation column is no boolean": fit(validationIndicatorCol="label"),
    "the validation column is null": validation(True, False, None, False),
    "all rows are for validation": validation(True, True, True, True),
    "no row is for validation": validation(False, False, False, False),
    "no positive row is for validation": validation(False, False, False, True),
    "a number outside its range": params(paceStart=0),
    "a number that is NaN": params(learningRate=math.nan),
    "a fraction where a whole number is needed": params(rounds=1.5),
    "True where a whole number is needed": params(rounds=True),
    "text where a number is needed": params(regParam="much"),
    "an unknown word": params(network="tree"),
    "1 where True or False is needed": params(selfPaced=1),
    "layers that are no list": params(hiddenLayers=64),
    "a column's name that is no text": params(labelCol=3),
    "a path that can be none": params(stagingDir="a\0b"),
    "a Param that is not there": lambda _: BSPAUCClassifier().setParams(roundz=3),
    "None": lambda _: BSPAUCClassifier().setRounds(None),  # type: ignore[arg-type]
    "`paceStart` above `paceEnd`": fit(paceStart=0.8, paceEnd=0.5),
    'λ values with `paceSchedule="fraction"`': fit(lambdaInit=0.5, lambdaMax=1.0),
    "a λ schedule without `lambdaMax`": fit(paceSchedule="linear"),
    "a λ schedule with `paceEnd`": fit(paceSchedule="geometric", lambdaMax=1.0, paceEnd=0.9),
    "`lambdaGrowth` with the linear schedule": fit(paceSchedule="linear", lambdaMax=1.0, lambdaGrowth=2.0),
    "two starts": fit(paceSchedule="linear", lambdaMax=1.0, lambdaInit=0.5, paceStart=0.5),
    "`lambdaInit` above `lambdaMax`": fit(paceSchedule="linear", lambdaInit=2.0, lambdaMax=1.0),
    "both `mu` and `nu`": fit(mu=0.5, nu=2.0),
    "`patience` without validation rows": fit(patience=3),
    "`ensureDescent` with the network for tables": fit(network="table", ensureDescent=True),
    "`mixedPrecision` without a GPU": fit(mixedPrecision=True),
    "`mixedPrecision` with the kernel": fit(mixedPrecision=True, useGpu=True, network="kernel"),
    "gaps without scales": fit(handleInvalid="keep"),
    "raw inputs with the network for tables": fit(network="table", inputs="raw"),
    "automatic inputs with the kernel": fit(network="kernel", inputs="auto"),
    "two outputs of one name": fit(predictionCol="out", probabilityCol="out"),
    "two outputs that differ in case only": fit(predictionCol="Out", probabilityCol="out"),
    "a λ that empties a class": fit(**COLLAPSING),
    "layers too wide to hold": fit(hiddenLayers=[50_000, 50_000]),
    "layers too wide to score with": fit(hiddenLayers=[10_000_000]),
    "too many random features": wide_kernel,
    "too many random features to score with": fit(network="kernel", numRandomFeatures=1_000_000, kernelWidth=1.0),
    "a batch too large to hold": fit(batchSize=2**20, hiddenLayers=[64] * 7),
    "more workers than rows": fit(numProcesses=5, localMode=True),
    "another width than at fit, declared": transform(
        lambda frame: frame.withMetadata("features", {"ml_attr": {"num_attrs": 3}})
    ),
    "another width than at fit, found in the rows": transform(column("features", "array(1D, 2D, 3D)")),
    "a row to score has no features": transform(column("features", "IF(label = 1, features, NULL)")),
    "a feature to score is NaN": transform(column("features", "array(double('NaN'), 1D)")),
    "an output column exists, at transform": transform(column("probability", "1D")),
    "two outputs of one name, at transform": lambda bench: bench.model.transform(
        bench.good(), {bench.model.predictionCol: "probability"}
    ),
    "rows to score that are no Spark DataFrame": lambda bench: bench.model.transform(bench.good().toPandas()),
    "a column has the name of an inner one": transform(column("__bspauc_scored", "1D")),
    "features to score are missing": transform(lambda frame: frame.drop("features")),
    "an audit without labels": audit(lambda frame: frame.drop("label")),
    "an audit of text labels": audit(column("label", "'yes'")),
    "a column of the audit exists": audit(column("weight", "1D")),
    "an audit of a row without features": audit(column("features", "IF(label = 1, features, NULL)")),
    "a model that was not fitted": lambda bench: BSPAUCModel().transform(bench.good()),
    "no model at the path": lambda _: BSPAUCModel.load("not/there"),
    "no local model at the path": lambda _: BSPAUCModel.loadLocal("not/there"),
    "a URI where a local path is needed": lambda bench: bench.model.saveLocal("s3://bucket/model"),
    "a class instead of a classifier": lambda _: SelfPacedClassifier(classifier=LinearSVC),  # type: ignore[arg-type]
    "a fitted model instead of a classifier": lambda bench: SelfPacedClassifier(classifier=bench.model),  # type: ignore[arg-type]
    "a regressor": lambda _: SelfPacedClassifier(classifier=LinearRegression()),
    "an empty list of classifiers": lambda _: SelfPacedClassifier(classifiers=[]),
    "one classifier and several": around(classifiers=[]),
    "two folds": around(folds=2),
    "labels other than 0 and 1": around(column("label", "label + 1")),
    "a classifier without labels": around(column("label", "nullif(label, 1D)")),
    "a classifier with labels of one kind": around(column("label", "1D")),
    "a column of folds that is not there": around(foldCol="nope"),
    "a column of two folds": around(column("fold", "int(label)"), foldCol="fold"),
    "a self-paced model that was not fitted": lambda bench: SelfPacedModel().transform(bench.good()),
}


@pytest.fixture(scope="module")
def model(spark: SparkSession) -> BSPAUCModel:
    rows = [(D(i, 2), float(i % 2), False) for i in range(10)]
    return BSPAUCClassifier(**FAST).fit(spark.createDataFrame(rows, SCHEMA))


@pytest.fixture
def bench(
    spark: SparkSession,
    model: BSPAUCModel,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    """After each case its folder and the temporary one must be empty, and nothing may run that did not run before."""
    monkeypatch.setattr(staging, "partition_bits", lambda _: 1)
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children()
    yield Bench(spark, model, tmp_path)
    assert list(tmp_path.iterdir()) == []
    # torch makes a cache folder there when it is first used.
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []
    assert children() <= before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("bspauc")] == []


def children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_the_page_has_a_row_for_every_case() -> None:
    assert [*rows_of_the_page(3)] == [*REFUSED]
    assert [*rows_of_the_page(2)] == [*WORKS]


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_is_the_one_on_the_page(bench: Bench, case: str) -> None:
    bench.params = {"checkpointDir": str(bench.folder / "new" / "checkpoints")}
    start = time.monotonic()
    with pytest.raises((BSPAUCError, PythonException)) as caught:
        REFUSED[case](bench)
    error, shown = caught.value, rows_of_the_page(3)[case]
    if "*in a task*" in rows_of_the_page(3, cell=2)[case]:
        assert isinstance(error, PythonException)
        assert f"bspauc_spark.errors.{shown}" in str(error)
    else:
        assert f"{type(error).__name__}: {error}" == shown
    assert time.monotonic() - start < SECONDS


def scores(model: BSPAUCModel, frame: DataFrame) -> np.ndarray:
    found = model.transform(frame).select(model.getRawPredictionCol(), model.getProbabilityCol()).collect()
    assert all(0 <= probability[1] <= 1 for _, probability in found)
    return np.array([raw[1] for raw, _ in found])


def check_learned(bench: Bench, rows: list[Any]) -> np.ndarray:
    """Fit, transform, audit; all of it finite."""
    frame = bench.frame(rows).cache()
    model = bench.fit(frame)
    judged = np.array(model.audit(frame).select("score", "loss", "weight", "suspicion").collect(), dtype=float)
    assert np.isfinite(judged).all()
    found = scores(model, frame)
    assert np.array_equal(judged[:, 0], found)
    return found


def one_positive(bench: Bench) -> None:
    found = check_learned(bench, [(D(i, i % 3), float(i == 9), False) for i in range(10)])
    assert found[9] == found.max()


def one_row_of_each_class(bench: Bench) -> None:
    found = check_learned(bench, [(D(0, 1), 0.0, False), (D(1, 0), 1.0, False)])
    assert found[1] > found[0]


def opposite_labels(bench: Bench) -> None:
    found = check_learned(bench, [(D(i % 5, 1), float(i < 5), False) for i in range(10)])
    assert np.array_equal(found[:5], found[5:])


def constant_features(bench: Bench) -> None:
    found = check_learned(bench, [(D(1, 2), float(i < 5), False) for i in range(10)])
    assert np.ptp(found) == 0


def ten_million(bench: Bench) -> None:
    width = 10_000_000
    found = check_learned(
        bench, [(SparseVector(width, [width - 1 - i % 2], [1.0]), float(i % 2), False) for i in range(10)]
    )
    assert found[1::2].min() > found[::2].max()


def odd_names(bench: Bench) -> None:
    data = noisy_moons(300)
    names = {"features": "my.features `x`", "label": "the label.y", "validation": "is `v`.alid"}
    frame = bench.spark.createDataFrame(data).select(
        sf.array(*(f"x{i}" for i in range(6))).alias(names["features"]),
        sf.col("label").alias(names["label"]),
        sf.col("validation").alias(names["validation"]),
        sf.col("x0").alias("other.column"),
    )
    model = bench.fit(
        frame,
        featuresCol=names["features"],
        labelCol=names["label"],
        validationIndicatorCol=names["validation"],
        predictionCol="pred.iction",
        rawPredictionCol="raw `p`",
        probabilityCol="a probability",
    )
    scored = model.transform(frame)
    assert scored.columns == [*frame.columns, "raw `p`", "a probability", "pred.iction"]
    assert {row["pred.iction"] for row in scored.collect()} == {0.0, 1.0}
    audited = model.audit(frame)
    assert audited.columns == [*frame.columns, "score", "loss", "weight", "suspicion"]
    assert all(0 <= row["suspicion"] <= 1 for row in audited.collect())


def shared_names(bench: Bench) -> None:
    frame = bench.good().select("*", sf.lit(1).alias("id"), sf.lit(2).alias("id"))
    scored, audited = bench.model.transform(frame), bench.model.audit(frame)
    assert scored.columns[:5] == audited.columns[:5] == [*SCHEMA.names, "id", "id"]
    assert [tuple(row)[3:5] for row in scored.collect()] == [(1, 2)] * 4
    assert len(audited.collect()) == 4


def other_letters(bench: Bench) -> None:
    bench.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        scored = bench.model.transform(column("PREDICTION", "7D")(bench.good()))
        assert {row["PREDICTION"] for row in scored.collect()} == {7.0}
        assert {row["prediction"] for row in scored.collect()} <= {0.0, 1.0}
    finally:
        bench.spark.conf.unset("spark.sql.caseSensitive")


def unlabelled(bench: Bench) -> None:
    rows = [(D(1, 2), None, False), (D(1, 2), math.nan, False), (D(1, 2), 1.0, False)]
    null, nan, labelled = bench.model.audit(bench.frame(rows)).collect()
    assert null["score"] == nan["score"] == labelled["score"]
    for row in (null, nan):
        assert (row["loss"], row["weight"], row["suspicion"]) == (None, None, None)
    assert 0 <= labelled["suspicion"] <= 1


def any_seed(bench: Bench) -> None:
    frame = bench.frame([(D(i, i % 3), float(i % 2), False) for i in range(10)]).cache()
    one, other = (bench.fit(frame, seed=seed).scorer.weights["first.weight"] for seed in (-1, 2**70))
    assert not np.array_equal(one, other)


WORKS: dict[str, Callable[[Bench], None]] = {
    "one positive row": one_positive,
    "one row of each class": one_row_of_each_class,
    "equal rows with opposite labels": opposite_labels,
    "features that are the same in all rows": constant_features,
    "10,000,000 features, most of them zero": ten_million,
    "column names with dots, spaces and backticks": odd_names,
    "other columns that share a name": shared_names,
    "outputs that differ from other columns in case only": other_letters,
    "rows without a label in an audit": unlabelled,
    "a seed that is negative or huge": any_seed,
}


@pytest.mark.parametrize("case", WORKS)
def test_what_looks_odd_and_works(bench: Bench, case: str) -> None:
    WORKS[case](bench)


def test_bad_params_are_refused_in_a_param_map_too(bench: Bench) -> None:
    estimator = BSPAUCClassifier(**FAST)
    with pytest.raises(BSPAUCError, match="rounds must be a whole number"):
        estimator.fit(bench.good(), {estimator.rounds: 0})
    with pytest.raises(BSPAUCError, match="threshold must be a number"):
        bench.model.transform(bench.good(), {bench.model.threshold: math.nan})
