"""λ schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.selection import solve
from bspauc_spark.selection.pace import AutomaticPace, EveryRow, ExplicitPace, FractionPace, ramp
from bspauc_spark.spark import plan
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.networks import NetworkSpec


def scores(flipped: float = 0.0, seed: int = 0) -> tuple[ClassScores, ClassScores]:
    """Well-ranked scores of 20,000 rows, of which a share carries the wrong label."""
    rng = np.random.default_rng(seed)
    truth = rng.random(20_000) < 0.3
    score = np.where(truth, rng.normal(2, 1, 20_000), rng.normal(-2, 1, 20_000))
    label = truth ^ (rng.random(20_000) < flipped)
    return ClassScores.from_array(score[label]), ClassScores.from_array(score[~label])


def test_the_ramp_goes_from_0_to_1():
    assert [ramp(t, 5) for t in range(1, 6)] == [0, 0.25, 0.5, 0.75, 1]
    assert ramp(1, 1) == 1


@pytest.mark.parametrize("pull", [{"nu": 1.0}, {"nu": 1.0, "mu": 0.5}])
def test_the_kept_fraction_rises_linearly(pull):
    pos, neg = scores(0.3)
    pace = FractionPace(0.75, 0.95, rounds=5, **pull)
    selections = [pace.select(t, pos, neg, None) for t in range(1, 6)]
    means = [np.mean(one.fractions) for one in selections]
    assert means == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95], abs=0.011)
    assert all(one.lead == 0 for one in selections)


@pytest.mark.parametrize("flipped", [0.1, 0.3])
def test_the_automatic_pace_leaves_out_the_wrong_share_of_each_class(flipped):
    pos, neg = scores(flipped)
    V, U = AutomaticPace(None, rounds=10, nu=1.0).select(1, pos, neg, None).fractions
    wrong_positives = 0.7 * flipped / (0.7 * flipped + 0.3 * (1 - flipped))
    wrong_negatives = 0.3 * flipped / (0.3 * flipped + 0.7 * (1 - flipped))
    assert pytest.approx(1 - wrong_positives, abs=0.03) == V
    assert pytest.approx(1 - wrong_negatives, abs=0.03) == U


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
def test_a_given_mu_leaves_the_automatic_fractions_as_they_are(mu):
    pos, neg = scores(0.3)
    wanted = AutomaticPace(None, rounds=10, nu=1.0).select(1, pos, neg, None)
    found = plan.pace(BSPAUCClassifier(mu=mu), NetworkSpec("mlp", 2)).select(1, pos, neg, None)
    assert found.fractions == pytest.approx(wanted.fractions, abs=1e-3)
    assert max(found.fractions) < 0.9
    assert mu <= found.mu < max(4 * mu, 0.1)


def test_the_automatic_pace_keeps_nearly_all_rows_where_labels_are_right():
    pos, neg = scores(0.0)
    assert min(AutomaticPace(None, rounds=10, nu=1.0).select(1, pos, neg, None).fractions) > 0.97


def test_a_start_ramps_the_automatic_pace():
    pos, neg = scores(0.3)
    pace = AutomaticPace(0.8, rounds=3, nu=1.0)
    first, last = pace.select(1, pos, neg, None).fractions, pace.select(3, pos, neg, None).fractions
    end = AutomaticPace(None, rounds=3, nu=1.0).select(1, pos, neg, None).fractions
    assert first == pytest.approx((0.8, 0.8), abs=0.02)
    assert last == pytest.approx(end, abs=1e-6)


def test_geometric_and_linear_lambda_are_those_of_algorithm_1():
    pos, neg = scores(0.2)
    geometric = ExplicitPace(first=0.2, largest=0.5, rounds=4, growth=1.5, mu=0.5, fraction=0.5)
    linear = ExplicitPace(first=0.2, largest=0.5, rounds=4, growth=None, mu=0.5, fraction=0.5)
    for pace, wanted in ((geometric, [0.2, 0.3, 0.45, 0.5]), (linear, [0.2, 0.3, 0.4, 0.5])):
        selections = rounds_of(pace, 4, pos, neg)
        assert [one.lam for one in selections] == pytest.approx(wanted)
        assert {one.mu for one in selections} == {0.5}


def test_an_explicit_pace_starts_where_the_round_before_ended():
    """From everything another stationary point is reached."""
    pos, neg = ClassScores.from_array([1.4, -0.6]), ClassScores.from_array([-1.8, -1.1])
    pace = ExplicitPace(first=0.5, largest=0.5, rounds=2, growth=1.0, mu=0.5, fraction=0.5)
    first = pace.select(1, pos, neg, None)
    assert first == solve(pos, neg, 0.5, 0.5)
    lower = replace(first, positive_fraction=0.5, negative_fraction=0.5)
    assert pace.select(2, pos, neg, lower) == solve(pos, neg, 0.5, 0.5, (0.5, 0.5))


def test_a_linear_lambda_may_fall_and_a_geometric_one_stops_at_its_largest():
    pos, neg = scores(0.2)
    falling = ExplicitPace(first=2.0, largest=1.0, rounds=3, growth=None, mu=0.5, fraction=0.5)
    assert [one.lam for one in rounds_of(falling, 3, pos, neg)] == pytest.approx([2.0, 1.5, 1.0])
    beyond = ExplicitPace(first=0.3, largest=1e30, rounds=4, growth=1e30, mu=0.5, fraction=0.5)
    assert [one.lam for one in rounds_of(beyond, 4, pos, neg)] == pytest.approx([0.3, 0.3e30, 1e30, 1e30])


def test_without_a_first_lambda_round_1_keeps_the_fraction():
    pos, neg = scores(0.3)
    pace = ExplicitPace(first=None, largest=5.0, rounds=4, growth=1.5, mu=0.5, fraction=0.8)
    assert np.mean(pace.select(1, pos, neg, None).fractions) == pytest.approx(0.8, abs=0.02)


def test_every_row_is_kept_where_nothing_is_paced():
    assert EveryRow().select(3, *scores(0.3), None).fractions == (1.0, 1.0)


def rounds_of(pace, rounds, pos, neg):
    """The selections of consecutive rounds at the same scores."""
    made = [None]
    for t in range(1, rounds + 1):
        made.append(pace.select(t, pos, neg, made[-1]))
    return made[1:]


def test_what_is_not_set_depends_on_the_network_that_the_rows_get() -> None:
    """A table that wide rows turn into layers is trained as long as layers are, and leaves out only what is seen."""
    layers, table = NetworkSpec("mlp", 5000, members=4), NetworkSpec("table", 10, members=4)
    unset = BSPAUCClassifier()
    assert [plan.wanted_rounds(unset, spec) for spec in (layers, table)] == [10, 3]
    assert plan.wanted_rounds(BSPAUCClassifier(rounds=7), table) == 7
    paces = [plan.pace(unset, spec) for spec in (layers, table, replace(table, members=0))]
    assert [(pace.rounds, pace.guess) for pace in paces if isinstance(pace, AutomaticPace)] == [
        (10, False),
        (3, True),
        (3, False),
    ]
