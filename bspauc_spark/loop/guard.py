"""Line 7 of Algorithm 1, with a way back: a θ block that explodes is taken back and redone more slowly."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from bspauc_spark.cluster.protocol import Workers
from bspauc_spark.errors import DivergedError
from bspauc_spark.results.history import Block, Round
from bspauc_spark.selection import Selection
from bspauc_spark.statistics import pair_sum
from bspauc_spark.statistics.binned import sharpen
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.pairs import refuse_explosion

logger = logging.getLogger("bspauc_spark")

# Of the learning rate, try by try.
_FACTORS = (1.0, 0.5, 0.25, 0.125)


class Guard:
    """Workers that halve the learning rate where training diverges, at most three times.

    A θ block diverges alone, or together with the blocks of the ``history``. With ``ensure_descent`` also a block that
    raised what it minimises is redone: the convergence theorem assumes that no block does.
    """

    def __init__(self, workers: Workers, history: Sequence[Round], tau: float, ensure_descent: bool = False) -> None:
        self._workers, self._history, self._tau, self._ensure_descent = workers, history, tau, ensure_descent
        self.score, self.penalty, self.undo = workers.score, workers.penalty, workers.undo
        self.weights, self.state, self.load = workers.weights, workers.state, workers.load

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a share of all rows."""
        for factor in _FACTORS:
            try:
                return self._workers.pretrain(rate * factor)
            except DivergedError as error:
                if factor == _FACTORS[-1]:
                    raise
                _say_that_it_is_redone("pre-training", error)
        return None

    def train(self, selection: Selection, rate: float = 1.0) -> Block:
        """The θ block on pairs of the rows that are kept.

        If some of its tries ended well but higher, the old θ stays, and the block is reported with a rate of 0.
        """
        started = time.perf_counter()
        unchanged, doubt = self._unchanged(selection)
        ended_well = False
        for factor in _FACTORS:
            try:
                block = self._try(selection, rate * factor, unchanged)
            except DivergedError as error:
                if factor == _FACTORS[-1] and not ended_well:
                    raise
                _say_that_it_is_redone("a round's training", error)
                continue
            ended_well = True
            if not self._ensure_descent or block.mean_after <= block.mean_before + doubt:
                return block.timed(started)
            self._workers.undo()
            unchanged = replace(block, after=block.as_before(), rate=0.0)
        return unchanged.timed(started)

    def _unchanged(self, selection: Selection) -> tuple[Block, float]:
        """The block that leaves θ as it is, and by how much losses that are sums over bins may be too low."""
        assert selection.scores is not None
        pos, neg = selection.scores
        kept = (selection.positive_fraction * len(pos), selection.negative_fraction * len(neg))
        pairs = max(kept[0] * kept[1], 1e-300)
        doubt = 2.0 * sharpen(pos, neg, *kept) * len(pos) * len(neg) / pairs
        now = BlockReport(pair_sum(pos, neg, *kept), self._workers.penalty())
        return Block(now, now, pairs, self._tau), doubt

    def _try(self, selection: Selection, rate: float, unchanged: Block) -> Block:
        """One θ block; taken back if the blocks so far have raised the mean loss too far above where it started."""
        block = replace(unchanged, after=self._workers.train(selection, rate), rate=rate)
        try:
            refuse_explosion(_start_of_growth(self._history, block.mean_before), block.mean_after)
        except DivergedError:
            self._workers.undo()
            raise
        return block


def _say_that_it_is_redone(what: str, error: DivergedError) -> None:
    logger.warning("%s is done again from its start at half the learning rate: %s", what, error)


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
