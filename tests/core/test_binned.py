"""Binned scores against sorted ones: the same selection from a histogram and a few fetched bins."""

from functools import partial

import numpy as np
import pytest

from bspauc_spark.errors import CollapseError, InvalidScoresError
from bspauc_spark.scorer import balanced_threshold
from bspauc_spark.selection import solve
from bspauc_spark.selection.alternation import objective
from bspauc_spark.selection.calibration import calibrate_classes, calibrate_fraction
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores, pair_sum
from bspauc_spark.statistics import auc as exact_auc
from bspauc_spark.statistics.binned import AUC_BOUND, LOSS_BOUND, BinnedScores, Contents, Histogram, auc, sharpen

rng_of = np.random.default_rng


def shapes(rng, size):
    """Scores as the most awkward networks give them."""
    return {
        "normal": rng.normal(size=size),
        "crowded": 1.0 + rng.normal(size=size) * 1e-4,
        "heavy ties": np.round(rng.normal(size=size), 1),
        "two values": rng.choice([-0.3, 0.4], size),
        "all equal": np.full(size, 0.25),
        "huge range": rng.normal(size=size) * 10.0 ** rng.integers(-20, 20, size),
        "subnormal": rng.normal(size=size) * 1e-40,
        "beyond 2^24": 3e7 + np.round(rng.normal(size=size) * 20) * 2,
        "around zero": np.where(rng.random(size) < 0.3, rng.choice([0.0, -0.0], size), rng.normal(size=size) * 1e-3),
        "one outlier": np.where(np.arange(size) == 0, -1e30, rng.normal(size=size)),
    }


KINDS = list(shapes(rng_of(0), 2))


def binned(scores):
    """Scores in bins, and how many bins were fetched."""
    given = np.asarray(scores, dtype=np.float32)
    fetched = []

    def fetch(bins):
        fetched.append(bins)
        # As if two workers held them.
        return Contents.merge([Contents.of(given[::2], bins), Contents.of(given[1::2], bins)])

    parts = [Histogram.of(given[::2]), Histogram.of(given[1::2])]
    return BinnedScores(Histogram.merge(parts), fetch), fetched


def problem(kind, seed, most=4000):
    rng = rng_of(seed)
    n, m = rng.integers(1, most, 2)
    pos, neg = shapes(rng, n)[kind] + rng.choice([0.0, 0.7]), shapes(rng, m)[kind]
    return pos.astype(np.float32), neg.astype(np.float32), rng


def outcome(compute):
    try:
        return compute()
    except CollapseError as collapse:
        return str(collapse)


def assert_same(found, wanted, pos, neg):
    if isinstance(wanted, str):
        assert found == wanted
        return
    assert found.positive_fraction == pytest.approx(wanted.positive_fraction, abs=1e-9)
    assert found.negative_fraction == pytest.approx(wanted.negative_fraction, abs=1e-9)
    np.testing.assert_allclose(found.positive_weights(pos), wanted.positive_weights(pos), atol=1e-6)
    np.testing.assert_allclose(found.negative_weights(neg), wanted.negative_weights(neg), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_the_selection_is_that_of_the_sorted_scores(kind, seed):
    pos, neg, rng = problem(kind, seed)
    lam, mu = 10.0 ** rng.uniform(-3, 1.5), rng.choice([0.0, 10.0 ** rng.uniform(-3, 1)])
    exact = ClassScores.from_array(pos), ClassScores.from_array(neg)
    wanted = outcome(lambda: solve(*exact, lam, mu))
    found = outcome(lambda: solve(binned(pos)[0], binned(neg)[0], lam, mu))
    assert_same(found, wanted, pos, neg)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_so_are_the_automatic_pace_and_what_follows_from_it(kind, seed):
    pos, neg, rng = problem(kind, seed, most=2000)
    exact, bins = (ClassScores.from_array(pos), ClassScores.from_array(neg)), (binned(pos)[0], binned(neg)[0])
    assert estimate_label_noise(*bins).to_dict()["e0"] == pytest.approx(estimate_label_noise(*exact).e0, abs=1e-9)
    V, U = rng.uniform(0.3, 1.0, 2)
    wanted = outcome(lambda: calibrate_classes(*exact, V, U, nu=1.0))
    # Bins of which none was fetched before.
    found = outcome(lambda: calibrate_classes(binned(pos)[0], binned(neg)[0], V, U, nu=1.0))
    if isinstance(wanted, str):
        assert found == wanted
    else:
        one, other = found.selection, wanted.selection
        assert (one.lam, one.mu, one.lead) == pytest.approx((other.lam, other.mu, other.lead), rel=1e-9)
        assert one.fractions == pytest.approx(other.fractions, abs=1e-9)
    assert balanced_threshold(*bins) == pytest.approx(balanced_threshold(*exact), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kind", ["normal", "crowded", "heavy ties"])
def test_so_is_a_kept_fraction(kind):
    pos, neg, _ = problem(kind, 1, most=2000)
    wanted = calibrate_fraction(ClassScores.from_array(pos), ClassScores.from_array(neg), 0.7, nu=1.0)
    found = calibrate_fraction(binned(pos)[0], binned(neg)[0], 0.7, nu=1.0)
    assert found.selection.lam == pytest.approx(wanted.selection.lam, rel=1e-9)
    assert found.selection.fractions == pytest.approx(wanted.selection.fractions, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_auc_and_objective_are_within_their_bounds(kind):
    pos, neg, _ = problem(kind, 2)
    exact, bins = (ClassScores.from_array(pos), ClassScores.from_array(neg)), (binned(pos)[0], binned(neg)[0])
    assert auc(*bins) == pytest.approx(exact_auc(*exact), abs=AUC_BOUND)
    assert auc(bins[0], exact[1]) == pytest.approx(exact_auc(*exact), abs=AUC_BOUND)
    wanted = objective(*exact, 0.8, 0.9, 0.1, 0.2)
    bound = sharpen(*bins, 0.8 * len(pos), 0.9 * len(neg))
    assert bound <= LOSS_BOUND
    assert objective(*bins, 0.8, 0.9, 0.1, 0.2) == pytest.approx(wanted, rel=1e-9, abs=bound + 1e-12)
    assert sharpen(*exact, len(pos), len(neg)) == 0.0


def test_the_mean_pair_loss_of_bins_is_too_low_by_no_more_than_its_bound():
    rng = rng_of(3)
    # Wide bins, one margin apart: the worst there is.
    pos, neg = rng.uniform(1000, 1002, 3000).astype(np.float32), rng.uniform(999, 1001, 4000).astype(np.float32)
    exact = pair_sum(ClassScores.from_array(pos), ClassScores.from_array(neg)) / (3000 * 4000)
    bins = [BinnedScores(Histogram.of(scores), partial(Contents.of, scores)) for scores in (pos, neg)]
    before = pair_sum(*bins) / (3000 * 4000)
    assert exact - before > 1e-5
    bound = sharpen(*bins, 3000, 4000)
    assert -1e-12 <= exact - pair_sum(*bins) / (3000 * 4000) <= bound <= LOSS_BOUND


def test_few_bins_are_fetched_of_many_rows():
    rng = rng_of(0)
    pos, fetched_pos = binned(rng.normal(1, 1, 300_000))
    neg, fetched_neg = binned(rng.normal(0, 1, 1_000_000))
    solve(pos, neg, 0.3, 0.3)
    for scores, fetched in ((pos, fetched_pos), (neg, fetched_neg)):
        assert 1 <= len(fetched) <= 8
        assert sum(map(len, fetched)) < 0.02 * len(scores._unknown.bins)


def test_scores_that_are_not_numbers_and_empty_classes_are_refused():
    with pytest.raises(InvalidScoresError, match="NaN"):
        Histogram.of(np.array([1.0, np.nan], dtype=np.float32))
    with pytest.raises(InvalidScoresError, match="no scores"):
        binned([])
