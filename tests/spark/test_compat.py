"""What stands in for pyspark 4.1 on 4.0: the same partitions, the same columns. Both run on any version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.model import _vectors
from bspauc_spark.rows.arrow import checked_features
from bspauc_spark.rows.staging import _MOST_PARTITIONS, feature_struct
from bspauc_spark.spark.compat import _keys, arrow_udf, repartition_by_hash, udf_through_pandas

SEEN = st.StructType().add("row", "string").add("size", "long").add("vector", VectorUDT()).add("flag", "boolean")


def test_each_number_has_a_partition_of_its_own(spark: SparkSession) -> None:
    numbered = spark.range(100).select((sf.col("id") % 8).cast("int").alias("number"))
    placed = repartition_by_hash(numbered, 8, sf.col("number"))
    found = placed.groupBy(sf.spark_partition_id().alias("partition"), "number").count().collect()
    assert sorted((row["partition"], row["number"]) for row in found) == [(number, number) for number in range(8)]


def test_so_it_has_among_as_many_partitions_as_a_fit_can_have(spark: SparkSession) -> None:
    keys = spark.createDataFrame(list(enumerate(_keys(_MOST_PARTITIONS))), "number int, key int")
    hashed = keys.select("number", sf.pmod(sf.hash("key"), sf.lit(_MOST_PARTITIONS)).alias("partition")).collect()
    assert [row["partition"] for row in hashed] == [row["number"] for row in hashed] == list(range(_MOST_PARTITIONS))


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Every form of features; in the second half, a batch of its own, they and the flags are all null."""
    vectors = [DenseVector([1.5, 0.1]), SparseVector(2, [1], [-2.0]), SparseVector(2, [], []), None, None, None]
    arrays = [[0.1, None], [], [1.0, 2.0], None, None, None]
    flags = [True, None, False, None, None, None]
    table = [(i, *columns) for i, columns in enumerate(zip(vectors, arrays, flags, strict=True))]
    schema = st.StructType().add("id", "integer").add("vector", VectorUDT())
    schema = schema.add("array", st.ArrayType(st.DoubleType())).add("flag", "boolean")
    return spark.createDataFrame(table, schema).repartitionByRange(2, "id").cache()


@pytest.mark.parametrize(("column", "sparse"), [("vector", True), ("vector", False), ("array", False)])
def test_a_udf_through_pandas_sees_and_returns_what_an_arrow_udf_does(
    rows: DataFrame, column: str, sparse: bool
) -> None:
    def see(features: pa.Array, flags: pa.Array) -> pa.Array:
        block = checked_features(features, 2, sparse)
        first = np.arange(len(features), dtype=np.float64)
        # A missing value may be null or NaN: both are found by the checks.
        seen = [str(row).replace("None]", "nan]") for row in features.to_pylist()]
        columns = [pa.array(seen), pa.array(block.sizes), _vectors(first, -first), flags.fill_null(False)]
        return pa.StructArray.from_arrays(columns, names=SEEN.names)

    def found(make: Callable[..., Callable[..., Column]]) -> list[st.Row]:
        seen = make(see, SEEN)(feature_struct(rows, column, sparse), sf.col("flag"))
        table = rows.withColumn("seen", seen)
        assert table.schema["seen"].dataType.names == SEEN.names
        assert isinstance(table.schema["seen"].dataType["vector"].dataType, VectorUDT)
        return [row["seen"] for row in table.orderBy("id").collect()]

    assert found(udf_through_pandas) == found(arrow_udf)
