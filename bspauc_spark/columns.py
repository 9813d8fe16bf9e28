"""The columns that a fit or a model reads: which they are, what their types must be, how wide a row is."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, InvalidLabelError


@dataclass(frozen=True)
class Columns:
    """The columns a fit reads, and which label counts as positive."""

    features: str
    label: str
    validation: str | None
    positive_label: float
    positive_label_is_default: bool


def features_type_problem(data_type: st.DataType) -> str | None:
    """Why a features column of this type cannot be used, or nothing."""
    if isinstance(data_type, VectorUDT):
        return None
    if isinstance(data_type, st.ArrayType) and isinstance(data_type.elementType, st.NumericType):
        return None
    return f"has type {data_type.simpleString()}; a vector or an array of numbers is needed"


def feature_struct(dataset: DataFrame, name: str, sparse: bool) -> Column:
    """The features as Arrow can carry them: an array of floats, or the vector's own four fields."""
    column = quoted(name)
    data_type = dataset.schema[name].dataType
    if isinstance(data_type, st.ArrayType):
        return column.cast("array<float>")
    # vector_to_array fails on null, which the checks are to count.
    return sf.unwrap_udt(column) if sparse else sf.when(column.isNotNull(), vector_to_array(column, "float32"))


def quoted(name: str) -> Column:
    """The top-level column of this very name, dots and backticks included."""
    return sf.col("`" + name.replace("`", "``") + "`")


def check_columns(dataset: DataFrame, columns: Columns) -> None:
    """Refuse columns that are missing or of another type, before any job."""
    wanted = {"featuresCol": columns.features, "labelCol": columns.label}
    if columns.validation:
        wanted["validationIndicatorCol"] = columns.validation
    for param, name in wanted.items():
        if name not in dataset.columns:
            raise InvalidDataError(
                f"column {name!r} ({param}) is not in the DataFrame; it has {', '.join(dataset.columns)}."
            )
    problem = features_type_problem(dataset.schema[columns.features].dataType)
    if problem:
        raise InvalidFeaturesError(f"column {columns.features!r} {problem}. VectorAssembler makes one.")
    label_type = dataset.schema[columns.label].dataType
    if not isinstance(label_type, st.NumericType | st.BooleanType):
        raise InvalidLabelError(
            f"column {columns.label!r} has type {label_type.simpleString()}; numbers are needed. "
            "StringIndexer turns strings into numbers."
        )
    if columns.validation and not isinstance(dataset.schema[columns.validation].dataType, st.BooleanType):
        raise InvalidDataError(
            f"column {columns.validation!r} (validationIndicatorCol) has type "
            f"{dataset.schema[columns.validation].dataType.simpleString()}; boolean is needed."
        )


def width_of(dataset: DataFrame, name: str) -> int:
    """The width of a row: from the column's ML metadata, else from the first row that has features."""
    declared = dataset.schema[name].metadata.get("ml_attr", {}).get("num_attrs")
    if declared:
        return int(declared)
    row = dataset.select(_size(dataset, name).alias("size")).where("size >= 0").first()
    if row is None:
        if dataset.isEmpty():
            raise InvalidDataError("the DataFrame is empty: there is nothing to fit on.")
        raise InvalidFeaturesError(f"column {name!r} is null in every row.")
    if row["size"] == 0:
        raise InvalidFeaturesError(f"column {name!r} holds vectors of size 0: there are no features to learn from.")
    return int(row["size"])


def _size(dataset: DataFrame, name: str) -> Column:
    if isinstance(dataset.schema[name].dataType, st.ArrayType):
        return sf.size(quoted(name))
    vector = sf.unwrap_udt(quoted(name))
    return sf.coalesce(vector["size"], sf.size(vector["values"]))


def density(dataset: DataFrame, name: str) -> float:
    """Share of stored values in wide rows, by one aggregate."""
    column = quoted(name)
    is_array = isinstance(dataset.schema[name].dataType, st.ArrayType)
    values = column if is_array else sf.unwrap_udt(column)["values"]
    filled = sf.size(sf.filter(values, lambda x: x != 0)) if is_array else sf.size(values)
    total = dataset.agg(sf.sum(filled).alias("filled"), sf.sum(_size(dataset, name)).alias("all")).first()
    return float(total["filled"] or 0) / max(1, total["all"] or 0) if total else 1.0
