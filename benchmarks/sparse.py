"""Wide sparse rows: what a step costs as the width grows, and the memory of whole fits at full width.

    python benchmarks/sparse.py [--data-dir DIR] [--large] [--only-steps]

*steps*: the time of a θ step on rows with 75 non-zeros each, hashed to more and more features, over that of a bare
torch loop (``EmbeddingBag`` with dense gradients, AdamW, the same layers) at the smallest width. *fits*: peak memory of
every Python process of a fit by ``BSPAUCClassifier``, in process and on two workers, for rcv1 (with ``--data-dir``) and
for a table of twenty categorical columns that ``FeatureHasher`` hashes to ten million features (``--large``: a million
rows). Prints one line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import FeatureHasher
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.session import session
from benchmarks.solve import seconds
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.reproduction import datasets
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import SparseRows
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.pairs import all_pairs
from bspauc_spark.theta.worker import Worker

NON_ZEROS, BATCH, STEPS = 75, 256, 30
WIDTHS = (50_000, 500_000, 5_000_000)
HASHED = 10_000_000


def hashed_rows(rows: int, width: int) -> SparseRows:
    """Rows whose features occur as words do: few often, most seldom."""
    names = np.random.default_rng(0).zipf(1.3, size=rows * NON_ZEROS).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    indices = (names % np.uint64(width)).astype(np.int32)
    values = np.full(len(indices), NON_ZEROS**-0.5, dtype=np.float32)
    return SparseRows([(np.arange(rows + 1) * NON_ZEROS, indices, values)], width)


def bare_loop(rows: dict[str, SparseRows], width: int) -> Callable[[], None]:
    """Plain layers over an ``EmbeddingBag``: the gradient and the optimizer's state have the size of the table."""
    first = nn.EmbeddingBag(width, 64, mode="sum")
    rest = nn.Sequential(
        nn.ReLU(), *(part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW([*first.parameters(), *rest.parameters()], lr=3e-3, weight_decay=0.3, fused=True)
    ones, rng = torch.ones(BATCH), np.random.default_rng(0)

    def train() -> None:
        for _ in range(STEPS):
            batches = [some.take(rng.integers(0, len(some), BATCH)) for some in rows.values()]
            s, r = (rest(first(b.indices, b.offsets, b.values))[:, 0] for b in batches)
            optimizer.zero_grad()
            all_pairs(s, r, ones, ones).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return train


def steps(repeats: int) -> dict[str, float]:
    loops: dict[str, Callable[[], Any]] = {}
    for width in WIDTHS:
        rows = {POSITIVES: hashed_rows(3_000, width), NEGATIVES: hashed_rows(30_000, width)}
        settings = TrainingSettings("adamw", 3e-3, BATCH, STEPS, 0.3, "all", 0.99, 0)
        worker = Worker(rows, NetworkSpec("mlp", width, (64,) * 7), settings)
        weights = {name: np.ones(len(some), dtype=np.float32) for name, some in rows.items()}
        loops[f"{width:,}"] = lambda w=worker, v=weights: w._run(v, STEPS, 1.0)
        if width == WIDTHS[0]:
            loops["bare torch"] = bare_loop(rows, width)
    turns = [{name: seconds(loop) for name, loop in loops.items()} for _ in range(repeats + 1)][1:]
    bare = "bare torch"
    return {
        name: round(statistics.median(turn[name] / turn[bare] for turn in turns), 2) for name in loops if name != bare
    }


@contextmanager
def peaks(kind: str = "VmRSS", children: bool = True) -> Iterator[dict[int, int]]:
    """Peak memory in bytes of this process and of every Python process below it, while the block runs."""
    found: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for pid in [os.getpid(), *(_python_processes_below(os.getpid()) if children else [])]:
                for line in _read(f"/proc/{pid}/status").splitlines():
                    if line.startswith(kind):
                        found[pid] = max(found.get(pid, 0), 1024 * int(line.split()[1]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _python_processes_below(parent: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _read(f"{entry}/stat").rpartition(")")[2].split()
        if stat:
            parents[int(entry.name)] = int(stat[1])
    below, level = [], [parent]
    while level:
        level = [pid for pid, above in parents.items() if above in level]
        below += level
    return [pid for pid in below if "python" in _read(f"/proc/{pid}/comm")]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def fit(frame: DataFrame, processes: int) -> dict[str, Any]:
    training, test = frame.randomSplit([0.8, 0.2], seed=0)
    estimator = BSPAUCClassifier(numProcesses=processes, localMode=True, verbose=False)
    began = time.perf_counter()
    with peaks() as found:
        model = estimator.fit(training)
    took = time.perf_counter() - began
    with peaks() as found_transform:
        auc = BinaryClassificationEvaluator().evaluate(model.transform(test))
    sizes = {"fit_GB": found, "transform_GB": found_transform}
    return {
        **{
            name: [round(peak / 1e9, 2) for peak in sorted(part.values(), reverse=True)[:5]]
            for name, part in sizes.items()
        },
        "features": model.numFeatures,
        "features_that_occur": len(model.scorer.weights["first.weight"]),
        "test_auc": round(auc, 4),
        "seconds": round(took, 1),
    }


def rcv1(spark: SparkSession, data_dir: Path) -> DataFrame:
    data = datasets.load("rcv1", data_dir)
    width = data.x.shape[1]
    rows = [
        (Vectors.sparse(width, row.indices.tolist(), row.data.tolist()), float(label))
        for row, label in zip(data.x, data.y, strict=True)
    ]
    return spark.createDataFrame(rows, ["features", "label"]).repartition(4).cache()


def categories(spark: SparkSession, rows: int) -> DataFrame:
    """Twenty columns of a hundred thousand values each, of which few are frequent; each value has a weight."""
    table = spark.range(rows, numPartitions=8)
    names = [f"c{i}" for i in range(20)]
    for i, name in enumerate(names):
        table = table.withColumn(name, sf.floor(sf.exp(sf.rand(i) * np.log(1e5))).cast("string"))
    weights = [(sf.pmod(sf.hash(sf.lit(name), name), sf.lit(1000)) / 500.0 - 1.0) for name in names]
    score = sum(weights[1:], weights[0]) + sf.randn(99)
    table = table.withColumn("label", (score > 4.0).cast("double"))
    hasher = FeatureHasher(inputCols=names, outputCol="features", numFeatures=HASHED)
    return hasher.transform(table).select("features", "label").cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--large", action="store_true", help="a million hashed rows")
    parser.add_argument("--only-steps", action="store_true", help="no fits")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"step_over_bare_torch_at_the_smallest_width": steps(args.repeats)}), flush=True)
    if args.only_steps:
        return
    spark = session()
    frames = {"rcv1": rcv1(spark, args.data_dir)} if args.data_dir else {}
    frames["hashed"] = categories(spark, 1_000_000 if args.large else 100_000)
    for name, frame in frames.items():
        for processes in (0, 2):
            print(json.dumps({"data": name, "processes": processes or 1, **fit(frame, processes)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
