"""Algorithm 1 of the paper: select easy rows in closed form, train θ on pairs of them, raise the pace, repeat."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bspauc_spark.checkpoint import Checkpoints, Saved
from bspauc_spark.cluster.protocol import Scores, State, Workers, weights_of
from bspauc_spark.errors import BSPAUCError, CollapseError, DivergedError, MalformedError
from bspauc_spark.results.history import Round
from bspauc_spark.schema import many, record, whole
from bspauc_spark.selection import Selection, solve
from bspauc_spark.selection.pace import ExplicitPace, Pace
from bspauc_spark.statistics import pair_sum
from bspauc_spark.statistics.binned import auc, sharpen
from bspauc_spark.theta.pairs import refuse_explosion
from bspauc_spark.theta.worker import BlockReport

logger = logging.getLogger("bspauc_spark")

T = TypeVar("T")

_HALVINGS = 3


@dataclass
class Outcome:
    """What the loop gives: the rounds, the θ to keep, its scores and the selection it was trained on."""

    history: list[Round] = field(default_factory=list)
    best_round: int = 0
    weights: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    scores: Scores | None = None
    selection: Selection | None = None


def fit(
    workers: Workers,
    pace: Pace | None,
    rounds: int,
    tau: float,
    ensure_descent: bool = False,
    patience: int = 0,
    on_round: Callable[[Round], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Algorithm 1. Without a ``pace`` every row is kept in every round.

    With validation rows the θ of the round with the best validation AUC is kept, otherwise the last one. With
    ``checkpoints`` it goes on after the last round that is saved there. An error of ours has the finished rounds.
    """
    outcome, previous, scores = _begin(workers, pace, checkpoints)
    for row in outcome.history:
        on_round(row)
    try:
        for t in range(len(outcome.history) + 1, rounds + 1):
            if patience and t - 1 - outcome.best_round >= patience:
                logger.info("no better validation AUC for %d rounds: stopped after round %d", patience, t - 1)
                break
            selection, solve_seconds = _timed(lambda: select(pace, t, scores, previous))  # noqa: B023
            block, train_seconds = _timed(
                lambda: descend(workers, selection, tau, ensure_descent, outcome.history)  # noqa: B023
            )
            scores = workers.score()
            row = _row(t, selection, block, tau, scores, solve_seconds, train_seconds)
            # Scores of earlier rounds are not kept.
            selection = replace(selection, scores=None)
            outcome.history.append(row)
            if scores.validation is None or row.validation_auc > _best_auc(outcome):
                outcome.best_round, outcome.weights = t, workers.weights()
                outcome.scores, outcome.selection = scores, selection
            previous = selection
            if checkpoints is not None:
                checkpoints.save(_saved(outcome, previous, workers))
            logger.info(
                "round %d/%d: λ %.4g, kept %.1f %% + / %.1f %% −, train AUC %.4f, validation AUC %.4f",
                *(t, rounds, row.lam, 100 * row.positive_fraction, 100 * row.negative_fraction),
                *(row.train_auc, row.validation_auc),
            )
            logger.debug("round %d: %s", t, asdict(row))
            on_round(row)
        return _with_scores(outcome, scores, workers)
    except BSPAUCError as error:
        _hand_over(error, outcome, scores, workers)
        raise


def _hand_over(error: BSPAUCError, outcome: Outcome, scores: Scores, workers: Workers) -> None:
    """Give the ``error`` what is finished. Workers are asked only if it says nothing against them."""
    error.weights, error.outcome = outcome.weights or None, outcome
    if isinstance(error, DivergedError | CollapseError):
        error.weights = workers.weights()
        with contextlib.suppress(BSPAUCError):
            _with_scores(outcome, scores, workers)
            return
    if outcome.scores is not None and outcome.scores.binned:
        # A look into a bin would start workers again.
        outcome.scores = None


def _with_scores(outcome: Outcome, scores: Scores, workers: Workers) -> Outcome:
    """The outcome with scores of which bins can be fetched: they are those that the workers have now."""
    if outcome.scores is not scores and outcome.scores is not None and outcome.scores.binned:
        outcome.scores = _scores_by(outcome.weights, workers, workers.state())
    return outcome


def _scores_by(weights: Mapping[str, npt.NDArray[np.float32]], workers: Workers, state: State) -> Scores:
    """Scores by the θ of an earlier round, for which the workers go to a ``state`` with it."""
    workers.load({**state, **{f"average.{name}": array for name, array in weights.items()}})
    return workers.score()


def _begin(
    workers: Workers, pace: Pace | None, checkpoints: Checkpoints | None
) -> tuple[Outcome, Selection | None, Scores]:
    """Rounds done so far, the last one's selection, and the scores to go on from."""
    saved = checkpoints.load() if checkpoints is not None else None
    if saved is None:
        _pretrain(workers)
        return Outcome(), None, workers.score()
    try:
        return _resume(workers, pace, saved)
    except MalformedError as error:
        assert checkpoints is not None
        raise checkpoints.unusable(saved, error) from error


def _resume(workers: Workers, pace: Pace | None, saved: Saved) -> tuple[Outcome, Selection | None, Scores]:
    """As ``_begin``, from what a checkpoint holds."""
    progress = _PROGRESS(saved.values, "progress")
    history, best_round = list(progress["history"]), progress["best_round"]
    if [row.round for row in history] != list(range(1, saved.round + 1)) or best_round > saved.round:
        raise MalformedError(f"progress does not have the rounds 1 to {saved.round}, one of them the best")
    if _shapes(saved.weights) != _shapes(weights_of(saved.state)):
        raise MalformedError("weights have other names, shapes or types than the state's")
    if isinstance(pace, ExplicitPace):
        pace.first = history[0].lam
    best_scores = None
    if best_round < saved.round:
        # Scores have the size of the data, so they are not saved but computed anew.
        best_scores = _scores_by(saved.weights, workers, saved.state)
    workers.load(saved.state)
    scores = workers.score()
    outcome = Outcome(history, best_round, dict(saved.weights), best_scores or scores, progress["best_selection"])
    return outcome, progress["last_selection"], scores


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


def _pretrain(workers: Workers) -> None:
    for halving in range(_HALVINGS + 1):
        try:
            workers.pretrain(0.5**halving)
            return
        except DivergedError as error:
            if halving == _HALVINGS:
                error.weights = workers.weights()
                raise
            _tell_of_slower_try("pre-training", error)


def _tell_of_slower_try(what: str, error: DivergedError) -> None:
    logger.warning("%s is done again from its start at half the learning rate: %s", what, error)


def _saved(outcome: Outcome, last: Selection, workers: Workers) -> Saved:
    assert outcome.selection is not None
    values = {
        "history": [row.to_dict() for row in outcome.history],
        "best_round": outcome.best_round,
        "best_selection": outcome.selection.to_dict(objective=False),
        "last_selection": last.to_dict(objective=False),
    }
    return Saved(len(outcome.history), values, workers.state(), outcome.weights)


def select(pace: Pace | None, t: int, scores: Scores, previous: Selection | None) -> Selection:
    """Lines 3–6: λ and μ of this round, then v and u alternated in closed form to a stationary point."""
    pos, neg = scores.positive, scores.negative
    if pace is None:
        return Selection.everything(pos, neg)
    at = pace.at(t, pos, neg)
    start = at.start
    if start is None and previous is not None:
        start = (previous.positive_fraction, previous.negative_fraction)
    return solve(pos, neg, at.lam, at.mu, start, lead=at.lead)


@dataclass(frozen=True)
class _Block:
    """A θ block with what it minimises, the mean pair loss over selected pairs plus ``τΩ(θ)``, before and after."""

    report: BlockReport
    pair_sum_before: float
    penalty_before: float
    mean_before: float
    mean_after: float
    rate: float


def descend(
    workers: Workers, selection: Selection, tau: float, ensure_descent: bool, history: Sequence[Round] = ()
) -> _Block:
    """Line 7: the θ block. One that diverged, alone or with those of the ``history``, is redone more slowly.

    With ``ensure_descent`` also one that raised what it minimises: the convergence theorem assumes that no block does.
    If some of its tries ended well but higher, the old θ stays, reported as a block at rate 0.
    """
    assert selection.scores is not None
    pos, neg = selection.scores
    kept = (selection.positive_fraction * len(pos), selection.negative_fraction * len(neg))
    pairs = max(kept[0] * kept[1], 1e-300)
    # Before and after, a sum over bins may be too low by so much.
    doubt = 2.0 * sharpen(pos, neg, *kept) * len(pos) * len(neg) / pairs
    before = pair_sum(pos, neg, *kept)
    penalty = workers.penalty()
    mean_before = before / pairs + tau * penalty
    start = _start_of_growth(history, mean_before)
    sane = False
    for halving in range(_HALVINGS + 1):
        try:
            report = workers.train(selection, 0.5**halving)
            mean_after = report.pair_sum / pairs + tau * report.penalty
            _refuse_growth(workers, start, mean_after)
        except DivergedError as error:
            if halving == _HALVINGS and not sane:
                raise
            _tell_of_slower_try("a round's training", error)
            continue
        sane = True
        if not ensure_descent or mean_after <= mean_before + doubt:
            return _Block(report, before, penalty, mean_before, mean_after, 0.5**halving)
        workers.undo()
    unchanged = BlockReport(before, penalty, 0.0)
    return _Block(unchanged, before, penalty, mean_before, mean_before, 0.0)


def _start_of_growth(history: Sequence[Round], before: float) -> float:
    """The mean loss over this round's pairs from which the θ blocks so far have raised it to ``before``.

    The mean alone says little from one round to the next: each takes it over other pairs, and as a growing pace adds
    harder ones it rises although every block lowers it. So what a new selection adds raises the start as well, and
    only what the blocks add does not: after rounds that did not raise their loss the start is ``before`` itself.
    Losses below 1 count as 1, as in ``refuse_explosion``.
    """
    befores = [max(1.0, row.block_before) for row in history] + [max(1.0, before)]
    start = befores[0]
    for row, then in zip(history, befores[1:], strict=True):
        start = min(then, start * max(1.0, then / max(1.0, row.block_after)))
    return min(start, before)


def _refuse_growth(workers: Workers, start: float, after: float) -> None:
    try:
        refuse_explosion(start, after)
    except DivergedError:
        workers.undo()
        raise


def _row(
    t: int,
    selection: Selection,
    block: _Block,
    tau: float,
    scores: Scores,
    solve_seconds: float,
    train_seconds: float,
) -> Round:
    assert selection.scores is not None
    all_pairs = len(selection.scores[0]) * len(selection.scores[1])
    V, U = selection.positive_fraction, selection.negative_fraction
    constant = -selection.lam * (V + U) + selection.mu * (V - U - selection.lead) ** 2
    return Round(
        round=t,
        lam=selection.lam,
        mu=selection.mu,
        lead=selection.lead,
        positive_fraction=V,
        negative_fraction=U,
        apd=selection.apd,
        objective_before=block.pair_sum_before / all_pairs + tau * block.penalty_before + constant,
        objective_after=block.report.pair_sum / all_pairs + tau * block.report.penalty + constant,
        block_before=block.mean_before,
        block_after=block.mean_after,
        train_auc=auc(scores.positive, scores.negative),
        validation_auc=auc(*scores.validation) if scores.validation else float("nan"),
        learning_rate_factor=block.rate,
        updates=selection.iterations,
        score_seconds=block.report.score_seconds,
        solve_seconds=solve_seconds,
        train_seconds=train_seconds - block.report.score_seconds,
    )


def _best_auc(outcome: Outcome) -> float:
    return outcome.history[outcome.best_round - 1].validation_auc if outcome.best_round else -1.0


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start
