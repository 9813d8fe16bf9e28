"""λ schedules."""

from __future__ import annotations

import numpy as np
import pytest

from bspauc_spark.selection import solve
from bspauc_spark.selection.pace import AutomaticPace, ExplicitPace, FractionPace, ramp
from bspauc_spark.statistics import ClassScores


def scores(flipped: float = 0.0, seed: int = 0) -> tuple[ClassScores, ClassScores]:
    """Well-ranked scores of 20,000 rows, of which a share carries the wrong label."""
    rng = np.random.default_rng(seed)
    truth = rng.random(20_000) < 0.3
    score = np.where(truth, rng.normal(2, 1, 20_000), rng.normal(-2, 1, 20_000))
    label = truth ^ (rng.random(20_000) < flipped)
    return ClassScores.from_array(score[label]), ClassScores.from_array(score[~label])


def kept(step, pos, neg):
    found = solve(pos, neg, step.lam, step.mu, step.start, lead=step.lead)
    return found.positive_fraction, found.negative_fraction


def test_the_ramp_goes_from_0_to_1():
    assert [ramp(t, 5) for t in range(1, 6)] == [0, 0.25, 0.5, 0.75, 1]
    assert ramp(1, 1) == 1


@pytest.mark.parametrize("pull", [{"nu": 1.0}, {"nu": 1.0, "mu": 0.5}])
def test_the_kept_fraction_rises_linearly(pull):
    pos, neg = scores(0.3)
    pace = FractionPace(0.75, 0.95, rounds=5, **pull)
    means = [np.mean(kept(pace.at(t, pos, neg), pos, neg)) for t in range(1, 6)]
    assert means == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95], abs=0.011)
    assert all(pace.at(t, pos, neg).lead == 0 for t in range(1, 6))


@pytest.mark.parametrize("flipped", [0.1, 0.3])
def test_the_automatic_pace_leaves_out_the_wrong_share_of_each_class(flipped):
    pos, neg = scores(flipped)
    V, U = kept(AutomaticPace(None, rounds=10, nu=1.0).at(1, pos, neg), pos, neg)
    wrong_positives = 0.7 * flipped / (0.7 * flipped + 0.3 * (1 - flipped))
    wrong_negatives = 0.3 * flipped / (0.3 * flipped + 0.7 * (1 - flipped))
    assert pytest.approx(1 - wrong_positives, abs=0.03) == V
    assert pytest.approx(1 - wrong_negatives, abs=0.03) == U


def test_the_automatic_pace_keeps_nearly_all_rows_where_labels_are_right():
    pos, neg = scores(0.0)
    assert min(kept(AutomaticPace(None, rounds=10, nu=1.0).at(1, pos, neg), pos, neg)) > 0.97


def test_a_start_ramps_the_automatic_pace():
    pos, neg = scores(0.3)
    pace = AutomaticPace(0.8, rounds=3, nu=1.0)
    first, last = kept(pace.at(1, pos, neg), pos, neg), kept(pace.at(3, pos, neg), pos, neg)
    end = kept(AutomaticPace(None, rounds=3, nu=1.0).at(1, pos, neg), pos, neg)
    assert first == pytest.approx((0.8, 0.8), abs=0.02)
    assert last == pytest.approx(end, abs=1e-6)


def test_geometric_and_linear_lambda_are_those_of_algorithm_1():
    pos, neg = scores(0.2)
    geometric = ExplicitPace(first=0.2, largest=0.5, rounds=4, growth=1.5, mu=0.5, fraction=0.5)
    linear = ExplicitPace(first=0.2, largest=0.5, rounds=4, growth=None, mu=0.5, fraction=0.5)
    assert [geometric.at(t, pos, neg).lam for t in range(1, 5)] == pytest.approx([0.2, 0.3, 0.45, 0.5])
    assert [linear.at(t, pos, neg).lam for t in range(1, 5)] == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert {geometric.at(t, pos, neg).mu for t in range(1, 5)} == {0.5}
    assert geometric.at(2, pos, neg).start is None


def test_without_a_first_lambda_round_1_keeps_the_fraction():
    pos, neg = scores(0.3)
    step = ExplicitPace(first=None, largest=5.0, rounds=4, growth=1.5, mu=0.5, fraction=0.8).at(1, pos, neg)
    assert np.mean(kept(step, pos, neg)) == pytest.approx(0.8, abs=0.02)
