"""Few distinct rows among very many: no staging task has more of them than its share, and what is staged stays."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, InvalidLabelError
from bspauc_spark.rows import staging
from bspauc_spark.rows.columns import Columns
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.rows.shard_task import ShardTask
from bspauc_spark.rows.staging import stage

ROWS = 400_000
BITS = 3
COLUMNS = Columns("features", "label", None, 1.0, True)
WITH_VALIDATION = replace(COLUMNS, validation="validation")


class Watched(ShardTask):
    """A staging task that leaves a note beside its shards: the rows that came to it, and its seconds with them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        came = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal came
            for batch in batches:
                came += batch.num_rows
                yield batch

        began = time.monotonic()
        reports = list(super().__call__(counted()))
        Path(self.directory, f"note-{uuid.uuid4().hex}").write_text(f"{came} {time.monotonic() - began}")
        yield from reports


def of_content(number: Column) -> list[Column]:
    """Three features and a label that depend on a number alone."""
    x = number.cast("double")
    return [sf.array(x / 7, sf.sin(x), 1 / (x + 1)).alias("features"), (number % 2).cast("double").alias("label")]


def ten_contents(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).select(*of_content(sf.col("id") % 10))


def half_of_them_equal(spark: SparkSession) -> DataFrame:
    """Half of the rows are one content; the others are distinct."""
    return spark.range(ROWS).select(*of_content(sf.when(sf.col("id") % 2 == 0, 0).otherwise(sf.col("id"))))


FRAMES = {"ten contents": ten_contents, "half of them equal": half_of_them_equal}


def in_order_of_hashes(frame: DataFrame) -> dict[str, np.ndarray]:
    """What is to be staged, each content as often as it is there, by Spark's own sort."""
    hashed = frame.withColumn("features", sf.col("features").cast("array<float>"))
    hashed = hashed.withColumn("hash", sf.xxhash64("features", "label")).groupBy("hash", "features", "label").count()
    rows = hashed.orderBy("hash").toPandas()
    features, copies = np.stack(rows["features"].to_list()).astype(np.float32), rows["count"].to_numpy()
    return {
        kind: np.repeat(features[rows["label"] == label], copies[rows["label"] == label], axis=0)
        for kind, label in ((POSITIVES, 1), (NEGATIVES, 0))
    }


def staged_rows(frame: DataFrame, columns: Columns = COLUMNS, here: bool = False) -> dict[str, np.ndarray]:
    staged = stage(frame, columns, None, here)
    found = {kind: rows.between(0, len(rows)).numpy() for kind, rows in staged.shards.open().items()}
    staged.remove()
    return found


@pytest.mark.classic
@pytest.mark.parametrize("name", FRAMES)
def test_no_task_has_more_rows_than_its_share(
    spark: SparkSession, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "ShardTask", Watched)
    monkeypatch.setattr(staging, "partition_bits", lambda _: BITS)
    staged = stage(FRAMES[name](spark), COLUMNS, str(tmp_path))
    notes = [path.read_text().split() for path in Path(staged.shards.directory).glob("note-*")]
    came, seconds = (np.array(column, dtype=float) for column in zip(*notes, strict=True))
    print(f"rows per task: {np.sort(came).astype(int)}, seconds: {np.sort(seconds).round(2)}")
    assert sum(staged.counts.values()) == ROWS
    assert came.max() <= ROWS / 2**BITS


@pytest.mark.parametrize("name", FRAMES)
def test_rows_stand_in_the_order_of_their_hashes_however_they_come(spark: SparkSession, name: str) -> None:
    frame = FRAMES[name](spark)
    wanted = in_order_of_hashes(frame)
    partitioned = (frame, frame.repartition(1), frame.repartition(7, "label"), frame.orderBy("features"))
    for given, here in (*((one, False) for one in partitioned), (frame, True)):
        found = staged_rows(given, here=here)
        assert {kind: rows.tobytes() for kind, rows in found.items()} == {k: v.tobytes() for k, v in wanted.items()}


@pytest.mark.parametrize(
    ("features", "label", "error", "message"),
    [
        ("null", "0D", InvalidFeaturesError, "is null in 10,000 of 20,000 rows"),
        ("array(1D)", "0D", InvalidFeaturesError, r"10,000 of 20,000 rows with another size than 2 \(found: 1\)"),
        ("array(1D, null)", "0D", InvalidFeaturesError, "NaN, infinite or .* in 10,000 of 20,000 rows"),
        ("array(1D, double('NaN'))", "0D", InvalidFeaturesError, "NaN, infinite or .* in 10,000 of 20,000 rows"),
        ("array(1D, 2D)", "null", InvalidLabelError, "has 10,000 null, NaN or infinite values in 20,000 rows"),
        ("array(1D, 2D)", "double('NaN')", InvalidLabelError, "has 10,000 null, NaN .* in 20,000 rows"),
        ("array(1D, 2D)", "1D", InvalidLabelError, "no training row with a label different .* among 20,000 rows"),
    ],
)
def test_every_copy_of_a_bad_row_is_counted(
    spark: SparkSession, features: str, label: str, error: type[Exception], message: str
) -> None:
    frame = spark.range(20_000).selectExpr(
        f"if(id % 2 = 1, {features}, array(1D, 2D)) AS features", f"if(id % 2 = 1, {label}, 1D) AS label"
    )
    with pytest.raises(error, match=message):
        stage(frame, COLUMNS, None)


def test_every_copy_without_a_flag_of_validation_is_counted(spark: SparkSession) -> None:
    frame = spark.range(20_000).selectExpr(
        "array(1D, 2D) AS features", "double(id % 2) AS label", "if(id % 4 = 0, null, id % 4 = 1) AS validation"
    )
    with pytest.raises(InvalidDataError, match=r"'validation' .* is null in 5,000 of 20,000 rows"):
        stage(frame, WITH_VALIDATION, None)


def test_equal_rows_of_both_parts_stay_in_theirs(spark: SparkSession) -> None:
    """One hash, since it is of features and label alone."""
    frame = spark.range(20_000).selectExpr(
        "array(1D, 2D) AS features", "double(id % 2) AS label", "id % 10 < 3 AS validation"
    )
    found = staged_rows(frame, WITH_VALIDATION)
    counts = {POSITIVES: 8_000, NEGATIVES: 6_000, VALIDATION_POSITIVES: 2_000, VALIDATION_NEGATIVES: 4_000}
    assert {kind: rows.shape for kind, rows in found.items()} == {kind: (rows, 2) for kind, rows in counts.items()}
    assert all((rows == [1, 2]).all() for rows in found.values())


def test_wide_sparse_rows_are_repeated_too(spark: SparkSession) -> None:
    vectors = [Vectors.sparse(2000, {}), Vectors.sparse(2000, {3: 1.5}), Vectors.sparse(2000, {0: 2.0, 1999: -1.0})]
    few = spark.createDataFrame([(vector, float(i > 0)) for i, vector in enumerate(vectors)], ["features", "label"])
    staged = stage(few.crossJoin(spark.range(6_000)), COLUMNS, None)
    assert staged.shards.sparse
    rows = staged.shards.open()
    assert staged.counts[NEGATIVES] == 6_000
    assert not len(rows[NEGATIVES].between(0, 6_000).values)
    positives = rows[POSITIVES].between(0, 12_000)
    lengths = np.diff([*positives.offsets.tolist(), len(positives.values)])
    # One after the other, the copies of either.
    assert sorted((lengths[:6_000].tolist(), lengths[6_000:].tolist())) == [[1] * 6_000, [2] * 6_000]
    assert sorted(set(positives.values.tolist())) == [-1.0, 1.5, 2.0]
    staged.remove()


def test_zeros_of_either_sign_are_copies_of_one_row(spark: SparkSession) -> None:
    frame = spark.range(20_000).selectExpr("array(if(id % 4 < 2, 0D, -0D), 2D) AS features", "double(id % 2) AS label")
    for rows in staged_rows(frame).values():
        assert rows.tobytes() == np.tile(np.float32([0, 2]), (10_000, 1)).tobytes()


def test_what_the_sample_does_not_show_is_staged_the_same(spark: SparkSession) -> None:
    distinct = spark.range(1, 20_001, numPartitions=1).select(*of_content(sf.col("id")))
    equal = spark.range(20_000).select(*of_content(sf.lit(0)))
    first, last = staged_rows(equal.unionAll(distinct)), staged_rows(distinct.unionAll(equal))
    assert {kind: rows.tobytes() for kind, rows in first.items()} == {k: v.tobytes() for k, v in last.items()}
