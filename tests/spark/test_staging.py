"""From a DataFrame to Arrow shards: the rows, their order, and an error of its own for every kind of bad input."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from scipy import sparse

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.errors import InvalidFeaturesError, StagingError
from bspauc_spark.rows import staging
from bspauc_spark.rows.columns import Columns, width_of
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.rows.rows import Rows, SparseBatch
from bspauc_spark.rows.staging import StagedData, stage
from tests.helpers.fits import FAST

VECTORS = st.StructType(
    [
        st.StructField("features", VectorUDT()),
        st.StructField("label", st.DoubleType()),
        st.StructField("validation", st.BooleanType()),
    ]
)


def columns(**changes: Any) -> Columns:
    values = {
        "features": "features",
        "label": "label",
        "validation": None,
        "positive_label": 1.0,
        "positive_label_is_default": True,
    }
    return Columns(**{**values, **changes})


def to_numpy(rows: Rows) -> np.ndarray:
    batch = rows.between(0, len(rows))
    if not isinstance(batch, SparseBatch):
        return batch.numpy()
    pointers = np.append(batch.offsets.numpy(), len(batch.indices))
    shape = (len(batch), rows.num_features)
    return sparse.csr_matrix((batch.values.numpy(), batch.indices.numpy(), pointers), shape).toarray()


def multiset(matrix: np.ndarray) -> Counter[bytes]:
    return Counter(row.tobytes() for row in np.ascontiguousarray(matrix, dtype=np.float32))


def staged_bytes(staged: StagedData) -> dict[str, bytes]:
    found = {kind: to_numpy(rows).tobytes() for kind, rows in staged.shards.open().items()}
    staged.remove()
    return found


ROWS = 60
LABEL = (np.arange(ROWS) % 4 == 0).astype(float)
VALIDATION = np.arange(ROWS) % 3 == 0


def matrix_of(values: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 7)) * (rng.random((ROWS, 7)) < 0.5)
    return np.round(10 * x) if values == "whole" else x


def dense_vector(x: np.ndarray, i: int) -> Any:
    return Vectors.dense(x)


def sparse_vector(x: np.ndarray, i: int) -> Any:
    return SparseVector(len(x), np.flatnonzero(x), x[x != 0])


def either_vector(x: np.ndarray, i: int) -> Any:
    return (dense_vector if i % 2 else sparse_vector)(x, i)


def frame_of(spark: SparkSession, matrix: np.ndarray, make: Callable[[np.ndarray, int], Any]) -> DataFrame:
    rows = [(make(x, i), float(LABEL[i]), bool(VALIDATION[i])) for i, x in enumerate(matrix)]
    return spark.createDataFrame(rows, VECTORS)


@pytest.mark.parametrize("form", ["dense", "sparse", "mixed", "float", "double", "int"])
def test_shards_hold_exactly_the_rows_of_each_class_and_part(spark: SparkSession, tmp_path: Path, form: str) -> None:
    matrix = matrix_of("whole" if form == "int" else "real")
    make = {"sparse": sparse_vector, "mixed": either_vector}.get(form, dense_vector)
    frame = frame_of(spark, matrix, make)
    if form in ("float", "double", "int"):
        frame = frame.withColumn("features", vector_to_array("features").cast(f"array<{form}>"))
    staged = stage(frame, columns(validation="validation"), str(tmp_path))
    masks = {
        POSITIVES: (LABEL == 1) & ~VALIDATION,
        NEGATIVES: (LABEL == 0) & ~VALIDATION,
        VALIDATION_POSITIVES: (LABEL == 1) & VALIDATION,
        VALIDATION_NEGATIVES: (LABEL == 0) & VALIDATION,
    }
    assert staged.counts == {kind: int(mask.sum()) for kind, mask in masks.items()}
    assert (staged.shards.num_features, staged.shards.sparse) == (7, False)
    for kind, rows in staged.shards.open().items():
        assert multiset(to_numpy(rows)) == multiset(matrix[masks[kind]] + 0.0)
    staged.remove()
    assert list(tmp_path.iterdir()) == []


def wide(spark: SparkSession, filled: int, form: str, width: int = 2000) -> tuple[DataFrame, np.ndarray]:
    """Rows of ``width`` features of which ``filled`` differ from zero, one explicit zero and one −0 besides."""
    rng = np.random.default_rng(1)
    matrix = np.zeros((ROWS, width))
    rows = []
    for i in range(ROWS):
        places = np.sort(rng.choice(width, filled, replace=False))
        values = rng.normal(size=filled)
        values[0], values[1] = 0.0, -0.0
        matrix[i, places] = values + 0.0
        vector = SparseVector(width, places, values)
        rows.append((Vectors.dense(vector.toArray()) if form == "dense" else vector, float(LABEL[i]), False))
    return spark.createDataFrame(rows, VECTORS), matrix


@pytest.mark.parametrize("form", ["sparse", "array"])
def test_wide_rows_with_few_values_are_staged_sparse_without_zeros(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    frame, matrix = wide(spark, 12, "sparse")
    if form == "array":
        frame = frame.withColumn("features", vector_to_array("features"))
    staged = stage(frame, columns(), str(tmp_path))
    assert staged.shards.sparse
    for kind, label in ((POSITIVES, 1), (NEGATIVES, 0)):
        rows = staged.shards.open()[kind]
        batch = rows.between(0, len(rows))
        assert isinstance(batch, SparseBatch)
        assert len(batch.values) == 10 * (label == LABEL).sum()
        assert batch.values.all()
        assert multiset(to_numpy(rows)) == multiset(matrix[label == LABEL])
    staged.remove()


def test_wide_rows_with_many_values_are_staged_dense(spark: SparkSession, tmp_path: Path) -> None:
    frame, matrix = wide(spark, 600, "dense", width=700)
    staged = stage(frame, columns(), str(tmp_path))
    assert not staged.shards.sparse
    rows = staged.shards.open()
    assert multiset(to_numpy(rows[POSITIVES])) == multiset(matrix[LABEL == 1])
    # −0 became 0: no sign bit is left on a zero.
    joined = np.concatenate([to_numpy(rows[kind]) for kind in (POSITIVES, NEGATIVES)])
    assert not np.signbit(joined[joined == 0]).any()
    staged.remove()


@pytest.mark.parametrize("form", ["dense", "wide sparse"])
def test_the_order_of_rows_depends_on_the_rows_alone(
    spark: SparkSession, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "dense":
        frame = frame_of(spark, matrix_of("real"), dense_vector)
        frame = frame.unionAll(frame.limit(20))
    else:
        frame, _ = wide(spark, 12, "sparse")
        frame = frame.withColumn("validation", sf.rand(3) < 0.5).cache()
    wanted = columns(validation="validation")
    one = staged_bytes(stage(frame.repartition(1), wanted, None))
    five = staged_bytes(stage(frame.repartition(5), wanted, None))
    key, default = "spark.sql.execution.arrow.maxRecordsPerBatch", "10000"
    spark.conf.set(key, "3")
    try:
        small_batches = staged_bytes(stage(frame.orderBy("label"), wanted, None))
    finally:
        spark.conf.set(key, default)
    fingerprints = set()
    for bits in (1, 5):
        monkeypatch.setattr(staging, "partition_bits", lambda _, bits=bits: bits)
        staged = stage(frame, wanted, None)
        fingerprints.add(staged.fingerprint)
        assert staged_bytes(staged) == one
    assert len(one) == 4
    assert one == five == small_batches
    assert len(fingerprints) == 1


def test_the_negative_label_is_the_other_one_of_two(spark: SparkSession) -> None:
    frame = frame_of(spark, matrix_of("real"), dense_vector).withColumn("label", sf.col("label") + 1)
    staged = stage(frame, columns(positive_label=2.0, positive_label_is_default=False), None)
    staged.remove()
    assert (staged.labels, staged.positive_label, staged.negative_label) == ((1.0, 2.0), 2.0, 1.0)


@pytest.mark.parametrize(("positive", "negative"), [(3.0, 0.0), (0.0, 1.0)])
def test_many_labels_are_one_against_the_rest(spark: SparkSession, positive: float, negative: float) -> None:
    label = sf.monotonically_increasing_id() % 5
    frame = frame_of(spark, matrix_of("real"), dense_vector).coalesce(1).withColumn("label", label)
    staged = stage(frame, columns(positive_label=positive, positive_label_is_default=False), None)
    staged.remove()
    assert (staged.counts[POSITIVES], staged.counts[NEGATIVES]) == (12, 48)
    assert staged.negative_label == negative


@pytest.mark.parametrize("kind", ["boolean", "int", "float", "decimal(5,1)"])
def test_labels_of_any_number_type_or_booleans_are_taken(
    spark: SparkSession, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "partition_bits", lambda _: 1)
    frame = frame_of(spark, matrix_of("real"), dense_vector).withColumn("label", sf.col("label").cast(kind))
    staged = stage(frame, columns(), None)
    staged.remove()
    assert (staged.counts[POSITIVES], staged.counts[NEGATIVES]) == (15, 45)


D = Vectors.dense
GOOD = [(D(1, 2), 1.0, False), (D(3, 4), 0.0, False), (D(5, 6), 1.0, True), (D(7, 8), 0.0, True)]


@pytest.mark.parametrize(
    ("value", "message"),
    [("null", "is null in 1 of 3"), ("size", "1 of 3 rows with another size than 2000"), ("NaN", "in 1 of 3 rows")],
)
def test_bad_wide_sparse_rows_are_counted_too(
    spark: SparkSession, tmp_path: Path, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "partition_bits", lambda _: 1)
    bad = {"null": None, "size": SparseVector(2001, [5], [1.0]), "NaN": SparseVector(2000, [5], [np.nan])}[value]
    good = SparseVector(2000, [3], [1.0])
    rows = [(good, 1.0, False), (good, 0.0, False), (bad, 0.0, False)]
    with pytest.raises(InvalidFeaturesError, match=message):
        stage(spark.createDataFrame(rows, VECTORS).coalesce(1), columns(), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("array(1D, null)", "'features' has NaN, infinite .* in 1 of 2 rows"),
        ("array(1D, 1e300D)", "too large .* in 1 of 2 rows"),
        ("array(1D)", "1 of 2 rows with another size than 2"),
        ("null", "'features' is null in 1 of 2 rows"),
    ],
)
def test_bad_arrays_are_counted_too(
    spark: SparkSession, features: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "partition_bits", lambda _: 1)
    frame = spark.sql(f"SELECT array(1D, 2D) AS features, 1D AS label UNION ALL SELECT {features}, 0D").coalesce(1)
    with pytest.raises(InvalidFeaturesError, match=message):
        stage(frame, columns(), None)


def test_a_staging_dir_that_cannot_be_written_is_an_error_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(GOOD, VECTORS)
    a_file = tmp_path / "file"
    a_file.write_text("")
    for path, reason in ((tmp_path / "missing", "No such file"), (a_file, "Not a directory")):
        with pytest.raises(StagingError, match=f"stagingDir '{path}' cannot be written by the driver: {reason}"):
            BSPAUCClassifier(**FAST, stagingDir=str(path)).fit(frame)


def test_metadata_that_declare_no_width_are_passed_over(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],)], "features array<double>")
    for declared in (True, 0, -3, "3"):
        assert width_of(frame.withMetadata("features", {"ml_attr": {"num_attrs": declared}}), "features") == 3
    assert width_of(frame.withMetadata("features", {"ml_attr": {"num_attrs": 7}}), "features") == 7


def test_a_temporary_folder_that_is_not_there_is_named(
    moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    reason = (
        "stagingDir is not set, and the temporary folder cannot be written: No such file or directory. Set stagingDir"
    )
    with pytest.raises(StagingError, match=reason):
        stage(moons, Columns("features", "label", None, 1.0, True), None)
