"""Rows that no member learns from. They tell by how much the mean of members spreads less than one of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from bspauc_spark import algorithm
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.scorer import judged
from bspauc_spark.selection.pace import EveryRow
from bspauc_spark.theta.honest import keys_of, witnesses
from bspauc_spark.theta.members import Members
from bspauc_spark.theta.networks import QUANTILES, NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.spread import quantiles_of_mean
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import compressed, dense
from tests.helpers.teams import SETTINGS

FORMS = {"dense": dense, "sparse": compressed}
MEMBERS, SEED, FEATURES = 3, 11, 15


class Ranks:
    """One of several workers whose numbers are known beforehand."""

    def __init__(self, every: list[np.ndarray], rank: int) -> None:
        self.every, self.rank, self.size = every, rank, len(every)

    def counts(self, own: int) -> np.ndarray:
        return np.array([len(keys) for keys in self.every])

    def gather(self, own: list[np.ndarray]) -> list[np.ndarray]:
        return [np.concatenate([_slices(keys, sum(map(len, self.every))) for keys in self.every])]

    def share(self, data: bytes) -> bytes:
        return data


def _slices(keys: np.ndarray, total: int) -> np.ndarray:
    """By whole numbers of any size: how many keys are in each of the first 16 slices."""
    slices = max(20, total // 1000)
    places = Counter(((int(key) >> 32) * slices) >> 32 for key in keys)
    return np.array([places[place] for place in range(16)])


def rows_of(count: int = 3000, features: int = 5, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A rare class that is hard to tell, so that members differ."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features)).astype(np.float32)
    return x, x[:, 0] - x[:, 1] ** 2 + rng.normal(size=count) > 1.5


def make(x: np.ndarray, label: np.ndarray, form: str = "dense", **settings: Any) -> Worker:
    spec = NetworkSpec("mlp", x.shape[1], (16, 8), members=MEMBERS, fold_seed=SEED)
    arrays = {POSITIVES: x[label], NEGATIVES: x[~label]}
    return Worker(FORMS[form](arrays), spec, TrainingSettings(**{**SETTINGS, "optimizer": "adamw", **settings}))


def learned_by_none(worker: Worker, kind: str) -> np.ndarray:
    assert worker._judges is not None
    return np.flatnonzero(~worker._judges.learned(kind, np.arange(len(worker.rows[kind]))).any(axis=1))


@pytest.mark.parametrize("form", FORMS)
def test_a_twentieth_of_the_negatives_are_witnesses_by_their_hash(form: str) -> None:
    x, label = rows_of()
    worker = make(x, label, form)
    keys = keys_of(torch.from_numpy(x[~label]), SEED)
    wanted = [n for n, key in enumerate(keys) if int(key) >> 32 < 2**32 / 20]
    assert 80 < len(wanted) < 160
    assert learned_by_none(worker, NEGATIVES).tolist() == wanted
    assert learned_by_none(worker, POSITIVES).size == 0


def test_of_very_many_rows_about_a_thousand_are() -> None:
    keys = np.random.default_rng(0).integers(2**64, size=300_000, dtype=np.uint64)
    assert 850 < witnesses(keys, Ranks([keys], 0)).sum() < 1150


def test_several_ranks_have_the_witnesses_that_one_has() -> None:
    keys = np.random.default_rng(0).integers(2**64, size=5000, dtype=np.uint64)
    parts = [keys[:1000], keys[1000:1000], keys[1000:]]
    found = np.concatenate([witnesses(part, Ranks(parts, rank)) for rank, part in enumerate(parts)])
    assert np.array_equal(found, witnesses(keys, Ranks([keys], 0)))
    assert found.any()


@pytest.mark.parametrize("place", [0, 3])
def test_a_row_with_very_many_copies_is_none(place: int) -> None:
    rng = np.random.default_rng(place)
    keys = rng.integers(2**64, size=4000, dtype=np.uint64)
    common = np.uint64((2**64 * (2 * place + 1)) // 40)
    keys[:3000] = common
    found = witnesses(keys, Ranks([keys], 0))
    assert 20 <= found.sum() <= 400
    assert not found[keys == common].any()


def test_few_rows_have_none_and_the_mean_stays_as_it_is() -> None:
    worker = make(*rows_of(300))
    worker.pretrain()
    worker.scores()
    assert learned_by_none(worker, NEGATIVES).size == 0
    constants = worker.theta.average.state_dict()
    assert torch.equal(constants["mixed"], constants["levels"])


@pytest.mark.parametrize("form", FORMS)
def test_no_member_learns_from_a_witness(form: str) -> None:
    x, label = rows_of()
    workers = [make(x, label, form)]
    moved = x.copy()
    chosen = np.flatnonzero(~label)[learned_by_none(workers[0], NEGATIVES)]
    moved[chosen] += 100.0
    workers.append(make(moved, label, form))
    # Their hashes must not change: the worker is told those of the old rows.
    workers[1]._judges = workers[0]._judges
    for worker in workers:
        weights = {kind: np.ones(len(worker.rows[kind]), np.float32) for kind in (POSITIVES, NEGATIVES)}
        worker._run(weights, 12, 1.0)
    one, two = (worker.theta.network.state_dict() for worker in workers)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def learned() -> Worker:
    """Members that have learned much by heart, and so differ."""
    worker = make(*rows_of(8000, FEATURES), steps=150, learning_rate=0.01, tau=0.0)
    algorithm.fit(worker, EveryRow(), 2, tau=0.0)
    return worker


def each(worker: Worker, x: np.ndarray) -> np.ndarray:
    """Standardised scores by each member, a column each."""
    network = worker.theta.average
    assert isinstance(network, Members)
    with torch.no_grad():
        raw = [member(torch.from_numpy(x)) for member in network.networks()]
        return np.stack([network.standardised(k, one).double().numpy() for k, one in enumerate(raw)], axis=1)


def test_a_threshold_and_probabilities_of_honest_scores_hold_for_new_rows(learned: Worker) -> None:
    """As many new rows are above a threshold as if one member scored them; the mean of members takes fewer."""
    scores = learned.score()
    noise, _, of_validation = judged(scores)
    assert of_validation is None
    x, label = rows_of(40_000, FEATURES, seed=3)
    with torch.no_grad():
        new = learned.theta.average(torch.from_numpy(x)).numpy()
        plain = learned.theta.average.to_sequential()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(plain, new, rtol=1e-4, atol=1e-4)
    honest = np.concatenate([scores.positive.sorted, scores.negative.sorted])
    members = each(learned, x)
    for share in (0.05, 0.1):
        cut = np.quantile(honest, 1 - share)
        taken = (members > cut).mean()
        assert taken == pytest.approx(share, rel=0.12)
        assert (new > cut).mean() == pytest.approx(taken, rel=0.06)
        assert (members.mean(axis=1) > cut).mean() < 0.95 * taken
    probability = noise.probability(new)
    bins = np.array_split(np.argsort(probability), 10)
    assert np.mean([abs(probability[rows].mean() - label[rows].mean()) for rows in bins]) < 0.02


@pytest.mark.parametrize("trend", [0.0, 0.5])
@pytest.mark.parametrize("members", [2, 3, 8])
def test_the_quantiles_of_a_mean_follow_from_those_of_one_member_and_witnesses(members: int, trend: float) -> None:
    """A tail of positives, of which there are no witnesses, and noise that is larger at lower scores."""
    rng = np.random.default_rng(members)
    positive = rng.random(200_000) < 0.1
    middle = rng.normal(np.where(positive, 2.5, 0.0), 1.0)
    noise = 0.6 * np.exp(-trend * middle.clip(-2, 4))[:, None] * rng.normal(size=(len(middle), members))
    every = middle[:, None] + noise
    shares = np.array(QUANTILES)
    one = np.quantile(every[:, 0], shares)
    wanted = np.quantile(every.mean(axis=1), shares)
    found = quantiles_of_mean(one, shares, every[rng.choice(np.flatnonzero(~positive), 1000, replace=False)])
    inner = (shares >= 0.01) & (shares <= 0.99)
    assert np.abs(one - wanted)[inner].max() > 0.15
    assert np.abs(found - wanted)[inner].max() < 0.4 * np.abs(one - wanted)[inner].max()
    assert (np.diff(found) > 0).all()


def test_members_that_agree_leave_the_quantiles_as_they_are() -> None:
    one = np.random.default_rng(0).gumbel(size=len(QUANTILES)).cumsum().cumsum()
    shares = np.array(QUANTILES)
    one = np.sort(one)
    same = np.repeat(np.linspace(one[0], one[-1], 100)[:, None], 3, axis=1)
    np.testing.assert_allclose(quantiles_of_mean(one, shares, same), one, rtol=1e-9)
    few = np.full(len(QUANTILES), 0.5)
    assert np.array_equal(quantiles_of_mean(one, few, np.arange(300.0).reshape(100, 3)), one)


def test_equal_scores_of_many_rows_are_brought_to_one_scale_too() -> None:
    """Of a member that gives half of its rows one score."""
    network = make(*rows_of(100)).theta.average
    assert isinstance(network, Members)
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(MEMBERS, 1000)) * [[1.0], [10.0], [0.1]] + [[0.0], [-50.0], [3.0]]
    raw[1, :500] = -50.0
    network.standardise(np.quantile(raw, QUANTILES, axis=1).T, raw.std(axis=1))
    for number, scores in enumerate(raw):
        line = torch.from_numpy(np.sort(scores)).float()
        found = network.standardised(number, line)
        assert torch.isfinite(found).all()
        assert (found.diff() >= -1e-5).all()
        assert float(found.double().mean()) == pytest.approx(raw.mean(), abs=0.5)
        assert float(found.double().std()) == pytest.approx(raw.std(axis=1).mean(), rel=0.1)
