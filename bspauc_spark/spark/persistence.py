"""Save and load a model through Spark: the usual metadata, and the model's two files as a small table."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from bspauc_spark.errors import InvalidParamError, MalformedError, ModelFormatError, StagingError, cause, shown
from bspauc_spark.saved import FORMAT_VERSION, JSON_NAME, WEIGHTS_NAME, named, reading
from bspauc_spark.schema import brief, mapping, parse, plain, record, text, within
from bspauc_spark.scorer import Scorer
from bspauc_spark.spark.session import is_connect

_CHUNK_BYTES, _CHUNKS_PER_JOB = 4 << 20, 4
_MOST_METADATA_BYTES = 1 << 20
_SCHEMA = "name string, part int, chunk binary"
# Bytes of all chunks: so many are always read, more where the file is not much smaller. Weights hardly compress.
_ALWAYS_READ, _MOST_COMPRESSION = 64 << 20, 100


class ModelWriter(MLWriter):
    """Writes ``metadata/`` as every Spark ML stage does, and ``data/`` as Parquet."""

    def __init__(self, model: Model, scorer: Scorer) -> None:
        super().__init__()
        self._model, self._scorer = model, scorer

    def save(self, path: str) -> None:
        """Write the model to ``path``; with ``overwrite``, what is there goes only when the new model is complete."""
        spark = _session(self)
        if not self.shouldOverwrite:
            _refuse_taken(spark, path)
            self.saveImpl(path)
            return
        beside = f"{path.rstrip('/')}-{uuid.uuid4().hex}"
        try:
            self.saveImpl(beside)
        except BaseException:
            with contextlib.suppress(Exception):
                self._handleOverwrite(beside)
            raise
        self._handleOverwrite(path)
        if is_connect(spark):
            # A client cannot move a folder of the server's: written twice, the model is whole somewhere all the time.
            self.saveImpl(path)
            self._handleOverwrite(beside)
        else:
            _move(spark, beside, path)

    def saveImpl(self, path: str) -> None:
        """Write the model to ``path``: first its data, then the metadata without which nothing is loaded."""
        spark = _session(self)
        mode = "overwrite"
        for chunks in self._slices():
            # A job for each: one task with all of them would be more than an executor may get.
            spark.createDataFrame(chunks, _SCHEMA).coalesce(1).write.mode(mode).parquet(f"{path}/data")
            mode = "append"
        extra = {"formatVersion": FORMAT_VERSION}
        DefaultParamsWriter.saveMetadata(self._model, path, spark, extraMetadata=extra)

    def _slices(self) -> Iterator[list[tuple[str, int, bytearray]]]:
        rows = (
            (name, part, bytearray(blob[start : start + _CHUNK_BYTES]))
            for name, blob in self._scorer.to_blobs().items()
            for part, start in enumerate(range(0, len(blob), _CHUNK_BYTES))
        )
        while some := list(islice(rows, _CHUNKS_PER_JOB)):
            yield some

    def _handleOverwrite(self, path: str) -> None:
        # The base class asks the JVM to delete the folder, and a Connect client has none.
        if is_connect(_session(self)):
            from pyspark.ml.connect.readwrite import RemoteMLWriter

            RemoteMLWriter.handleOverwrite(path, True)
        else:
            super()._handleOverwrite(path)


def _refuse_taken(spark: SparkSession, path: str) -> None:
    """Refuse a path where a stage is saved already."""
    try:
        spark.read.text(f"{path}/metadata").first()
    except PySparkException as error:
        if "PATH_NOT_FOUND" in str(error):
            return
        raise
    raise InvalidParamError(
        f"{shown(path)} already exists. Save with write().overwrite().save(path), or give another path."
    )


def _move(spark: SparkSession, source: str, target: str) -> None:
    """Rename a folder on whatever storage Hadoop knows."""
    jvm: Any = spark.sparkContext._jvm
    old, new = (jvm.org.apache.hadoop.fs.Path(path) for path in (source, target))
    if not old.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).rename(old, new):
        raise StagingError(
            f"the model is complete in {shown(source)}, but cannot be renamed to {shown(target)}. Move it."
        )


class StageReader(MLReader[Any]):
    """Reads a stage that is its Params and no more, such as the estimator.

    Spark's own reader imports and calls whatever class the file names.
    """

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Read the stage at ``path``."""
        with _reading(path):
            return self._restore(_session(self), path, _metadata(_session(self), path, self._cls))

    def _restore(self, spark: SparkSession, path: str, metadata: dict[str, Any]) -> Any:
        return _with_params(self._cls(), metadata)


class ModelReader(StageReader):
    """Reads what ``ModelWriter`` wrote."""

    def _restore(self, spark: SparkSession, path: str, metadata: dict[str, Any]) -> Any:
        scorer = Scorer.from_blobs(_blobs(spark, f"{path}/data"), named(path))
        model = _with_params(self._cls(scorer), metadata)
        # Asked for now, so that it is refused now.
        with within(JSON_NAME):
            _ = model.summary
        return model


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn whatever Spark or we find wrong with a saved stage into an error about it."""
    try:
        with reading(named(path)):
            yield
    except (PySparkException, Py4JError) as error:
        if "PATH_NOT_FOUND" in str(error):
            raise ModelFormatError(
                f"{named(path)} is not there, or lacks its folders metadata and data. Check the path."
            ) from error
        raise ModelFormatError(f"{named(path)} cannot be read: {cause(error)}") from error


_METADATA = {
    "class": text(),
    "uid": text(),
    "sparkVersion": text(),
    "paramMap": mapping(plain),
    "defaultParamMap": mapping(plain),
}
# A pipeline makes a folder's name of it when it is saved again.
_UID = re.compile(r"[\w.-]{1,200}", re.ASCII)


def _any(value: Any, where: str) -> Any:
    return value


def read_metadata(spark: SparkSession, path: str) -> Any:
    """What the first line of a saved stage's metadata says; of a longer one Spark would make one text first."""
    lines = spark.read.option("mapreduce.input.linerecordreader.line.maxlength", _MOST_METADATA_BYTES)
    row = lines.text(f"{path}/metadata").first()
    return parse((row[0] or "").encode() if row is not None else b"")


def _metadata(spark: SparkSession, path: str, cls: type[Any]) -> dict[str, Any]:
    with within("metadata"):
        described = read_metadata(spark, path)
        # Spark may add names of its own.
        known = {name: value for name, value in mapping(_any)(described, "").items() if name in _METADATA}
        metadata: dict[str, Any] = record(_METADATA)(known, "")
        if not _UID.fullmatch(metadata["uid"]):
            raise MalformedError("uid must be letters, digits, '_', '-' and '.'")
    wanted = f"{cls.__module__}.{cls.__name__}"
    if metadata["class"] != wanted:
        found = brief(metadata["class"])[1:-1]
        raise ModelFormatError(f"{shown(path)} holds a {found}, not a {wanted}: load it with that class.")
    return metadata


def _with_params(stage: Any, metadata: dict[str, Any]) -> Any:
    stage._resetUid(metadata["uid"])
    with within("metadata"):
        try:
            DefaultParamsReader.getAndSetParams(stage, metadata)
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedError(f"a Param that this version does not take: {brief(str(error), 300)[1:-1]}") from error
    return stage


def _blobs(spark: SparkSession, path: str) -> dict[str, bytes]:
    """The model's files out of their table, counted first: a few bytes of Parquet can stand for any number."""
    rows = spark.read.schema(_SCHEMA).parquet(path)
    ours = sf.col("name").isin(JSON_NAME, WEIGHTS_NAME)
    counted = rows.agg(sf.count("*"), sf.count_if(ours), sf.coalesce(sf.max("_metadata.file_size"), sf.lit(0))).first()
    assert counted is not None
    count, known, stored = counted
    with within("data"):
        most = max(_ALWAYS_READ, _MOST_COMPRESSION * stored) // _CHUNK_BYTES + 2
        if known < count or count > most:
            raise MalformedError(f"{count:,} chunks in {stored:,} bytes are not those of a model")
        found: dict[str, list[bytes]] = {}
        whole = rows.where(sf.length("chunk") <= _CHUNK_BYTES).orderBy("name", "part")
        for name, part, chunk in whole.toLocalIterator():
            chunks = found.setdefault(name, [])
            if part != len(chunks):
                raise MalformedError(f"{name} lacks its chunk {len(chunks)}, or has it twice")
            chunks.append(bytes(chunk))
        if sum(map(len, found.values())) < count:
            raise MalformedError(f"a chunk without bytes, or of more than {_CHUNK_BYTES:,}")
    return {name: b"".join(chunks) for name, chunks in found.items()}


def _session(util: Any) -> SparkSession:
    spark: SparkSession = util.sparkSession
    return spark
