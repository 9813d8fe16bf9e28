"""What the jobs share: their arguments and exit codes, Params from the command line, labels, saved models."""

from __future__ import annotations

import json
import re
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.ml import PipelineModel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.around.model import SelfPacedModel
from bspauc_spark.command_line import ending
from bspauc_spark.command_line.cells import is_blank, without
from bspauc_spark.command_line.features import FEATURES
from bspauc_spark.command_line.outputs import MLFLOW_SCHEMES, exists
from bspauc_spark.command_line.said import plain
from bspauc_spark.command_line.tables import FORMATS, check_present, nearest
from bspauc_spark.errors import BSPAUCError, InvalidDataError, InvalidParamError, ModelFormatError, cause, shown
from bspauc_spark.estimator import BSPAUCClassifier
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.rows.columns import quoted
from bspauc_spark.spark.persistence import read_metadata

LABEL, HELD = "bspauc__label", "bspauc__held"
# Of a column's values, an error lists so many.
_MOST_LISTED = 20
# What storage, files and the network do to a job. A worker that crashed ends its stream too, and what cannot be
# pickled is a bug: these keep their tracebacks.
_OUTSIDE = re.compile(r"(java\.(io|nio|net)|org\.apache\.(hadoop|parquet))\.(?!EOFException|NotSerializableException)")


def run(job: Callable[[], dict[str, Any]], label: str = "", options: Mapping[str, str] | None = None) -> int:
    """Run a job: its results as one line of JSON, or one line that says what is wrong, and the exit code.

    Messages name the column ``label`` and the job's ``options``, by the Params that they set.
    """
    try:
        with ending.in_order():
            results = job()
    except BSPAUCError as error:
        return ending.failed(_in_own_words(str(error), label, options))
    except AnalysisException as error:
        return ending.failed(f"{plain(error)}.")
    except (PySparkException, Py4JJavaError) as error:
        # An executor's error carries the traceback of the worker, and ours stands in its last line.
        ours = [line.strip() for line in str(error).splitlines() if line.strip().startswith("bspauc_spark.errors.")]
        if ours:
            return ending.failed(_in_own_words(ours[-1].partition(": ")[2], label, options))
        if "FAILED_READ_FILE" in str(error) or _OUTSIDE.match(cause(error)):
            return ending.failed(f"{plain(error)}.")
        raise
    print(json.dumps(results), flush=True)
    return 0


def _in_own_words(message: str, label: str, options: Mapping[str, str] | None) -> str:
    """A message of a fit or an audit with what the command line calls columns and Params."""
    names = {LABEL: f"column {label!r} (--label)", HELD: "--validation", FEATURES: "the vector of all features"}
    message = re.sub(r"column '(bspauc__\w+)'( \(\w+\))?", lambda found: names.get(found[1], found[0]), message)
    for param, option in (options or {}).items():
        message = message.replace(param, option)
    return message.replace(" before fit()", "")


def session(name: str) -> SparkSession:
    """The session that spark-submit configured."""
    interrupted = signal.getsignal(signal.SIGINT)
    SparkContext.getOrCreate(SparkConf().setAppName(name))
    if threading.current_thread() is threading.main_thread():
        # Spark would cancel its jobs over the very connection that waits for one, and show what comes of that.
        signal.signal(signal.SIGINT, interrupted)
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def add_table_arguments(parser: ArgumentParser) -> None:
    """``--input`` and ``--format``."""
    parser.add_argument("--input", required=True, metavar="PATH", help="table to read: a file or a folder of files")
    parser.add_argument("--format", choices=FORMATS, help="default: by the file's name, else parquet")
    parser.add_argument(
        "--gaps",
        nargs="+",
        default=[],
        metavar="WORD",
        help="what stands for a number that is not there, besides white space, NA, NULL and the like",
    )


def add_model_arguments(parser: ArgumentParser, written: str) -> None:
    """The arguments of a job that reads a model and a table and writes one: ``written`` says which."""
    parser.add_argument("--model", required=True, metavar="PATH", help="saved model: a path, models:/… or runs:/…")
    add_table_arguments(parser)
    parser.add_argument("--output", required=True, metavar="PATH", help=f"where {written} written")
    parser.add_argument(
        "--output-format", choices=("parquet", "csv", "delta"), help="default: by the path, else parquet"
    )
    parser.add_argument("--overwrite", action="store_true")


def parse_params(pairs: Sequence[str], file: Path | None, known: Collection[str] | None = None) -> dict[str, Any]:
    """Params from a YAML file and, before it, from ``name=value``; an unknown name is refused with the nearest one.

    ``known`` are the names that there are: those of ``BSPAUCClassifier``, if not given; where it is empty, any.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            read = yaml.safe_load(file.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidParamError(f"--params-file {file} cannot be read: {plain(error)}.") from error
        if not isinstance(read, dict):
            raise InvalidParamError(f"--params-file {file} must hold a mapping of Params to values.")
        values |= read
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidParamError(f"--param {pair}: write name=value.")
        try:
            values[name] = yaml.safe_load(text)
        except (ValueError, yaml.YAMLError) as error:
            raise InvalidParamError(f"--param {pair} is no YAML: {plain(error)}.") from error
    names = [param.name for param in BSPAUCClassifier().params] if known is None else known
    for name in values:
        if names and name not in names:
            raise InvalidParamError(f"--param {name}: there is no such Param{nearest(str(name), names)}.")
    return {name: _meant(name, value) for name, value in values.items()}


def _meant(name: str, value: Any) -> Any:
    """YAML takes 1e-3 for text, because it has no dot, and on and off for true and false."""
    if name == "tracking" and isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def numeric_label(
    frame: DataFrame, label: str, positive: str | None, gaps: Collection[str] = ()
) -> tuple[DataFrame, str]:
    """The label as 1.0 for ``positive`` and 0.0 for the rest, in the column ``LABEL``; numbers are left as they are.

    White space and ``gaps`` are no labels.
    """
    check_present(frame, [label], "--label")
    kind = frame.schema[label].dataType
    if positive is None:
        if isinstance(kind, st.BooleanType):
            return frame.withColumn(LABEL, quoted(label).cast("double")), LABEL
        if isinstance(kind, st.NumericType):
            return frame, label
        found = _values_of(frame, label).count()
        listed = ", ".join(_first(_values_of(frame, label))) + ", …" * (found > _MOST_LISTED)
        raise InvalidDataError(
            f"--label {label} holds text, {found:,} different values ({listed}): say which of them is positive by "
            "--positive."
        )
    labelled = frame.withColumn(LABEL, _is_positive(label, kind, positive, gaps).cast("double"))
    if labelled.where(sf.col(LABEL) == 1.0).isEmpty():
        known = nearest(positive, _first(_values_of(frame, label)))
        raise InvalidDataError(f"--positive {positive}: no row of --label {label} has that value{known}.")
    return labelled, LABEL


def _values_of(frame: DataFrame, label: str) -> DataFrame:
    text = quoted(label).cast("string")
    return frame.where(~is_blank(text)).select(text.alias("value")).distinct()


def _first(values: DataFrame) -> list[str]:
    return [row["value"] for row in values.orderBy("value").limit(_MOST_LISTED).collect()]


def _is_positive(label: str, kind: st.DataType, positive: str, gaps: Collection[str]) -> Column:
    """Numbers are compared as numbers, all else as text."""
    text = quoted(label).cast("string")
    if isinstance(kind, st.BooleanType) and positive.lower() in ("true", "false"):
        return text == positive.lower()
    if not isinstance(kind, (st.NumericType, st.BooleanType)):
        return sf.when(~is_blank(text), without(text, gaps)) == positive
    try:
        return quoted(label).cast("double") == float(positive)
    except ValueError as error:
        held = "true and false" if isinstance(kind, st.BooleanType) else "numbers"
        raise InvalidDataError(f"--positive {positive} is no number, but --label {label} holds {held}.") from error


def load_model(spark: SparkSession, where: str) -> PipelineModel:
    """A saved model of ours or pipeline, by its path or an MLflow URI (``models:/…``, ``runs:/…``)."""
    if where.startswith(MLFLOW_SCHEMES):
        return _from_mlflow(where)
    try:
        kind = read_metadata(spark, where)["class"]
        if kind.endswith(".BSPAUCModel"):
            return PipelineModel([BSPAUCModel.load(where)])
        if kind.endswith(".SelfPacedModel"):
            return PipelineModel([SelfPacedModel.load(where)])
        loaded = PipelineModel.load(where)
    except ModelFormatError:
        raise
    except Exception as error:
        if "[PATH_NOT_FOUND]" in str(error):
            why = "is no saved model: it has no metadata" if exists(spark, where) else "does not exist"
            raise InvalidDataError(f"--model {shown(where)} {why}.") from error
        # Spark's reader of pipelines raises whatever the file makes it stumble over, in Java too.
        raise InvalidDataError(f"--model {shown(where)} is no saved model: {plain(error)}.") from error
    return _ending_in_ours(loaded, where)


def _from_mlflow(uri: str) -> PipelineModel:
    import mlflow.spark
    from mlflow.exceptions import MlflowException

    try:
        return _ending_in_ours(mlflow.spark.load_model(uri), uri)
    except (MlflowException, OSError) as error:
        raise InvalidDataError(f"--model {shown(uri)} cannot be loaded: {plain(error)}.") from error


def _ending_in_ours(loaded: PipelineModel, where: str) -> PipelineModel:
    if not loaded.stages or not isinstance(loaded.stages[-1], BSPAUCModel | SelfPacedModel):
        raise InvalidDataError(f"--model {shown(where)} holds a pipeline whose last stage is no BSPAUCModel.")
    return loaded
