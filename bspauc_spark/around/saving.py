"""Saving and loading: metadata as every stage of Spark ML has, and a folder for each stage inside."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLWritable
from pyspark.sql import SparkSession

from bspauc_spark.around.judged import Judged
from bspauc_spark.around.summary import SelfPacedSummary
from bspauc_spark.errors import InvalidParamError, MalformedError, ModelFormatError, shown
from bspauc_spark.schema import flag, many, maybe, real, record, whole, within
from bspauc_spark.spark import persistence
from bspauc_spark.spark.persistence import StageReader, read_metadata

_VERSION = 1
# What a saved stage may be without having been imported before: loading imports and calls what a file names.
_KNOWN = ("pyspark.ml.", "bspauc_spark.", "xgboost.spark.", "synapse.ml.")
_INSIDE = ("classifier", "classifiers")


class _Writer(persistence.ModelWriter, ABC):
    """Writes a stage with other stages in it; with ``overwrite``, what is there goes when the new one is complete."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        super().__init__(stage, None)  # type: ignore[arg-type]

    def saveImpl(self, path: str) -> None:
        """Write the stages inside first, then the metadata without which nothing is loaded."""
        spark: SparkSession = self.sparkSession
        for name, stage in self._stages():
            if not isinstance(stage, MLWritable):
                raise InvalidParamError(f"{type(stage).__name__} cannot be saved, so neither can what holds it.")
            stage.write().session(spark).save(f"{path}/{name}")
        params = {p.name: value for p, value in self._stage._paramMap.items() if p.name not in _INSIDE}
        DefaultParamsWriter.saveMetadata(self._stage, path, spark, extraMetadata=self._extra(), paramMap=params)

    @abstractmethod
    def _stages(self) -> Iterator[tuple[str, Any]]:
        """The stages inside, by the name of their folder."""

    @abstractmethod
    def _extra(self) -> dict[str, Any]:
        """What the metadata hold beside the Params."""


class EstimatorWriter(_Writer):
    """Writes a ``SelfPacedClassifier``."""

    def _stages(self) -> Iterator[tuple[str, Any]]:
        one, several = self._stage.getClassifier(), self._stage.getClassifiers()
        for place, stage in enumerate([one] if one is not None else several or []):
            yield f"classifiers/{place}", stage

    def _extra(self) -> dict[str, Any]:
        several = self._stage.getClassifiers()
        return {
            "selfPaced": {
                "formatVersion": _VERSION,
                "several": several is not None,
                "classifiers": len(list(self._stages())),
            }
        }


class ModelWriter(_Writer):
    """Writes a ``SelfPacedModel``."""

    def _stages(self) -> Iterator[tuple[str, Any]]:
        for place, model in enumerate(self._stage.models):
            yield f"models/{place}", model
        for fold, models in enumerate(self._stage.foldModels):
            for place, model in enumerate(models):
                yield f"foldModels/{fold}/{place}", model

    def _extra(self) -> dict[str, Any]:
        stage = self._stage
        return {
            "selfPaced": {
                "formatVersion": _VERSION,
                "models": len(stage.models),
                "foldModels": [len(some) for some in stage.foldModels],
                "judged": stage.judged.to_dict() if stage.judged else None,
                "summary": stage.summary.to_dict(),
                "ensemble": stage.ensemble,
                "foldValues": list(stage._fold_values),
                "numFeatures": stage.numFeatures,
                "seed": stage._seed,
            }
        }


_ESTIMATOR = record({"formatVersion": whole(1), "several": flag, "classifiers": whole(0, 100)})
_MODEL = record(
    {
        "formatVersion": whole(1),
        "models": whole(0, 100),
        "foldModels": many(whole(0, 100), most=100),
        "judged": maybe(Judged.from_dict),
        "summary": SelfPacedSummary.from_dict,
        "ensemble": flag,
        "foldValues": many(real()),
        "numFeatures": whole(),
        "seed": real(),
    }
)


class EstimatorReader(StageReader):
    """Reads what ``EstimatorWriter`` wrote."""

    def _restore(self, spark: SparkSession, path: str, metadata: dict[str, Any]) -> Any:
        stage = super()._restore(spark, path, metadata)
        stored = _extra(spark, path, _ESTIMATOR)
        stages = _loaded(spark, path, (f"classifiers/{place}" for place in range(stored["classifiers"])))
        if stored["several"]:
            return stage.setClassifiers(stages)
        return stage.setClassifier(stages[0]) if stages else stage


class ModelReader(StageReader):
    """Reads what ``ModelWriter`` wrote."""

    def _restore(self, spark: SparkSession, path: str, metadata: dict[str, Any]) -> Any:
        stage = super()._restore(spark, path, metadata)
        stored = _extra(spark, path, _MODEL)
        models = _loaded(spark, path, (f"models/{place}" for place in range(stored["models"])))
        of_folds = [
            _loaded(spark, path, (f"foldModels/{fold}/{place}" for place in range(count)))
            for fold, count in enumerate(stored["foldModels"])
        ]
        judged, summary = stored["judged"], stored["summary"]
        folds = [int(value) for value in stored["foldValues"]]
        found = type(stage)(
            models, of_folds, judged, summary, stored["ensemble"], folds, stored["numFeatures"], int(stored["seed"])
        )
        found._resetUid(stage.uid)
        return stage._copyValues(found)


def _extra(spark: SparkSession, path: str, check: Any) -> dict[str, Any]:
    with within("metadata"):
        described = read_metadata(spark, path)
        if "selfPaced" not in described:
            raise MalformedError("selfPaced is missing")
        if described["selfPaced"].get("formatVersion", 0) > _VERSION:
            raise ModelFormatError(f"{shown(path)} was written by a newer version of this package. Install that.")
        stored: dict[str, Any] = check(described["selfPaced"], "selfPaced")
    return stored


def _loaded(spark: SparkSession, path: str, names: Iterable[str]) -> list[Any]:
    return [_load(spark, f"{path}/{name}") for name in names]


def _load(spark: SparkSession, path: str) -> Any:
    """The stage at ``path``, of a class that is known or imported: no other one is imported for a file's sake."""
    named = str(DefaultParamsReader.loadMetadata(path, spark)["class"]).replace("org.apache.spark", "pyspark")
    module, _, name = named.rpartition(".")
    if module not in sys.modules and not named.startswith(_KNOWN):
        raise ModelFormatError(
            f"{shown(path)} holds a {named}, whose module is not imported. If you trust it, import it and load again."
        )
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, MLReadable)):
        raise ModelFormatError(f"{shown(path)} holds a {named}, which is no stage that can be loaded.")
    return found.read().session(spark).load(path)
