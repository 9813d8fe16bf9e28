"""Test AUC on few rows, under the default regParam and under a fixed 0.3; writes a table of docs/defaults.md.

    python benchmarks/few_rows.py --data-dir DIR [--seeds 2]

Numbers with more than two values are standardised, as jobs/train.py does. Beside BSPAUC stand scikit-learn's
LogisticRegression and XGBoost, both with their defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit
from xgboost import XGBClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.reproduction import datasets
from bspauc_spark.reproduction.methods import fit_arrays

SUBSETS = [("a9a", 1000), ("a9a", 4000), ("cod-rna", 1000), ("cod-rna", 4000), ("shuttle", 5000), ("shuttle", 30_000)]
TEST_ROWS = 10_000


def problems(data_dir: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, rows, labels and size of the training part."""
    cancer, digits = load_breast_cancer(), load_digits()
    yield "breast cancer", cancer.data, cancer.target == 0, 0.7
    yield "digits, 8 or not", digits.data, digits.target == 8, 0.7
    for name, rows in SUBSETS:
        data = datasets.load(name, data_dir)
        x = data.x.toarray() if hasattr(data.x, "toarray") else data.x
        yield name, x, data.y, rows


def scaled(train: Any, test: Any) -> tuple[Any, Any]:
    """Standardised by the training part, but for flags."""
    flags = np.array([len(np.unique(column)) <= 2 for column in train.T])
    mean, deviation = np.where(flags, 0, train.mean(axis=0)), np.where(flags, 1, train.std(axis=0))
    deviation[deviation == 0] = 1
    return tuple(((part - mean) / deviation).astype(np.float32) for part in (train, test))  # type: ignore[return-value]


def ours(**params: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda x, y, rows: fit_arrays(BSPAUCClassifier(**params), x, y).score(rows)


LEARNERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "BSPAUC": ours(),
    "with regParam 0.3": ours(regParam=0.3),
    "LogisticRegression": lambda x, y, rows: LogisticRegression(max_iter=1000).fit(x, y).decision_function(rows),
    "XGBoost": lambda x, y, rows: XGBClassifier(n_jobs=1).fit(x, y).predict_proba(rows)[:, 1],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    print(f"| data | rows | positives | flipped labels | {' | '.join(LEARNERS)} |")
    print("|---" * (4 + len(LEARNERS)) + "|")
    for name, x, y, size in problems(args.data_dir):
        split = StratifiedShuffleSplit(
            args.seeds, train_size=size, test_size=None if size < 1 else TEST_ROWS, random_state=0
        )
        for flipped in (0.0, 0.2):
            aucs: dict[str, list[float]] = {learner: [] for learner in LEARNERS}
            for seed, (train, test) in enumerate(split.split(x, y)):
                rows, test_rows = scaled(x[train], x[test])
                labels = y[train] ^ (np.random.default_rng(seed).random(len(train)) < flipped)
                for learner, fit in LEARNERS.items():
                    aucs[learner].append(float(roc_auc_score(y[test], fit(rows, labels, test_rows))))
            means = " | ".join(f"{np.mean(found):.3f}" for found in aucs.values())
            print(f"| {name} | {len(train):,} | {y[train].sum():,} | {flipped:.0%} | {means} |", flush=True)


if __name__ == "__main__":
    main()
