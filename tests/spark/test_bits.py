"""The same data and seed give the same θ, bit for bit, as they did when ``tests/fixtures/bits.json`` was written.

All but the pre-trained one and the table are from before the package was divided into rooms. A change of what is
learned writes the file anew, by ``python -m tests.spark.test_bits``, and says so in the changelog.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession

from bspauc_spark import BSPAUCClassifier, BSPAUCModel

FILE = Path(__file__).parents[1] / "fixtures" / "bits.json"
SMALL: dict[str, Any] = {
    "network": "mlp",
    "rounds": 3,
    "stepsPerRound": 12,
    "pretrainSteps": 0,
    "hiddenLayers": [8, 8],
    "batchSize": 32,
    "verbose": False,
}
FITS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "fraction": {"paceStart": 0.5, "paceEnd": 0.9, "nu": 0.5},
    "in bins": {"exactRows": 100, "paceStart": 0.5},
    "sparse": {"sparse": True, "paceEnd": 0.8},
    "linear, sgd, lambda": {"network": "linear", "optimizer": "sgd", "learningRate": 0.1, "regParam": 0.01}
    | {"paceSchedule": "geometric", "lambdaInit": 0.4, "lambdaMax": 2.0, "mu": 0.5, "pairing": "matched"},
    "kernel": {"network": "kernel", "numRandomFeatures": 16, "featuresPerStep": 4, "optimizer": "adam"},
    "all rows": {"selfPaced": False},
    "pre-trained": {"pretrainSteps": 8, "pretrainFraction": 0.3},
    "validation": {"validationIndicatorCol": "validation", "patience": 2, "ensureDescent": True},
    "table": {"network": "table", "rounds": 2},
    "two processes": {"numProcesses": 2, "localMode": True, "rounds": 2},
}


def rows_of(spark: SparkSession, sparse: bool) -> DataFrame:
    """Rows that no generator of random numbers has to give again: a lattice, and labels by a rule with exceptions."""
    made = []
    for n in range(1200):
        x = [float((n * step) % prime) / prime - 0.5 for step, prime in ((7, 101), (11, 103), (13, 107), (17, 109))]
        label = float((x[0] + x[1] * x[2] > 0.25) != (n % 13 == 0))
        filled = {i: value for i, value in enumerate(x) if not sparse or (n + i) % 3}
        vector = Vectors.sparse(40, {9 * i: v for i, v in filled.items()}) if sparse else Vectors.dense(x)
        made.append((vector, label, n % 5 == 0))
    return spark.createDataFrame(made, ["features", "label", "validation"])


def fitted(spark: SparkSession, given: dict[str, Any]) -> BSPAUCModel:
    params = {**SMALL, **given}
    frame = rows_of(spark, bool(params.pop("sparse", False)))
    return BSPAUCClassifier(**params).fit(frame)


def bits(model: BSPAUCModel) -> str:
    """A checksum of θ and of the selection that was made last."""
    weights = model.scorer.weights
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    found.update(json.dumps(model.scorer.selection.to_dict(objective=False), sort_keys=True).encode())
    return found.hexdigest()


def sums(model: BSPAUCModel) -> dict[str, float]:
    """What is left to compare where another kind of CPU rounds otherwise."""
    history = model.summary.history
    return {name: float(history[name].iloc[0]) for name in ("lam", "positive_fraction", "negative_fraction")}


def machine() -> str:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cpu.partition(':')[2].strip()}"


@pytest.mark.classic
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * ("numProcesses" in FITS[name])) for name in FITS]
)
def test_a_fit_gives_the_bits_it_gave(spark: SparkSession, name: str) -> None:
    stored = json.loads(FILE.read_text())
    model = fitted(spark, FITS[name])
    if stored["machine"] == machine():
        assert bits(model) == stored["bits"][name]
    assert sums(model) == pytest.approx(stored["sums"][name], rel=1e-3)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    models = {name: fitted(spark, given) for name, given in FITS.items()}
    made = {
        "machine": machine(),
        "bits": {name: bits(model) for name, model in models.items()},
        "sums": {name: sums(model) for name, model in models.items()},
    }
    FILE.write_text(json.dumps(made, indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
