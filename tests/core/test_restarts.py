"""Workers that are lost at any command: the driver starts others, and the fit ends with the bits it would have had.

The launch here has its rank 0 in this process: a real worker, which obeys the real protocol. Commands and replies go
through their bytes, as files would carry them; that a launch notices who is gone is shown with real processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bspauc_spark import algorithm
from bspauc_spark.cluster.launch import GoneError, WorkersLostError
from bspauc_spark.cluster.mailbox import Message
from bspauc_spark.cluster.protocol import Workers
from bspauc_spark.cluster.rank import answer
from bspauc_spark.cluster.remote import DistributedWorkers
from bspauc_spark.errors import DeviceError, DivergedError, WorkerError
from bspauc_spark.loop.monitor import Outcome
from bspauc_spark.selection import Selection
from bspauc_spark.selection.pace import FractionPace
from tests.helpers.teams import workers

ROUNDS = 3
LITTLE: dict[str, Any] = {"validation": True, "steps": 3, "pretrain_steps": 3, "learning_rate": 1e-3}


class Nearby:
    """A launch that is lost when it is asked for the ``last``-th time: before it did that, or, with ``work``, after."""

    def __init__(self, last: float = np.inf, work: bool = False, failure: Exception | None = None, **settings: Any):
        self.worker = workers(**LITTLE, **settings)
        self.last, self.work, self.reason = last, work, failure or WorkersLostError("a rank was killed")
        self.words: list[str] = []
        self.started = self.ended = False
        self.failure: Exception | None = None

    def start(self) -> None:
        assert not self.started
        self.started = True

    def ask(self, command: Message) -> Message:
        assert self.started
        assert not self.ended
        self.words.append(command.word)
        lost = len(self.words) >= self.last
        if lost and not self.work:
            raise GoneError
        reply = answer(self.worker, carried(command))
        if lost:
            raise GoneError
        return carried(reply)

    def end(self) -> None:
        self.ended, self.failure = True, self.reason


def carried(message: Message) -> Message:
    found = Message.from_bytes(message.to_bytes(7), 7)
    assert found is not None
    return found


class Launcher:
    """Hands these launches out, one after the other, and then others that are not lost."""

    def __init__(self, *first: Callable[[], Nearby], **settings: Any) -> None:
        self._first, self._settings = list(first), settings
        self.launches: list[Nearby] = []

    def __call__(self) -> Nearby:
        assert all(launch.ended for launch in self.launches)
        make = self._first.pop(0) if self._first else lambda: Nearby(**self._settings)
        self.launches.append(make())
        return self.launches[-1]


def fit(launcher: Launcher, max_restarts: int = 1) -> Outcome:
    with DistributedWorkers(launcher, max_restarts) as team:  # type: ignore[arg-type]
        outcome = algorithm.fit(team, FractionPace(0.5, 0.9, ROUNDS, 1.0), ROUNDS, tau=0.001)
        # What is looked up in bins is asked of workers that are still there.
        outcome.scores = None
    assert all(launch.ended for launch in launcher.launches)
    return outcome


def assert_same(found: Outcome, wanted: Outcome) -> None:
    assert found.best_round == wanted.best_round
    assert found.selection == wanted.selection
    assert [(row.lam, row.train_auc, row.validation_auc, row.objective_after) for row in found.history] == [
        (row.lam, row.train_auc, row.validation_auc, row.objective_after) for row in wanted.history
    ]
    assert found.weights.keys() == wanted.weights.keys()
    assert all(np.array_equal(found.weights[name], array) for name, array in wanted.weights.items())


# Scores of all rows, and histograms of which the driver asks for contents.
EXACT, BINNED = {}, {"exact_rows": 100}


@pytest.fixture(scope="module", params=[EXACT, BINNED], ids=["all scores", "in bins"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(scope="module")
def undisturbed(settings: dict[str, Any]) -> tuple[Outcome, list[str]]:
    """What a fit gives that nothing happens to, and the commands that it takes."""
    launcher = Launcher(**settings)
    outcome = fit(launcher)
    return outcome, launcher.launches[0].words


def test_one_rank_nearby_learns_what_a_worker_learns_that_is_called_directly(
    settings: dict[str, Any], undisturbed: tuple[Outcome, list[str]]
) -> None:
    team = workers(**LITTLE, **settings)
    assert_same(algorithm.fit(team, FractionPace(0.5, 0.9, ROUNDS, 1.0), ROUNDS, tau=0.001), undisturbed[0])
    asked = set(undisturbed[1])
    assert asked == {"pretrain", "train", *(["contents"] if settings else [])}


@pytest.mark.parametrize("work", [False, True], ids=["before its work", "after its work"])
def test_a_loss_at_any_command_costs_that_command_and_changes_no_bit(
    work: bool, settings: dict[str, Any], undisturbed: tuple[Outcome, list[str]]
) -> None:
    outcome, words = undisturbed
    for last in range(1, len(words) + 1):
        launcher = Launcher(lambda last=last: Nearby(last, work, **settings), **settings)
        assert_same(fit(launcher), outcome)
        first, second = (launch.words for launch in launcher.launches)
        assert first == words[:last]
        # Before the first reply there is no state to go on from.
        assert second == (["load"] if "pretrain" not in words[last - 1 :] else []) + words[last - 1 :]


def test_a_loss_while_the_state_is_loaded_is_one_more_loss(
    settings: dict[str, Any], undisturbed: tuple[Outcome, list[str]]
) -> None:
    launcher = Launcher(*(lambda last=last: Nearby(last, **settings) for last in (3, 1, 2)), **settings)
    assert_same(fit(launcher, max_restarts=3), undisturbed[0])
    assert [launch.words[0] for launch in launcher.launches] == ["pretrain", "load", "load", "load"]


def test_losses_beyond_max_restarts_are_an_error_with_the_finished_rounds(caplog: pytest.LogCaptureFixture) -> None:
    # The command after pre-training and one round, and the next launch's after its state is loaded.
    launcher = Launcher(lambda: Nearby(3), lambda: Nearby(2))
    with pytest.raises(
        WorkerError, match=r"maxRestarts allows no further launch\. What is known:\na rank was"
    ) as caught:
        fit(launcher)
    assert len(launcher.launches) == 2
    assert caplog.text.count("workers were lost (a rank was killed); starting again") == 1
    assert caught.value.outcome is not None
    assert [row.round for row in caught.value.outcome.history] == [1]
    assert caught.value.outcome.scores is not None


def test_an_error_of_a_worker_is_raised_and_nobody_starts_again() -> None:
    launcher = Launcher(lambda: Nearby(3, failure=DeviceError("GPU 4 is gone")))
    with pytest.raises(DeviceError, match="GPU 4 is gone") as caught:
        fit(launcher, max_restarts=9)
    assert len(launcher.launches) == 1
    assert caught.value.outcome is not None
    assert len(caught.value.outcome.history) == 1


def test_a_block_that_diverges_is_taken_back_and_costs_no_launch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="bspauc_spark")
    launcher = Launcher()
    with DistributedWorkers(launcher, 0) as team:  # type: ignore[arg-type]
        team.pretrain()
        before, scores = team.weights(), team.score()
        with pytest.raises(DivergedError, match="Lower learningRate"):
            team.train(Selection.everything(scores.positive, scores.negative), rate=1e30)
        assert all(np.array_equal(before[name], array) for name, array in team.weights().items())
        assert np.array_equal(team.score().positive.sorted, scores.positive.sorted)
    assert len(launcher.launches) == 1
    assert "lost" not in caplog.text


def test_a_block_is_undone_on_workers_that_never_ran_it_and_the_draws_go_on() -> None:
    def undo_and_go_on(team: Workers) -> dict[str, np.ndarray]:
        team.pretrain()
        before, scores = team.weights(), team.score()
        everything = Selection.everything(scores.positive, scores.negative)
        team.train(everything)
        assert not all(np.array_equal(before[name], array) for name, array in team.weights().items())
        team.undo()
        assert all(np.array_equal(before[name], array) for name, array in team.weights().items())
        team.train(everything)
        return team.weights()

    wanted = undo_and_go_on(workers(**LITTLE))
    # The second one's launch is lost when it should undo.
    for launcher in (Launcher(), Launcher(lambda: Nearby(3))):
        with DistributedWorkers(launcher, 1) as team:  # type: ignore[arg-type]
            found = undo_and_go_on(team)
        assert all(np.array_equal(found[name], array) for name, array in wanted.items())
    assert len(launcher.launches) == 2
