"""Where the θ side runs. The loop sees one protocol, whoever answers it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from bspauc_spark.selection import Selection
from bspauc_spark.shards import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.statistics import ClassScores, pair_sum
from bspauc_spark.workers.worker import Worker


@dataclass(frozen=True)
class Scores:
    """Sorted scores of all training rows per class, and of the validation rows where there are any."""

    positive: ClassScores
    negative: ClassScores
    validation: tuple[ClassScores, ClassScores] | None = None


@dataclass(frozen=True)
class BlockReport:
    """What a θ block gave: ``Σ v_i u_j ξ_ij`` and ``Ω(θ)`` at the new θ, and the seconds of the scoring pass."""

    pair_sum: float
    penalty: float
    score_seconds: float


class Workers(Protocol):
    """The θ side as the loop sees it."""

    def pretrain(self) -> None:
        """Train on a small share of the rows."""

    def score(self) -> Scores:
        """Score every row."""

    def penalty(self) -> float:
        """``Ω(θ)``."""

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows, at ``rate`` times the learning rate."""

    def undo(self) -> None:
        """Take the last θ block back."""

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""


# The setting belongs to the process, and fits may overlap: the first one in changes it, the last one out restores it.
_threads_lock = threading.Lock()
_threads_before: list[int] = []


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    Matrices of a batch are small: a second thread gains little, and where cores are shared (several fits under
    CrossValidator, Spark's own tasks) threads that spin for each other cost tenfold.
    """
    with _threads_lock:
        if not _threads_before:
            _threads_before.append(torch.get_num_threads())
            torch.set_num_threads(1)
        else:
            _threads_before.append(_threads_before[0])
    try:
        yield
    finally:
        with _threads_lock:
            before = _threads_before.pop()
            if not _threads_before:
                torch.set_num_threads(before)


class InProcessWorkers:
    """One worker, called directly: no launch, no files but the shards."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def pretrain(self) -> None:
        """Train on a small share of the rows."""
        if self._worker.settings.pretrain_steps:
            self._worker.pretrain()

    def score(self) -> Scores:
        """Score every row."""
        scores = {name: ClassScores.from_array(values) for name, values in self._worker.scores().items()}
        validation = None
        if VALIDATION_POSITIVES in scores:
            validation = (scores[VALIDATION_POSITIVES], scores[VALIDATION_NEGATIVES])
        return Scores(scores[POSITIVES], scores[NEGATIVES], validation)

    def penalty(self) -> float:
        """``Ω(θ)``."""
        return self._worker.penalty()

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows."""
        self._worker.train(selection, rate)
        start = time.perf_counter()
        self._worker.scores()
        seconds = time.perf_counter() - start
        return BlockReport(kept_pair_sum(self._worker, selection), self._worker.penalty(), seconds)

    def undo(self) -> None:
        """Take the last θ block back."""
        self._worker.undo()

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._worker.average.state_dict().items()}


def kept_pair_sum(worker: Worker, selection: Selection) -> float:
    """``Σ v_i u_j ξ_ij`` over the rows that ``selection`` kept, at their new scores."""
    kept = worker.kept()

    def groups(name: str, phi: float) -> list[tuple[float, ClassScores]]:
        both = ((1.0, kept[name].full), (phi, kept[name].partial))
        return [(weight, ClassScores.from_array(scores)) for weight, scores in both if len(scores)]

    negatives = groups(NEGATIVES, selection.phi_negative)
    return sum(v * u * pair_sum(s, r) for v, s in groups(POSITIVES, selection.phi_positive) for u, r in negatives)
