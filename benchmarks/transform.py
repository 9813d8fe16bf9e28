"""Rows per second of ``BSPAUCModel.transform`` and of MLlib's ``GBTClassificationModel`` with 20 trees.

    python benchmarks/transform.py [--rows 500000] [--features 20] [--partitions 2] [--repetitions 7]

Both score the same cached vectors in one ``local[2]`` session, write to the noop sink and take turns, so that a busy
machine slows them alike; the goal is a median ratio of at least 1. BSPAUC has the default network and few
rounds, since its weights do not change its speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.ml.classification import GBTClassifier
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bspauc_spark import BSPAUCClassifier

GOAL = 1.0
TREES, DEPTH = 20, 5
TRAINING_ROWS = 20_000


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Python workers import the package too, whether it is installed or not
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("transform throughput")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def data(spark: SparkSession, rows: int, features: int, partitions: int) -> DataFrame:
    """Normal features and a curved boundary with one row in ten flipped, assembled and cached."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features))
    label = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 1.6) ^ (rng.random(rows) < 0.1)
    names = [f"x{i}" for i in range(features)]
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    table = spark.createDataFrame(pd.DataFrame(x, columns=names).assign(label=label.astype(float)))
    assembled = VectorAssembler(inputCols=names, outputCol="features").transform(table)
    cached = assembled.select("features", "label").repartition(partitions).cache()
    cached.count()
    return cached


def seconds(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=2, help="Python workers cost a fixed time for each")
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    spark = session()
    frame = data(spark, args.rows, args.features, args.partitions)
    few = frame.limit(TRAINING_ROWS).cache()
    ours = BSPAUCClassifier(rounds=2, stepsPerRound=20, verbose=False).fit(few)
    trees = GBTClassifier(maxIter=TREES, maxDepth=DEPTH, seed=0).fit(few)
    scored = [model.transform(frame) for model in (ours, trees)]
    # The first turns start Python workers and compile the JVM's code
    turns = [[seconds(result) for result in scored] for _ in range(args.repetitions + 2)][2:]
    spark.stop()

    speeds = [args.rows / statistics.median(column) for column in zip(*turns, strict=True)]
    ratio = statistics.median(theirs / mine for mine, theirs in turns)
    shape = f"{args.rows:,} rows, {args.features} features, {args.partitions} partitions"
    print(f"{shape}, median of {args.repetitions} turns\n")
    print("| model | rows/s |")
    print("|---|---|")
    print(f"| BSPAUCModel, hidden layers {ours.scorer.spec.hidden_layers} | {speeds[0]:,.0f} |")
    print(f"| GBTClassificationModel, {TREES} trees of depth {DEPTH} | {speeds[1]:,.0f} |")
    print(f"\nratio {ratio:.2f} (goal: at least {GOAL:g})")


if __name__ == "__main__":
    main()
