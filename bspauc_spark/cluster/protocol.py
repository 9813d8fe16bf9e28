"""Where the θ side runs. The loop sees one protocol, whoever answers it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.selection import Selection
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.statistics.binned import BinnedScores, Bins, Contents, Histogram, ordered
from bspauc_spark.theta.scoring import use_threads
from bspauc_spark.theta.worker import BlockReport, Worker

State: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Scores:
    """Ordered scores of all training rows per class, and of the validation rows where there are any."""

    positive: OrderedScores
    negative: OrderedScores
    validation: tuple[OrderedScores, OrderedScores] | None = None

    @classmethod
    def of(
        cls,
        statistics: Mapping[str, npt.NDArray[np.float32] | Histogram],
        fetch: Callable[[str, Bins], Contents],
        copy: bool = True,
    ) -> Scores:
        """From the scores of all rows by kind, or their histograms, of which ``fetch`` gives the contents of bins."""
        scores = {name: ordered(values, partial(fetch, name), copy) for name, values in statistics.items()}
        validation = None
        if VALIDATION_POSITIVES in scores:
            validation = (scores[VALIDATION_POSITIVES], scores[VALIDATION_NEGATIVES])
        return cls(scores[POSITIVES], scores[NEGATIVES], validation)

    @property
    def binned(self) -> bool:
        """Whether any of them are in bins."""
        every = (self.positive, self.negative, *(self.validation or ()))
        return any(isinstance(scores, BinnedScores) for scores in every)


class Workers(Protocol):
    """The θ side as the loop sees it."""

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a small share of the rows, at ``rate`` times the learning rate.

        As with ``train``, θ is left as it was when this diverges.
        """

    def score(self) -> Scores:
        """Score every row."""

    def penalty(self) -> float:
        """``Ω(θ)``."""

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows, at ``rate`` times the learning rate.

        A block that diverges leaves θ as it was and raises ``DivergedError``.
        """

    def undo(self) -> None:
        """Take the last θ block back."""

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""

    def state(self) -> State:
        """All that the next block depends on, beside the rows."""

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    Matrices of a batch are small: a second thread gains little, and where cores are shared (several fits under
    CrossValidator, Spark's own tasks) threads that spin for each other cost tenfold.
    """
    before = use_threads(1)
    try:
        yield
    finally:
        use_threads(before)


class InProcessWorkers:
    """One worker, called directly: no launch, no files but the shards."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def close(self) -> None:
        """Let go of the rows: NFS keeps a file, and with it the folder, as long as it is mapped."""
        self._worker.rows.clear()

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a small share of the rows."""
        if self._worker.settings.pretrain_steps:
            self._worker.pretrain(rate)

    def score(self) -> Scores:
        """Score every row."""
        scores = self._worker.scores()
        return Scores.of(self._worker.statistics(), lambda name, bins: Contents.of(scores[name], bins))

    def penalty(self) -> float:
        """``Ω(θ)``."""
        return self._worker.penalty()

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows."""
        return self._worker.block(selection, rate)

    def undo(self) -> None:
        """Take the last θ block back."""
        self._worker.undo()

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""
        return self._worker.weights()

    def state(self) -> State:
        """All that the next block depends on, beside the rows."""
        return self._worker.state()

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave."""
        self._worker.load_state(state)


def weights_of(state: State) -> dict[str, npt.NDArray[np.float32]]:
    """The θ that scores, out of a worker's state."""
    return {name.removeprefix("average."): array.copy() for name, array in state.items() if name.startswith("average.")}
