"""The rounds of a fit as they end: their history, the best one, checkpoints, and what an error leaves behind."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.cluster.protocol import Workers
from bspauc_spark.errors import BSPAUCError, CollapseError, DivergedError, MalformedError
from bspauc_spark.loop.checkpoint import Checkpoints, Saved
from bspauc_spark.loop.guard import Guard
from bspauc_spark.results.history import Block, Round
from bspauc_spark.schema import many, record, whole
from bspauc_spark.selection import Selection
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.state import State, averaged, with_averaged

logger = logging.getLogger("bspauc_spark")


@dataclass
class Outcome:
    """What the loop gives: the rounds, the θ to keep, its scores and the selection it was trained on."""

    history: list[Round] = field(default_factory=list)
    best_round: int = 0
    weights: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    scores: Scores | None = None
    selection: Selection | None = None

    @property
    def best_auc(self) -> float:
        """Validation AUC of the best round so far."""
        return self.history[self.best_round - 1].validation_auc if self.best_round else -1.0


class Monitor:
    """Keeps what the loop has reached, so that the loop itself is Algorithm 1 and nothing else."""

    def __init__(
        self,
        workers: Workers,
        patience: int = 0,
        on_round: Callable[[Round], None] = lambda _: None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.outcome = Outcome()
        self._workers, self._patience, self._on_round, self._checkpoints = workers, patience, on_round, checkpoints
        self._scores: Scores | None = None

    def begin(self, workers: Guard) -> tuple[Scores, Selection | None]:
        """The scores to go on from and the last selection: of a checkpoint, or of a θ that is pre-trained now."""
        kept = self._resume()
        if not self.outcome.history:
            workers.pretrain()
        self._scores = workers.score()
        if self.outcome.history and self.outcome.scores is None:
            self.outcome.scores = self._scores
        for row in self.outcome.history:
            self._on_round(row)
        return self._scores, kept

    def rounds(self, last: int) -> Iterator[int]:
        """The numbers of the rounds to do, as long as patience lasts."""
        self._last = last
        for t in range(len(self.outcome.history) + 1, last + 1):
            if self._patience and t - 1 - self.outcome.best_round >= self._patience:
                logger.info("no better validation AUC for %d rounds: stopped after round %d", self._patience, t - 1)
                return
            self._began = time.perf_counter()
            yield t

    def ended(self, t: int, selection: Selection, block: Block, scores: Scores) -> None:
        """A round with its selection, its θ block and the new scores."""
        row = Round.of(t, selection, block, scores, solve_seconds=block.started - self._began)
        # Scores of earlier rounds are not kept.
        selection = replace(selection, scores=None)
        outcome = self.outcome
        outcome.history.append(row)
        self._scores = scores
        if scores.validation is None or row.validation_auc > outcome.best_auc:
            outcome.best_round, outcome.weights = t, self._workers.weights()
            outcome.scores, outcome.selection = scores, selection
        if self._checkpoints is not None:
            self._checkpoints.save(self._saved(selection))
        logger.info(
            "round %d/%d: λ %.4g, kept %.1f %% + / %.1f %% −, train AUC %.4f, validation AUC %.4f",
            *(t, self._last, row.lam, 100 * row.positive_fraction, 100 * row.negative_fraction),
            *(row.train_auc, row.validation_auc),
        )
        logger.debug("round %d: %s", t, asdict(row))
        self._on_round(row)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The loop runs inside. An error of ours that ends it gets what is finished."""
        try:
            yield
            self._make_scores_readable()
        except BSPAUCError as error:
            self._hand_over(error)
            raise

    def _hand_over(self, error: BSPAUCError) -> None:
        outcome = self.outcome
        error.weights, error.outcome = outcome.weights or None, outcome
        # Other errors may mean that the workers are gone.
        if isinstance(error, DivergedError | CollapseError):
            error.weights = self._workers.weights()
            with contextlib.suppress(BSPAUCError):
                self._make_scores_readable()
                return
        if outcome.scores is not None and outcome.scores.binned:
            # A look into a bin would start workers again.
            outcome.scores = None

    def _make_scores_readable(self) -> None:
        """Bins of the outcome's scores can be fetched only if these are the scores that the workers have now."""
        outcome = self.outcome
        if outcome.scores is not self._scores and outcome.scores is not None and outcome.scores.binned:
            outcome.scores = self._scores_by(outcome.weights, self._workers.state())

    def _scores_by(self, weights: Mapping[str, npt.NDArray[np.float32]], state: State) -> Scores:
        """Scores by the θ of an earlier round, for which the workers go to a ``state`` with it."""
        self._workers.load(with_averaged(state, weights))
        return self._workers.score()

    def _resume(self) -> Selection | None:
        saved = self._checkpoints.load() if self._checkpoints is not None else None
        if saved is None:
            return None
        try:
            return self._go_on_from(saved)
        except MalformedError as error:
            assert self._checkpoints is not None
            raise self._checkpoints.unusable(saved, error) from error

    def _go_on_from(self, saved: Saved) -> Selection:
        """Bring outcome and workers to where a checkpoint was made; its last selection."""
        progress = _PROGRESS(saved.values, "progress")
        history, best_round = list(progress["history"]), progress["best_round"]
        if [row.round for row in history] != list(range(1, saved.round + 1)) or best_round > saved.round:
            raise MalformedError(f"progress does not have the rounds 1 to {saved.round}, one of them the best")
        if _shapes(saved.weights) != _shapes(averaged(saved.state)):
            raise MalformedError("weights have other names, shapes or types than the state's")
        outcome = self.outcome
        if best_round < saved.round:
            # Scores have the size of the data, so they are not saved but computed anew.
            outcome.scores = self._scores_by(saved.weights, saved.state)
        self._workers.load(saved.state)
        outcome.history.extend(history)
        outcome.best_round, outcome.weights = best_round, dict(saved.weights)
        outcome.selection = progress["best_selection"]
        last: Selection = progress["last_selection"]
        return last

    def _saved(self, last: Selection) -> Saved:
        outcome = self.outcome
        assert outcome.selection is not None
        values = {
            "history": [row.to_dict() for row in outcome.history],
            "best_round": outcome.best_round,
            "best_selection": outcome.selection.to_dict(objective=False),
            "last_selection": last.to_dict(objective=False),
        }
        return Saved(len(outcome.history), values, self._workers.state(), outcome.weights)


_PROGRESS = record(
    {
        "history": many(Round.from_dict, least=1),
        "best_round": whole(1),
        "best_selection": Selection.from_dict,
        "last_selection": Selection.from_dict,
    }
)


def _shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
