"""The θ side on TorchDistributor workers: asked through a launch, and started again when one dies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import Float32Array
from bspauc_spark.cluster.launch import GoneError, Launch, WorkersLostError
from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.errors import DivergedError, WorkerError
from bspauc_spark.selection import Selection
from bspauc_spark.statistics.binned import Bins, Contents, Histogram
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.scores import Scores
from bspauc_spark.theta.state import State, averaged, draws_of, with_draws

logger = logging.getLogger("bspauc_spark")


@dataclass(frozen=True)
class _Standing:
    """What rank 0 said last: scores, Ω(θ), and the state to go on from."""

    scores: Scores
    penalty: float
    state: State

    @classmethod
    def of(cls, reply: Message, fetch: Callable[[str, Bins], Contents]) -> _Standing:
        statistics: dict[str, Float32Array | Histogram] = dict(reply.group("scores"))
        bins, counts, sums = (reply.group(part) for part in Histogram._fields)
        statistics |= {name: Histogram(bins[name], counts[name], sums[name]) for name in bins}
        # The driver's memory is for one sorted copy of all scores, and for those before them.
        scores = Scores.of(statistics, fetch, reply.values["score_seconds"], copy=False)
        return cls(scores, reply.values["penalty"], reply.group("state"))


class DistributedWorkers:
    """The θ side on the workers of a launch. The driver keeps their last state, so a lost worker loses one command."""

    def __init__(self, launcher: Callable[[], Launch], max_restarts: int) -> None:
        self._launcher = launcher
        self._launch: Launch | None = None
        self._restarts_left = max_restarts
        self._standing: _Standing | None = None
        self._before: State | None = None

    def __enter__(self) -> DistributedWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def pretrain(self, rate: float = 1.0) -> None:
        """Train on a share of all rows."""
        _raise_if_diverged(self._ask(Message("pretrain", {"rate": rate})))

    def score(self) -> Scores:
        """The scores of all rows; they came with the last reply."""
        return self._now().scores

    def penalty(self) -> float:
        """``Ω(θ)``."""
        return self._now().penalty

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        """Run the θ block on pairs of selected rows."""
        before = self._now().state
        reply = self._ask(Message("train", {"selection": selection.to_dict(objective=False), "rate": rate}))
        _raise_if_diverged(reply)
        self._before = before
        learned = reply.values["learned"]
        return BlockReport(reply.values["pair_sum"], reply.values["penalty"], learned and (learned[0], learned[1]))

    def undo(self) -> None:
        """Take the last θ block back; draws go on."""
        assert self._before is not None
        self.load(with_draws(self._before, draws_of(self._now().state)))

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of the θ that scores, by name."""
        return averaged(self._now().state)

    def state(self) -> State:
        """All that the next block depends on, beside the rows."""
        return self._now().state

    def load(self, state: State) -> None:
        """Return to a state that ``state`` gave."""
        self._ask(_load(state))

    def _now(self) -> _Standing:
        assert self._standing is not None
        return self._standing

    def _ask(self, command: Message) -> Message:
        reply = self._hear(command)
        self._standing = _Standing.of(reply, self._contents)
        return reply

    def _contents(self, kind: str, bins: Bins) -> Contents:
        """What all rows' scores have in these bins; workers that were lost score the same again."""
        reply = self._hear(Message("contents", {"kind": kind}, {"bins": bins}))
        return Contents(reply.arrays["scores"], reply.arrays["counts"])

    def _hear(self, command: Message) -> Message:
        while True:
            try:
                return self._running().ask(command)
            except GoneError:
                self._recover()

    def _running(self) -> Launch:
        """The launch; a new one goes on from the last state."""
        if self._launch is None:
            self._launch = self._launcher()
            self._launch.start()
            if self._standing is not None:
                self._launch.ask(_load(self._standing.state))
        return self._launch

    def _recover(self) -> None:
        """Raise what a worker raised; if workers were only lost, make room for a new launch."""
        assert self._launch is not None
        launch = self._launch
        self._end()
        failure = launch.failure
        assert failure is not None
        if not isinstance(failure, WorkersLostError):
            raise failure
        if self._restarts_left == 0:
            raise WorkerError(
                f"the workers were lost, and maxRestarts allows no further launch. What is known:\n{failure}"
            ) from failure
        self._restarts_left -= 1
        logger.warning("workers were lost (%s); starting again from the last finished round", failure)

    def _end(self) -> None:
        if self._launch is not None:
            self._launch.end()
            self._launch = None


def _raise_if_diverged(reply: Message) -> None:
    if reply.word == "diverged":
        raise DivergedError(reply.values["error"])


def _load(state: State) -> Message:
    return Message("load", {}, {f"state.{name}": array for name, array in state.items()})
