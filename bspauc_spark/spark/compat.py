"""What pyspark 4.0 lacks, by other means; from 4.1 on pyspark's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas import functions as udfs

_FEATURES = pa.list_(pa.float32())
# The fields of a vector, as VectorUDT stores them.
_VECTOR = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}


def arrow_udf(function: Callable[..., pa.Array], returns: st.StructType) -> Callable[..., Column]:
    """A UDF on Arrow columns: the features, and after them booleans if any."""
    if hasattr(udfs, "arrow_udf"):
        udf: Callable[..., Column] = udfs.arrow_udf(function, returns)  # type: ignore[call-overload]
        return udf
    return udf_through_pandas(function, returns)


def udf_through_pandas(function: Callable[..., pa.Array], returns: st.StructType) -> Callable[..., Column]:
    """The same by the only vectorised UDF of 4.0; it takes longer.

    Such a UDF cannot return vectors inside a struct: they leave it as arrays.
    """
    vectors = [field.name for field in returns if isinstance(field.dataType, VectorUDT)]
    arrays = st.StructType()
    for field in returns:
        arrays.add(field.name, st.ArrayType(st.DoubleType()) if field.name in vectors else field.dataType)

    def on_pandas(features: pd.Series, *flags: pd.Series) -> pd.DataFrame:
        columns = [_features(features), *(pa.array(flag, pa.bool_(), from_pandas=True) for flag in flags)]
        found = dict(zip(arrays.names, function(*columns).flatten(), strict=True))
        return pd.DataFrame({n: (c.field("values") if n in vectors else c).to_pandas() for n, c in found.items()})

    udf = udfs.pandas_udf(on_pandas, arrays)  # type: ignore[call-overload]

    def call(*columns: Column) -> Column:
        result = udf(*columns)
        fields = {n: array_to_vector(result[n]) if n in vectors else result[n] for n in arrays.names}
        return sf.struct(*(field.alias(name) for name, field in fields.items()))

    return call


def _features(column: Any) -> pa.Array:
    """Features as Spark wrote them; pandas has a vector's fields in columns of their own."""
    if not isinstance(column, pd.DataFrame):
        return pa.array(column, _FEATURES, from_pandas=True)
    fields = [pa.array(column[name], kind, from_pandas=True) for name, kind in _VECTOR.items()]
    return pa.StructArray.from_arrays(fields, names=list(_VECTOR), mask=fields[0].is_null())


def repartition_by_id(frame: DataFrame, partitions: int, ids: Column) -> DataFrame:
    """Send each row to the partition of the number ``ids``, from 0 to ``partitions`` − 1."""
    if hasattr(DataFrame, "repartitionById"):
        return frame.repartitionById(partitions, ids)
    return repartition_by_hash(frame, partitions, ids)


def repartition_by_hash(frame: DataFrame, partitions: int, ids: Column) -> DataFrame:
    """The same in 4.0, which hashes what it partitions by: each number becomes one whose hash leads to it."""
    keys = sf.array(*map(sf.lit, _keys(partitions)))
    return frame.repartition(partitions, sf.element_at(keys, ids + 1))


def _keys(partitions: int) -> list[int]:
    """For each partition the lowest whole number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    for key in count():
        found.setdefault(_murmur3(key) % partitions, key)
        if len(found) == partitions:
            break
    return [found[partition] for partition in range(partitions)]


def _murmur3(value: int) -> int:
    """Spark's hash of an int: MurmurHash3 of four bytes, with the seed 42."""
    mixed = _rotated(value * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _rotated(42 ^ (mixed & 0xFFFFFFFF), 13) * 5 + 0xE6546B64
    mixed = (mixed & 0xFFFFFFFF) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return mixed - 2**32 if mixed >= 2**31 else mixed


def _rotated(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF
