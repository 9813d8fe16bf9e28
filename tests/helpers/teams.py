"""Workers that learn from a few rows in this process."""

from __future__ import annotations

import numpy as np

from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.rows.rows import DenseRows
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker
from bspauc_spark.theta.workers import make_worker

SETTINGS = {
    "optimizer": "adam",
    "learning_rate": 0.01,
    "batch_size": 64,
    "steps": 20,
    "tau": 0.001,
    "pairing": "all",
    "averaging": 0.9,
    "seed": 0,
    "pretrain_steps": 20,
    "pretrain_fraction": 1.0,
}


SPECS = {
    "mlp": NetworkSpec("mlp", 4, (16, 16)),
    "table": NetworkSpec("table", 4, members=3, inputs="auto", landmarks=60),
}


def workers(validation: bool = False, network: str = "mlp", **settings) -> Worker:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1500, 4)).astype(np.float32)
    label = (x[:, 0] - x[:, 1] ** 2 > 0) ^ (rng.random(1500) < 0.15)
    held = (np.arange(1500) % 4 == 0) & validation
    kinds = {POSITIVES: label & ~held, NEGATIVES: ~label & ~held}
    if validation:
        kinds |= {VALIDATION_POSITIVES: label & held, VALIDATION_NEGATIVES: ~label & held}
    rows = {kind: DenseRows([x[chosen]], 4) for kind, chosen in kinds.items()}
    return make_worker(rows, SPECS[network], TrainingSettings(**{**SETTINGS, **settings}))
