"""Where the θ side of a fit will run, and whether it can: asked before anything long starts."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import SparkSession

from bspauc_spark.cluster import gpus
from bspauc_spark.errors import (
    CheckpointError,
    InvalidDataError,
    InvalidParamError,
    PlacementError,
    StagingError,
    reason,
    shown,
)
from bspauc_spark.rows.kinds import CHUNK_ROWS
from bspauc_spark.rows.storage import Folder, folder
from bspauc_spark.spark.session import is_connect, is_local_master, setting, shares_disks, slots
from bspauc_spark.theta.networks import NetworkSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from bspauc_spark.rows.rows import Rows

# Executors may still be registering, or be started anew; Spark would wait ten minutes for the slots of a barrier stage.
_SLOTS_TIMEOUT, _REPLACEMENT_TIMEOUT = 10.0, 120.0
# Of θ, or of the kernel's frequencies, on a worker.
_MOST_TABLE_BYTES = 2 << 30


@dataclass(frozen=True)
class Placement:
    """Who runs the θ side: this process (``processes`` 0), processes beside it, or tasks on executors.

    ``threads`` are those of each of them.
    """

    processes: int = 0
    local: bool = True
    threads: int = 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def place(spark: SparkSession, processes: int, local: bool | None, use_gpu: bool) -> Placement:
    """What ``numProcesses`` and ``localMode`` ask for, or the automatic choice; an error if it cannot be had."""
    if local is None:
        # Over Spark Connect executors cannot be counted, so the automatic choice is this process.
        local = is_local_master(spark) or (is_connect(spark) and not processes)
    if not local and not processes and is_connect(spark):
        raise PlacementError(
            "numProcesses is 0, and over Spark Connect executors cannot be counted. Set numProcesses to the number of "
            "workers, or train in this process with localMode=True."
        )
    if local and use_gpu and processes:
        gpus.check_driver(spark, processes)
    if local:
        return Placement(processes, threads=max(1, cores() // max(1, processes)))
    if use_gpu:
        gpus.check_amount(setting(spark, gpus.AMOUNT), is_local_master(spark))
    if setting(spark, "spark.dynamicAllocation.enabled").lower() == "true":
        raise PlacementError(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stages with it, which workers on "
            "executors need. Start the session with spark.dynamicAllocation.enabled=false, or train in the driver "
            "with localMode=True."
        )
    threads = int(setting(spark, "spark.task.cpus", "1"))
    processes = _check_slots(spark, processes, use_gpu, _SLOTS_TIMEOUT)
    if use_gpu:
        gpus.check_tasks(spark, processes)
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


def check_memory(spec: NetworkSpec, sparse: bool, batch_size: int) -> None:
    """Refuse a network or a batch whose rows, on their way through the layers, no worker could hold."""
    if spec.kind == "table":
        return
    kernel = spec.kind == "kernel"
    widths = (2 * spec.random_features,) if kernel else spec.widths
    block = 4 * CHUNK_ROWS * max(widths)
    if block > _MOST_TABLE_BYTES:
        given = f"numRandomFeatures {spec.random_features}" if kernel else f"hiddenLayers {list(spec.hidden_layers)}"
        raise InvalidParamError(
            f"{given}: to score {CHUNK_ROWS:,} rows at a time takes {1e-9 * block:.1f} GB on every worker. Lower "
            f"{given.partition(' ')[0]}."
        )
    inputs = 0 if sparse else spec.num_features
    batch = 4 * 2 * batch_size * (max(1, spec.members) * sum(widths) + inputs)
    if batch > _MOST_TABLE_BYTES:
        raise InvalidParamError(
            f"batchSize {batch_size}: so many rows of each class take {1e-9 * batch:.1f} GB in every step. Lower "
            "batchSize."
        )


def _weights(width: int, hidden_layers: tuple[int, ...]) -> int:
    """Bytes of a network's weights."""
    return 4 * sum(a * b for a, b in pairwise((width, *hidden_layers, 1)))


def check_checkpoint_dir(location: str) -> None:
    """Write to the folder, or to the one in which it would be made: a fit that is refused makes none."""
    try:
        folder(location).try_to_write()
    except OSError as error:
        raise CheckpointError(f"checkpointDir {shown(location)!r} cannot be written: {reason(error)}.") from error


def check_staging(spark: SparkSession, staging_dir: str | None, placement: Placement) -> None:
    """Make sure that rows can be staged where the workers find them; on a cluster by a small job."""
    if staging_dir is None:
        if not placement.local and not shares_disks(spark):
            raise StagingError(
                "stagingDir is not set, and the session runs on a cluster. Give storage that the driver and every "
                'executor can read and write, for example stagingDir="/Volumes/main/ml/staging" or '
                '"s3://bucket/staging"; or train in this process with localMode=True.'
            )
        return
    token = uuid.uuid4().hex.encode()
    with contextlib.ExitStack() as ending:
        try:
            probe = folder(staging_dir).new("bspauc-probe-")
            ending.callback(probe.remove)
            probe.write("token", token)
        except OSError as error:
            raise StagingError(
                f"stagingDir {shown(staging_dir)!r} cannot be written by the driver: {reason(error)}. Set it to an "
                "existing folder that the driver and every executor can write."
            ) from error
        if not shares_disks(spark):
            _check_shared(spark, staging_dir, probe, token)


def _check_shared(spark: SparkSession, staging_dir: str, probe: Folder, token: bytes) -> None:
    tasks = 2 * (slots(spark) or 8)
    ask = Probe(probe.location, token)
    replies = spark.range(0, tasks, 1, tasks).mapInArrow(ask, "host string, file string, error string").collect()
    seen = probe.names()
    for host, file, problem in replies:
        if not problem and file not in seen:
            problem = "what it writes there does not reach the driver"
        if problem:
            raise StagingError(
                f"stagingDir {shown(staging_dir)!r} is not shared with the executor on host {host}: {problem}. Set it "
                "to storage that the driver and every executor can read and write"
                + (
                    ", or leave it out: the rows then come to this process, which trains on them."
                    if is_connect(spark)
                    else "."
                )
            )


@dataclass(frozen=True)
class Probe:
    """What the small job asks of each task: can you read the driver's file here, and write one?"""

    location: str
    token: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            # Long enough for the tasks to spread over the executors.
            time.sleep(0.05)
        name, problem = uuid.uuid4().hex, ""
        try:
            shared = folder(self.location)
            if shared.read("token") != self.token:
                problem = "it finds another file there"
            shared.write(name, b"")
        except OSError as error:
            problem = reason(error)
        row = {"host": [socket.gethostname()], "file": [name], "error": [problem]}
        yield pa.RecordBatch.from_pydict(row)


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
    promised = int(setting(spark, "spark.executor.instances", "1"))
    while True:
        free, executors = slots(spark), _executors(spark)
        wanted = processes or (free if use_gpu and free else executors)
        late = time.monotonic() > deadline
        if free is None or (wanted <= free and (processes or executors >= promised or late)):
            return wanted
        if late and free == 0:
            raise PlacementError(
                f"the session has no executor that could run a worker{gpus.WANTED if use_gpu else ''}. Wait until "
                "its executors have started, add some, or train in the driver with localMode=True."
            )
        if late:
            raise PlacementError(
                f"numProcesses {wanted} needs as many task slots at once, and the session has {free}"
                f"{' with a GPU each' if use_gpu else ''}. Lower numProcesses to {free}, add executors, or lower "
                f"spark.task.cpus ({setting(spark, 'spark.task.cpus', '1')})."
            )
        time.sleep(0.5)
