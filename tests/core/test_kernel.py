"""Kernel BSPAUC: Algorithms 3 and 4 written out in numpy, the kernel itself, and what is and is not saved."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES, ShardFile
from bspauc_spark.rows.shards import Shards
from bspauc_spark.selection import Selection
from bspauc_spark.spark import plan
from bspauc_spark.theta.fourier import frequencies
from bspauc_spark.theta.median import median_width
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.scoring import one_thread, score_rows
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import WIDTH as COLUMNS
from tests.helpers.rows import compressed, dense, random_matrix, to_numpy, write

FEATURES, WIDTH = 6, 1.7


def data(n: int = 40, m: int = 90, filled: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(n + m, FEATURES)) * (rng.random((n + m, FEATURES)) < filled)).astype(np.float32)
    x[:n, 0] += 0.8
    return {POSITIVES: x[:n], NEGATIVES: x[n:]}


def spec_of(count: int, seed: int = 3) -> NetworkSpec:
    return NetworkSpec("kernel", FEATURES, (), count, WIDTH, seed)


def settings(**changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "optimizer": "sgd",
        "learning_rate": 2.0,
        "batch_size": 8,
        "steps": 12,
        "tau": 0.05,
        "pairing": "matched",
        "averaging": 0.0,
        "seed": 0,
    }
    return TrainingSettings(**{**values, **changes})


SELECTION = Selection(-0.05, 0.3, 0.4, 0.6, 1.0, 1.0, 0.9, 0.9, 1, True)

EVERYTHING = Selection(-1e30, 1.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 0, True)


def algorithm_3(x: dict[str, np.ndarray], draws: list[Any], v: np.ndarray, u: np.ndarray, count: int) -> np.ndarray:
    """Lines 1–8, one ω a step, each drawn from its seed; returns α as (cosine, sine) pairs."""
    eta, tau, batch = 2.0, 0.05, 8

    def phi(i: int, rows: np.ndarray) -> np.ndarray:
        omega = np.random.RandomState([3, i]).standard_normal(FEATURES) / WIDTH
        return np.stack([np.cos(rows @ omega), np.sin(rows @ omega)], axis=1) / np.sqrt(count)

    alpha = np.zeros((count, 2))
    for i, (p, q) in enumerate(draws):
        xp, xq = x[POSITIVES][p].astype(float), x[NEGATIVES][q].astype(float)
        fp, fq = (sum(phi(j, rows) @ alpha[j] for j in range(i)) for rows in (xp, xq))
        active = (1 - fp + fq > 0) * v[p] * u[q]
        new = eta / batch * (active[:, None] * (phi(i, xp) - phi(i, xq))).sum(axis=0)
        alpha[:i] *= 1 - eta * tau
        alpha[i] = new
    return alpha


def test_one_feature_a_step_and_as_many_steps_as_features_is_algorithm_3_to_the_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 70
    worker = Worker(dense(data()), spec_of(count), settings(steps=count, features_per_step=1))
    scores = worker.scores()
    v, u = SELECTION.positive_weights(scores[POSITIVES]), SELECTION.negative_weights(scores[NEGATIVES])
    blocks: list[np.ndarray] = []
    draw = worker._draw
    monkeypatch.setattr(worker, "_draw", lambda kept, steps: blocks.append(draw(kept, steps)) or blocks[-1])
    worker.descend(SELECTION)
    draws = [pair for k in range(0, len(blocks), 2) for pair in zip(blocks[k], blocks[k + 1], strict=True)]
    assert len(draws) == count

    wanted = algorithm_3(data(), draws, v, u, count)
    found = worker.theta.network.alpha.detach().numpy()[:, 0]
    np.testing.assert_allclose(found[:count], wanted[:, 0], atol=1e-6)
    np.testing.assert_allclose(found[count:], wanted[:, 1], atol=1e-6)
    assert np.abs(wanted).max() > 0.01


def test_a_block_of_features_moves_and_the_others_only_decay() -> None:
    count = 10
    worker = Worker(dense(data()), spec_of(count), settings(steps=1, features_per_step=4))
    with torch.no_grad():
        worker.theta.network.alpha.fill_(1.0)
    for moved in ({0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 0, 1}):
        before = worker.theta.network.alpha.detach().clone()
        worker.descend(EVERYTHING)
        decayed = (worker.theta.network.alpha.detach() - (1 - 2.0 * 0.05) * before).abs()[:, 0] < 1e-7
        still = {i for i in range(count) if decayed[i] and decayed[count + i]}
        assert still == set(range(count)) - moved


def test_the_product_of_features_approaches_the_gaussian_kernel() -> None:
    network = spec_of(40_000).build()
    x = np.concatenate(list(data().values()))[:30]
    with torch.no_grad():
        phi = network.features(torch.from_numpy(x)).double().numpy()
    wanted = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * WIDTH**2))
    np.testing.assert_allclose(phi @ phi.T, wanted, atol=0.03)


def test_frequencies_depend_on_the_seed_and_the_feature_alone() -> None:
    few, many, other = (frequencies(s, "cpu") for s in (spec_of(5), spec_of(50), spec_of(50, seed=4)))
    assert torch.equal(few, many[:, :5])
    assert not torch.equal(many, other)
    # Frozen by numpy: a saved model means the same function for ever.
    first = np.random.RandomState([3, 0]).standard_normal(FEATURES) / WIDTH
    np.testing.assert_allclose(few[:, 0].numpy(), first, rtol=1e-6)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all frequencies drawn since, one each."""
    seeds: list[int] = []

    class Watched(np.random.RandomState):
        def __init__(self, seed: list[int]) -> None:
            seeds.append(seed[0])
            super().__init__(seed)

    monkeypatch.setattr(np.random, "RandomState", Watched)
    return seeds


def tables(count: int) -> list[torch.Tensor]:
    """The tables of so many frequencies that are in memory."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (FEATURES, count)]


def test_fits_side_by_side_draw_their_frequencies_once_each(drawn: list[int]) -> None:
    arrays, seeds = dense(data()), (11, 12, 13)
    workers = [Worker(arrays, spec_of(20, seed), settings(steps=2, averaging=0.9)) for seed in (*seeds, 11)]
    for _ in range(3):
        for worker in workers:
            worker.descend(SELECTION)
    assert sorted(drawn) == sorted(20 * seeds)


def test_threads_that_begin_together_draw_frequencies_once(drawn: list[int]) -> None:
    networks = [spec_of(300, seed=14).build() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda network: network(torch.zeros(1, FEATURES)), networks))
    assert len(drawn) == 300


def test_frequencies_are_gone_with_the_last_network_that_uses_them(drawn: list[int]) -> None:
    worker = Worker(dense(data()), spec_of(123, seed=15), settings(steps=2, averaging=0.9))
    worker.descend(SELECTION)
    average = worker.theta.average
    worker.scores()
    assert len(tables(123)) == 1
    del worker
    assert len(tables(123)) == 1
    del average
    assert tables(123) == []


def test_copies_of_a_network_share_its_frequencies_and_pickles_hold_none() -> None:
    network, rows = spec_of(5000, seed=16).build(), torch.from_numpy(data()[POSITIVES])
    with torch.no_grad():
        network.alpha.normal_(generator=torch.Generator().manual_seed(0))
        scores = network(rows)
        pickled = pickle.dumps(network)
        others = [copy.deepcopy(network), pickle.loads(pickled)]
        assert all(torch.equal(other(rows), scores) for other in others)
    assert len(tables(5000)) == 1
    assert set(network.state_dict()) == {"alpha"}
    assert len(pickled) < 4 * 2 * 5000 + 4096


@pytest.mark.parametrize("form", [dense, compressed], ids=["dense", "sparse"])
def test_the_score_of_a_row_is_the_same_bits_wherever_it_stands(form: Any) -> None:
    x = data(CHUNK_ROWS + 300, 1, filled=0.6)[POSITIVES]
    network = spec_of(33).build()
    with torch.no_grad():
        network.alpha.copy_(torch.from_numpy(np.random.default_rng(0).normal(size=(66, 1))))

    def scores(matrix: np.ndarray) -> np.ndarray:
        return score_rows(network, form({"rows": matrix})["rows"])

    with one_thread():
        whole = scores(x)
        order = np.random.default_rng(0).permutation(len(x))
        assert np.array_equal(scores(x[order]), whole[order])
        for start, stop in ((0, 1), (7, 30), (1000, 1323), (300, 300 + CHUNK_ROWS)):
            assert np.array_equal(scores(x[start:stop]), whole[start:stop])


def test_sparse_and_dense_rows_train_alike() -> None:
    arrays = data(filled=0.5)
    changes = {"optimizer": "adamw", "learning_rate": 0.02, "steps": 40, "pairing": "all", "averaging": 0.9}
    one, other = (Worker(form(arrays), spec_of(50), settings(**changes)) for form in (dense, compressed))
    for worker in (one, other):
        worker.descend(SELECTION)
    for name in (POSITIVES, NEGATIVES):
        np.testing.assert_allclose(one.scores()[name], other.scores()[name], atol=1e-4)


def test_training_learns_a_ring_that_no_line_can() -> None:
    x = np.random.default_rng(0).normal(size=(2000, FEATURES)).astype(np.float32)
    inside = (x[:, 0] ** 2 + x[:, 1] ** 2) < 0.8
    arrays = {POSITIVES: x[inside], NEGATIVES: x[~inside]}
    changes = {
        "optimizer": "adamw",
        "learning_rate": 0.01,
        "tau": 0.0,
        "steps": 300,
        "batch_size": 64,
        "pairing": "all",
    }
    worker = Worker(dense(arrays), spec_of(500), settings(**changes))
    worker.descend(EVERYTHING)
    s, r = worker.scores()[POSITIVES], worker.scores()[NEGATIVES]
    assert (s[:, None] > r[None, :]).mean() > 0.95


def test_the_state_holds_alpha_and_no_frequencies() -> None:
    worker = Worker(dense(data()), spec_of(2000), settings(optimizer="adam", averaging=0.9))
    worker.descend(SELECTION)
    sizes = {name: array.size for name, array in worker.state().items() if not name.startswith("generator")}
    assert set(sizes) == {
        *("network.alpha", "average.alpha", "steps_done"),
        *("optimizer.0.step", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"),
    }
    assert max(sizes.values()) == 4000


def test_plain_torch_modules_compute_the_same() -> None:
    worker = Worker(dense(data()), spec_of(100), settings())
    worker.descend(SELECTION)
    plain = worker.theta.network.to_sequential()
    with torch.no_grad():
        found = plain(torch.from_numpy(data()[POSITIVES])).numpy()
    np.testing.assert_allclose(found, worker.scores()[POSITIVES], atol=1e-6)


@pytest.mark.parametrize("form", [dense, compressed], ids=["dense", "sparse"])
def test_the_median_width_is_the_median_distance(form: Any) -> None:
    arrays = data(filled=0.4)
    distances = pdist(np.concatenate(list(arrays.values())).astype(float))
    wanted = np.median(distances[distances > 0])
    assert median_width(form(arrays)) == pytest.approx(wanted, rel=1e-6)
    sampled = median_width(form(arrays), sample=60)
    assert sampled == pytest.approx(wanted, rel=0.2)


def test_rows_that_are_all_alike_have_width_one() -> None:
    assert median_width(dense({POSITIVES: np.ones((3, 2), np.float32), NEGATIVES: np.ones((4, 2), np.float32)})) == 1.0


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_width_of_staged_rows_is_that_of_open_ones_and_opens_no_other_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 1)
    reports = write(tmp_path, random_matrix(6000), kind, rows_per_batch=4)["files"]
    files = {name: tuple(sorted(ShardFile(*file) for file in written)) for name, written in reports.items()}
    shards = Shards(str(tmp_path), files, COLUMNS, kind == "sparse")
    training = {name: rows for name, rows in shards.open().items() if name in (POSITIVES, NEGATIVES)}
    # 4,800 rows to train on: every fourth, in its class, is of the sample.
    every = np.concatenate([to_numpy(rows.between(0, len(rows)))[::4] for rows in training.values()])
    distances = pdist(every.astype(float))
    before = median_width(training)
    assert before == pytest.approx(np.median(distances[distances > 0]), rel=1e-6)

    for name, written in files.items():
        starts = np.cumsum([0, *(file.rows for file in written)])
        for file, start in zip(written, starts[:-1], strict=True):
            sampled = name in training and any(row % 4 == 0 for row in range(start, start + file.rows))
            if not sampled:
                (tmp_path / file.name).unlink()
    assert 0 < len(list(tmp_path.iterdir())) < sum(len(written) for written in files.values()) / 2
    estimator = BSPAUCClassifier(network="kernel", numRandomFeatures=10)
    found = plan.network(estimator, COLUMNS, shards.open, partial(plan.staged_median, shards))
    assert found.kernel_width.hex() == before.hex()
