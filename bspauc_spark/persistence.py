"""Save and load a model through Spark: the usual metadata, and the model's two files as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from bspauc_spark.errors import ModelFormatError
from bspauc_spark.scorer import FORMAT_VERSION, Scorer

if TYPE_CHECKING:
    from bspauc_spark.model import BSPAUCModel

_CHUNK_BYTES = 4 << 20
_SCHEMA = "name string, part int, chunk binary"


class ModelWriter(MLWriter):
    """Writes ``metadata/`` as every Spark ML stage does, and ``data/`` as Parquet."""

    def __init__(self, model: BSPAUCModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        """Write the model to ``path``."""
        spark = _session(self)
        extra = {"formatVersion": FORMAT_VERSION}
        DefaultParamsWriter.saveMetadata(self._model, path, spark, extraMetadata=extra)
        rows = [
            (name, part, bytearray(blob[start : start + _CHUNK_BYTES]))
            for name, blob in self._model.scorer.to_blobs().items()
            for part, start in enumerate(range(0, len(blob), _CHUNK_BYTES))
        ]
        spark.createDataFrame(rows, _SCHEMA).coalesce(1).write.parquet(f"{path}/data")

    def _handleOverwrite(self, path: str) -> None:
        # The base class asks the JVM to delete the folder, and a Connect client has none.
        if is_remote():
            from pyspark.ml.connect.readwrite import RemoteMLWriter

            RemoteMLWriter.handleOverwrite(path, True)
        else:
            super()._handleOverwrite(path)


class ModelReader(MLReader[Any]):
    """Reads what ``ModelWriter`` wrote."""

    def __init__(self, cls: type[BSPAUCModel]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> BSPAUCModel:
        """Read the model at ``path``."""
        spark = _session(self)
        try:
            metadata: dict[str, Any] = DefaultParamsReader.loadMetadata(path, spark)
        except AnalysisException as error:
            raise ModelFormatError(f"no model at {path}: there is no folder metadata in it. Check the path.") from error
        wanted = f"{self._cls.__module__}.{self._cls.__name__}"
        if metadata["class"] != wanted:
            raise ModelFormatError(f"{path} holds a {metadata['class']}, not a {wanted}: load it with that class.")
        found: dict[str, bytes] = {}
        for row in spark.read.schema(_SCHEMA).parquet(f"{path}/data").orderBy("name", "part").toLocalIterator():
            found[row["name"]] = found.get(row["name"], b"") + bytes(row["chunk"])
        model = self._cls(Scorer.from_blobs(found))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


def _session(util: Any) -> SparkSession:
    spark: SparkSession = util.sparkSession
    return spark
