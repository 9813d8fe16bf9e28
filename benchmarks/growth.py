"""How ranking gets better with more rows, beside XGBoost with its defaults, where the best possible AUC is known.

    python -m benchmarks.growth [--rows 20000,100000] [--seeds 0,1] [--param name=value …]

Rows have 20 features: skewed numbers, numbers that act together, three categories as numbers, and some that mean
nothing. The log odds of a label are a function of them; some 2 % of the rows are positive, and labels are right. The
best possible AUC is that of the log odds. Both learners run in one thread, one after the other; the last column is the
ratio of their seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.tables import param
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.reproduction.methods import fit_arrays

NEW_ROWS = 50_000
_EFFECTS = np.random.default_rng(7).normal(size=(2, 12))


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and the log odds of a positive label."""
    rng = np.random.default_rng(seed)
    z, category = rng.normal(size=(rows, 20)), rng.integers(0, 12, (rows, 3))
    odds = z[:, 0] * z[:, 4] + 1.2 * np.sin(2 * z[:, 1]) + 1.8 * (z[:, 5] > 0.7) * (z[:, 6] < 0) + 0.8 * np.abs(z[:, 2])
    odds += 0.6 * z[:, 9] - 0.7 * z[:, 7] * (z[:, 8] > 0) + 0.5 * z[:, 3] * z[:, 11]
    odds += _EFFECTS[0][category[:, 0]] + _EFFECTS[1][category[:, 1]] * (z[:, 10] > 0)
    odds = 1.5 * odds - 8.1
    x = z.astype(np.float32)
    x[:, :4], x[:, 17:] = np.exp(1.2 * z[:, :4]), category
    return x, rng.random(rows) < 1 / (1 + np.exp(-odds)), odds


def main() -> None:
    from xgboost import XGBClassifier

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: Any = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser.add_argument("--rows", type=numbers, default=[20_000, 100_000])
    parser.add_argument("--seeds", type=numbers, default=[0, 1])
    parser.add_argument("--param", type=param, action="append", default=[], help="name=value, for BSPAUC")
    args = parser.parse_args()
    print("| rows | positives | best possible | BSPAUC | XGBoost | seconds, ratio |\n|---|---|---|---|---|---|")
    for rows in args.rows:
        for seed in args.seeds:
            x, y, _ = table(rows, seed)
            new, truth, odds = table(NEW_ROWS, 1000 + seed)
            start = time.perf_counter()
            ours = fit_arrays(BSPAUCClassifier(seed=seed, **dict(args.param)), x, y)
            between = time.perf_counter()
            trees = XGBClassifier(n_jobs=1, tree_method="hist", random_state=seed).fit(x, y)
            ratio = (between - start) / (time.perf_counter() - between)
            aucs = (roc_auc_score(truth, s) for s in (odds, ours.score(new), trees.predict_proba(new)[:, 1]))
            print(f"| {rows:,} | {y.sum():,} |", *(f"{auc:.4f} |" for auc in aucs), f"{ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
