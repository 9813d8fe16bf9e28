"""What is disturbed on a cluster: given to spark-submit by a test, which kills executors while it runs.

It knows nothing of the tests' other files: only Spark, and what was shipped. The argument is JSON: ``rows``, ``model``
and ``scored`` (what train.py and score.py made of the rows), ``params``, and ``met``, a folder for marks. For each step
one line of JSON is printed; "staging", "asks train", "transform" and "warning …" lines come in between.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.ml import PipelineModel
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession

import bspauc_spark
from bspauc_spark import BSPAUCClassifier, BSPAUCModel
from bspauc_spark.cluster.launch import Launch

# Two waves on two executors: a mark of the third says that somebody's first part is done and its second under way.
PARTS, SECONDS_A_PART = 4, 1.5


class Tell(logging.Handler):
    """Prints what a test waits for."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            print("warning", text.replace("\n", " "), flush=True)


def slow(marks: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A source that takes its time for each part, and leaves a mark when it begins one."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (Path(marks) / uuid.uuid4().hex).touch()
        time.sleep(SECONDS_A_PART)
        yield from batches

    return read


def slowly(frame: DataFrame, marks: Path) -> DataFrame:
    marks.mkdir()
    parted = frame.repartition(PARTS)
    # With the width known, no job asks for it first.
    described = {"ml_attr": {"num_attrs": len(frame.first()["features"])}}
    return parted.mapInArrow(slow(str(marks)), frame.schema).withMetadata("features", described)


def digest(model: BSPAUCModel) -> str:
    weights = model.scorer.weights
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()


def scores(frame: DataFrame) -> list[float]:
    return [row["score"] for row in frame.select("id", "score").orderBy("id").collect()]


def tell(**result: object) -> None:
    print(json.dumps(result), flush=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    logger = logging.getLogger("bspauc_spark")
    logger.setLevel(logging.INFO)
    logger.addHandler(Tell())
    logger.propagate = False
    ask = Launch.ask
    Launch.ask = lambda self, command: print("asks", command.word, flush=True) or ask(self, command)

    rows = spark.read.parquet(asked["rows"])
    trained = PipelineModel.load(asked["model"]).stages[-1]
    estimator = BSPAUCClassifier(**asked["params"])
    tell(module=bspauc_spark.__file__, workers=trained.summary.about["workers"], digest=digest(trained))

    print("staging", flush=True)
    tell(digest=digest(estimator.fit(slowly(rows, Path(asked["met"]) / "staging"))))
    print("transform", flush=True)
    again = trained.transform(slowly(rows, Path(asked["met"]) / "transform"))
    found = scores(again.withColumn("score", vector_to_array("rawPrediction")[1]))
    tell(same=found == scores(spark.read.parquet(asked["scored"])), rows=len(found))
    spark.stop()


if __name__ == "__main__":
    main()
