"""Rows per second of ``BSPAUCModel.transform`` over those of other things that Spark can do with the same rows.

    python benchmarks/transform.py [--rows 500000] [--features 20] [--partitions 2] [--repeats 7]

*identity*: a ``mapInArrow`` that hands the same columns back. *read*: ``vector_to_array`` into the noop sink, all in
the JVM. *xgboost*: ``xgboost.spark`` with its default hundred trees. *gbt*: MLlib's ``GBTClassificationModel``, twenty
trees. All of them take the same cached vectors in one ``local[2]`` session, write to the noop sink and take turns, so
that a busy machine slows them alike. BSPAUC has the default network and few rounds, since its weights do not change its
speed. Prints the medians of the ratios as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.ml.classification import GBTClassifier
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession
from xgboost.spark import SparkXGBClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.session import session
from benchmarks.solve import seconds
from bspauc_spark import BSPAUCClassifier

TREES, DEPTH = 20, 5
TRAINING_ROWS = 20_000


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


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def noop(frame: DataFrame) -> float:
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=2, help="Python workers cost a fixed time for each")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    spark = session()
    frame = data(spark, args.rows, args.features, args.partitions)
    few = frame.limit(TRAINING_ROWS).cache()
    ours = BSPAUCClassifier(rounds=2, stepsPerRound=20, verbose=False).fit(few).transform(frame)
    arrays = frame.select(vector_to_array("features").alias("features"), "label")
    others = {
        "identity": arrays.mapInArrow(identity, arrays.schema),
        "read": arrays,
        "xgboost": SparkXGBClassifier(label_col="label").fit(few).transform(frame),
        "gbt": GBTClassifier(maxIter=TREES, maxDepth=DEPTH, seed=0).fit(few).transform(frame),
    }
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for turn in range(args.repeats + 2):
        own = noop(ours)
        for name, other in others.items():
            took = noop(other)
            if turn > 1:  # the first turns start Python workers and compile the JVM's code
                ratios[name].append(took / own)
    spark.stop()
    print(json.dumps({name: round(statistics.median(values), 3) for name, values in ratios.items()}))


if __name__ == "__main__":
    main()
