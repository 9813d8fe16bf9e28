"""What TorchDistributor workers cost and whether they learn the same: one process, two local ones, two executors.

    python benchmarks/workers.py [--data-dir DIR] [--seeds 3] [--rounds 10]

All fits run in one ``local-cluster[2,1,1024]`` session. Printed per kind of worker: the seconds of the launch, the
driver-worker overhead of a round (what the driver waited for a reply, less what the workers worked on it; goal: at most
0.1 s), and with --data-dir the AUC on a9a's test part (goal: within 0.005 of one process, mean over the seeds), and
whether scores and selection of the first round, which without pre-training starts from the same θ, are the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.experiment import Split, load, split
from benchmarks.session import session
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.cluster.launch import Launch
from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.selection.pace import AutomaticPace

KINDS: dict[str, dict[str, Any]] = {
    "one process": {"localMode": True},
    "two local processes": {"localMode": True, "numProcesses": 2},
    "two executors": {"localMode": False, "numProcesses": 2},
}


class Watch:
    """Times of launches and replies, and the scores and selections of first rounds, taken from real fits."""

    def __init__(self) -> None:
        self.clear()
        start, ask, select = Launch.start, Launch.ask, AutomaticPace.select

        def timed_start(launch: Launch) -> None:
            began = time.perf_counter()
            start(launch)
            self.launches.append(time.perf_counter() - began)

        def timed_ask(launch: Launch, command: Message) -> Message:
            began = time.perf_counter()
            reply = ask(launch, command)
            if command.word == "train":
                self.overheads.append(time.perf_counter() - began - reply.values["work_seconds"])
            return reply

        def seen_select(pace: AutomaticPace, t: int, pos: Any, neg: Any, previous: Any) -> Any:
            selection = select(pace, t, pos, neg, previous)
            if t == 1:
                self.firsts.append((pos.sorted, neg.sorted, selection))
            return selection

        Launch.start, Launch.ask, AutomaticPace.select = timed_start, timed_ask, seen_select  # type: ignore

    def clear(self) -> None:
        self.launches: list[float] = []
        self.overheads: list[float] = []
        self.firsts: list[Any] = []


def frame(spark: SparkSession, x: np.ndarray, label: np.ndarray) -> DataFrame:
    names = [f"x{i}" for i in range(x.shape[1])]
    table = pd.DataFrame(x, columns=names).assign(label=label.astype(float))
    return VectorAssembler(inputCols=names, outputCol="features").transform(spark.createDataFrame(table))


def small() -> Split:
    """Made rows, for the times alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 20)).astype(np.float32)
    y = x[:, 0] + 0.5 * x[:, 1] ** 2 > 1.6
    return split(x, y, 0, 0.1, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with a9a.bz2; without it made rows, and no AUC")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()

    spark = session("local-cluster[2,1,1024]")
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    real = options.data_dir is not None
    table = load("a9a", options.data_dir) if real else None
    splits = [split(*table, seed, 0.2, 0.0) for seed in range(options.seeds)] if table else [small()]
    aucs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    times: dict[str, tuple[list[float], list[float]]] = {}
    same: dict[str, bool] = {}
    watch = Watch()
    with tempfile.TemporaryDirectory() as staging:
        for kind, where in KINDS.items():
            watch.clear()
            for seed, data in enumerate(splits):
                params = {"seed": seed, "rounds": options.rounds, "stagingDir": staging, "verbose": False, **where}
                model = BSPAUCClassifier(**params).fit(frame(spark, data.x, data.label))
                aucs[kind].append(data.test_auc(model.score_numpy(data.x_test)))
                print(f"{kind}, seed {seed}: test AUC {aucs[kind][-1]:.4f}", flush=True)
            times[kind] = watch.launches, watch.overheads
        for kind, where in KINDS.items():
            watch.clear()
            plain = BSPAUCClassifier(rounds=1, stepsPerRound=1, pretrainSteps=0, paceStart=0.5, stagingDir=staging)
            plain.setVerbose(False).setParams(**where).fit(frame(spark, splits[0].x, splits[0].label))
            first = watch.firsts[0]
            if kind == "one process":
                wanted = first
            same[kind] = all(np.array_equal(a, b) for a, b in zip(first[:2], wanted[:2], strict=True))
            same[kind] &= first[2] == wanted[2]
    spark.stop()

    print("\n| workers | test AUC | difference | first round the same | launch, s | overhead a round, s |")
    print("|---|---|---|---|---|---|")
    base = statistics.mean(aucs["one process"])
    for kind, values in aucs.items():
        mean, (launches, overheads) = statistics.mean(values), times[kind]
        launch = f"{statistics.median(launches):.1f}" if launches else "–"
        overhead = f"{statistics.median(overheads):.3f}, at most {max(overheads):.3f}" if overheads else "–"
        print(f"| {kind} | {mean:.4f} | {mean - base:+.4f} | {'yes' if same[kind] else 'NO'} | {launch} | {overhead} |")


if __name__ == "__main__":
    main()
