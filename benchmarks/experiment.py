"""What the accuracy benchmarks share: real data sets, splits, flips, and fits without a Spark session.

The fits run the package's own loop on arrays, which is what ``BSPAUCClassifier`` runs on staged rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.noise import flip_labels
from bspauc_spark.reproduction import datasets
from bspauc_spark.reproduction.methods import ArrayFit, fit_arrays


def load(name: str, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to [−1, 1] and true labels of one of the paper's data sets."""
    data = datasets.load(name, data_dir)
    return data.x, data.y


@dataclass(frozen=True)
class Split:
    """Training rows with noisy labels, which of them were flipped, and a clean test part."""

    x: np.ndarray
    label: np.ndarray
    flipped: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def test_auc(self, scores: np.ndarray) -> float:
        return float(roc_auc_score(self.y_test, scores))


def split(x: np.ndarray, y: np.ndarray, seed: int, proportion: float, far_quantile: float) -> Split:
    """A seeded 75/25 split, stratified; labels of the training part flipped as in the paper."""
    train, test = train_test_split(np.arange(len(y)), test_size=0.25, random_state=seed, stratify=y)
    flipped = flip_labels(x[train], y[train], proportion, far_quantile, seed)
    return Split(x[train], y[train] ^ flipped, flipped, x[test], y[test])


def fit(data: Split, seed: int, validation: float = 0.0, **params: Any) -> tuple[ArrayFit, float]:
    """Fit on arrays with the default Params, changed by ``params``; with a ``validation`` share the best round wins."""
    held = np.random.default_rng(seed + 1000).random(len(data.label)) < validation if validation else None
    start = time.perf_counter()
    found = fit_arrays(BSPAUCClassifier(seed=seed, **params), data.x, data.label, held)
    return found, time.perf_counter() - start
