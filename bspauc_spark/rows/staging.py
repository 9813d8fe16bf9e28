"""Stage a DataFrame: check its rows and write them as Arrow shards, the same however the DataFrame is partitioned.

Every row has a hash of its contents. Each task gets a range of hashes and sorts its rows by their hashes. So, one shard
after the other, the rows stand in an order that depends on the rows alone. One pass checks the rows and writes them.
What the tasks found comes back to the driver as a small table. Rows that are there very often come as a few with the
number of their copies, so that no task has all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.errors import InvalidDataError, InvalidFeaturesError, InvalidLabelError, StagingError, reason, shown
from bspauc_spark.rows.arrow import MALFORMED
from bspauc_spark.rows.columns import (
    EMPTY,
    Columns,
    check_columns,
    check_width,
    density,
    feature_struct,
    filled,
    quoted,
    width_of,
)
from bspauc_spark.rows.copies import counted, has_frequent_rows
from bspauc_spark.rows.folds import FoldCounts, added, most_folds
from bspauc_spark.rows.kinds import KINDS, NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES, ShardFile
from bspauc_spark.rows.shard_task import ShardTask
from bspauc_spark.rows.shards import Shards
from bspauc_spark.rows.storage import Folder, folder
from bspauc_spark.spark.compat import repartition_by_id
from bspauc_spark.spark.session import slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# So many tasks for each slot that all slots are busy to the end, even if some tasks take longer.
_TASKS_PER_SLOT = 4
_FEWEST_SLOTS, _UNKNOWN_SLOTS, _MOST_PARTITIONS = 2, 4, 512
# So many bytes of rows may come to the client of a Connect session, which for a moment holds all of them.
MOST_COLLECTED_BYTES = 1 << 30
# Rows up to this width are staged dense: they take at most 2 KiB each, and dense layers are faster.
ALWAYS_DENSE_FEATURES = 512
# Wider rows are staged sparse when fewer than this share of their values differ from zero.
SPARSE_BELOW = 0.2


@dataclass(frozen=True)
class StagedData:
    """The staged rows of a fit, and what is known about them."""

    shards: Shards
    counts: Mapping[str, int]
    labels: tuple[float, ...]
    positive_label: float
    fingerprint: str
    """Of the rows: the same whatever their order and partitioning."""
    folds: int = 0
    """How many folds of those that are wanted the rows allow."""

    @property
    def negative_label(self) -> float:
        """The other one of two labels. If there are more than two: 0, or 1 if 0 is the positive label."""
        others = [label for label in self.labels if label != self.positive_label]
        if len(others) == 1:
            return others[0]
        return 1.0 if self.positive_label == 0 else 0.0

    def identity(self) -> dict[str, object]:
        """What distinguishes these rows from other rows."""
        return {"features": self.shards.num_features, **self.counts, "fingerprint": self.fingerprint}

    def remove(self) -> None:
        """Delete the folder and everything in it. Rows that are mapped stay readable."""
        folder(self.shards.directory).remove()


def stage(
    dataset: DataFrame,
    columns: Columns,
    staging_dir: str | None,
    here: bool = False,
    folds: int = 0,
    fold_seed: int = 0,
    gaps: bool = False,
) -> StagedData:
    """Write ``dataset`` as shards into a new folder under ``staging_dir`` (unset: the system's temporary folder).

    With ``here`` this process fetches the rows and writes them itself, because Spark's tasks do not see its folders.
    With ``gaps`` a feature may be NaN.
    """
    check_columns(dataset, columns)
    num_features = width_of(dataset, columns.features)
    sparse = num_features > ALWAYS_DENSE_FEATURES and density(dataset, columns.features) < SPARSE_BELOW
    check_width(columns.features, num_features, sparse)
    if here:
        _refuse_many(dataset, columns.features, num_features, sparse)
    directory = _new_directory(staging_dir)
    try:
        task = ShardTask(directory.location, columns.positive_label, num_features, sparse, folds, fold_seed, gaps)
        with _ours_for_sparks(columns.features):
            found = _write_shards(_in_order_of_hashes(dataset, columns, sparse, here, gaps), task, here)
        _raise_if_invalid(found, columns, num_features, gaps)
        files = {kind: tuple(sorted(found.files.get(kind, ()))) for kind in KINDS}
        counts = {kind: sum(file.rows for file in files[kind]) for kind in KINDS}
        labels = tuple(sorted(found.labels))
        shards = Shards(directory.location, files, num_features, sparse)
        most = most_folds(folds, found.folds) if folds else 0
        return StagedData(shards, counts, labels, columns.positive_label, found.fingerprint(), most)
    except BaseException:
        directory.remove()
        raise


def partition_bits(spark: SparkSession) -> int:
    """The binary logarithm of the number of partitions: several for each task that can run at the same time."""
    wanted = _TASKS_PER_SLOT * max(slots(spark) or _UNKNOWN_SLOTS, _FEWEST_SLOTS)
    return min(wanted, _MOST_PARTITIONS).bit_length() - 1


def _new_directory(staging_dir: str | None) -> Folder:
    try:
        return folder(staging_dir or tempfile.gettempdir()).new("bspauc-")
    except OSError as error:
        where = (
            f"stagingDir {shown(staging_dir)!r}" if staging_dir else "stagingDir is not set, and the temporary folder"
        )
        raise StagingError(
            f"{where} cannot be written: {reason(error)}. Set stagingDir to an existing folder with free space."
        ) from error


def _refuse_many(dataset: DataFrame, name: str, num_features: int, sparse: bool) -> None:
    """Refuse rows that would not fit this process, before they are fetched."""
    size = 8 * filled(dataset, name) if sparse else sf.lit(4 * num_features)
    total = dataset.agg(sf.sum(size.cast("long")).alias("bytes")).first()
    needed = int(total["bytes"] or 0) if total else 0
    if needed > MOST_COLLECTED_BYTES:
        raise StagingError(
            f"stagingDir is not set, so the rows would come to this process, and they are {needed / 1e9:.1f} GB, more "
            f"than {MOST_COLLECTED_BYTES / 1e9:.1f} GB. Set stagingDir to storage that this process and Spark's "
            "executors both see, a folder or a URI such as s3://bucket/staging, or fit on a sample of the rows."
        )


@dataclass
class _Found:
    """The sum of what the staging tasks report."""

    files: dict[str, list[ShardFile]]
    problems: dict[str, int]
    sizes: set[int]
    labels: set[float]
    rows: int = 0
    hashes: dict[str, int] = field(default_factory=dict)
    folds: dict[str, FoldCounts] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """A digest of the sums of all hashes. It does not depend on the order of the rows."""
        sums = {kind: total % 2**64 for kind, total in self.hashes.items()}
        return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:16]


def _in_order_of_hashes(dataset: DataFrame, columns: Columns, sparse: bool, here: bool, gaps: bool) -> DataFrame:
    features = feature_struct(dataset, columns.features, sparse, gaps)
    label = quoted(columns.label).cast("double")
    validation = quoted(columns.validation) if columns.validation else sf.lit(False)
    hashed = dataset.select(features.alias("features"), label.alias("label"), validation.alias("validation"))
    hashed = hashed.withColumn("hash", sf.xxhash64("features", "label"))
    bits = partition_bits(dataset.sparkSession)
    # Rows that come to this process are few, and Spark's tasks may lack the package.
    if not here and has_frequent_rows(hashed, bits):
        hashed = hashed.mapInArrow(counted, st.StructType([*hashed.schema, st.StructField("copies", st.LongType())]))
    # The first bits of the hash. The hash is signed, so the lowest one is negative.
    range_of = sf.shiftright("hash", 64 - bits).cast("int") + sf.lit(2 ** (bits - 1))
    # The hashes fix the order: rows that share one are equal. That any two of a billion different rows share one has a
    # probability of a few percent.
    return repartition_by_id(hashed, 2**bits, range_of).sortWithinPartitions("hash")


@contextlib.contextmanager
def _ours_for_sparks(name: str) -> Iterator[None]:
    """Raise our error where Spark's tells of it, or of features that only Spark itself looks at."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        ours = re.search(r"bspauc_spark\.errors\.StagingError: (.*)", str(error))
        if ours is not None:
            raise StagingError(ours[1]) from error
        # Where Spark lays vectors out as arrays, Spark itself checks their indices.
        if re.search(r"requirement failed.*\s.*\s.*\.linalg\.SparseVector", str(error)):
            raise InvalidFeaturesError(f"column {name!r} has rows {MALFORMED}. {_MEND}") from error
        raise


def _write_shards(rows: DataFrame, task: ShardTask, here: bool) -> _Found:
    if here:
        written = task(iter(rows.toArrow().to_batches()))
        reports = [text for batch in written for text in batch["report"].to_pylist()]
    else:
        reports = [text for (text,) in rows.mapInArrow(task, "report string").collect()]
    found = _Found({}, {}, set(), set())
    for text in reports:
        report = json.loads(text)
        found.rows += report["rows"]
        found.sizes.update(report["sizes"])
        found.labels.update(report["labels"])
        for problem, count in report["problems"].items():
            found.problems[problem] = found.problems.get(problem, 0) + count
        for kind, counts in report["folds"].items():
            found.folds[kind] = added(*(one for one in (found.folds.get(kind), counts) if one is not None))
        for kind, files in report["files"].items():
            found.files.setdefault(kind, []).extend(ShardFile(*file) for file in files)
            found.hashes[kind] = found.hashes.get(kind, 0) + report["hashes"][kind]
    return found


def _raise_if_invalid(found: _Found, columns: Columns, num_features: int, gaps: bool) -> None:
    """Raise one error for all that the tasks found: it says what is wrong, where, in how many rows, and what to do."""
    rows, problems = f"{found.rows:,} rows", found.problems

    def count(problem: str) -> str:
        return f"{problems[problem]:,}"

    if found.rows == 0:
        raise InvalidDataError(EMPTY)
    if problems.get("label"):
        raise InvalidLabelError(
            f"column {columns.label!r} has {count('label')} null, NaN or infinite values in {rows}. "
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
            f"(found: {sizes}). Give all rows the same number of features."
        )
    if problems.get("value"):
        wrong, remedy = ("infinite", "Mend") if gaps else ("NaN, infinite", "Impute")
        raise InvalidFeaturesError(
            f"column {columns.features!r} has {wrong} or too large values (beyond float32) in "
            f"{count('value')} of {rows}. {remedy} or scale them before fit()."
        )
    if problems.get("index"):
        raise InvalidFeaturesError(f"column {columns.features!r} has {count('index')} of {rows} {MALFORMED}. {_MEND}")
    if problems.get("validation"):
        raise InvalidDataError(
            f"column {columns.validation!r} (validationIndicatorCol) is null in {count('validation')} of {rows}. "
            "Fill it with true for validation rows, false for training rows."
        )
    _raise_if_a_class_is_missing(found, columns)


_MEND = "Make these vectors anew, by VectorAssembler or Vectors.sparse."
_REMEDY = {
    "training": "AUC needs rows of both classes: set positiveLabel, or give rows of the class that is missing.",
    "validation": "Mark rows of both classes in validationIndicatorCol, or leave it out.",
}


def _raise_if_a_class_is_missing(found: _Found, columns: Columns) -> None:
    if columns.positive_label_is_default and len(found.labels) > 2:
        raise InvalidLabelError(
            f"column {columns.label!r} has more than two labels (at least {len(found.labels)}) and positiveLabel is "
            "not set. Set positiveLabel: that label is then learned against all the others."
        )
    parts = {"training": (POSITIVES, NEGATIVES)}
    if columns.validation:
        parts["validation"] = (VALIDATION_POSITIVES, VALIDATION_NEGATIVES)
    for part, kinds in parts.items():
        if columns.validation and not any(found.files.get(kind) for kind in kinds):
            value = "true" if part == "training" else "false"
            raise InvalidDataError(
                f"column {columns.validation!r} (validationIndicatorCol) is {value} in all {found.rows:,} rows: there "
                f"is no {part} row. Mark some rows of both classes as {part} rows, or leave validationIndicatorCol out."
            )
        for kind, meaning in zip(kinds, ("equal to", "different from"), strict=True):
            if not found.files.get(kind):
                raise InvalidLabelError(
                    f"column {columns.label!r} has no {part} row with a label {meaning} positiveLabel "
                    f"{columns.positive_label:g} among {found.rows:,} rows, which have {len(found.labels)} different "
                    f"labels. {_REMEDY[part]}"
                )
