"""Folds of a DataFrame's rows: by the hash of their features, as the network's folds, or by a column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import InvalidDataError, InvalidLabelError
from bspauc_spark.rows.arrow import SparseFeatures
from bspauc_spark.rows.columns import feature_struct, quoted, row_size
from bspauc_spark.rows.folds import FEWEST_ROWS, sparse_keys
from bspauc_spark.spark.compat import arrow_udf

LEAST_FOLDS, MOST_FOLDS = 3, 10
"""A judge learns from the rows of two folds at least, each of which is selected by the scores of another model."""

_KEY = st.StructType().add("key", "long")


def key_of(frame: DataFrame, features: str, num_features: int, seed: int) -> Column:
    """A hash of each row's features, as a column."""

    def hashed(rows: pa.Array) -> pa.Array:
        # Whatever is wrong with a row, the classifier will say so.
        block = SparseFeatures.of(rows, num_features, gaps=True)
        keys = sparse_keys(block.pointers, block.columns, block.values, seed)
        return pa.StructArray.from_arrays([pa.array(keys.view(np.int64))], names=_KEY.names)

    is_vector = not isinstance(frame.schema[features].dataType, st.ArrayType)
    return arrow_udf(hashed, _KEY)(feature_struct(frame, features, sparse=is_vector, gaps=True))["key"]


def by_rows(frame: DataFrame, features: str) -> DataFrame:
    """All rows, by way of a filter that Spark cannot see through: ``BSPAUCModel`` says why an Arrow UDF needs it."""
    return frame.where(sf.coalesce(row_size(frame, features), sf.lit(0)) >= -1)


def fold_of(key: Column, folds: int) -> Column:
    """The remainder of a key, which counts as unsigned."""
    beyond = sf.when(key < 0, 2**64 % folds).otherwise(0)
    return sf.pmod(sf.pmod(key, sf.lit(folds)) + beyond, sf.lit(folds)).cast("int")


def counted(frame: DataFrame, positive: Column, fold: Sequence[tuple[Column, int]]) -> list[list[list[int]]]:
    """How many rows of both classes there are in each fold: a list of two lists for each way to make folds."""
    cells = [
        sf.count_if((column == k) & mask)
        for column, folds in fold
        for mask in (positive, ~positive)
        for k in range(folds)
    ]
    found = frame.agg(*cells).first()
    assert found is not None
    numbers = iter(found)
    return [[[int(next(numbers)) for _ in range(folds)] for _ in range(2)] for _, folds in fold]


def are_enough(counts: Sequence[Sequence[int]]) -> bool:
    """Whether each fold has rows of both classes."""
    return min(min(kind) for kind in counts) >= FEWEST_ROWS


def check_labels(frame: DataFrame, label: str) -> tuple[int, int]:
    """How many rows are labelled 1 and 0; other labels are refused."""
    column = quoted(label).cast("double")
    bad = column.isNull() | sf.isnan(column)
    found = frame.agg(
        sf.count("*"),
        sf.count_if(bad),
        sf.count_if(column == 1.0),
        sf.count_if(column == 0.0),
        sf.count_distinct(column),
    ).first()
    assert found is not None
    rows, missing, positives, negatives, kinds = found
    if not rows:
        raise InvalidDataError(
            "the DataFrame is empty: there is nothing to fit on. Look at the filters and joins that made it."
        )
    if missing:
        raise InvalidLabelError(
            f"column {label!r} has {missing:,} null or NaN values in {rows:,} rows. Drop or fill them before fit()."
        )
    if positives + negatives < rows:
        raise InvalidLabelError(
            f"column {label!r} has {rows - positives - negatives:,} labels other than 0 and 1 in {rows:,} rows, and "
            f"{kinds:,} different ones. Make the label that is sought 1 and all others 0: "
            f'df.withColumn({label!r}, (col({label!r}) == 2).cast("double")).'
        )
    if not positives or not negatives:
        there = "1" if positives else "0"
        raise InvalidLabelError(
            f"column {label!r} is {there} in all {rows:,} rows, and ranking needs rows of both classes. Give "
            "the others too."
        )
    return int(positives), int(negatives)
