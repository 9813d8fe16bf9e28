"""Spark ML stages as plain steps, and what columns a pipeline reads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.ml import feature as spark_features
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import BSPAUCError
from bspauc_spark.rows.categories import are_flags

Step: TypeAlias = Mapping[str, Any]


def plain_steps(stages: Sequence[Any]) -> list[Step] | None:
    """The steps that these stages take one after the other; None where one has no plain form."""
    steps: list[Step] = []
    for stage in stages:
        translate = _PLAIN.get(type(stage).__name__)
        if translate is None:
            return None
        steps += translate(stage)
    return steps


def inputs_of(steps: Sequence[Step]) -> dict[str, str]:
    """Columns that are read before a step makes them."""
    made: set[str] = set()
    read: dict[str, str] = {}
    for step in steps:
        for name in step.get("inputs", [step.get("input")]):
            if name not in made:
                read.setdefault(name, _kind(step))
        made.add(step["output"])
    return read


def _kind(step: Step) -> str:
    if step["kind"] != "index":
        return "number"
    # Whole numbers and doubles as Spark writes them, and text that looks like them, such as 01.
    number = r"-?(\d+(\.\d+)?(E-?\d+)?|Infinity)"
    labels = step["labels"]
    return "code" if are_flags(labels) or all(re.fullmatch(number, label) for label in labels) else "text"


def _columns(stage: Any) -> Iterator[tuple[str, str]]:
    """Input and output columns of a stage that takes one or several."""
    if stage.isSet("inputCols"):
        return zip(stage.getInputCols(), stage.getOutputCols(), strict=True)
    return iter([(stage.getInputCol(), stage.getOutputCol())])


def _index(stage: spark_features.StringIndexerModel) -> list[Step]:
    return [
        {"kind": "index", "input": given, "output": made, "labels": list(labels), "invalid": stage.getHandleInvalid()}
        for (given, made), labels in zip(_columns(stage), stage.labelsArray, strict=True)
    ]


def _one_hot(stage: spark_features.OneHotEncoderModel) -> list[Step]:
    common = {"kind": "one_hot", "drop_last": bool(stage.getDropLast()), "invalid": stage.getHandleInvalid()}
    return [
        {**common, "input": given, "output": made, "size": int(size)}
        for (given, made), size in zip(_columns(stage), stage.categorySizes, strict=True)
    ]


def _assemble(stage: spark_features.VectorAssembler) -> list[Step]:
    names, made = stage.getInputCols(), stage.getOutputCol()
    return [{"kind": "assemble", "inputs": list(names), "output": made, "invalid": stage.getHandleInvalid()}]


def _impute(stage: spark_features.ImputerModel) -> list[Step]:
    values, missing = stage.surrogateDF.first(), stage.getMissingValue()
    assert values is not None
    common = {"kind": "impute", "missing": None if math.isnan(missing) else missing}
    return [{**common, "input": given, "output": made, "value": values[given]} for given, made in _columns(stage)]


def _standard(stage: spark_features.StandardScalerModel) -> list[Step]:
    deviation = stage.std.toArray()
    # As Spark does: a column that never varies becomes 0.
    factor = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation != 0)
    return _scaled(
        stage,
        stage.mean.toArray() if stage.getWithMean() else 0.0 * deviation,
        factor if stage.getWithStd() else np.ones_like(deviation),
    )


def _min_max(stage: spark_features.MinMaxScalerModel) -> list[Step]:
    low, high = stage.originalMin.toArray(), stage.originalMax.toArray()
    width = stage.getMax() - stage.getMin()
    factor = np.divide(width, high - low, out=np.zeros_like(low), where=high != low)
    # As Spark does: a column that never varies becomes the middle.
    return _scaled(stage, low, factor, np.where(high == low, (stage.getMax() + stage.getMin()) / 2, stage.getMin()))


def _max_abs(stage: spark_features.MaxAbsScalerModel) -> list[Step]:
    largest = stage.maxAbs.toArray()
    return _scaled(stage, 0.0 * largest, 1.0 / np.where(largest == 0, 1.0, largest))


def _scaled(stage: Any, shift: Any, factor: Any, offset: Any = 0.0) -> list[Step]:
    values = {"shift": shift, "factor": factor, "offset": np.broadcast_to(offset, np.shape(factor))}
    plain_values = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in values.items()}
    return [{"kind": "scale", "input": stage.getInputCol(), "output": stage.getOutputCol(), **plain_values}]


_PLAIN: Mapping[str, Callable[[Any], list[Step]]] = {
    "StringIndexerModel": _index,
    "OneHotEncoderModel": _one_hot,
    "VectorAssembler": _assemble,
    "ImputerModel": _impute,
    "StandardScalerModel": _standard,
    "MinMaxScalerModel": _min_max,
    "MaxAbsScalerModel": _max_abs,
}


# Of a column that stages take in several forms, the first of these is assumed.
_KINDS: tuple[st.DataType, ...] = (
    st.DoubleType(),
    st.StringType(),
    VectorUDT(),
    st.ArrayType(st.StringType()),
    st.ArrayType(st.DoubleType()),
    st.BooleanType(),
    st.TimestampType(),
)


def columns_read(
    spark: SparkSession, stages: Sequence[Any], known: Mapping[str, st.DataType]
) -> dict[str, st.DataType] | None:
    """Columns that these stages read before one makes them, with a type that they take; None where none fits.

    Those that are ``known`` come first. Stages are tried on tables without rows, which starts no job.
    """
    found = dict(known)
    table = spark.createDataFrame([], st.StructType([st.StructField(name, kind) for name, kind in found.items()]))
    for stage in stages:
        names = [name for name in _names_read(stage) if name not in table.columns]
        # What looks like a column that is read may be one that is made.
        for kind in (*_kinds_read(stage), None):
            added = {} if kind is None else dict.fromkeys(names, kind)
            made = _tried(stage, table, added)
            if made is not None:
                found |= added
                table = made
                break
        else:
            return None
    return found


def _tried(stage: Any, table: DataFrame, added: Mapping[str, st.DataType]) -> DataFrame | None:
    try:
        for name, kind in added.items():
            table = table.withColumn(name, sf.lit(None).cast(kind))
        made: DataFrame = stage.transform(table)
        _ = made.schema
    except (PySparkException, Py4JError, BSPAUCError):
        return None
    return made


def _names_read(stage: Any) -> list[str]:
    names: list[str] = []
    for name in ("inputCol", "inputCols", "featuresCol"):
        if stage.hasParam(name) and stage.isDefined(name):
            given = stage.getOrDefault(name)
            names += [given] if isinstance(given, str) else given
    return list(dict.fromkeys(names))


def _kinds_read(stage: Any) -> Sequence[st.DataType]:
    # It takes numbers too, but text is what it has seen.
    return (st.StringType(),) if type(stage).__name__ == "StringIndexerModel" else _KINDS


def first_labels(stages: Sequence[Any]) -> dict[str, str]:
    """A category that was seen in training, of each column that becomes an index."""
    return {
        given: labels[0]
        for stage in stages
        if type(stage).__name__ == "StringIndexerModel"
        for (given, _), labels in zip(_columns(stage), stage.labelsArray, strict=True)
    }
