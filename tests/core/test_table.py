"""The network for tables: its features and its closed form against scipy, sklearn and sums written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Rows
from bspauc_spark.selection import Selection
from bspauc_spark.selection import solve as select
from bspauc_spark.theta.evidence import pays
from bspauc_spark.theta.honest import folds_of, honest_scores
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.ridge import DECAYS, pair_scale, solve, sums, whitening
from bspauc_spark.theta.scoring import score_rows
from bspauc_spark.theta.table import TableNetwork
from bspauc_spark.theta.table_worker import TableWorker
from tests.helpers.rows import compressed, dense
from tests.helpers.teams import SETTINGS

MEMBERS, SEED, LANDMARKS = 3, 3, 60


def data(rows: int = 900, wrong: float = 0.0, seed: int = 1) -> dict[str, np.ndarray]:
    """Numbers, a flag, a constant column, and gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    x[:, 1], x[:, 2], x[:, 3] = np.exp(3 * x[:, 1]), x[:, 2] > 1, 4.0
    label = x[:, 0] ** 2 + np.log(x[:, 1]) / 3 + x[:, 2] > 1.2
    label ^= rng.random(rows) < wrong
    x[rng.random(rows) < 0.2, 4] = np.nan
    return {POSITIVES: x[label], NEGATIVES: x[~label]}


def make(given: dict[str, Rows] | None = None, members: int = MEMBERS, **settings: Any) -> TableWorker:
    rows = dense(data()) if given is None else given
    features = rows[POSITIVES].num_features
    spec = NetworkSpec(
        "table", features, members=members, fold_seed=SEED, inputs="auto", gaps=True, landmarks=LANDMARKS
    )
    return TableWorker(rows, spec, TrainingSettings(**{**SETTINGS, "tau": -1.0, **settings}))


def everything(worker: TableWorker) -> Selection:
    scores = worker.score()
    return Selection.everything(scores.positive, scores.negative)


@pytest.fixture(scope="module")
def trained() -> TableWorker:
    worker = make()
    worker.pretrain()
    return worker


def all_rows(arrays: dict[str, np.ndarray] | None = None) -> np.ndarray:
    return np.concatenate([*(data() if arrays is None else arrays).values()])


def network_of(worker: TableWorker) -> TableNetwork:
    assert isinstance(worker.theta.network, TableNetwork)
    return worker.theta.network


def test_a_head_is_the_ridge_regression_of_labels_on_the_rows_outside_its_fold() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 7)).astype(np.float32)
    label, weight, fold = rng.random(300) < 0.3, rng.choice([0.0, 0.4, 1.0], 300), rng.integers(0, 3, 300)
    parts = [torch.from_numpy(part.astype(np.float32)) for part in (x, label, weight)]
    found = sums(*parts, torch.from_numpy(fold), 3)
    for member in range(3):
        heads = solve(found.sum(dim=0) - found[member], (0.5, 20.0)).numpy()
        own = fold != member
        for place, decay in enumerate((0.5, 20.0)):
            wanted = Ridge(decay).fit(x[own], label[own].astype(float), sample_weight=weight[own])
            assert heads[:-1, place] == pytest.approx(wanted.coef_, abs=2e-4)
            share = np.average(label[own], weights=weight[own])
            assert heads[-1, place] == pytest.approx(wanted.intercept_ - share, abs=2e-4)


def test_nearness_times_its_map_has_the_kernel_as_inner_product() -> None:
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    kernel = (-torch.cdist(points, points, p=1.0)).exp()
    mapped = kernel @ whitening(kernel)
    assert mapped @ mapped.T == pytest.approx(kernel.numpy(), abs=1e-5)


def test_equal_landmarks_are_one() -> None:
    points = torch.tensor([[0.0], [1.0], [1.0]])
    kernel = (-torch.cdist(points, points)).exp()
    assert whitening(kernel).shape == (3, 2)


def test_scores_have_the_scale_of_the_least_squared_pair_loss() -> None:
    rng = np.random.default_rng(0)
    s, r = rng.normal(0.6, 1.0, 50), rng.normal(0.0, 2.0, 80)
    v, u = rng.random(50), rng.random(80)
    scale, constant = pair_scale(s, r, v, u)

    def loss(a: float) -> float:
        return float((v[:, None] * u * (1 - a * (s[:, None] - r)) ** 2).sum())

    assert loss(scale) < min(loss(scale * 1.01), loss(scale * 0.99))
    assert np.average(scale * s + constant, weights=v) == pytest.approx(-np.average(scale * r + constant, weights=u))


def test_features_are_the_row_and_its_nearness_by_both_measures(trained: TableWorker) -> None:
    network = network_of(trained)
    prepared = network.prepare(torch.from_numpy(all_rows()[:50]))
    marks = network.landmarks.numpy()
    (inputs,) = network._inputs
    numbers = inputs.layout.numbers  # type: ignore[union-attr]
    single = np.r_[0:numbers, 2 * numbers : marks.shape[1]]
    line, city, straight = (part.numpy() for part in network.features(prepared))
    x = prepared.numpy()
    assert np.array_equal(line, x)
    widths = [
        np.median(cdist(marks[:, single], marks[:, single], "cityblock")[np.triu_indices(LANDMARKS, 1)]),
        np.median(cdist(marks, marks)[np.triu_indices(LANDMARKS, 1)]),
    ]
    assert network.widths.numpy() == pytest.approx(widths, rel=0.01)
    own = network.widths.numpy()
    assert city == pytest.approx(np.exp(-cdist(x[:, single], marks[:, single], "cityblock") / own[0]), abs=1e-5)
    assert straight == pytest.approx(np.exp(-cdist(x, marks) / own[1]), abs=1e-3)


def test_half_of_the_landmarks_are_of_either_class_and_all_are_training_rows(trained: TableWorker) -> None:
    network, arrays = network_of(trained), data()
    positives, negatives = (network.prepare(torch.from_numpy(arrays[kind])).numpy() for kind in (POSITIVES, NEGATIVES))
    found = network.landmarks.numpy()
    assert all((positives == mark).all(axis=1).any() for mark in found[: LANDMARKS // 2])
    assert all((negatives == mark).all(axis=1).any() for mark in found[LANDMARKS // 2 :])


def test_the_score_is_the_mean_of_the_members_in_every_form(trained: TableWorker) -> None:
    network, x = network_of(trained), all_rows()
    rows = dense({POSITIVES: x})[POSITIVES]
    every = np.stack([score_rows(network.member(number), rows) for number in range(MEMBERS)], axis=1)
    assert network.each(torch.from_numpy(x)).detach().numpy() == pytest.approx(every, abs=1e-5)
    assert np.ptp(every, axis=1).max() > 0.01
    wanted = network.mixed_scores(torch.from_numpy(every.mean(axis=1))).numpy()
    assert score_rows(network, rows) == pytest.approx(wanted, abs=1e-5)
    assert network(torch.from_numpy(x)).detach().numpy() == pytest.approx(wanted, abs=1e-5)
    assert network.to_sequential()(torch.from_numpy(x)).detach().numpy() == pytest.approx(wanted, abs=1e-5)


def test_a_row_has_the_same_bits_wherever_it_stands(trained: TableWorker) -> None:
    x = all_rows()
    together = score_rows(network_of(trained), dense({POSITIVES: x})[POSITIVES])
    order = np.random.default_rng(0).permutation(len(x))
    shuffled = score_rows(network_of(trained), dense({POSITIVES: x[order]})[POSITIVES])
    assert np.array_equal(shuffled, together[order])
    for start in range(0, len(x), CHUNK_ROWS // 3):
        part = x[start : start + CHUNK_ROWS // 3]
        assert np.array_equal(
            score_rows(network_of(trained), dense({POSITIVES: part})[POSITIVES]), together[start:][: len(part)]
        )


def test_a_rows_judge_does_not_know_its_label() -> None:
    """With other labels of the rows of a fold, the member that judges them is the same."""
    arrays = data()
    x = all_rows(arrays)
    label = np.arange(len(x)) < len(arrays[POSITIVES])
    fold = folds_of(dense({POSITIVES: x})[POSITIVES], MEMBERS, SEED)
    landmarks = make().theta.network.landmarks
    found = []
    for changed in (label, label ^ ((fold == 1) & (np.random.default_rng(0).random(len(x)) < 0.5))):
        worker = make(dense({POSITIVES: x[changed], NEGATIVES: x[~changed]}), tau=3.0)
        network_of(worker).set_landmarks(landmarks)
        worker._maps = [whitening(one) for one in network_of(worker).features(landmarks)[1:]]
        worker._centers = [one.mean(dim=0) for one in worker._mapped(network_of(worker).features(landmarks))]
        # Witnesses are negatives, so that other labels would make others.
        worker._judges.witness[:] = False  # type: ignore[union-attr]
        head = worker._candidates(np.ones(len(x), np.float32)).heads
        found.append([kind[1].numpy() for kind in head])
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_honest_scores_do_not_give_labels_away() -> None:
    """Labels are flipped at random: within a true class honest scores say nothing of the given label."""
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(1500, 5)).astype(np.float32)
        truth = x[:, 0] - x[:, 1] ** 2 > -0.5
        label = truth ^ (rng.random(len(x)) < 0.3)
        worker = make(dense({POSITIVES: x[label], NEGATIVES: x[~label]}))
        worker.pretrain()
        scores = worker.scores()
        for true_class in (True, False):
            s, r = scores[POSITIVES][truth[label] == true_class], scores[NEGATIVES][truth[~label] == true_class]
            error = np.sqrt((len(s) + len(r) + 1) / (12 * len(s) * len(r)))
            gains.append((stats.mannwhitneyu(s, r).statistic / (len(s) * len(r)) - 0.5) / error)
    assert max(gains) < 3


def test_honest_scores_are_those_of_the_member_outside_of_which_the_fold_lay(trained: TableWorker) -> None:
    arrays = dense(data())
    for kind, rows in arrays.items():
        wanted = honest_scores(network_of(trained), rows, folds_of(rows, MEMBERS, SEED))
        assert np.array_equal(trained.scores()[kind], wanted)


def test_what_is_not_linear_is_found_and_wrong_labels_do_little_harm() -> None:
    new = data(3000, seed=5)
    y = np.repeat([True, False], [len(part) for part in new.values()])
    for wrong, least in ((0.0, 0.97), (0.2, 0.93)):
        worker = make(dense(data(1500, wrong)))
        worker.pretrain()
        auc = roc_auc_score(y, score_rows(network_of(worker), dense({POSITIVES: all_rows(new)})[POSITIVES]))
        assert auc > least
        x = np.nan_to_num(all_rows(data(1500, wrong)))
        given = np.repeat([1, 0], [len(part) for part in data(1500, wrong).values()])
        line = LogisticRegression(max_iter=1000).fit(x, given).decision_function(np.nan_to_num(all_rows(new)))
        assert auc > roc_auc_score(y, line) + 0.1


def test_a_given_decay_is_the_only_one(trained: TableWorker) -> None:
    worker = make(tau=5.0)
    worker.pretrain()
    assert worker._all is not None
    assert worker._all.scores.shape[1] == 3
    assert trained._all is not None
    assert trained._all.scores.shape[1] == 3 * len(DECAYS)


def test_a_selection_that_does_not_pay_leaves_the_model_of_all_rows_to_the_bit() -> None:
    """Rows are left out at random, which cannot help."""
    worker = make()
    worker.pretrain()
    before = worker.weights()
    chosen = np.random.default_rng(0).random(len(worker.rows[NEGATIVES])) < 0.9
    worker._weights = {
        POSITIVES: np.ones(len(worker.rows[POSITIVES]), np.float32),
        NEGATIVES: chosen.astype(np.float32),
    }
    worker._solve()
    assert not pays(worker.weights()["verdict"].astype(float))
    after = worker.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before if name != "verdict")


def test_a_selection_that_pays_is_used() -> None:
    """Negatives of one corner are labelled positive; they are left out by hand."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 4)).astype(np.float32)
    truth = x[:, 0] + x[:, 1] > 1.5
    label = truth | ((x[:, 0] + x[:, 1] < -1.0) & (rng.random(4000) < 0.35))
    worker = make(dense({POSITIVES: x[label], NEGATIVES: x[~label]}))
    worker.pretrain()
    all_weights = {kind: np.ones(len(rows), np.float32) for kind, rows in worker.rows.items()}
    worker._weights = {**all_weights, POSITIVES: truth[label].astype(np.float32)}
    before = worker.weights()["coefficients"]
    worker._solve()
    verdict = worker.weights()["verdict"]
    assert verdict.any()
    assert pays(verdict.astype(float)) == (not np.array_equal(before, worker.weights()["coefficients"]))


def test_a_block_is_taken_back_to_the_bit() -> None:
    worker = make(dense(data(1500, 0.2)))
    worker.pretrain()
    scores = worker.score()
    before = worker.state()
    worker.train(select(scores.positive, scores.negative, 0.5, 0.5))
    worker.undo()
    after = worker.state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before if name != "generator")


def test_a_state_brings_back_the_same_bits() -> None:
    one, other = make(), make()
    one.pretrain()
    other.load(one.state())
    assert all(np.array_equal(one.scores()[kind], other.scores()[kind]) for kind in (POSITIVES, NEGATIVES))
    for worker in (one, other):
        worker.train(everything(worker))
    assert all(np.array_equal(one.state()[name], other.state()[name]) for name in one.state())


def test_sparse_rows_of_few_columns_are_learned_as_dense_ones_are() -> None:
    arrays = {kind: np.nan_to_num(x) for kind, x in data().items()}
    found = []
    for form in (dense, compressed):
        worker = make(form(arrays))
        worker.pretrain()
        found.append(worker.weights())
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_without_folds_one_member_learns_from_all_rows() -> None:
    worker = make(members=0)
    worker.pretrain()
    assert worker.weights()["coefficients"].shape[1] == 1
    scores = worker.scores()
    s, r = scores[POSITIVES], scores[NEGATIVES]
    assert stats.mannwhitneyu(s, r).statistic / (len(s) * len(r)) > 0.95
