"""Time to the same test AUC under flipped labels: BSPAUC, LibAUC and XGBoost on Spark, side by side in one run.

    pip install --no-deps libauc==2.0.1 && pip install xgboost-cpu
    python benchmarks/rivals.py --data-dir DIR [--seeds 0 1 2] [--only a9a] [--steps 2400] [--out FILE]

The process binds itself, and with it the JVM and Python workers, to one core; torch has one thread, Spark is
``local[1]``, XGBoost has one worker of one thread. The systems take turns on each split. Not counted: the session's
start, loading and splitting, and every evaluation.

*BSPAUC*: the default Params, staging from a Parquet file included. A round's θ counts as had at that round's end plus
the time that the fit took to finish after its last round.

*LibAUC*: its pairwise hinge loss under its AdamW, and its AUCM loss (on sigmoids) under PESG, on our network and batch
size, with its DualSampler. A fifth of the noisy training rows validates, and is not trained on. Its time ends at the
best validation AUC, looked for every 60 steps, as long as one of our rounds. Favours to LibAUC: its rows are tensors in
memory and are gathered a batch at a time, without a DataLoader; learning rate and decay are chosen among four pairs by
validation AUC on the first seed's split, in half as many steps, and that is not counted; the four were picked by how
they did on the test part of seed 0. PESG runs in its Adam mode, since its default, SGD, took longer (on cod-rna with
20 % uniform flips 1,200 steps led to 0.67 and not 0.99).

*XGBoost*: ``SparkXGBClassifier`` with its defaults, 100 trees, from the same Parquet file.

"Reaches" says when the test AUC of any round, or of any check, first was at least that of the other's final model: when
to stop is read off the test part, for both. In brackets, in how many of the runs it was, over which the mean is then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from libauc.losses import AUCMLoss, PairwiseAUCLoss
from libauc.optimizers import PESG, AdamW
from pyspark.sql import DataFrame, SparkSession
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from xgboost import DMatrix
from xgboost.spark import SparkXGBClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.defaults import describe
from benchmarks.experiment import Split, load, split
from benchmarks.session import session
from benchmarks.solve import seconds
from bspauc_spark import BSPAUCClassifier

try:
    from libauc.sampler import DualSampler
except ModuleNotFoundError:
    # Its module wants torchvision for image folders only, and a torchvision that does not fit torch breaks both.
    sys.modules["torchvision"] = types.ModuleType("torchvision")
    from libauc.sampler import DualSampler

    del sys.modules["torchvision"]

NAMES = ("a9a", "cod-rna", "skin_nonskin")
FLIPS = ((0.2, 0.0), (0.3, 0.25))
CHECK_STEPS = 60
TREES = 100


@dataclass(frozen=True)
class Check:
    """The model at a moment of its training."""

    seconds: float
    test_auc: float
    validation_auc: float = float("nan")


@dataclass(frozen=True)
class Run:
    """A training: the model it ends with, and those on its way."""

    final: Check
    curve: tuple[Check, ...] = ()
    settings: dict[str, float] | None = None
    staging: float = 0.0

    def reaches(self, auc: float) -> float | None:
        """When it first was as good, if ever."""
        return next((check.seconds for check in self.curve if check.test_auc >= auc), None)


class Watched(BSPAUCClassifier):
    """Keeps the end of staging, and each round's end and θ."""

    def _run(self, workers: Any, decay: Any, checkpoints: Any, log: Callable[[Any], None]) -> Any:
        self.staged = time.perf_counter()
        self.ends: list[tuple[float, dict[str, Any]]] = []

        def noted(row: Any) -> None:
            log(row)
            self.ends.append((time.perf_counter(), workers.weights()))

        return super()._run(workers, decay, checkpoints, noted)


def bspauc(frame: DataFrame, data: Split, seed: int) -> Run:
    estimator = Watched(seed=seed, verbose=False)
    began = time.perf_counter()
    model = estimator.fit(frame)
    ended = time.perf_counter()
    finish = ended - estimator.ends[-1][0]
    network = model.scorer.spec.build()
    curve = []
    for end, weights in estimator.ends:
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        curve.append(Check(end - began + finish, data.test_auc(scores(network, data.x_test))))
    return Run(curve[-1], tuple(curve), staging=estimator.staged - began)


def xgboost(frame: DataFrame, data: Split, seed: int) -> Run:
    estimator = SparkXGBClassifier(n_estimators=TREES, num_workers=1, random_state=seed, verbose=False)
    began = time.perf_counter()
    model = estimator.fit(frame)
    took = time.perf_counter() - began
    return Run(Check(took, data.test_auc(model.get_booster().predict(DMatrix(data.x_test)))))


@dataclass(frozen=True)
class Recipe:
    """One of LibAUC's losses with its optimizer, and the settings among which validation chooses."""

    start: Callable[..., tuple[nn.Module, torch.optim.Optimizer]]
    squash: Callable[[Tensor], Tensor]
    candidates: tuple[dict[str, float], ...]


def _pairwise(network: nn.Module, **settings: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    return PairwiseAUCLoss("hinge"), AdamW(network.parameters(), **settings)


def _aucm(network: nn.Module, **settings: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    loss = AUCMLoss()
    return loss, PESG(network.parameters(), loss, mode="adam", verbose=False, **settings)


# The first decay is LibAUC's default. The other is ours, or weak enough for AUCM to learn cod-rna.
LIBAUC = {
    "LibAUC, pairwise hinge": Recipe(
        _pairwise,
        nn.Identity(),
        tuple({"lr": lr, "weight_decay": decay} for lr in (3e-3, 1e-3) for decay in (1e-2, 0.3)),
    ),
    "LibAUC, AUCM": Recipe(
        _aucm,
        torch.sigmoid,
        tuple({"lr": lr, "epoch_decay": decay} for lr in (3e-3, 1e-3) for decay in (2e-3, 2e-4)),
    ),
}


def libauc(recipe: Recipe, settings: dict[str, float], data: Split, seed: int, steps: int) -> Run:
    """One training of ``steps`` steps; of its checks the one with the best validation AUC is the model."""
    held = np.random.default_rng(seed + 1000).random(len(data.label)) < 0.2
    x, y = torch.from_numpy(data.x[~held]), torch.from_numpy(data.label[~held].astype(np.float32))
    torch.manual_seed(seed)
    network = plain_network(x.shape[1])
    loss, optimizer = recipe.start(network, **settings)
    batches = drawn(y, 2 * BSPAUCClassifier().getBatchSize(), seed)

    def train() -> None:
        for _ in range(CHECK_STEPS):
            rows = next(batches)
            optimizer.zero_grad()
            loss(recipe.squash(network(x[rows])), y[rows]).backward()
            optimizer.step()

    curve: list[Check] = []
    took = 0.0
    for _ in range(steps // CHECK_STEPS):
        took += seconds(train)
        validation_auc = float(roc_auc_score(data.label[held], scores(network, data.x[held])))
        curve.append(Check(took, data.test_auc(scores(network, data.x_test)), validation_auc))
    return Run(max(curve, key=lambda check: check.validation_auc), tuple(curve), settings)


def tuned(recipe: Recipe, data: Split, seed: int, steps: int) -> dict[str, float]:
    """The settings with the best validation AUC."""
    runs = [(libauc(recipe, settings, data, seed, steps), settings) for settings in recipe.candidates]
    return max(runs, key=lambda run: run[0].final.validation_auc)[1]


def drawn(y: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Rows of batches that are half positive, epoch after epoch."""
    sampler = DualSampler(None, batch, labels=y.numpy(), random_seed=seed)
    while True:
        yield from torch.from_numpy(np.fromiter(sampler, dtype=np.int64)).split(batch)  # type: ignore[no-untyped-call]


def plain_network(features: int) -> nn.Sequential:
    """Our network in plain torch layers, which start as ours do."""
    widths = [features, *BSPAUCClassifier().getHiddenLayers()]
    hidden = [layer for sizes in itertools.pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 1), nn.Flatten(0))


@torch.inference_mode()
def scores(network: nn.Module, x: Any) -> Any:
    parts = torch.from_numpy(x).split(4096)  # type: ignore[no-untyped-call]
    return torch.cat([network(part) for part in parts]).numpy()


def written(spark: SparkSession, data: Split, path: Path) -> DataFrame:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(data.x.ravel()), data.x.shape[1])
    table = {"features": lists.cast(pa.list_(pa.float32())), "label": data.label.astype(float)}
    pq.write_table(pa.table(table), path)
    return spark.read.parquet(str(path))


def mean(values: Sequence[float | None]) -> str:
    """The mean of those there are, and how many there are if some are missing."""
    found = [value for value in values if value is not None]
    if not found:
        return "never"
    return f"{np.mean(found):.1f}" + (f" ({len(found)} of {len(values)})" if len(found) < len(values) else "")


def row(runs: dict[str, list[Run]]) -> list[str]:
    """AUC and seconds of each system, when LibAUC reaches ours, when ours reaches LibAUC's."""
    ours = runs["BSPAUC"]
    cells = []
    for found in runs.values():
        aucs = [run.final.test_auc for run in found]
        cells.append(f"{np.mean(aucs):.4f} ± {np.std(aucs):.4f}, {mean([run.final.seconds for run in found])} s")
    cells[0] += f" (staging {mean([run.staging for run in ours])})"
    for name in LIBAUC:
        cells.append(mean([run.reaches(our.final.test_auc) for our, run in zip(ours, runs[name], strict=True)]))
    for name in LIBAUC:
        cells.append(mean([our.reaches(run.final.test_auc) for our, run in zip(ours, runs[name], strict=True)]))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="some of the data sets")
    parser.add_argument("--steps", type=int, default=2400, help="of LibAUC; BSPAUC takes 660")
    parser.add_argument("--out", type=Path, help="append one line of JSON with all curves to this file")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    spark = session("local[1]", "3g")
    names = ["BSPAUC", *LIBAUC, "XGBoost"]
    reached = [f"{name} reaches BSPAUC's, s" for name in LIBAUC] + [f"BSPAUC reaches {name}'s, s" for name in LIBAUC]
    print(f"| data | flipped labels | {' | '.join([*names, *reached])} |")
    print("|---" * (2 + len(names) + len(reached)) + "|")
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            x, y = load(name, args.data_dir)
            for proportion, far in FLIPS:
                runs: dict[str, list[Run]] = {title: [] for title in names}
                for seed in args.seeds:
                    data = split(x, y, seed, proportion, far)
                    frame = written(spark, data, Path(folder) / f"{name}-{far}-{seed}.parquet")
                    if seed == args.seeds[0]:
                        chosen = {title: tuned(recipe, data, seed, args.steps // 2) for title, recipe in LIBAUC.items()}
                        for warm_up in (bspauc, xgboost):
                            warm_up(frame, data, seed)
                    runs["BSPAUC"].append(bspauc(frame, data, seed))
                    for title, recipe in LIBAUC.items():
                        runs[title].append(libauc(recipe, chosen[title], data, seed, args.steps))
                    runs["XGBoost"].append(xgboost(frame, data, seed))
                print(f"| {name} | {describe(proportion, far)} | {' | '.join(row(runs))} |", flush=True)
                found = {title: [asdict(run) for run in some] for title, some in runs.items()}
                cases.append({"data": name, "proportion": proportion, "far": far, "runs": found})
    spark.stop()
    if args.out:
        with args.out.open("a") as file:
            file.write(json.dumps({"seeds": args.seeds, "steps": args.steps, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
