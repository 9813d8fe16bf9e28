"""Algorithm 1 of the paper: select easy rows in closed form, train θ on pairs of them, raise the pace, repeat.

Where its lines are: v and u (lines 3 to 6) in ``selection.solve``; λ (line 8) in ``selection.pace``; θ (line 7), which
is Algorithm 2, in ``theta.worker``.
"""

from __future__ import annotations

from collections.abc import Callable

from bspauc_spark.cluster.protocol import Workers
from bspauc_spark.loop.checkpoint import Checkpoints
from bspauc_spark.loop.guard import Guard
from bspauc_spark.loop.monitor import Monitor, Outcome
from bspauc_spark.results.history import Round
from bspauc_spark.selection.pace import Pace


def bspauc(workers: Guard, pace: Pace, rounds: int, monitor: Monitor) -> None:
    """Algorithm 1. The lines of the paper stand beside ours."""
    scores, kept = monitor.begin(workers)  # 1: v = u = 1; θ is pre-trained, or that of a checkpoint
    for t in monitor.rounds(rounds):  # 2
        kept = pace.select(t, scores.positive, scores.negative, kept)  # 8: λ; 3 to 6: v and u for it
        block = workers.train(kept)  # 7: θ
        scores = workers.score()
        monitor.ended(t, kept, block, scores)


def fit(
    workers: Workers,
    pace: Pace,
    rounds: int,
    tau: float,
    ensure_descent: bool = False,
    patience: int = 0,
    on_round: Callable[[Round], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Run Algorithm 1 on these workers.

    Parameters
    ----------
    workers
        The θ side.
    pace
        Which rows each round keeps.
    rounds
        T of the paper.
    tau
        Weight τ of the penalty Ω(θ) in the objective.
    ensure_descent
        Redo a θ block that raised its objective.
    patience
        With validation rows: stop after so many rounds without a better validation AUC; 0 is never.
    on_round
        Called with each row of the history, those of a checkpoint included.
    checkpoints
        Where finished rounds are saved. If there are any, the fit goes on after them.

    Returns
    -------
    Outcome
        With validation rows θ is that of the round with the best validation AUC, otherwise the last one.

    Raises
    ------
    BSPAUCError
        Its ``outcome`` and ``weights`` hold the rounds that were finished.
    """
    monitor = Monitor(workers, patience, on_round, checkpoints)
    guard = Guard(workers, monitor.outcome.history, tau, ensure_descent)
    with monitor.watching():
        bspauc(guard, pace, rounds, monitor)
    return monitor.outcome
