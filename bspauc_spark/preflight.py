"""Where the θ side of a fit will run, and whether it can: asked before anything long starts."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import SparkSession

from bspauc_spark.errors import (
    CheckpointError,
    DeviceError,
    InvalidDataError,
    InvalidParamError,
    PlacementError,
    StagingError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from bspauc_spark.workers.rows import Rows

# Executors may still be registering, or be started anew; Spark would wait ten minutes for the slots of a barrier stage.
_SLOTS_TIMEOUT, _REPLACEMENT_TIMEOUT = 10.0, 120.0
# Of θ, or of the kernel's frequencies, on a worker.
_MOST_TABLE_BYTES = 2 << 30
_GPU_AMOUNT = "spark.task.resource.gpu.amount"


@dataclass(frozen=True)
class Placement:
    """Who runs the θ side: this process (``processes`` 0), processes beside it, or tasks on executors.

    ``threads`` are those of each of them.
    """

    processes: int = 0
    local: bool = True
    threads: int = 1


def is_local_master(spark: SparkSession) -> bool:
    """Whether the session's tasks run in the driver's own process and on its disks."""
    master = spark.conf.get("spark.master", "") or ""
    return master == "local" or master.startswith("local[")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def place(spark: SparkSession, processes: int, local: bool | None, use_gpu: bool) -> Placement:
    """What ``numProcesses`` and ``localMode`` ask for, or the automatic choice; an error if it cannot be had."""
    local = is_local_master(spark) if local is None else local
    if use_gpu and processes and (local or is_local_master(spark)):
        _check_driver_gpus(spark, processes)
    if local:
        return Placement(processes, threads=max(1, cores() // max(1, processes)))
    if use_gpu:
        _check_task_gpus(spark)
    if (spark.conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
        raise PlacementError(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stages with it, which workers on "
            "executors need. Start the session with spark.dynamicAllocation.enabled=false, or train in the driver "
            "with localMode=True."
        )
    threads = int(spark.conf.get("spark.task.cpus", "1") or 1)
    processes = _check_slots(spark, processes, use_gpu, _SLOTS_TIMEOUT)
    return Placement(processes, local=False, threads=threads)


def wait_for_slots(spark: SparkSession, placement: Placement, use_gpu: bool) -> None:
    """Before a launch on executors: one of them may have been lost since, and its replacement takes a while."""
    if placement.processes and not placement.local:
        _check_slots(spark, placement.processes, use_gpu, _REPLACEMENT_TIMEOUT)


def check_rows(rows: int, placement: Placement) -> None:
    """Refuse more workers than training rows."""
    if rows < placement.processes:
        raise InvalidDataError(
            f"there are {rows:,} training rows for {placement.processes} workers. Lower numProcesses."
        )


def check_weights(num_features: int, hidden_layers: tuple[int, ...], rows: Callable[[], Mapping[str, Rows]]) -> None:
    """Refuse a network that no worker could hold; of sparse rows, features that occur nowhere have no weights."""
    width = num_features
    if _weights(width, hidden_layers) > _MOST_TABLE_BYTES:
        used = [columns for some in rows().values() if (columns := some.columns()) is not None]
        width = len(np.unique(np.concatenate(used))) if used else width
    size = _weights(width, hidden_layers)
    if size > _MOST_TABLE_BYTES:
        raise InvalidParamError(
            f"hiddenLayers {list(hidden_layers)} on {width:,} features need {1e-9 * size:.1f} GB of weights on every "
            "worker. Lower hiddenLayers, or hash the features."
        )


def check_frequencies(num_features: int, random_features: int) -> None:
    """Refuse random features that no worker could hold."""
    size = 4 * random_features * num_features
    if size > _MOST_TABLE_BYTES:
        raise InvalidParamError(
            f"numRandomFeatures {random_features} for {num_features:,} features needs a table of {1e-9 * size:.1f} GB "
            "on every worker. Lower numRandomFeatures, or hash the features."
        )


def _weights(width: int, hidden_layers: tuple[int, ...]) -> int:
    """Bytes of a network's weights."""
    return 4 * sum(a * b for a, b in pairwise((width, *hidden_layers, 1)))


def check_checkpoint_dir(folder: str) -> None:
    """Make the folder if need be, and write to it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(f"checkpointDir {folder!r} cannot be written: {error.strerror}.") from error


def check_staging(spark: SparkSession, staging_dir: str | None) -> None:
    """On a cluster, make sure that the driver and the executors see the same ``stagingDir``, by a small job."""
    if is_local_master(spark):
        return
    if staging_dir is None:
        raise StagingError(
            "stagingDir is not set, and the session runs on a cluster. Give storage that the driver and every executor "
            'can read and write, for example stagingDir="/Volumes/main/ml/staging".'
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="bspauc-probe-", dir=staging_dir))
    except OSError as error:
        raise StagingError(
            f"stagingDir {staging_dir!r} cannot be written by the driver: {error.strerror}. Set it to an existing "
            "folder that the driver and every executor can write."
        ) from error
    try:
        token = uuid.uuid4().hex
        (folder / "token").write_text(token)
        tasks = 2 * (slots(spark) or 8)
        probe = Probe(str(folder), token)
        replies = spark.range(0, tasks, 1, tasks).mapInArrow(probe, "host string, file string, error string").collect()
        for host, file, problem in replies:
            if not problem and not (folder / file).exists():
                problem = "what it writes there does not reach the driver"
            if problem:
                raise StagingError(
                    f"stagingDir {staging_dir!r} is not shared with the executor on host {host}: {problem}. Set it to "
                    "storage that the driver and every executor can read and write."
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Probe:
    """What the small job asks of each task: can you read the driver's file here, and write one?"""

    folder: str
    token: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            # Long enough for the tasks to spread over the executors.
            time.sleep(0.05)
        name, problem = uuid.uuid4().hex, ""
        try:
            with open(os.path.join(self.folder, "token")) as file:
                if file.read() != self.token:
                    problem = "it finds another file there"
            with open(os.path.join(self.folder, name), "w"):
                pass
        except OSError as error:
            problem = f"{error.strerror} ({error.filename})"
        row = {"host": [socket.gethostname()], "file": [name], "error": [problem]}
        yield pa.RecordBatch.from_pydict(row)


def slots(spark: SparkSession) -> int | None:
    """How many tasks can run at once, as Spark counts for a barrier stage; None where it cannot be asked."""
    try:
        context = spark.sparkContext._jsc.sc()
    except Exception:
        # Spark Connect has no context.
        return None
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _executors(spark: SparkSession) -> int:
    try:
        context = spark.sparkContext._jsc.sc()
    except Exception:
        return 1
    # The driver has an entry of its own there.
    return max(1, int(context.getExecutorMemoryStatus().size()) - 1)


def _check_slots(spark: SparkSession, processes: int, use_gpu: bool, timeout: float) -> int:
    """The number of workers, each of which has a task slot; automatic: one per executor, or one per GPU."""
    deadline = time.monotonic() + timeout
    promised = int(spark.conf.get("spark.executor.instances", "1") or 1)
    while True:
        free, executors = slots(spark), _executors(spark)
        wanted = processes or (free if use_gpu and free else executors)
        late = time.monotonic() > deadline
        if free is None or (wanted <= free and (processes or executors >= promised or late)):
            return wanted
        if late and free == 0:
            raise PlacementError(
                f"the session has no executor that could run a worker{' with a GPU' if use_gpu else ''}. Wait until "
                "its executors have started, add some, or train in the driver with localMode=True."
            )
        if late:
            raise PlacementError(
                f"numProcesses {wanted} needs as many task slots at once, and the session has {free}"
                f"{' with a GPU each' if use_gpu else ''}. Lower numProcesses to {free}, add executors, or lower "
                f"spark.task.cpus ({spark.conf.get('spark.task.cpus', '1')})."
            )
        time.sleep(0.5)


def _check_task_gpus(spark: SparkSession) -> None:
    amount = spark.conf.get(_GPU_AMOUNT, "") or ""
    # TorchDistributor reads it as a whole number, and fails on "1.0".
    if amount == "1":
        return
    found = f"{_GPU_AMOUNT} is {amount}" if amount else f"{_GPU_AMOUNT} is not set"
    raise DeviceError(
        f"useGpu is True, but {found}. A worker takes a whole GPU: start the session with {_GPU_AMOUNT}=1 and "
        "spark.executor.resource.gpu.amount, or set useGpu=False."
    )


def _check_driver_gpus(spark: SparkSession, processes: int) -> None:
    try:
        resources = spark.sparkContext.resources
        owned = len(resources["gpu"].addresses) if "gpu" in resources else 0
    except Exception:
        # Spark Connect: the client's own GPUs count, and each worker looks for its one.
        return
    if owned < processes:
        raise DeviceError(
            f"useGpu is True and numProcesses {processes}, but Spark gave the driver on host {socket.gethostname()} "
            f"{owned} GPUs. Start the session with spark.driver.resource.gpu.amount={processes} and "
            "spark.driver.resource.gpu.discoveryScript, or leave numProcesses at 0 to train in this process on the "
            "first GPU."
        )
