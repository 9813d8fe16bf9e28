"""Cells of the tables and figures: the data of each, its tuning and its trials, as tasks that run anywhere."""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bspauc_spark import noise
from bspauc_spark.arrays import stacked
from bspauc_spark.baselines.rows import BoolArray, Matrix
from bspauc_spark.errors import CollapseError, DivergedError
from bspauc_spark.estimator import BSPAUCClassifier
from bspauc_spark.reproduction import datasets
from bspauc_spark.reproduction.methods import METHODS, fit_arrays

# The paper's poker set is random deals with a deterministic label, so a dealer gives as many as it has.
_POKER_ROWS = 1_000_000
# Learning which cards make a full house takes many more steps than the other sets do.
_LENGTHS = {"poker": 10}
_HELD_FOR_TUNING = 0.2
# Of each class: an AUC does not mind the ratio of the classes, and there are sets with one positive in a thousand rows.
_MOST_TUNING_ROWS = 5_000
TUNING_PERCENT = 20
# Flips spare this share of the rows, those nearest to the hyperplane.
FAR_QUANTILE = 0.25


@dataclass(frozen=True)
class Cell:
    """A data set with a kind (clean, flip, poison) and a percentage of noise."""

    dataset: str
    noise: str = "clean"
    percent: int = 0

    @property
    def title(self) -> str:
        """As the tables name it."""
        return self.dataset if self.noise == "clean" else f"{self.dataset}, {self.percent} % {self.noise}"


@dataclass(frozen=True)
class Task:
    """One thing to run: the tuning of a method, a trial of it, or a point of the figures."""

    kind: str
    cell: Cell
    method: str
    trial: int = 0
    far_quantile: float = FAR_QUANTILE
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What makes two results the same one; a trial's settings are the tuning's, a point's its own."""
        own = [f"{name}={value:g}" for name, value in sorted(self.settings.items())] if self.kind == "point" else []
        cell = (self.cell.dataset, self.cell.noise, str(self.cell.percent), f"{self.far_quantile:g}")
        return "/".join([self.kind, *cell, self.method, str(self.trial), *own])


@dataclass(frozen=True)
class Part:
    """Training rows with their labels as given, and test rows with true ones."""

    x: Matrix
    y: BoolArray
    x_test: Matrix
    y_test: BoolArray


def run(task: Task, data_dir: str) -> dict[str, Any]:
    """Run a task; what it found, with the task beside it."""
    start = time.perf_counter()
    part = _part(task.cell, task.trial, task.far_quantile, data_dir)
    prepared = time.perf_counter()
    found = {"tuning": _tune, "trial": _trial, "point": _point}[task.kind](task, part)
    seconds = {"prepare_seconds": prepared - start, "seconds": time.perf_counter() - prepared}
    return {"key": task.key, **asdict(task), **found, **seconds}


def _tune(task: Task, part: Part) -> dict[str, Any]:
    """The candidate with the best AUC on held-back training rows, whose labels are as noisy as the rest."""
    rng = np.random.default_rng(task.trial)
    parts = []
    for members in (np.flatnonzero(part.y), np.flatnonzero(~part.y)):
        order = rng.permutation(members)
        parts.append(np.split(order, [max(1, int(_HELD_FOR_TUNING * len(order)))]))
    held, kept = (np.concatenate([rows[:_MOST_TUNING_ROWS] for rows in both]) for both in zip(*parts, strict=True))
    method = METHODS[task.method]
    aucs = []
    for candidate in method.candidates:
        try:
            score = method.fit(part.x[kept], part.y[kept], task.trial, _length(task), **candidate)
            aucs.append(_auc(part.y[held], score(part.x[held])))
        except DivergedError:
            aucs.append(0.0)
    best = int(np.argmax(aucs))
    return {"settings": dict(method.candidates[best]), "candidate": best, "validation_aucs": aucs}


def _trial(task: Task, part: Part) -> dict[str, Any]:
    score = METHODS[task.method].fit(part.x, part.y, task.trial, _length(task), **task.settings)
    return {"auc": _auc(part.y_test, score(part.x_test))}


def _point(task: Task, part: Part) -> dict[str, Any]:
    """AUC and APD of BSPAUC for one ν and λ_∞; neither where one class was left with no row, as in the paper."""
    estimator = BSPAUCClassifier(
        seed=task.trial, paceSchedule="linear", lambdaMax=task.settings["lambda_max"], nu=task.settings["nu"]
    )
    try:
        fit = fit_arrays(estimator, part.x, part.y)
    except CollapseError:
        return {"auc": None, "apd": None}
    last = fit.outcome.history[-1]
    kept = {"positive_fraction": last.positive_fraction, "negative_fraction": last.negative_fraction}
    return {"auc": _auc(part.y_test, fit.score(part.x_test)), "apd": last.apd, **kept}


def _auc(y: BoolArray, scores: Any) -> float:
    from sklearn.metrics import roc_auc_score

    # A score that is not a number ranks nothing.
    return float(roc_auc_score(y, np.nan_to_num(scores)))


def _length(task: Task) -> int:
    return _LENGTHS.get(task.cell.dataset, 1)


@functools.lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str) -> datasets.Dataset:
    return datasets.deal_poker(_POKER_ROWS) if name == "poker" else datasets.load(name, Path(data_dir))


@functools.lru_cache(maxsize=1)
def _part(cell: Cell, trial: int, far_quantile: float, data_dir: str) -> Part:
    """The data of a trial: split and noise by its seed, test rows as they are."""
    train, test = datasets.split(_dataset(cell.dataset, data_dir), seed=trial)
    x, y, share = train.x, train.y, cell.percent / 100
    if cell.noise == "flip":
        y = y ^ noise.flip_labels(x, y, share, far_quantile, seed=trial)
    elif cell.noise == "poison":
        rows, claimed = noise.poison(x, y, share, seed=trial)
        x, y = stacked(x, rows), np.concatenate([y, claimed])
    return Part(x, y, test.x, test.y)
