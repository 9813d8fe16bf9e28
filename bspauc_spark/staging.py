"""DataFrame → validated Arrow shards per class, the same whatever the DataFrame's partitioning.

A partition takes a range of hashes, and rows are sorted there by theirs: one shard after the other, rows stand in the
order of their hashes, which depends on the rows alone. One pass checks and writes them; what it found comes back as a
small table.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.compat import repartition_by_id
from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, InvalidLabelError, StagingError
from bspauc_spark.preflight import slots
from bspauc_spark.shards import (
    KINDS,
    NEGATIVES,
    POSITIVES,
    VALIDATION_NEGATIVES,
    VALIDATION_POSITIVES,
    ShardTask,
)
from bspauc_spark.workers.rows import Shards

if TYPE_CHECKING:
    from collections.abc import Mapping

# Enough tasks for every slot, however long the single ones take.
_TASKS_PER_SLOT = 4
_FEWEST_SLOTS, _UNKNOWN_SLOTS, _MOST_PARTITIONS = 2, 4, 512
# Up to this width rows are staged dense: a dense row is then at most 2 KiB, and dense layers are faster.
ALWAYS_DENSE_FEATURES = 512
# Wider rows are staged sparse when fewer than this share of their values differ from zero.
SPARSE_BELOW = 0.2


@dataclass(frozen=True)
class Columns:
    """The columns a fit reads, and which label counts as positive."""

    features: str
    label: str
    validation: str | None
    positive_label: float
    positive_label_is_default: bool


@dataclass(frozen=True)
class StagedData:
    """The rows of a fit on disk, and what they are."""

    shards: Shards
    counts: Mapping[str, int]
    labels: tuple[float, ...]
    positive_label: float
    fingerprint: str
    """Of the rows: the same whatever their order and partitioning."""

    @property
    def negative_label(self) -> float:
        """The other label of two; with more of them 0, or 1 where 0 is the positive one."""
        others = [label for label in self.labels if label != self.positive_label]
        if len(others) == 1:
            return others[0]
        return 1.0 if self.positive_label == 0 else 0.0

    def identity(self) -> dict[str, object]:
        """What tells these rows from others."""
        return {"features": self.shards.num_features, **self.counts, "fingerprint": self.fingerprint}

    def remove(self) -> None:
        """Delete the folder and all in it. Rows that are mapped stay readable."""
        shutil.rmtree(self.shards.directory, ignore_errors=True)


def stage(dataset: DataFrame, columns: Columns, staging_dir: str | None) -> StagedData:
    """Write ``dataset`` as shards into a new folder under ``staging_dir`` (unset: the system's temporary one)."""
    _check_columns(dataset, columns)
    num_features = _num_features(dataset, columns.features)
    sparse = num_features > ALWAYS_DENSE_FEATURES and _density(dataset, columns.features) < SPARSE_BELOW
    directory = _new_directory(staging_dir)
    try:
        found = _write_shards(dataset, columns, directory, num_features, sparse)
        _raise_if_invalid(found, columns, num_features)
        names = {kind: tuple(sorted(found.files.get(kind, {}))) for kind in KINDS}
        counts = {kind: sum(found.files.get(kind, {}).values()) for kind in KINDS}
        labels = tuple(sorted(found.labels))
        shards = Shards(str(directory), names, num_features, sparse)
        return StagedData(shards, counts, labels, columns.positive_label, found.fingerprint())
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def partition_bits(spark: SparkSession) -> int:
    """The logarithm of the number of partitions: some for each task that can run at once."""
    wanted = _TASKS_PER_SLOT * max(slots(spark) or _UNKNOWN_SLOTS, _FEWEST_SLOTS)
    return min(wanted, _MOST_PARTITIONS).bit_length() - 1


def _new_directory(staging_dir: str | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="bspauc-", dir=staging_dir))
    except OSError as error:
        raise StagingError(
            f"stagingDir {staging_dir or tempfile.gettempdir()!r} cannot be written: {error.strerror}. "
            "Set stagingDir to an existing folder with free space."
        ) from error


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


def _check_columns(dataset: DataFrame, columns: Columns) -> None:
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


def _num_features(dataset: DataFrame, name: str) -> int:
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


def _density(dataset: DataFrame, name: str) -> float:
    """Share of stored values in wide rows, by one aggregate."""
    column = quoted(name)
    is_array = isinstance(dataset.schema[name].dataType, st.ArrayType)
    values = column if is_array else sf.unwrap_udt(column)["values"]
    filled = sf.size(sf.filter(values, lambda x: x != 0)) if is_array else sf.size(values)
    total = dataset.agg(sf.sum(filled).alias("filled"), sf.sum(_size(dataset, name)).alias("all")).first()
    return float(total["filled"] or 0) / max(1, total["all"] or 0) if total else 1.0


@dataclass
class _Found:
    """What the staging tasks report, added up."""

    files: dict[str, dict[str, int]]
    problems: dict[str, int]
    sizes: set[int]
    labels: set[float]
    rows: int = 0
    hashes: dict[str, int] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """A digest of the sums of all rows' hashes, in which their order does not count."""
        sums = {kind: total % 2**64 for kind, total in self.hashes.items()}
        return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:16]


def _write_shards(dataset: DataFrame, columns: Columns, directory: Path, num_features: int, sparse: bool) -> _Found:
    features = feature_struct(dataset, columns.features, sparse)
    label = quoted(columns.label).cast("double")
    validation = quoted(columns.validation) if columns.validation else sf.lit(False)
    hashed = dataset.select(features.alias("features"), label.alias("label"), validation.alias("validation"))
    hashed = hashed.withColumn("hash", sf.xxhash64("features", "label"))
    bits = partition_bits(dataset.sparkSession)
    # The first bits of the hash, from the lowest, which is negative, to the highest.
    range_of = sf.shiftright("hash", 64 - bits).cast("int") + sf.lit(2 ** (bits - 1))
    # Rows of one hash are the same: two others share one with a probability of a few percent among a billion rows.
    ordered = repartition_by_id(hashed, 2**bits, range_of).sortWithinPartitions("hash")
    task = ShardTask(str(directory), columns.positive_label, num_features, sparse)
    reports = ordered.mapInArrow(task, "report string").collect()

    found = _Found({}, {}, set(), set())
    for (text,) in reports:
        report = json.loads(text)
        found.rows += report["rows"]
        found.sizes.update(report["sizes"])
        found.labels.update(report["labels"])
        for problem, count in report["problems"].items():
            found.problems[problem] = found.problems.get(problem, 0) + count
        for kind, files in report["files"].items():
            found.files.setdefault(kind, {}).update(files)
            found.hashes[kind] = found.hashes.get(kind, 0) + report["hashes"][kind]
    return found


def _raise_if_invalid(found: _Found, columns: Columns, num_features: int) -> None:
    """Turn what the tasks found into one error that says what, where, how many and what to do."""
    rows, problems = f"{found.rows:,} rows", found.problems

    def count(problem: str) -> str:
        return f"{problems[problem]:,}"

    if found.rows == 0:
        raise InvalidDataError("the DataFrame is empty: there is nothing to fit on.")
    if problems.get("label"):
        raise InvalidLabelError(
            f"column {columns.label!r} has {count('label')} null or NaN values in {rows}. "
            "Drop or fill them before fit()."
        )
    if problems.get("null"):
        raise InvalidFeaturesError(
            f"column {columns.features!r} is null in {count('null')} of {rows}. Drop or fill them before fit()."
        )
    if problems.get("size"):
        sizes = ", ".join(str(size) for size in sorted(found.sizes - {num_features})[:5])
        raise InvalidFeaturesError(
            f"column {columns.features!r} has {count('size')} of {rows} with another size than {num_features} "
            f"(found: {sizes}). All rows need the same number of features."
        )
    if problems.get("value"):
        raise InvalidFeaturesError(
            f"column {columns.features!r} has NaN, infinite or too large values (beyond float32) in "
            f"{count('value')} of {rows}. Impute or scale them before fit()."
        )
    if problems.get("validation"):
        raise InvalidDataError(
            f"column {columns.validation!r} (validationIndicatorCol) is null in {count('validation')} of {rows}."
        )
    _raise_if_a_class_is_missing(found, columns)


def _raise_if_a_class_is_missing(found: _Found, columns: Columns) -> None:
    labels = ", ".join(f"{label:g}" for label in sorted(found.labels)[:5])
    if columns.positive_label_is_default and len(found.labels) > 2:
        raise InvalidLabelError(
            f"column {columns.label!r} has more than two labels ({labels}, …) and positiveLabel is not set. "
            "Set positiveLabel: that label is then learned against all the others."
        )
    parts = {"training": (POSITIVES, NEGATIVES)}
    if columns.validation:
        parts["validation"] = (VALIDATION_POSITIVES, VALIDATION_NEGATIVES)
    for part, kinds in parts.items():
        for kind, meaning in zip(kinds, ("equal to", "different from"), strict=True):
            if not found.files.get(kind):
                raise InvalidLabelError(
                    f"column {columns.label!r} has no {part} row with a label {meaning} positiveLabel "
                    f"{columns.positive_label:g} among {found.rows:,} rows (labels: {labels}). "
                    "AUC needs both classes."
                )
