"""Storage that fails, and many fits at once or one after the other: nothing is lost, mixed up or left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bspauc_spark import BSPAUCClassifier, BSPAUCModel, estimator
from bspauc_spark.cluster import launch
from bspauc_spark.cluster.rank import TO_DRIVER
from bspauc_spark.errors import BSPAUCWarning, CheckpointError, StagingError, WorkerError
from bspauc_spark.rows.kinds import NEGATIVES
from bspauc_spark.rows.staging import StagedData, stage
from bspauc_spark.rows.storage import DiskFolder
from tests.helpers.fits import FAST, SLOW, digest, same_bits, while_training
from tests.helpers.paces import before_each_round
from tests.helpers.processes import Driver, assert_clean

pytestmark = pytest.mark.classic


def test_a_full_disk_in_staging_is_named_and_left_empty(moons: DataFrame, mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=40k")
    with pytest.raises(StagingError, match=r"cannot be written to stagingDir .* on host .*No space left on device"):
        BSPAUCClassifier(**FAST, stagingDir=str(disk)).fit(moons)
    assert list(disk.iterdir()) == []


@pytest.mark.alone
def test_a_disk_that_fills_up_while_workers_train_is_named(moons: DataFrame, mounted: Callable[[str], Path]) -> None:
    disk = mounted("size=2m")

    def fill() -> None:
        with contextlib.suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    with while_training(2, fill), pytest.raises((StagingError, WorkerError), match="No space left on device"):
        BSPAUCClassifier(**SLOW, numProcesses=2, stagingDir=str(disk)).fit(moons)
    assert [path.name for path in disk.iterdir()] == ["others"]


@pytest.mark.alone
def test_a_reply_that_the_driver_cannot_read_is_named_and_nobody_starts_again(
    moons: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its temporary folder is full, and the reply of an object store a large one."""
    launches, run, look = list[str](), TorchDistributor.run, DiskFolder.open

    def seen_run(self: TorchDistributor, *args: Any) -> Any:
        launches.append("run")
        return run(self, *args)

    def no_room(self: DiskFolder, name: str) -> io.BufferedIOBase:
        file = look(self, name)
        if name == f"{TO_DRIVER}-000003":
            file.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return file

    monkeypatch.setattr(launch, "_HANG_SECONDS", 4.0)
    monkeypatch.setattr(TorchDistributor, "run", seen_run)
    monkeypatch.setattr(DiskFolder, "open", no_room)
    with pytest.raises(StagingError, match=r"cannot be read on host .*: No space left on device"):
        BSPAUCClassifier(**FAST, numProcesses=2).fit(moons)
    assert launches == ["run"]


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


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["full", "missing"])
def test_figures_for_mlflow_that_find_no_room_cost_no_fit(
    place: str, moons: DataFrame, mounted: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(mounted("size=4k") if place == "full" else tmp_path / "missing"))
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    try:
        mlflow.set_experiment(experiment_id=mlflow.create_experiment(place, (tmp_path / "artifacts").as_uri()))
        with pytest.warns(BSPAUCWarning, match=r"of this fit .* The fit goes on\.$") as caught:
            model = BSPAUCClassifier(**FAST, tracking="on", stagingDir=str(tmp_path)).fit(moons)
        (run,) = mlflow.search_runs(output_format="list")
    finally:
        mlflow.set_tracking_uri(before)
    assert len([one for one in caught if one.category is BSPAUCWarning]) == 1
    assert same_bits(model, BSPAUCClassifier(**FAST, stagingDir=str(tmp_path)).fit(moons))
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train_auc"] == pytest.approx(model.summary.rounds[-1].train_auc)


def test_a_checkpoint_folder_that_becomes_read_only_costs_no_round(
    moons: DataFrame,
    mounted: Callable[[str], Path],
    alone: dict[int, BSPAUCModel],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = mounted("size=1m")

    def remount(t: int) -> None:
        if t == 2:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

    before_each_round(monkeypatch, remount)
    model = BSPAUCClassifier(**FAST, checkpointDir=str(disk)).fit(moons)
    assert "round 1 was not saved" not in caplog.text
    assert f"round 2 was not saved in checkpointDir {disk}: Read-only file system" in caplog.text
    assert same_bits(model, alone[0])


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.alone)])
def test_a_damaged_shard_is_named_and_nobody_starts_again(
    moons: DataFrame, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, damaged = list[str](), list[Path]()
    run = TorchDistributor.run

    def seen_run(self: TorchDistributor, *args: Any) -> Any:
        launches.append("run")
        return run(self, *args)

    def damage(*args: Any, **options: Any) -> StagedData:
        staged = stage(*args, **options)
        damaged.append(Path(staged.shards.directory) / staged.shards.files[NEGATIVES][0].name)
        data = bytearray(damaged[0].read_bytes())
        data[len(data) // 2] ^= 1
        damaged[0].write_bytes(data)
        return staged

    monkeypatch.setattr(TorchDistributor, "run", seen_run)
    monkeypatch.setattr(estimator, "stage", damage)
    with pytest.raises(StagingError) as caught:
        BSPAUCClassifier(**FAST, numProcesses=processes, stagingDir=str(tmp_path)).fit(moons)
    assert f"the staged rows in {damaged[0].name} are damaged" in str(caught.value)
    assert len(launches) == min(processes, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
def test_tasks_that_are_lost_after_they_wrote_their_rows_change_nothing(
    tmp_path: Path, alone: dict[int, BSPAUCModel]
) -> None:
    with Driver({"master": "local[2,4]", "steps": [{"stagingDir": str(tmp_path)}], "lose_attempts": True}) as driver:
        result = driver.result()
    assert result["lost"] > 0
    assert result["counts"] == alone[0].summary.counts
    assert result["digest"] == digest(dict(alone[0].scorer.weights))
    assert_clean(result)


@pytest.fixture(scope="module")
def alone(moons: DataFrame) -> dict[int, BSPAUCModel]:
    """Models of two seeds, each fitted while nothing else was."""
    return {seed: BSPAUCClassifier(**FAST, seed=seed).fit(moons) for seed in (0, 1)}


@pytest.mark.alone
def test_fits_in_threads_of_one_session_are_those_of_fits_alone(
    moons: DataFrame, alone: dict[int, BSPAUCModel]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: BSPAUCClassifier(**FAST, seed=seed).fit(moons), (0, 1, 0, 1)))
    for seed, model in zip((0, 1, 0, 1), found, strict=True):
        assert same_bits(model, alone[seed])


@pytest.mark.alone
def test_fits_that_wait_for_each_others_slots_both_end(moons: DataFrame) -> None:
    def fit(seed: int) -> BSPAUCModel:
        return BSPAUCClassifier(**FAST, seed=seed, numProcesses=2, localMode=False).fit(moons)

    with ThreadPoolExecutor(2) as pool:
        # Many times what they take, and an end to a deadlock.
        found = list(pool.map(fit, (0, 1), timeout=300))
    for seed, model in enumerate(found):
        assert same_bits(model, fit(seed))


@pytest.mark.alone
def test_two_drivers_share_a_staging_folder(tmp_path: Path, alone: dict[int, BSPAUCModel]) -> None:
    asked = [
        {"master": "local[1]", "steps": [{"stagingDir": str(tmp_path), "seed": seed}], "pause": 1} for seed in (0, 1)
    ]
    with Driver(asked[0]) as one, Driver(asked[1]) as other:
        one.read_until("round 1")
        # It waits there for the other.
        os.kill(one.pid, signal.SIGSTOP)
        other.read_until("round 1")
        assert len(list(tmp_path.iterdir())) == 2
        os.kill(one.pid, signal.SIGCONT)
        results = [one.result(), other.result()]
    assert [result["digest"] for result in results] == [digest(dict(alone[seed].scorer.weights)) for seed in (0, 1)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
def test_fifty_fits_leave_memory_handles_and_threads_as_they_were(spark: SparkSession) -> None:
    # A megabyte of rows, and one of θ.
    wave = sf.transform(sf.sequence(sf.lit(1), sf.lit(1300)), lambda place: sf.sin(place * (sf.col("id") + 1)))
    few = spark.range(200).select(wave.alias("features"), (sf.col("id") % 2).alias("label")).cache()
    params = {**FAST, "rounds": 1, "stepsPerRound": 2, "pretrainSteps": 0, "hiddenLayers": [200]}
    estimator = BSPAUCClassifier(**params)

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
    # A leak of every fit's rows or θ would be 40.
    assert found[2] - megabytes < 20
    assert "bspauc-" not in Path("/proc/self/maps").read_text()
    few.unpersist()
