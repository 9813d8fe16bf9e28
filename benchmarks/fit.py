"""A whole fit, and staging alone, against plain programs that read the same Parquet file; side by side in one run.

    python benchmarks/fit.py [--rows 1000000] [--features 64] [--repeats 3]

*fit*: the time of ``BSPAUCClassifier().fit`` over that of a script without Spark that reads the file with pyarrow and
runs the same steps, scoring passes and sorts in bare torch and numpy, with one thread or with torch's own choice,
whichever was faster in the first turn. *staging*: the time of writing the shards over
that of Spark writing the same columns as Parquet. The session's start is not counted. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.session import session
from benchmarks.solve import seconds
from benchmarks.theta import Bare
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.rows.columns import Columns
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows
from bspauc_spark.rows.staging import stage
from bspauc_spark.selection import solve
from bspauc_spark.spark import plan
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.worker import Worker


def write(path: Path, rows: int, features: int) -> None:
    """Normal features, a tenth positives beyond a curved boundary, a tenth of the labels wrong."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features), dtype=np.float32)
    score = x[:, 0] + 0.5 * x[:, 1] ** 2
    label = (score > np.quantile(score, 0.9)) ^ (rng.random(rows) < 0.1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), features).cast(pa.list_(pa.float32()))
    pq.write_table(pa.table({"features": lists, "label": label.astype(float)}), path, row_group_size=100_000)


def fastest_threads(path: Path, features: int, estimator: BSPAUCClassifier) -> int:
    """One thread or torch's default, whichever makes the plain script faster."""
    took = {}
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        took[threads] = seconds(lambda: plain(path, features, estimator))
    return min(took, key=lambda threads: took[threads])


def plain(path: Path, features: int, estimator: BSPAUCClassifier) -> None:
    """The same work without Spark: read, split by label, pre-train, and in each round select, train and score."""
    table = pq.read_table(path)
    x = np.array(table["features"].combine_chunks().values).reshape(-1, features)
    label = table["label"].to_numpy() == 1
    rows = {POSITIVES: x[label], NEGATIVES: x[~label]}
    spec = NetworkSpec("mlp", features, tuple(estimator.getHiddenLayers()))
    settings = plan.settings(estimator, 0.3)
    some = {name: DenseRows([part[:1]], features) for name, part in rows.items()}
    bare = Bare(Worker(some, spec, settings), rows[POSITIVES], rows[NEGATIVES])
    bare.train(settings.pretrain_steps)
    scores = bare.score()
    for _ in range(plan.wanted_rounds(estimator, spec)):
        solve(*(ClassScores.from_array(part) for part in scores), 0.3, 0.3)
        bare.train(settings.steps)
        scores = bare.score()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    spark = session()
    ratios: dict[str, list[float]] = {"fit": [], "staging": []}
    estimator = BSPAUCClassifier(verbose=False)
    columns = Columns("features", "label", None, 1.0, True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write(path, args.rows, args.features)
        frame = spark.read.parquet(str(path))

        def staged() -> Any:
            stage(frame, columns, folder).remove()

        def written() -> Any:
            frame.write.mode("overwrite").parquet(f"{folder}/copy")

        torch.set_num_threads(fastest_threads(path, args.features, estimator))
        for repeat in range(args.repeats + 1):
            ours, theirs = seconds(lambda: estimator.fit(frame)), seconds(lambda: plain(path, args.features, estimator))
            took, wrote = seconds(staged), seconds(written)
            if repeat:  # the first one warms up
                ratios["fit"].append(ours / theirs)
                ratios["staging"].append(took / wrote)
    spark.stop()
    found = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
    print(json.dumps({"times_the_plain_one": found, "all": {k: np.round(v, 2).tolist() for k, v in ratios.items()}}))


if __name__ == "__main__":
    main()
