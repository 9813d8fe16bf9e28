"""A driver in a process of its own, for tests that kill or interrupt it, and for masters of another kind.

The argument is JSON: ``master``, ``conf``, ``steps``, each of them a dict of Params, ``pause``, seconds between rounds,
``lose_attempts``, which loses the first attempt of every staging task, and ``slots_timeout``, seconds. For each step
one line of JSON is printed; "round N", "ready", "asks <command>" and "warning …" lines come in between.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

import pyarrow as pa
from pyspark import TaskContext
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.cluster import preflight
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.errors import BSPAUCError
from bspauc_spark.rows import staging
from bspauc_spark.rows.shard_task import ShardTask
from tests.helpers.fits import FAST, digest, noisy_moons
from tests.helpers.processes import QUICK_JAVA, descendants, launchers


class Tell(logging.Handler):
    """Prints each round as it ends, when it has been saved."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.pause = pause

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("round ") and record.levelno == logging.INFO:
            print("round", text.split()[1].split("/")[0], flush=True)
            time.sleep(self.pause)
        elif "workers are ready" in text:
            print("ready", flush=True)
        elif record.levelno >= logging.WARNING:
            print("warning", text.replace("\n", " "), flush=True)


class Lost(ShardTask):
    """A staging task whose first attempt is lost when it has written its rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = list(super().__call__(batches))
        if TaskContext.get().attemptNumber() == 0:
            raise ConnectionError("lost")
        yield from reports


def left_behind() -> tuple[int, int]:
    """Processes that launch workers, and scripts of TorchDistributor."""
    scripts = Path(tempfile.gettempdir()).glob("*/train.py")
    return len(launchers(descendants(os.getpid()))), len(list(scripts))


def main() -> None:
    asked = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(asked["master"]).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.executor.extraJavaOptions", QUICK_JAVA)
    for name, value in asked.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    logging.getLogger("bspauc_spark").setLevel(logging.INFO)
    logging.getLogger("bspauc_spark").addHandler(Tell(asked.get("pause", 0)))
    logging.getLogger("bspauc_spark").propagate = False

    frame = spark.createDataFrame(noisy_moons())
    assembler = VectorAssembler(inputCols=[f"x{i}" for i in range(6)], outputCol="features")
    data = assembler.transform(frame)
    # Executors and their Python workers are Spark's to start; what is timed below is ours.
    if asked["master"].startswith("local-cluster"):
        data.mapInArrow(lambda batches: batches, data.schema).count()

    preflight._SLOTS_TIMEOUT = asked.get("slots_timeout", preflight._SLOTS_TIMEOUT)
    if asked.get("lose_attempts"):
        staging.ShardTask = Lost
    ask = Launch.ask
    Launch.ask = lambda self, command: print("asks", command.word, flush=True) or ask(self, command)
    launches: list = []
    run = TorchDistributor.run
    TorchDistributor.run = lambda self, *a, **k: launches.append(1) or run(self, *a, **k)

    for step in asked["steps"]:
        launches.clear()
        started = time.monotonic()
        result: dict = {"interrupted": False}
        try:
            model = BSPAUCClassifier(**{**FAST, **step}).fit(data)
            result["digest"] = digest(dict(model.scorer.weights))
            result["counts"] = model.summary.counts
            result["train_auc"] = model.summary.rounds[-1].train_auc
        except BSPAUCError as error:
            result["error"] = f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            result["interrupted"] = True
        result["seconds"] = time.monotonic() - started
        result["launches"] = len(launches)
        # The processes above a rank follow it within a moment, and then remove its script.
        while any(left_behind()) and time.monotonic() - started < result["seconds"] + 3:
            time.sleep(0.05)
        result["processes"], result["scripts"] = left_behind()
        result["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("bspauc")]
        tracker = spark.sparkContext.statusTracker()
        result["jobs"] = len(tracker.getActiveJobsIds())
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        result["lost"] = sum(stage.numFailedTasks for stage in stages if stage)
        result["staging"] = os.listdir(step["stagingDir"]) if Path(step.get("stagingDir", "-")).is_dir() else []
        print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
