import json
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from benchmarks.truths import TRUTHS, labels
from bspauc_spark.errors import InvalidScoresError
from bspauc_spark.selection import label_noise
from bspauc_spark.selection.label_noise import LabelNoise
from bspauc_spark.statistics import ClassScores


def estimate_label_noise(positives, negatives):
    return label_noise.estimate_label_noise(ClassScores.from_array(positives), ClassScores.from_array(negatives))


@dataclass(frozen=True)
class Simulated:
    """Scores whose truth and label are known."""

    scores: np.ndarray
    truth: np.ndarray
    label: np.ndarray

    def fit(self) -> LabelNoise:
        return estimate_label_noise(self.scores[self.label], self.scores[~self.label])

    def wrong_shares(self) -> tuple[float, float]:
        wrong = self.truth != self.label
        return float(wrong[self.label].mean()), float(wrong[~self.label].mean())


def simulate(
    e0: float, e1: float, rows: int = 40_000, slope: float = 2.5, shift: float = -2.0, seed: int = 0
) -> Simulated:
    """Truth by a logistic curve in the score; labels flipped at the rates given."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, rows)
    truth = rng.random(rows) < expit(slope * scores + shift)
    flip = rng.random(rows) < np.where(truth, e1, e0)
    return Simulated(scores, truth, truth ^ flip)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("e0", "e1"), [(0.0, 0.0), (0.2, 0.2), (0.3, 0.1), (0.05, 0.4), (0.3, 0.0), (0.0, 0.3), (0.4, 0.4)]
)
def test_flip_rates_and_wrong_shares_are_recovered(e0, e1, seed):
    data = simulate(e0, e1, slope=5.0, seed=seed)
    fitted = data.fit()
    assert (fitted.e0, fitted.e1) == pytest.approx((e0, e1), abs=0.02)
    assert fitted.wrong_shares == pytest.approx(data.wrong_shares(), abs=0.04)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("name", TRUTHS)
def test_a_curve_without_noise_is_not_taken_for_noise(name, share):
    """The score is the best there is, the labels are right, and in most of these truths its ends are not pure."""
    scores, truth = TRUTHS[name].draw(share, 20_000, np.random.default_rng(0))
    fitted = estimate_label_noise(scores[truth], scores[~truth])
    assert max(fitted.wrong_shares) < 0.005
    assert np.mean(fitted.suspicion(scores, truth) > 0.5) <= 0.01


@pytest.mark.parametrize("seed", range(2))
def test_nor_is_a_score_on_another_scale(seed):
    """Both were taken for noise once: for 57 % wrong positives, and for 34 % wrong negatives."""
    rng = np.random.default_rng(seed)
    wide, narrow = rng.normal(1, 2, 10_000), rng.normal(0, 1, 20_000)
    x = rng.random(30_000)
    rising = rng.random(30_000) < x / 2
    for pos, neg in ((wide, narrow), (-narrow, -wide), (x[rising], x[~rising]), (-x[~rising], -x[rising])):
        assert estimate_label_noise(pos, neg).wrong_shares == (0.0, 0.0)


@pytest.mark.parametrize(("missed", "wrong"), [(0.4, 0.0), (0.0, 0.4), (0.2, 0.2)])
@pytest.mark.parametrize("name", ["Gaussians, 3 apart", "Gaussians, 4 apart", "logistic, slope 5"])
def test_plateaus_at_pure_ends_are_seen(name, missed, wrong):
    rng = np.random.default_rng(1)
    scores, truth = TRUTHS[name].draw(0.3, 20_000, rng)
    data = Simulated(scores, truth, labels(truth, missed, wrong, rng))
    assert data.fit().wrong_shares == pytest.approx(data.wrong_shares(), abs=0.05)


@pytest.mark.parametrize("rows", [2_000, 200_000])
def test_few_rows_show_no_plateau(rows):
    """Two hundred positives of a class of some thousand are no evidence, the same curve with more rows is."""
    rng = np.random.default_rng(2)
    scores, truth = TRUTHS["Gaussians, 3 apart"].draw(0.02, rows, rng)
    data = Simulated(scores, truth, labels(truth, 0.0, 0.2, rng))
    wanted = data.wrong_shares() if rows == 200_000 else (0.0, 0.0)
    assert data.fit().wrong_shares == pytest.approx(wanted, abs=0.03)


def test_a_rate_that_is_not_seen_does_not_raise_the_other_one():
    """Overlapping classes, positives missed and negatives flipped: only the low end is long enough to be seen."""
    rng = np.random.default_rng(3)
    scores, truth = TRUTHS["Gaussians, 3 apart, positives' sd 2"].draw(0.5, 50_000, rng)
    data = Simulated(-scores, ~truth, ~labels(truth, 0.4, 0.4, rng))
    found, actual = data.fit().wrong_shares, data.wrong_shares()
    assert found[1] == 0.0
    # Were the other rate taken for 0, two thirds of the labelled positives would seem wrong.
    assert 0.25 < found[0] < actual[0] + 0.05


def test_wrong_shares_of_a_rare_class_under_flips():
    data = simulate(0.1, 0.1, shift=-14.0, rows=100_000)
    assert data.truth.mean() < 0.02
    assert data.fit().wrong_shares == pytest.approx(data.wrong_shares(), abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_a_score_that_is_not_logistic_still_bounds_the_noise(seed):
    """Saturated scores, as a hinge network gives them: the isotonic ends keep the rates from growing."""
    rng = np.random.default_rng(seed)
    truth = rng.random(30_000) < 0.25
    latent = rng.normal(np.where(truth, 1.0, -1.0), 0.8)
    scores = np.tanh(latent) + 0.1 * latent
    e0 = 0.2
    data = Simulated(scores, truth, truth | (rng.random(truth.size) < e0))
    fitted = data.fit()
    assert fitted.e0 == pytest.approx(e0, abs=0.03)
    assert fitted.e1 < 0.03
    clean = estimate_label_noise(scores[truth], scores[~truth])
    assert max(clean.wrong_shares) < 0.02


@pytest.mark.parametrize(("e0", "e1"), [(0.0, 0.0), (0.2, 0.2), (0.3, 0.05)])
def test_probability_is_monotone_and_calibrated_on_fresh_rows(e0, e1):
    fitted, fresh = simulate(e0, e1).fit(), simulate(e0, e1, seed=99)
    truth = e0 + (1 - e0 - e1) * expit(2.5 * fresh.scores - 2.0)
    predicted = fitted.probability(fresh.scores)
    assert np.abs(predicted - truth).mean() < 0.01
    assert np.all(np.diff(fitted.probability(np.linspace(-12, 12, 5000))) >= 0)
    assert predicted.min() > 0
    assert predicted.max() < 1


def test_probability_has_the_brier_score_of_sklearns_isotonic_regression():
    train, fresh = simulate(0.1, 0.2), simulate(0.1, 0.2, seed=7)
    reference = IsotonicRegression(out_of_bounds="clip").fit(train.scores, train.label)
    ours = np.mean((train.fit().probability(fresh.scores) - fresh.label) ** 2)
    theirs = np.mean((reference.predict(fresh.scores) - fresh.label) ** 2)
    assert ours <= theirs + 2e-4


@pytest.mark.parametrize(("e0", "e1"), [(0.2, 0.2), (0.3, 0.0)])
def test_suspicion_is_bayes_rule_and_as_frequent_as_it_says(e0, e1):
    data = simulate(e0, e1)
    suspicion = data.fit().suspicion(data.scores, data.label)
    eta = expit(2.5 * data.scores - 2.0)
    seen = e0 + (1 - e0 - e1) * eta
    exact = np.where(data.label, (1 - eta) * e0 / seen, eta * e1 / (1 - seen))
    assert np.abs(suspicion - exact).mean() < 0.01
    wrong = data.truth != data.label
    for low, high in [(0.05, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.01)]:
        inside = (suspicion >= low) & (suspicion < high)
        if inside.sum() > 200:
            assert wrong[inside].mean() == pytest.approx(suspicion[inside].mean(), abs=0.06)


def test_suspicion_ranks_inside_the_flat_ends():
    fitted = simulate(0.2, 0.2).fit()
    low, high = np.linspace(-6, -4, 50), np.linspace(4, 6, 50)
    assert np.all(np.diff(fitted.suspicion(low, np.ones(50, bool))) < 0)
    assert np.all(np.diff(fitted.suspicion(high, np.zeros(50, bool))) > 0)


def test_clean_labels_are_ranked_but_hardly_suspected():
    data = simulate(0.0, 0.0)
    suspicion = data.fit().suspicion(data.scores, data.label)
    assert suspicion.mean() < 0.01
    positive = np.flatnonzero(data.label)
    ascending = positive[np.argsort(data.scores[positive])]
    assert np.all(np.diff(suspicion[ascending]) <= 0)
    assert suspicion[ascending[0]] > suspicion[ascending[-1]]


def assert_no_noise_and_sane(fitted: LabelNoise, scores: np.ndarray, tolerance: float = 0.02) -> None:
    assert max(fitted.wrong_shares) <= tolerance
    for label in (True, False):
        suspicion = fitted.suspicion(scores, np.full(scores.size, label))
        assert np.all((suspicion >= 0) & (suspicion <= 1))
    probability = fitted.probability(scores)
    assert np.all((probability > 0) & (probability < 1))


@pytest.mark.parametrize("positives", [1, 2, 5])
def test_tiny_classes_invent_no_noise(positives):
    rng = np.random.default_rng(positives)
    pos, neg = rng.normal(1, 1, positives), rng.normal(-1, 1, 2000)
    assert_no_noise_and_sane(estimate_label_noise(pos, neg), np.r_[pos, neg])
    assert_no_noise_and_sane(estimate_label_noise(-neg, -pos), np.r_[-pos, -neg])


def test_one_row_each():
    assert_no_noise_and_sane(estimate_label_noise([1.0], [-1.0]), np.array([-1.0, 0.0, 1.0]), tolerance=0.05)


def test_constant_scores_give_the_base_rate_and_no_noise():
    fitted = estimate_label_noise(np.zeros(300), np.zeros(900))
    assert fitted.probability([-1.0, 0.0, 1.0]) == pytest.approx([0.25] * 3, abs=1e-3)
    assert_no_noise_and_sane(fitted, np.zeros(3))


def test_scores_that_say_nothing_or_the_opposite_give_the_base_rate():
    rng = np.random.default_rng(0)
    for difference in (0.0, -1.0):
        pos, neg = rng.normal(difference, 1, 2000), rng.normal(0, 1, 6000)
        fitted = estimate_label_noise(pos, neg)
        # the few bins at the very ends are free to differ by chance
        assert fitted.probability([-1.0, 0.0, 1.0]) == pytest.approx([0.25] * 3, abs=0.05)


def test_separated_scores_invent_no_noise():
    pos, neg = np.linspace(1, 3, 500), np.linspace(-3, -1, 1500)
    fitted = estimate_label_noise(pos, neg)
    assert_no_noise_and_sane(fitted, np.r_[pos, neg], tolerance=1e-3)
    assert fitted.suspicion(pos, np.ones(500, bool)).max() < 0.01
    assert fitted.suspicion(neg, np.zeros(1500, bool)).max() < 0.01


@pytest.mark.parametrize("distance", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_positive_in_three_hundred_invents_no_noise(distance, seed):
    rng = np.random.default_rng(seed)
    pos, neg = rng.normal(distance, 1, 100), rng.normal(0, 1, 30_000)
    assert_no_noise_and_sane(estimate_label_noise(pos, neg), np.r_[pos, neg])


def test_ties_and_the_order_of_rows_do_not_matter():
    data = simulate(0.2, 0.1)
    rounded = np.round(data.scores, 1).astype(np.float32)
    pos, neg = rounded[data.label], rounded[~data.label]
    fitted = estimate_label_noise(pos, neg)
    assert fitted == estimate_label_noise(pos[::-1], np.random.default_rng(1).permutation(neg))
    assert (fitted.e0, fitted.e1) == pytest.approx((0.2, 0.1), abs=0.02)


def test_json_round_trip_is_exact():
    fitted = simulate(0.2, 0.1, rows=3000).fit()
    assert LabelNoise.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_scale_of_the_scores_does_not_matter(factor):
    data = simulate(0.2, 0.1)
    scaled = Simulated(data.scores * factor, data.truth, data.label)
    original, other = data.fit(), scaled.fit()
    assert other.wrong_shares == pytest.approx(original.wrong_shares, abs=1e-3)
    np.testing.assert_allclose(
        other.suspicion(scaled.scores, data.label), original.suspicion(data.scores, data.label), atol=1e-3
    )


def test_a_missing_class_is_an_error():
    with pytest.raises(InvalidScoresError, match="at least one row"):
        estimate_label_noise([], [1.0, 2.0, 3.0])
