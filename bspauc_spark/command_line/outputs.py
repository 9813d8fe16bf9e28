"""Where a job writes: refused before anything long starts if it would destroy an input, exists or cannot be written."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bspauc_spark.command_line.said import plain
from bspauc_spark.errors import InvalidDataError, InvalidParamError, reason, shown
from bspauc_spark.rows.storage import DiskFolder, on_disk

MLFLOW_SCHEMES = ("models:/", "runs:/", "mlflow-artifacts:/")
# Object stores have no folders to try: who may write to a prefix may not write above it.
_WITH_FOLDERS = ("file", "hdfs", "viewfs")


def check_output(spark: SparkSession, path: str, overwrite: bool, inputs: Mapping[str, str]) -> None:
    """Refuse an ``--output`` that overlaps one of ``inputs`` (by option), exists already or cannot be written."""
    with _refusing("--output", path):
        place, files = _place(spark, path)
        qualified = _qualified(place, files)
    _check_apart(spark, "--output", path, qualified, inputs)
    with _refusing("--output", path):
        exists = files.exists(place)
        if qualified.split(":")[0] in _WITH_FOLDERS:
            _try_to_write(spark, place, files)
    if exists and not overwrite:
        raise InvalidDataError(f"--output {shown(path)} exists already. Give another path, or --overwrite.")


def check_report(spark: SparkSession, report: Path | None, output: str, inputs: Mapping[str, str]) -> None:
    """Refuse a ``--report``, a file of this machine, that overlaps one of ``inputs`` or cannot be written."""
    if report is None:
        return
    try:
        path = on_disk(report)
    except InvalidParamError as error:
        raise InvalidDataError(f"--report {error}") from error
    qualified = f"file:{os.path.realpath(path)}"
    _check_apart(spark, "--report", str(report), qualified, inputs)
    # A report may lie in the output's folder, but must not be the folder.
    if _within(_qualified(*_place(spark, output)), qualified):
        raise InvalidDataError(f"--report {report} is where --output {shown(output)} goes. Give another path.")
    try:
        if path.exists():
            path.open("ab").close()
        else:
            DiskFolder(path.parent).try_to_write()
    except OSError as error:
        raise InvalidDataError(f"--report {report} cannot be written: {reason(error)}. Give another path.") from error


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or a folder, on whatever storage."""
    place, files = _place(spark, path)
    return bool(files.exists(place))


def _check_apart(spark: SparkSession, option: str, path: str, qualified: str, inputs: Mapping[str, str]) -> None:
    for read_option, read in inputs.items():
        if read.startswith(MLFLOW_SCHEMES):
            continue
        with _refusing(read_option, read, "read"):
            places = list(_places_read(spark, read))
        if any(_within(qualified, place) or _within(place, qualified) for place in places):
            raise InvalidDataError(
                f"{option} {shown(path)} is, holds or lies in {read_option} {shown(read)}, which it would destroy. "
                "Give another path."
            )


def _place(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place, place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def _qualified(place: Any, files: Any) -> str:
    """With scheme and from the root, links resolved where we can: as text that can be compared."""
    uri = files.makeQualified(place).toUri()
    return f"file:{os.path.realpath(uri.getPath())}" if uri.getScheme() == "file" else str(uri.toString())


def _places_read(spark: SparkSession, path: str) -> Iterable[str]:
    """What Spark reads by this path, which may be a pattern."""
    place, files = _place(spark, path)
    found = files.globStatus(place) or ()
    return {_qualified(place, files), *(_qualified(one.getPath(), files) for one in found)}


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _try_to_write(spark: SparkSession, place: Any, files: Any) -> None:
    """As ``Folder.try_to_write`` does it, but by Hadoop, with the rights and settings by which Spark will write."""
    folder = files.makeQualified(place).getParent()
    while folder is not None and not files.exists(folder):
        folder = folder.getParent()
    if folder is not None:
        jvm: Any = spark.sparkContext._jvm
        probe = jvm.org.apache.hadoop.fs.Path(folder, f".bspauc-{uuid.uuid4().hex}")
        files.create(probe, False).close()
        files.delete(probe, False)


@contextmanager
def _refusing(option: str, path: str, what: str = "written") -> Iterator[None]:
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise InvalidDataError(f"{option} {shown(path)} cannot be {what}: {plain(error)}.") from error
