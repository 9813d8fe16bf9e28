"""Models of any size can be saved, and an old one goes only when the new one is complete."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.ml.util import DefaultParamsWriter
from pyspark.sql import SparkSession

from bspauc_spark import BSPAUCModel
from bspauc_spark.errors import InvalidParamError, PlacementError
from tests.helpers.models import scorer

# Weights of a square layer: 36 million, 144 MB.
WIDE = 6000


def small_model() -> BSPAUCModel:
    return BSPAUCModel(scorer("mlp"))


def large_model() -> BSPAUCModel:
    found = scorer("mlp")
    spec = dataclasses.replace(found.spec, hidden_layers=(WIDE, WIDE))
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(WIDE))
        for name, shape in spec.shapes().items()
    }
    return BSPAUCModel(dataclasses.replace(found, spec=spec, weights=weights))


@pytest.mark.everywhere
@pytest.mark.thorough
def test_a_model_beyond_what_one_task_may_hold_is_saved_and_loaded(spark: SparkSession, tmp_path: Path) -> None:
    model, path = large_model(), str(tmp_path / "model")
    for _ in range(2):
        model.write().overwrite().save(path)
    loaded = BSPAUCModel.load(path)
    assert loaded.scorer.to_blobs() == model.scorer.to_blobs()
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


@pytest.mark.everywhere
def test_a_save_that_fails_leaves_the_model_that_was_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "model")
    old = small_model()
    old.save(path)

    def no_room(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    new = old.copy().setPredictionCol("other")
    with monkeypatch.context() as patch:
        patch.setattr(DefaultParamsWriter, "saveMetadata", no_room)
        with pytest.raises(OSError, match="No space left"):
            new.write().overwrite().save(path)
    assert [one.name for one in tmp_path.iterdir()] == ["model"]
    assert BSPAUCModel.load(path).getPredictionCol() == "prediction"
    new.write().overwrite().save(path)
    assert BSPAUCModel.load(path).getPredictionCol() == "other"
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_what_a_failed_save_left_is_no_obstacle_to_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = str(tmp_path / "model"), small_model()

    def lost(*_: object, **__: object) -> None:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(DefaultParamsWriter, "saveMetadata", lost)
        with pytest.raises(OSError, match="connection lost"):
            model.save(path)
    model.save(path)
    assert BSPAUCModel.load(path).scorer.to_blobs() == model.scorer.to_blobs()


def test_a_taken_path_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    small_model().save(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidParamError, match=r"model already exists\. Save with write\(\)\.overwrite\(\)"):
        small_model().save(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.connect
def test_a_model_larger_than_a_message_of_spark_connect_is_refused_before_the_job(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(Vectors.dense(range(20)), 1.0)], ["features", "label"])
    for call in (large_model().transform, large_model().audit):
        with pytest.raises(PlacementError, match=r"the model has 13\d MiB, and a message of Spark Connect .* 128 MiB"):
            call(rows)
