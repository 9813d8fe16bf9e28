"""What the jobs share: reading and writing tables, features from columns, Params from the command line, exit codes."""

from __future__ import annotations

import difflib
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.ml import PipelineModel, Transformer
from pyspark.ml.feature import Imputer, OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.columns import quoted
from bspauc_spark.errors import BSPAUCError, InvalidDataError, InvalidParamError, ModelFormatError
from bspauc_spark.estimator import BSPAUCClassifier
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.persistence import cause, read_metadata
from bspauc_spark.workers.storage import shown

FORMATS = ("parquet", "csv", "libsvm", "delta")
LABEL = "bspauc__label"
_SUFFIXES = {".csv": "csv", ".gz": "csv", ".libsvm": "libsvm", ".svm": "libsvm", ".parquet": "parquet"}


def run(job: Callable[[], dict[str, Any]]) -> int:
    """Run a job: its results as one line of JSON, or one line that says what is wrong, and the exit code."""
    try:
        results = job()
    except BSPAUCError as error:
        return _failed(str(error))
    except AnalysisException as error:
        return _failed(cause(error))
    except PySparkException as error:
        # An executor's error carries the traceback of the worker, and ours stands in its last line.
        ours = [line.strip() for line in str(error).splitlines() if line.strip().startswith("bspauc_spark.errors.")]
        if not ours:
            raise
        return _failed(ours[-1].partition(": ")[2])
    print(json.dumps(results))
    return 0


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


def session(name: str) -> SparkSession:
    """The session that spark-submit configured."""
    spark = SparkSession.builder.appName(name).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def add_table_arguments(parser: ArgumentParser) -> None:
    """``--input`` and ``--format``."""
    parser.add_argument("--input", required=True, metavar="PATH", help="table to read: a file or a folder of files")
    parser.add_argument("--format", choices=FORMATS, help="default: by the file's name, else parquet")


def add_model_arguments(parser: ArgumentParser, written: str) -> None:
    """The arguments of a job that reads a model and a table and writes one: ``written`` says which."""
    parser.add_argument("--model", required=True, metavar="PATH", help="saved model: a path, models:/… or runs:/…")
    add_table_arguments(parser)
    parser.add_argument("--output", required=True, metavar="PATH", help=f"where {written} written")
    parser.add_argument(
        "--output-format", choices=("parquet", "csv", "delta"), help="default: by the path, else parquet"
    )
    parser.add_argument("--overwrite", action="store_true")


def format_of(path: str, given: str | None) -> str:
    """The format of a table: as given, or by its name."""
    return given or _SUFFIXES.get(Path(path).suffix.lower(), "parquet")


def read_table(spark: SparkSession, path: str, table_format: str | None) -> DataFrame:
    """Parquet, CSV with a header, LIBSVM or Delta."""
    chosen = format_of(path, table_format)
    reader = spark.read.format(chosen)
    if chosen == "csv":
        reader = reader.options(header=True, inferSchema=True)
    try:
        frame = reader.load(path)
    except PySparkException as error:
        raise InvalidDataError(f"--input {shown(path)} cannot be read as {chosen}: {cause(error)}") from error
    return frame


def write_table(frame: DataFrame, path: str, table_format: str | None, overwrite: bool) -> None:
    """Write a table; CSV as text with a header."""
    chosen = format_of(path, table_format)
    writer = frame.write.format(chosen).mode("overwrite" if overwrite else "errorifexists")
    (writer.option("header", True) if chosen == "csv" else writer).save(path)


def check_absent(spark: SparkSession, path: str, option: str, overwrite: bool) -> None:
    """Refuse an output that exists, before anything long starts."""
    jvm: Any = spark.sparkContext._jvm
    try:
        place = jvm.org.apache.hadoop.fs.Path(path)
        exists = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(place)
    except Py4JJavaError as error:
        raise InvalidDataError(f"{option} {shown(path)} cannot be written: {cause(error)}") from error
    if exists and not overwrite:
        raise InvalidDataError(f"{option} {shown(path)} exists already. Give another path, or --overwrite.")


def check_columns(frame: DataFrame, names: Iterable[str], option: str) -> None:
    """Refuse names of columns that are not there, with the nearest that is."""
    for name in names:
        if name not in frame.columns:
            raise InvalidDataError(f"{option} {name}: there is no such column{_nearest(name, frame.columns)}.")


def check_free(frame: DataFrame, names: Iterable[str]) -> None:
    """Refuse a table that has a column which is to be added."""
    for name in names:
        if name in frame.columns:
            raise InvalidDataError(f"--input has a column {name} already: rename it.")


def plain_columns(frame: DataFrame) -> list[str]:
    """Columns that any format can hold: no vectors, arrays or structs."""
    return [field.name for field in frame.schema.fields if isinstance(field.dataType, st.AtomicType)]


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {close[0]}" if close else f"; there are {', '.join(known[:20])}"


def parse_params(pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Params from a YAML file and, before it, from ``name=value``; an unknown name is refused with the nearest one."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            read = yaml.safe_load(file.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidParamError(f"--params-file {file} cannot be read: {cause(error)}") from error
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
            raise InvalidParamError(f"--param {pair} is no YAML: {cause(error)}.") from error
    known = [param.name for param in BSPAUCClassifier().params]
    for name in values:
        if name not in known:
            raise InvalidParamError(f"--param {name}: there is no such Param{_nearest(str(name), known)}.")
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    """YAML takes 1e-3 for text, because it has no dot."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def numeric_label(frame: DataFrame, label: str, positive: str | None) -> tuple[DataFrame, str]:
    """The label as 1.0 for ``positive`` and 0.0 for the rest, in the column ``LABEL``; numbers are left as they are."""
    check_columns(frame, [label], "--label")
    numeric = isinstance(frame.schema[label].dataType, (st.NumericType, st.BooleanType))
    if positive is None and numeric:
        if isinstance(frame.schema[label].dataType, st.BooleanType):
            return frame.withColumn(LABEL, quoted(label).cast("double")), LABEL
        return frame, label
    if positive is None:
        found = frame.select(quoted(label)).distinct().count()
        raise InvalidDataError(
            f"--label {label} holds text, {found:,} different values: say which of them is positive by --positive."
        )
    is_positive = quoted(label).cast("string") == positive
    if numeric:
        try:
            is_positive = quoted(label).cast("double") == float(positive)
        except ValueError as error:
            raise InvalidDataError(f"--positive {positive} is no number, but --label {label} holds numbers.") from error
    labelled = frame.withColumn(LABEL, is_positive.cast("double"))
    if labelled.where(sf.col(LABEL) == 1.0).isEmpty():
        raise InvalidDataError(f"--positive {positive}: no row of --label {label} has that value.")
    return labelled, LABEL


def feature_columns(frame: DataFrame, named: Sequence[str] | None, not_features: Iterable[str]) -> list[str]:
    """The columns to learn from: those named, or all but ``not_features``."""
    if named:
        check_columns(frame, named, "--features")
        return list(named)
    left_out = set(not_features)
    chosen = [name for name in frame.columns if name not in left_out]
    if not chosen:
        raise InvalidDataError("no column is left to learn from.")
    return chosen


def feature_stages(
    frame: DataFrame, names: Sequence[str], categorical: Sequence[str], impute: str, most_categories: int
) -> tuple[list[Any], str]:
    """Pipeline stages from columns to one vector, and its name.

    Text is encoded, numbers are imputed and scaled; what has no other values than 0 and 1 stays so.
    """
    types = {name: frame.schema[name].dataType for name in names}
    if len(names) == 1 and isinstance(types[names[0]], (VectorUDT, st.ArrayType)):
        return [], names[0]
    texts = [name for name, kind in types.items() if isinstance(kind, st.StringType) or name in categorical]
    numbers = [name for name, kind in types.items() if isinstance(kind, st.NumericType) and name not in texts]
    others = [n for n, kind in types.items() if n not in texts + numbers and not isinstance(kind, _TAKEN)]
    if others:
        kind = types[others[0]].simpleString()
        raise InvalidDataError(
            f"column {others[0]} has type {kind}, from which no feature is made. Convert it, or --exclude it."
        )
    _check_categories(frame, texts, most_categories)
    stages: list[Any] = []
    inputs = {name: name for name in names}
    gaps, flags = _gaps_and_flags(frame, numbers)
    if gaps and impute == "error":
        raise InvalidDataError(
            f"column {gaps[0]} has missing values, as have {len(gaps) - 1} others. Fill them, or --impute median."
        )
    if gaps:
        inputs |= {name: f"{name}__imputed" for name in gaps}
        stages.append(Imputer(inputCols=gaps, outputCols=[inputs[name] for name in gaps], strategy=impute))
    if texts:
        indexed, encoded = ([f"{name}__{kind}" for name in texts] for kind in ("index", "onehot"))
        inputs |= dict(zip(texts, encoded, strict=True))
        stages.append(StringIndexer(inputCols=texts, outputCols=indexed, handleInvalid="keep"))
        stages.append(OneHotEncoder(inputCols=indexed, outputCols=encoded, dropLast=False))
    # A rare category or flag is left as 0 and 1: scaled to 0 and 30 it would be learned by heart.
    unscaled = {*texts, *flags, *(name for name, kind in types.items() if isinstance(kind, st.BooleanType))}
    scaled = [inputs.pop(name) for name in names if name not in unscaled]
    if scaled:
        stages.append(VectorAssembler(inputCols=scaled, outputCol="bspauc__numbers"))
        stages.append(StandardScaler(inputCol="bspauc__numbers", outputCol="bspauc__scaled", withMean=True))
    parts = ["bspauc__scaled"] * bool(scaled) + list(inputs.values())
    stages.append(VectorAssembler(inputCols=parts, outputCol="bspauc__features"))
    return stages, "bspauc__features"


_TAKEN = (st.BooleanType, VectorUDT)


def _check_categories(frame: DataFrame, texts: list[str], most: int) -> None:
    if not texts:
        return
    counts = frame.select(*(sf.approx_count_distinct(quoted(name)).alias(name) for name in texts)).first()
    assert counts is not None
    for name in texts:
        if counts[name] > most:
            raise InvalidDataError(
                f"column {name} has about {counts[name]:,} different values, too many to encode. Leave it out by "
                f"--exclude, or raise --max-categories above {most:,}."
            )


def _gaps_and_flags(frame: DataFrame, numbers: list[str]) -> tuple[list[str], list[str]]:
    """The number columns with missing values, and those with no other values than 0 and 1."""
    if not numbers:
        return [], []
    columns = [quoted(name).cast("double") for name in numbers]
    gaps = [sf.max(column.isNull() | sf.isnan(column)) for column in columns]
    others = [sf.max(~column.isin(0.0, 1.0) & ~sf.isnan(column)) for column in columns]
    found = frame.select(*gaps, *others).first()
    assert found is not None
    has_gaps, has_others = found[: len(numbers)], found[len(numbers) :]
    return (
        [name for name, gap in zip(numbers, has_gaps, strict=True) if gap],
        [name for name, other in zip(numbers, has_others, strict=True) if not other],
    )


def load_model(spark: SparkSession, where: str) -> PipelineModel:
    """A saved ``BSPAUCModel`` or pipeline, by its path or an MLflow URI (``models:/…``, ``runs:/…``)."""
    if where.startswith(("models:/", "runs:/", "mlflow-artifacts:/")):
        return _from_mlflow(where)
    try:
        kind = read_metadata(spark, where)["class"]
        if kind.endswith(".BSPAUCModel"):
            return PipelineModel([BSPAUCModel.load(where)])
        loaded = PipelineModel.load(where)
    except ModelFormatError:
        raise
    except Exception as error:
        # Spark's reader of pipelines raises whatever the file makes it stumble over, in Java too.
        raise InvalidDataError(f"--model {shown(where)} is no saved model: {cause(error)}") from error
    return _ending_in_ours(loaded, where)


def _from_mlflow(uri: str) -> PipelineModel:
    import mlflow.spark
    from mlflow.exceptions import MlflowException

    try:
        return _ending_in_ours(mlflow.spark.load_model(uri), uri)
    except (MlflowException, OSError) as error:
        raise InvalidDataError(f"--model {shown(uri)} cannot be loaded: {cause(error)}") from error


def _ending_in_ours(loaded: PipelineModel, where: str) -> PipelineModel:
    if not loaded.stages or not isinstance(loaded.stages[-1], BSPAUCModel):
        raise InvalidDataError(f"--model {shown(where)} holds a pipeline whose last stage is no BSPAUCModel.")
    return loaded


def prepared(model: PipelineModel, frame: DataFrame) -> tuple[BSPAUCModel, DataFrame]:
    """The last stage, and the rows as they come to it."""
    *before, last = model.stages
    assert isinstance(last, BSPAUCModel)
    stages: list[Transformer] = list(before)
    for stage in stages:
        for column in _inputs(stage):
            if column not in frame.columns:
                raise InvalidDataError(f"the model reads a column {column}, which --input does not have.")
        frame = stage.transform(frame)
    return last, frame


def _inputs(stage: Any) -> list[str]:
    if stage.hasParam("inputCols") and stage.isSet("inputCols"):
        return list(stage.getInputCols())
    return [stage.getInputCol()] if stage.hasParam("inputCol") and stage.isSet("inputCol") else []
