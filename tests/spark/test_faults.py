"""Storage that fails, and many fits at once or one after the other: nothing is lost, mixed up or left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.errors import CheckpointError, StagingError, WorkerError
from tests.conftest import FAST
from tests.processes import Driver
from tests.spark.test_distributed import SLOW, same_bits, while_fitting

pytestmark = pytest.mark.alone


def test_a_full_disk_in_staging_is_named_and_left_empty(moons: DataFrame, mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=40k")
    with pytest.raises(StagingError, match=r"cannot be written to stagingDir .* on host .*No space left on device"):
        BSPAUCClassifier(**FAST, stagingDir=str(disk)).fit(moons)
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_while_workers_train_is_named(moons: DataFrame, mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=2m")

    def fill() -> None:
        with contextlib.suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    finish = while_fitting(1, fill)
    with pytest.raises((StagingError, WorkerError), match="No space left on device"):
        BSPAUCClassifier(**SLOW, numProcesses=2, stagingDir=str(disk)).fit(moons)
    finish()
    assert [path.name for path in disk.iterdir()] == ["others"]


def test_a_folder_that_may_not_be_written_is_refused_before_the_rows_move(
    moons: DataFrame, mounted: Callable[[str], Path]
) -> None:
    disk = str(mounted("ro"))
    with pytest.raises(StagingError, match="cannot be written by the driver: Read-only file system"):
        BSPAUCClassifier(**FAST, stagingDir=disk).fit(moons)
    with pytest.raises(CheckpointError, match=r"checkpointDir .* cannot be written: Read-only file system"):
        BSPAUCClassifier(**FAST, checkpointDir=disk).fit(moons)


def test_checkpoints_that_find_no_room_cost_no_round(
    moons: DataFrame, mounted: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    disk = mounted("size=12k")
    model = BSPAUCClassifier(**FAST, checkpointDir=str(disk)).fit(moons)
    assert "round 1 was not saved in checkpointDir" in caplog.text
    assert "No space left on device" in caplog.text
    assert same_bits(model, BSPAUCClassifier(**FAST).fit(moons))
    assert list(disk.iterdir()) == []


@pytest.fixture(scope="module")
def alone(moons: DataFrame) -> dict[int, BSPAUCModel]:
    """Models of two seeds, each fitted while nothing else was."""
    return {seed: BSPAUCClassifier(**FAST, seed=seed).fit(moons) for seed in (0, 1)}


def test_fits_in_threads_of_one_session_are_those_of_fits_alone(
    moons: DataFrame, alone: dict[int, BSPAUCModel]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: BSPAUCClassifier(**FAST, seed=seed).fit(moons), (0, 1, 0, 1)))
    for seed, model in zip((0, 1, 0, 1), found, strict=True):
        assert same_bits(model, alone[seed])


def test_fits_that_wait_for_each_others_slots_both_end(moons: DataFrame) -> None:
    def fit(seed: int) -> BSPAUCModel:
        return BSPAUCClassifier(**FAST, seed=seed, numProcesses=2, localMode=False).fit(moons)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fit, (0, 0))
    assert same_bits(first, second)


def test_two_drivers_share_a_staging_folder(tmp_path: Path) -> None:
    asked = {"master": "local[1]", "steps": [{"stagingDir": str(tmp_path), "rounds": 4}]}
    with Driver(asked) as one, Driver(asked) as other:
        results = [one.result(), other.result()]
    assert results[0]["digest"] == results[1]["digest"]
    assert list(tmp_path.iterdir()) == []


def test_fifty_fits_leave_memory_handles_and_threads_as_they_were(moons: DataFrame) -> None:
    few = moons.limit(200).cache()
    estimator = BSPAUCClassifier(**{**FAST, "rounds": 1, "stepsPerRound": 2, "pretrainSteps": 0})

    def standing() -> tuple[int, int, float]:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(os.listdir("/proc/self/fd")), threading.active_count(), pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    for _ in range(10):
        estimator.fit(few)
    handles, threads, megabytes = standing()
    for _ in range(40):
        estimator.fit(few)
    found = standing()
    assert found[0] <= handles
    assert found[1] <= threads
    # A leak of one fit's rows, θ or history would show as more than this.
    assert found[2] - megabytes < 20
    few.unpersist()
