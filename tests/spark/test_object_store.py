"""Staged rows, the talk with the workers and checkpoints behind a real S3 API."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from bspauc_spark import BSPAUCClassifier, BSPAUCModel, algorithm
from bspauc_spark.cluster.protocol import Scores
from bspauc_spark.errors import CheckpointError, StagingError
from bspauc_spark.selection import Selection
from tests.helpers.fits import FAST, same_bits
from tests.helpers.leaks import told
from tests.helpers.servers import ObjectStore, object_store

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


def fit_in_two_goes(estimator: BSPAUCClassifier, data: DataFrame, monkeypatch: pytest.MonkeyPatch) -> BSPAUCModel:
    """A fit that is interrupted in its second round, and begun again."""
    select = algorithm.select

    def stop_in_round_2(pace: Any, t: int, scores: Scores, previous: Selection | None) -> Selection:
        if t == 2:
            raise KeyboardInterrupt
        return select(pace, t, scores, previous)

    with monkeypatch.context() as patch:
        patch.setattr(algorithm, "select", stop_in_round_2)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(data)
    return estimator.fit(data)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_fit_and_its_resumption_there_give_the_bits_of_a_fit_on_disk(
    processes: int,
    moons: DataFrame,
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="bspauc_spark")
    # What is copied to this machine's disk must be gone, too.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    estimator = BSPAUCClassifier(**FAST, numProcesses=processes)
    disk = estimator.fit(moons)
    before = store.requests()
    where = {estimator.stagingDir: store.uri("staging"), estimator.checkpointDir: store.uri("saved/rounds")}
    away = fit_in_two_goes(estimator.copy(where), moons, monkeypatch)
    requests = store.requests() - before
    out, err = capfd.readouterr()
    with capfd.disabled():
        print(f" [{processes or 'no'} worker processes: {requests} requests for two fits] ", end="")
    assert same_bits(away, disk)
    assert store.keys() == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bspauc")] == []
    assert requests < 600
    about = away.summary.about["params"]
    assert (about["stagingDir"], about["checkpointDir"]) == ("s3://bucket/staging", "s3://bucket/saved/rounds")
    assert "round 1" in caplog.text
    assert not told(out + err + caplog.text + str(away.summary.about))


def test_a_bucket_that_is_not_there_is_named_before_anything_long(moons: DataFrame, store: ObjectStore) -> None:
    nowhere = store.uri("x").replace("bucket", "nowhere")
    with pytest.raises(StagingError, match="stagingDir 's3://nowhere/x' cannot be written") as caught:
        BSPAUCClassifier(**FAST, stagingDir=nowhere).fit(moons)
    assert not told(str(caught.value))
    with pytest.raises(CheckpointError, match="checkpointDir 's3://nowhere/x' cannot be written") as caught:
        BSPAUCClassifier(**FAST, checkpointDir=nowhere).fit(moons)
    assert not told(str(caught.value))
