"""The θ block and the scoring pass against a bare torch loop on arrays in memory, side by side in one run.

    python benchmarks/theta.py [--rows 1000000] [--features 64] [--batch 512] [--repeats 5]

The same network (eight layers of 64), loss (all pairs), optimizer (AdamW) and averaging; ours reads staged rows. Both
compute in one thread and take turns; printed are the medians of the ratios, as one line of JSON.
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
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.solve import seconds
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.pairs import all_pairs
from bspauc_spark.theta.scoring import score_rows
from bspauc_spark.theta.worker import Worker


def mapped(x: Any, parts: int, folder: Path, name: str) -> DenseRows:
    """Rows in several memory-mapped parts, as staging leaves them."""
    files = []
    for number, part in enumerate(np.array_split(x, parts)):
        path = folder / f"{name}-{number}.npy"
        np.save(path, part)
        files.append(np.load(path, mmap_mode="r"))
    return DenseRows(files, x.shape[1])


class Bare:
    """What one would write by hand: arrays in memory, plain layers, one loop."""

    def __init__(self, worker: Worker, positives: Any, negatives: Any) -> None:
        self.x = (torch.from_numpy(positives), torch.from_numpy(negatives))
        self.network = worker.theta.network.to_sequential()
        self.average = worker.theta.network.to_sequential()
        self.batch = worker.settings.batch_size
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-3, weight_decay=0.3, fused=True)
        self.ones = torch.ones(self.batch)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            s, r = (self.network(x[torch.randint(len(x), (self.batch,))]) for x in self.x)
            loss = all_pairs(s, r, self.ones, self.ones)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 0.01)

    @torch.inference_mode()
    def score(self) -> list[Any]:
        return [torch.cat([self.average(part) for part in x.split(1024)]).numpy() for x in self.x]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512, help="positives, and as many negatives, a step")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.rows, args.features)).astype(np.float32)
    positives, negatives = x[: args.rows // 10], x[args.rows // 10 :]
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            POSITIVES: mapped(positives, 16, Path(folder), "p"),
            NEGATIVES: mapped(negatives, 16, Path(folder), "n"),
        }
        settings = TrainingSettings("adamw", 3e-3, args.batch, args.steps, 0.3, "all", 0.99, 0)
        worker = Worker(rows, NetworkSpec("mlp", args.features, (64,) * 7), settings)
        bare = Bare(worker, positives, negatives)
        weights = {name: np.ones(len(some), dtype=np.float32) for name, some in rows.items()}
        ratios: dict[str, list[float]] = {"theta_block": [], "score": []}
        for repeat in range(args.repeats + 1):
            ours = seconds(lambda: worker._run(weights, args.steps, 1.0))
            theirs = seconds(lambda: bare.train(args.steps))
            ours_score = seconds(lambda: [score_rows(worker.theta.average, some) for some in rows.values()])
            theirs_score = seconds(bare.score)
            if repeat:  # the first one warms up
                ratios["theta_block"].append(theirs / ours)
                ratios["score"].append(theirs_score / ours_score)
    found = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    print(
        json.dumps({"speed_against_bare_torch": found, "all": {k: np.round(v, 3).tolist() for k, v in ratios.items()}})
    )


if __name__ == "__main__":
    main()
