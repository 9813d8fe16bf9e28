"""The columns that a fit or a model reads: their names, the types they must have, and the width of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, InvalidLabelError, InvalidParamError
from bspauc_spark.rows.kinds import CHUNK_ROWS

EMPTY = "the DataFrame is empty: there is nothing to fit on. Look at the filters and joins that made it."
# An error lists at most so many columns of a table.
_MOST_NAMES = 20
# Rows are scored a chunk at a time; a chunk of dense rows may take so much memory.
_MOST_CHUNK_BYTES = 2 << 30


@dataclass(frozen=True)
class Columns:
    """The columns a fit reads, and which label counts as positive."""

    features: str
    label: str
    validation: str | None
    positive_label: float
    positive_label_is_default: bool


def features_type_problem(data_type: st.DataType) -> str | None:
    """Why a features column of this type cannot be used; None if it can."""
    if isinstance(data_type, VectorUDT):
        return None
    if isinstance(data_type, st.ArrayType) and isinstance(data_type.elementType, st.NumericType):
        return None
    if type(data_type).__module__ == "pyspark.mllib.linalg":
        return (
            "has vectors of pyspark.mllib; those of pyspark.ml are needed. MLUtils.convertVectorColumnsToML makes them"
        )
    return f"has type {data_type.simpleString()}; a vector or an array of numbers is needed. VectorAssembler makes one"


def feature_struct(dataset: DataFrame, name: str, sparse: bool, gaps: bool = False) -> Column:
    """The features in a form that Arrow can carry: an array of floats, or the four fields of a vector.

    With ``gaps`` a null in an array is a NaN, so that a row has the same hash as an array and as a vector.
    """
    column = quoted(name)
    data_type = dataset.schema[name].dataType
    if isinstance(data_type, st.ArrayType):
        floats = column.cast("array<float>")
        nan = sf.lit(float("nan")).cast("float")
        return sf.transform(floats, lambda x: sf.coalesce(x, nan)) if gaps else floats
    # vector_to_array fails on null, but the checks must count nulls.
    return sf.unwrap_udt(column) if sparse else sf.when(column.isNotNull(), vector_to_array(column, "float32"))


def quoted(name: str) -> Column:
    """The top-level column with exactly this name, which may hold dots and backticks."""
    return sf.col("`" + name.replace("`", "``") + "`")


def check_frame(dataset: Any) -> None:
    """Refuse anything that is not a Spark DataFrame, and DataFrames of a session that was stopped."""
    if not isinstance(dataset, DataFrame):
        kind = type(dataset)
        raise InvalidDataError(
            f"rows must come as a Spark DataFrame, not as {kind.__module__}.{kind.__qualname__}. "
            "spark.createDataFrame makes one of a pandas DataFrame."
        )
    context = getattr(dataset.sparkSession, "_sc", None)
    if context is not None and context._jsc is None:
        raise InvalidDataError("the session of this DataFrame was stopped. Read the rows again in a session that runs.")


def check_columns(dataset: DataFrame, columns: Columns) -> None:
    """Refuse columns that are missing or have a wrong type. No Spark job runs for this."""
    if dataset.isStreaming:
        raise InvalidDataError("the DataFrame is a stream, and fit() needs all rows. Write them to a table first.")
    check_features(dataset, columns.features)
    check_labels(dataset, columns.label)
    if columns.validation:
        kind = _type_of(dataset, columns.validation, "validationIndicatorCol")
        if not isinstance(kind, st.BooleanType):
            raise InvalidDataError(
                f"column {columns.validation!r} (validationIndicatorCol) has type {kind.simpleString()}; boolean is "
                "needed: true for validation rows, false for training rows."
            )


def check_features(dataset: DataFrame, name: str) -> None:
    """Refuse a features column that is missing or has a wrong type."""
    problem = features_type_problem(_type_of(dataset, name, "featuresCol"))
    if problem:
        raise InvalidFeaturesError(f"column {name!r} (featuresCol) {problem}.")


def check_labels(dataset: DataFrame, name: str) -> None:
    """Refuse a label column that is missing or has a wrong type."""
    kind = _type_of(dataset, name, "labelCol")
    if not isinstance(kind, st.NumericType | st.BooleanType):
        raise InvalidLabelError(
            f"column {name!r} (labelCol) has type {kind.simpleString()}; numbers are needed. StringIndexer turns "
            "strings into numbers."
        )


def check_outputs(dataset: DataFrame, outputs: Mapping[str, str]) -> None:
    """Refuse output columns (Param → name; '' adds none) that the DataFrame has already, or that share a name."""
    names = [name for name in outputs.values() if name]
    for name in names:
        there = _same(dataset, name, dataset.columns)
        if there:
            found = "" if name in there else f" as {there[0]!r}"
            raise InvalidDataError(
                f"output column {name!r} is in the DataFrame already{found}. Drop or rename it, or give the output "
                "another name."
            )
        if len(_same(dataset, name, names)) > 1:
            raise InvalidParamError(
                f"output columns must have different names; got {', '.join(f'{k} {v!r}' for k, v in outputs.items())}. "
                "Rename one."
            )


def _type_of(dataset: DataFrame, name: str, param: str) -> st.DataType:
    if name not in dataset.columns:
        there = ", ".join(dataset.columns[:_MOST_NAMES]) + (", …" if len(dataset.columns) > _MOST_NAMES else "")
        raise InvalidDataError(f"column {name!r} ({param}) is not in the DataFrame, which has {there}. Set {param}.")
    same = _same(dataset, name, dataset.columns)
    if len(same) > 1:
        raise InvalidDataError(
            f"column {name!r} ({param}) is in the DataFrame {len(same)} times ({', '.join(same)}). Drop or rename the "
            "others."
        )
    return dataset.schema[name].dataType


def _same(dataset: DataFrame, name: str, names: Sequence[str]) -> list[str]:
    """The members of ``names`` that Spark does not distinguish from ``name``."""
    same = [one for one in names if one.lower() == name.lower()]
    if any(one != name for one in same) and _case_sensitive(dataset):
        same = [one for one in same if one == name]
    return same


def _case_sensitive(dataset: DataFrame) -> bool:
    return str(dataset.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def declared_width(dataset: DataFrame, name: str) -> int | None:
    """The width of a row according to the column's ML metadata, if a stage such as VectorAssembler wrote them."""
    attributes = dataset.schema[name].metadata.get("ml_attr")
    declared = attributes.get("num_attrs") if isinstance(attributes, dict) else None
    return declared if type(declared) is int and declared > 0 else None


def width_of(dataset: DataFrame, name: str) -> int:
    """The width of a row: from the column's ML metadata, or else from the first row that has features."""
    declared = declared_width(dataset, name)
    if declared:
        return declared
    row = dataset.select(row_size(dataset, name).alias("size")).where("size >= 0").first()
    if row is None:
        if dataset.isEmpty():
            raise InvalidDataError(EMPTY)
        raise InvalidFeaturesError(f"column {name!r} is null in every row. Fill it before fit().")
    if row["size"] == 0:
        raise InvalidFeaturesError(
            f"column {name!r} holds rows of size 0: there are no features to learn from. Put some in, by "
            "VectorAssembler for example."
        )
    return int(row["size"])


def check_width(name: str, num_features: int, sparse: bool) -> None:
    """Refuse dense rows that are so wide that no process could hold a chunk of them."""
    block = 4 * CHUNK_ROWS * num_features
    if not sparse and block > _MOST_CHUNK_BYTES:
        raise InvalidFeaturesError(
            f"column {name!r} (featuresCol) has {num_features:,} features, and too few of them are zero to store the "
            f"others alone: {CHUNK_ROWS:,} such rows take {1e-9 * block:.0f} GB. Select or hash features before fit()."
        )


def row_size(dataset: DataFrame, name: str) -> Column:
    """How many features a row says it has."""
    if isinstance(dataset.schema[name].dataType, st.ArrayType):
        return sf.size(quoted(name))
    vector = sf.unwrap_udt(quoted(name))
    return sf.coalesce(vector["size"], sf.size(vector["values"]))


def density(dataset: DataFrame, name: str) -> float:
    """The share of values that are stored in wide rows, by one aggregate over all rows."""
    sums = (sf.sum(filled(dataset, name)).alias("filled"), sf.sum(row_size(dataset, name)).alias("all"))
    total = dataset.agg(*sums).first()
    return float(total["filled"] or 0) / max(1, total["all"] or 0) if total else 1.0


def filled(dataset: DataFrame, name: str) -> Column:
    """How many values of a row are stored."""
    column = quoted(name)
    if isinstance(dataset.schema[name].dataType, st.ArrayType):
        return sf.size(sf.filter(column, lambda x: x != 0))
    return sf.size(sf.unwrap_udt(column)["values"])
