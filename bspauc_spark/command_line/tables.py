"""Tables of the jobs: reading and writing them, what CSV leaves open about types, names that Spark ML cannot take."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.command_line.cells import count_texts, without
from bspauc_spark.command_line.said import plain
from bspauc_spark.errors import InvalidDataError
from bspauc_spark.rows.columns import quoted
from bspauc_spark.rows.storage import shown

FORMATS = ("parquet", "csv", "libsvm", "delta")
ROW = "bspauc__row"
_SUFFIXES = {".csv": "csv", ".gz": "csv", ".libsvm": "libsvm", ".svm": "libsvm", ".parquet": "parquet"}
# RFC 4180, as pandas and spreadsheets write it. Spark's own dialect escapes quotes by backslashes, ends a row at every
# line feed, and trims what it writes.
_CSV: dict[str, bool | str] = {"header": True, "quote": '"', "escape": '"', "multiLine": True}
_CSV_WRITTEN: dict[str, bool | str] = {**_CSV, "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}


def format_of(path: str, given: str | None) -> str:
    """The format of a table: as given, or by its name."""
    return given or _SUFFIXES.get(Path(path).suffix.lower(), "parquet")


def read_table(spark: SparkSession, path: str, table_format: str | None, width: int | None = None) -> DataFrame:
    """Parquet, CSV with a header, LIBSVM or Delta. Of a CSV, every column is text: 01234 may be a code.

    ``width``: how many features a LIBSVM file is to have; Spark counts up to the last that occurs.
    """
    chosen = format_of(path, table_format)
    frame = _read(
        spark, path, chosen, {}, "" if table_format else " If it is of another format, say which by --format."
    )
    if chosen == "csv":
        _check_header(frame, path)
    if chosen != "libsvm" or width is None:
        return frame
    found = frame.schema["features"].metadata["numFeatures"]
    if found > width:
        raise InvalidDataError(
            f"--input {shown(path)} has {found:,} features, but the model was fitted on {width:,}. Give the model that "
            "was trained on such rows."
        )
    return _read(spark, path, chosen, {"numFeatures": str(width)})


def _check_header(frame: DataFrame, path: str) -> None:
    """Refuse a CSV whose first line does not name its columns, each otherwise."""
    if not frame.columns:
        raise InvalidDataError(f"--input {shown(path)} is empty: a CSV begins with a line that names its columns.")
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise InvalidDataError(
            f"--input {shown(path)} has a single column, {frame.columns[0]}: the columns of a CSV must be separated by "
            "commas."
        )
    # Spark has renamed columns of one name by their places, which may be names of others.
    first = _read(frame.sparkSession, path, "csv", {"header": False}).first()
    names = [name for name in first or () if name]
    sensitive = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    keys = [name if sensitive else name.lower() for name in names]
    twice = [name for name, key in zip(names, keys, strict=True) if Counter(keys)[key] > 1]
    if twice:
        raise InvalidDataError(
            f"--input {shown(path)} has the columns {', '.join(twice)}, which are one name to Spark. Rename or remove "
            "all but one."
        )


def check_rows(frame: DataFrame, path: str) -> None:
    """Refuse a table without rows."""
    if frame.isEmpty():
        raise InvalidDataError(f"--input {shown(path)} has no rows. Give a table that has some.")


def typed(
    frame: DataFrame, path: str, table_format: str | None, names: Iterable[str], gaps: Collection[str] = ()
) -> DataFrame:
    """The table with those of ``names`` as numbers, booleans or times of which a CSV holds nothing else.

    Numbers may have gaps among them; ``gaps`` are words that stand for one, besides the usual ones.
    """
    if format_of(path, table_format) != "csv":
        return frame
    # As pandas writes what is infinite; the reader's own word is Inf, and all else would make the column text.
    options: dict[str, bool | str] = {"inferSchema": True, "positiveInf": "inf", "negativeInf": "-inf"}
    inferred = _read(frame.sparkSession, path, "csv", options).schema
    kinds = {name: inferred[name].dataType for name in names}
    texts = [name for name, kind in kinds.items() if isinstance(kind, st.StringType)]
    counts = count_texts(frame, texts, gaps)
    # Among other text NA may be a country.
    with_gaps = [name for name, found in counts.items() if found.numbers and not found.odd]
    kinds |= dict.fromkeys(with_gaps, st.DoubleType())
    casts = {
        name: without(quoted(name), gaps).try_cast(kind)
        for name, kind in kinds.items()
        if not isinstance(kind, st.StringType)
    }
    return replaced(frame, casts)


def _read(spark: SparkSession, path: str, chosen: str, more: Mapping[str, bool | str], advice: str = "") -> DataFrame:
    options = {**_CSV, **more} if chosen == "csv" else more
    try:
        return spark.read.format(chosen).options(**options).load(path)
    except (PySparkException, Py4JJavaError) as error:
        if "[PATH_NOT_FOUND]" in str(error):
            raise InvalidDataError(f"--input {shown(path)} does not exist.") from error
        if "[UNABLE_TO_INFER_SCHEMA]" in str(error):
            raise InvalidDataError(f"--input {shown(path)} holds no files of a table as {chosen}.{advice}") from error
        reason = plain(error).partition(". Expected magic number")[0]
        raise InvalidDataError(f"--input {shown(path)} cannot be read as {chosen}: {reason}.{advice}") from error


def write_table(frame: DataFrame, path: str, table_format: str | None, overwrite: bool) -> None:
    """Write a table; CSV as text with a header."""
    chosen = format_of(path, table_format)
    options: dict[str, bool | str] = _CSV_WRITTEN if chosen == "csv" else {}
    mode = "overwrite" if overwrite else "errorifexists"
    frame.write.format(chosen).options(**options).mode(mode).save(path)


def written(spark: SparkSession, path: str, table_format: str | None, numbers: Iterable[str]) -> DataFrame:
    """What ``write_table`` wrote, with ``numbers`` as numbers."""
    frame = _read(spark, path, format_of(path, table_format), {})
    return replaced(frame, {name: quoted(name).cast("double") for name in numbers})


def replaced(frame: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """The table with some columns computed anew, in their places."""
    return frame.select(*(columns.get(name, quoted(name)).alias(name) for name in frame.columns)) if columns else frame


def times_as_text(frame: DataFrame) -> DataFrame:
    """The table with dates and times as text: pandas has none beyond the year 2262, which stands for "always"."""
    kinds = (st.DateType, st.TimestampType, st.TimestampNTZType)
    times = [field.name for field in frame.schema.fields if isinstance(field.dataType, kinds)]
    return replaced(frame, {name: quoted(name).cast("string") for name in times})


def with_row(frame: DataFrame) -> DataFrame:
    """The table with a column ``ROW`` that holds its plain columns as they were read."""
    return frame.withColumn(ROW, sf.struct(*(quoted(name) for name in plain_columns(frame))))


def passed_through(frame: DataFrame, as_read: bool) -> list[Column]:
    """The plain columns of a table for the output: as they were read, or text with the types that it got since."""

    def found(name: str) -> Column:
        typed_since = not as_read and isinstance(frame.schema[name].dataType, st.StringType)
        return quoted(undotted(name)) if typed_since else sf.col(ROW).getField(name)

    return [found(name).alias(name) for name in plain_columns(frame)]


def plain_columns(frame: DataFrame) -> list[str]:
    """Columns that any format can hold: no vectors, arrays or structs."""
    return [field.name for field in frame.schema.fields if isinstance(field.dataType, st.AtomicType)]


def undotted(name: str) -> str:
    """A column's name as Spark ML can take it, which looks for a field behind a dot."""
    return name.replace(".", "__")


def without_dots(frame: DataFrame) -> DataFrame:
    """The table with names that Spark ML can take."""
    dotted = [name for name in frame.columns if "." in name]
    for name in dotted:
        check_free(frame, [undotted(name)], f"{name} would be")
    return frame.select(*(quoted(name).alias(undotted(name)) for name in frame.columns)) if dotted else frame


def check_columns(frame: DataFrame, names: Iterable[str], option: str) -> None:
    """Refuse names of columns that are not there, with the nearest that is."""
    for name in names:
        if name not in frame.columns:
            # As if the first row were taken for the header.
            headless = any(column.replace(".", "").isdigit() for column in frame.columns)
            hint = " The first line of a CSV must name its columns." if headless else ""
            raise InvalidDataError(f"{option} {name}: there is no such column{nearest(name, frame.columns)}.{hint}")


def check_free(frame: DataFrame, names: Iterable[str], why: str = "") -> None:
    """Refuse a table that has a column which is to be added."""
    for name in names:
        if name in frame.columns:
            reason = f" ({why} called so inside)" if why else ""
            raise InvalidDataError(f"--input has a column {name} already{reason}: rename it.")


def nearest(name: str, known: Iterable[str]) -> str:
    """What of ``known`` may have been meant."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if not close:
        return f"; there are {', '.join(known[:20])}"
    return f"; did you mean {close[0] if close[0] == close[0].strip() else repr(close[0])}"
