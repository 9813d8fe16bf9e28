"""Algorithm 1's loop, on real in-process workers over arrays."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bspauc_spark import algorithm
from bspauc_spark.errors import BSPAUCError, CollapseError, DivergedError, PlacementError, StagingError, WorkerError
from bspauc_spark.loop.guard import Guard, _start_of_growth
from bspauc_spark.results.history import Round
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.selection import Selection, solve
from bspauc_spark.selection.pace import AutomaticPace, EveryRow, ExplicitPace, FractionPace
from bspauc_spark.statistics.binned import BinnedScores
from bspauc_spark.theta import worker
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.scoring import one_thread
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import as_rows
from tests.helpers.teams import SETTINGS, workers


def pairs_of(team: Worker) -> np.ndarray:
    scores = team.score()
    return np.maximum(0, 1 - scores.positive.sorted[:, None].astype(float) + scores.negative.sorted[None, :])


def test_objectives_are_those_of_the_formula_at_the_old_and_at_the_new_theta():
    team, tau = workers(averaging=0.0), 0.001
    team.pretrain()
    old = team.score()
    selection = FractionPace(0.7, 0.7, 1, nu=1.0).select(1, old.positive, old.negative, None)
    order = {kind: team.scores()[kind].copy() for kind in (POSITIVES, NEGATIVES)}
    v, u = selection.positive_weights(order[POSITIVES]), selection.negative_weights(order[NEGATIVES])
    assert 0 < v.mean() < 1

    def objective() -> float:
        s, r = (team.scores()[kind].astype(float) for kind in (POSITIVES, NEGATIVES))
        hinge = np.maximum(0, 1 - s[:, None] + r[None, :])
        V, U = v.mean(), u.mean()
        pace = -selection.lam * (V + U) + selection.mu * (V - U - selection.lead) ** 2
        return float((v[:, None] * u * hinge).mean() + tau * team.penalty() + pace)

    before = objective()
    block = Guard(team, [], tau).train(selection)
    row = Round.of(1, selection, block, team.score(), solve_seconds=0.0)
    assert row.objective_before == pytest.approx(before, abs=1e-9)
    assert row.objective_after == pytest.approx(objective(), abs=1e-9)
    assert row.objective_before - tau * block.before.penalty == pytest.approx(selection.objective, abs=1e-9)


def test_selection_weights_of_a_round_belong_to_the_scores_it_started_from():
    team = workers()
    outcome = algorithm.fit(team, FractionPace(0.6, 0.6, 1, nu=1.0), rounds=1, tau=0.0)
    row = outcome.history[0]
    kept = team.kept()
    n, m = (len(team.rows[kind]) for kind in (POSITIVES, NEGATIVES))
    assert len(kept[POSITIVES].full) + len(kept[POSITIVES].partial) == pytest.approx(row.positive_fraction * n, abs=1)
    assert len(kept[NEGATIVES].full) + len(kept[NEGATIVES].partial) == pytest.approx(row.negative_fraction * m, abs=1)


def test_without_a_pace_every_pair_counts():
    team = workers(averaging=0.0)
    outcome = algorithm.fit(team, EveryRow(), rounds=2, tau=0.0)
    assert outcome.history[-1].block_after == pytest.approx(pairs_of(team).mean(), rel=1e-9)
    assert outcome.history[-1].objective_after == pytest.approx(pairs_of(team).mean(), rel=1e-9)


def test_ensure_descent_gives_up_after_three_halvings_and_keeps_theta():
    # Three tries explode, the last one ends at 1.5 times the loss.
    team = workers(learning_rate=50.0, optimizer="sgd", averaging=0.0, steps=3, tau=0.0)
    before = {name: w.copy() for name, w in team.weights().items()}
    scores = team.score()
    selection = Selection.everything(scores.positive, scores.negative)
    block = Guard(team, [], 0.0, ensure_descent=True).train(selection)
    assert block.rate == 0
    assert block.mean_after == block.mean_before
    assert all(np.array_equal(before[name], w) for name, w in team.weights().items())


def test_ensure_descent_hides_no_training_that_diverged_in_every_try():
    team = workers(learning_rate=1e6, optimizer="sgd", averaging=0.0, steps=3, tau=0.0)
    before = {name: w.copy() for name, w in team.weights().items()}
    with pytest.raises(DivergedError):
        algorithm.fit(team, EveryRow(), 1, tau=0.0, ensure_descent=True)
    assert all(np.array_equal(before[name], w) for name, w in team.weights().items())


def test_the_best_validation_round_is_kept_and_patience_stops():
    team = workers(validation=True, learning_rate=0.05)
    outcome = algorithm.fit(team, EveryRow(), rounds=30, tau=0.0, patience=3)
    aucs = [row.validation_auc for row in outcome.history]
    assert outcome.best_round == int(np.argmax(aucs)) + 1
    assert len(aucs) == outcome.best_round + 3 or len(aucs) == 30


def test_each_round_is_announced_and_logged(caplog):
    seen = []
    with caplog.at_level(logging.INFO, logger="bspauc_spark"):
        algorithm.fit(workers(), AutomaticPace(None, 3, 1.0), rounds=3, tau=0.0, on_round=seen.append)
    assert [row.round for row in seen] == [1, 2, 3]
    assert len([record for record in caplog.records if record.levelno == logging.INFO]) == 3


def test_the_same_seed_gives_the_same_bits():
    first, second, other = (
        algorithm.fit(workers(seed=seed), AutomaticPace(None, 2, 1.0), rounds=2, tau=0.0).weights for seed in (5, 5, 6)
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_overlapping_fits_compute_in_one_thread_each_and_leave_every_number_as_it_was(two_threads):
    a, b, c, d = (one_thread() for _ in range(4))
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:

        def enter(thread, fit):
            thread.submit(fit.__enter__).result()

        def leave(thread, fit):
            thread.submit(fit.__exit__, None, None, None).result()

        def numbers():
            return [thread.submit(torch.get_num_threads).result() for thread in (first, second)]

        enter(first, a)
        enter(second, b)
        assert numbers() == [1, 1]
        leave(first, a)
        assert numbers() == [2, 1]
        leave(second, b)
        assert numbers() == [2, 2]
        enter(first, c)
        enter(second, d)
        assert numbers() == [1, 1]
        leave(second, d)
        assert numbers() == [1, 2]
        leave(first, c)
        assert numbers() == [2, 2]
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2


def test_a_thread_that_first_computes_while_another_fits_keeps_the_number_of_the_process(two_threads):
    with ThreadPoolExecutor(1) as other, one_thread():
        assert other.submit(torch.get_num_threads).result() == 2


@pytest.mark.parametrize("pace", [AutomaticPace(None, 4, 1.0), FractionPace(0.5, 0.8, 4, nu=1.0), EveryRow()])
@pytest.mark.parametrize("validation", [False, True])
def test_a_fit_on_binned_scores_is_that_on_sorted_ones(pace, validation):
    exact, binned = (
        algorithm.fit(workers(validation, exact_rows=rows), pace, rounds=4, tau=0.001) for rows in (10**6, 0)
    )
    assert isinstance(binned.scores.positive, BinnedScores)
    assert binned.best_round == exact.best_round
    for name, wanted in exact.weights.items():
        assert np.array_equal(binned.weights[name], wanted)
    for found, row in zip(binned.history, exact.history, strict=True):
        assert found.lam == pytest.approx(row.lam, rel=1e-9)
        assert (found.train_auc, found.objective_after) == pytest.approx((row.train_auc, row.objective_after), abs=1e-5)
    # Also those of an earlier round can still be fetched.
    last = solve(binned.scores.positive, binned.scores.negative, 0.3, 0.3)
    assert last.to_dict(False) == pytest.approx(
        solve(exact.scores.positive, exact.scores.negative, 0.3, 0.3).to_dict(False)
    )


def test_a_rate_that_is_too_high_is_halved_round_by_round_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    team = workers(optimizer="sgd", learning_rate=10.0, averaging=0.0, tau=0.0, pretrain_steps=0)
    outcome = algorithm.fit(team, EveryRow(), 2, tau=0.0)
    assert [row.learning_rate_factor for row in outcome.history] == [0.25, 0.25]
    assert all(row.block_after < 1 for row in outcome.history)
    assert caplog.text.count("a round's training is done again from its start at half the learning rate") == 4


def test_a_loss_that_explodes_without_a_nan_is_taken_back() -> None:
    team = workers(optimizer="sgd", learning_rate=300.0, averaging=0.0, tau=0.0, pretrain_steps=0, steps=2)
    before = team.weights()
    with pytest.raises(DivergedError, match=r"raised the mean pair loss from 0.997 to 3.*e\+04. Lower learningRate"):
        algorithm.fit(team, EveryRow(), 1, tau=0.0)
    assert all(np.array_equal(before[name], array) for name, array in team.weights().items())


def test_pretraining_that_explodes_is_redone_slower(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"optimizer": "sgd", "averaging": 0.0, "tau": 0.0, "pretrain_steps": 8}
    team = workers(learning_rate=7.0, **settings)
    outcome = algorithm.fit(team, EveryRow(), 1, tau=0.0)
    assert outcome.history[0].block_before < 10
    assert caplog.text.count("pre-training is done again from its start at half the learning rate") == 1
    assert "raised the mean pair loss from 0.997 to 1.13e+05" in caplog.text

    hopeless = workers(learning_rate=300.0, **settings)
    before = hopeless.weights()
    with pytest.raises(DivergedError) as caught:
        algorithm.fit(hopeless, EveryRow(), 1, tau=0.0)
    assert caught.value.weights is not None
    assert all(np.array_equal(before[name], array) for name, array in caught.value.weights.items())


def test_a_loss_that_was_large_before_pretraining_is_no_explosion(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretrained() -> Worker:
        team = workers()
        network, average = team.theta.network, team.theta.average
        network.load_state_dict({name: 30 * tensor for name, tensor in network.state_dict().items()})
        average.load_state_dict(network.state_dict())
        team.pretrain()
        return team

    team = pretrained()
    assert pairs_of(team).mean() > 100
    monkeypatch.setattr(worker, "EXPLOSION", np.inf)
    unchecked = pretrained().state()
    assert all(np.array_equal(array, unchecked[name]) for name, array in team.state().items())


def test_a_loss_that_grows_tenfold_over_several_rounds_is_an_explosion(caplog: pytest.LogCaptureFixture) -> None:
    team = workers(optimizer="sgd", learning_rate=5.0, averaging=0.0, tau=0.0, pretrain_steps=0, steps=1)
    outcome = algorithm.fit(team, EveryRow(), 9, tau=0.0)
    assert all(row.block_after < 10 * outcome.history[0].block_before for row in outcome.history)
    assert min(row.learning_rate_factor for row in outcome.history) < 1
    assert "Training raised the mean pair loss from 1 to 21.6" in caplog.text


def test_a_loss_that_new_pairs_raise_is_no_explosion() -> None:
    """Every block lowers the loss of its pairs, but each round has harder ones."""
    easy = replace(_ZERO, block_before=1.2, block_after=0.4)
    harder = replace(_ZERO, block_before=40.0, block_after=30.0)
    assert _start_of_growth([], 0.7) == 0.7
    assert _start_of_growth([easy], 40.0) == 40.0
    assert _start_of_growth([easy, harder], 900.0) == 900.0
    # What the blocks themselves have added is the difference.
    grown = replace(_ZERO, block_before=40.0, block_after=120.0)
    assert _start_of_growth([easy, grown], 120.0) == 40.0
    assert _start_of_growth([easy, grown], 600.0) == 200.0
    assert _start_of_growth([easy, grown, grown], 3.0) == 3.0


_ZERO = Round(**dict.fromkeys(Round.__dataclass_fields__, 0))


class BreaksInStep(LayeredNetwork):
    """A network that gives one NaN in some of its training steps."""

    broken: frozenset[int] = frozenset()
    steps = 0

    def forward(self, rows: Any) -> torch.Tensor:
        scores = super().forward(rows)
        if torch.is_grad_enabled():
            self.steps += 1
            if self.steps in self.broken:
                scores = scores + torch.nan * (torch.arange(len(scores)) == 3)
        return scores


@pytest.mark.parametrize(
    ("broken", "factors"),
    [({7}, [1.0, 1.0, 1.0]), ({27}, [0.5, 1.0, 1.0]), ({27, 47}, [0.25, 1.0, 1.0]), ({47}, [1.0, 0.5, 1.0])],
    ids=["pre-training", "round 1", "round 1 twice", "round 2"],
)
def test_a_nan_in_a_step_costs_the_round_it_happens_in_and_no_more(broken: set[int], factors: list[float]) -> None:
    team = workers()
    team.theta.network.__class__ = BreaksInStep
    team.theta.network.broken = frozenset(broken)
    outcome = algorithm.fit(team, AutomaticPace(None, 3, 1.0), 3, tau=0.001)
    assert [row.learning_rate_factor for row in outcome.history] == factors
    assert outcome.history[-1].train_auc > 0.7
    assert all(np.isfinite(array).all() for array in outcome.weights.values())


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_features_whose_squares_adam_cannot_hold_are_an_error_that_says_so(optimizer: str, sparse: bool) -> None:
    huge = np.array([[1, 1e30], [2, 1], [0, 3], [2, 1]], dtype=np.float32)
    rows = {POSITIVES: as_rows(huge[:2], sparse), NEGATIVES: as_rows(huge[2:], sparse)}
    settings = TrainingSettings(**{**SETTINGS, "optimizer": optimizer})
    team = Worker(rows, NetworkSpec("mlp", 2, (4,)), settings)
    first = team.weights()
    with pytest.raises(DivergedError, match="beyond float32: scale the features") as caught:
        algorithm.fit(team, AutomaticPace(None, 3, 1.0), 3, tau=0.0)
    assert caught.value.weights is not None
    assert all(np.array_equal(array, first[name]) for name, array in caught.value.weights.items())


def test_training_that_cannot_go_on_leaves_the_last_good_theta() -> None:
    team = workers()
    team.theta.network.__class__ = BreaksInStep
    team.theta.network.broken = frozenset(range(61, 1000))
    with pytest.raises(DivergedError) as caught:
        algorithm.fit(team, EveryRow(), 5, tau=0.001)
    assert caught.value.outcome is not None
    assert caught.value.weights is not None
    assert len(caught.value.outcome.history) == 2
    good = workers()
    whole = algorithm.fit(good, EveryRow(), 2, tau=0.001)
    assert all(np.array_equal(array, whole.weights[name]) for name, array in caught.value.weights.items())


class LostInRound3(Worker):
    """Workers whose third block ends in an error, and whom nobody may ask anything afterwards."""

    error: BSPAUCError
    blocks = 0

    def train(self, selection: Selection, rate: float = 1.0) -> BlockReport:
        self.blocks += 1
        if self.blocks == 3:
            error = self.error
            # Whoever asks again meets a worker without its parts.
            vars(self).clear()
            raise error
        return super().train(selection, rate)


@pytest.mark.parametrize("kind", [WorkerError, PlacementError, StagingError])
@pytest.mark.parametrize("exact_rows", [10**6, 0], ids=["sorted", "binned"])
def test_workers_that_are_lost_leave_the_finished_rounds(kind: type[BSPAUCError], exact_rows: int) -> None:
    # A rate at which the second round is worse than the first: the best is not the last.
    settings = {"validation": True, "learning_rate": 0.2, "exact_rows": exact_rows}
    team = workers(**settings)
    team.__class__, team.error = LostInRound3, kind("the third block")
    with pytest.raises(kind, match="the third block") as caught:
        algorithm.fit(team, EveryRow(), 5, tau=0.001)
    whole = algorithm.fit(workers(**settings), EveryRow(), 2, tau=0.001)
    outcome, weights = caught.value.outcome, caught.value.weights
    assert outcome is not None
    assert weights is not None
    assert outcome.best_round == whole.best_round == 1
    assert [row.validation_auc for row in outcome.history] == [row.validation_auc for row in whole.history]
    for name, array in whole.weights.items():
        assert np.array_equal(outcome.weights[name], array)
        assert np.array_equal(weights[name], array)
    assert outcome.selection == whole.selection
    if exact_rows:
        assert outcome.scores is not None
        assert np.array_equal(outcome.scores.positive.sorted, whole.scores.positive.sorted)
    else:
        # Nobody is left to look into their bins.
        assert outcome.scores is None


@pytest.mark.parametrize("exact_rows", [10**6, 0], ids=["sorted", "binned"])
def test_a_schedule_that_empties_a_class_later_leaves_the_rounds_before(exact_rows: int) -> None:
    # So slow that every pair keeps a loss of nearly 1, and λ falls below it.
    settings = {"learning_rate": 1e-5, "pretrain_steps": 0, "exact_rows": exact_rows}

    def falling() -> ExplicitPace:
        return ExplicitPace(first=2.0, largest=0.01, rounds=5, growth=None, mu=0.01, fraction=0.5)

    with pytest.raises(CollapseError) as caught:
        algorithm.fit(workers(**settings), falling(), 5, tau=0.001)
    outcome = caught.value.outcome
    assert outcome is not None
    assert 1 <= len(outcome.history) < 5
    whole = algorithm.fit(workers(**settings), falling(), len(outcome.history), tau=0.001)
    assert outcome.scores is not None
    assert outcome.scores.positive.at(7) == whole.scores.positive.at(7)
    assert all(np.array_equal(array, whole.weights[name]) for name, array in outcome.weights.items())
