"""A client of Spark Connect, which shares no folder with the server by itself and cannot count its slots."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.cluster import launch
from bspauc_spark.errors import PlacementError, StagingError
from bspauc_spark.rows import staging
from tests.helpers.fits import FAST
from tests.helpers.processes import Driver, descendants, launchers, wait_for

pytestmark = pytest.mark.connect

SHARED = {"numProcesses": 2, "localMode": False}


def digest(model: BSPAUCModel) -> str:
    arrays = model.scorer.weights
    return hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def test_the_server_has_folders_of_its_own(spark: SparkSession) -> None:
    def where_am_i(batches: Any) -> Any:
        import os

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()], "temporary": [os.environ["TMPDIR"]]})

    (found,) = spark.range(1, numPartitions=1).mapInArrow(where_am_i, "folder string, temporary string").collect()
    assert found["folder"] != os.getcwd()
    assert found["temporary"] != os.environ.get("TMPDIR", "/tmp")


def test_rows_that_come_to_the_client_or_by_shared_storage_give_the_bits_of_a_classic_session(
    moons: DataFrame, tmp_path: Path
) -> None:
    collected = BSPAUCClassifier(**FAST).fit(moons)
    staged = BSPAUCClassifier(**FAST, stagingDir=str(tmp_path)).fit(moons)
    assert list(tmp_path.iterdir()) == []
    with Driver({"master": "local[2]", "steps": [{}]}) as driver:
        classic = driver.result()
    assert digest(collected) == digest(staged) == classic["digest"]


def test_too_many_rows_for_the_client_are_refused_with_advice(
    moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 4 * 6 * moons.count()
    monkeypatch.setattr(staging, "MOST_COLLECTED_BYTES", needed - 1)
    with pytest.raises(StagingError, match=r"would come to this process.* Set stagingDir to storage that this process"):
        BSPAUCClassifier(**FAST).fit(moons)
    monkeypatch.setattr(staging, "MOST_COLLECTED_BYTES", needed)
    BSPAUCClassifier(**FAST).fit(moons)


def test_a_folder_of_the_client_alone_is_refused(moons: DataFrame) -> None:
    # There, but another one for every process.
    with pytest.raises(StagingError, match=r"not shared with the executor on host .* or leave it out"):
        BSPAUCClassifier(**FAST, stagingDir="/proc/self/cwd").fit(moons)


def test_workers_on_executors_need_their_number_and_shared_storage(moons: DataFrame) -> None:
    with pytest.raises(PlacementError, match=r"executors cannot be counted. Set numProcesses"):
        BSPAUCClassifier(**FAST, localMode=False).fit(moons)
    with pytest.raises(StagingError, match=r"stagingDir is not set.* or train in this process with localMode=True"):
        BSPAUCClassifier(**FAST, **SHARED).fit(moons)


@pytest.mark.alone
def test_workers_on_executors_and_beside_the_client_learn_the_same(moons: DataFrame, tmp_path: Path) -> None:
    far = BSPAUCClassifier(**FAST, **SHARED, stagingDir=str(tmp_path)).fit(moons)
    assert list(tmp_path.iterdir()) == []
    near = BSPAUCClassifier(**FAST, numProcesses=2).fit(moons)
    assert digest(far) == digest(near)
    wait_for(lambda: not launchers(descendants(os.getpid())), 10, "worker processes to end")


@pytest.mark.alone
def test_workers_that_do_not_get_ready_are_given_up_with_a_clear_message(
    moons: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_READY_SECONDS", 4.0)
    started = time.monotonic()
    with pytest.raises(PlacementError, match=r"3 workers were not ready after .* fewer than numProcesses 3"):
        BSPAUCClassifier(**FAST, stagingDir=str(tmp_path), numProcesses=3, localMode=False).fit(moons)
    assert time.monotonic() - started < 60
    assert list(tmp_path.iterdir()) == []
    # Nothing holds the slots now.
    assert moons.count() > 0
