"""The θ worker against Algorithm 2 by hand, bare torch loops, and its own promises about state and bits."""

from __future__ import annotations

import copy
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Batch
from bspauc_spark.selection import Selection
from bspauc_spark.theta.group import Alone
from bspauc_spark.theta.networks import LayeredNetwork, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.scoring import one_thread, score_rows
from bspauc_spark.theta.worker import Worker
from tests.helpers.rows import compressed, dense

FEATURES = 5


def settings(**changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "batch_size": 8,
        "steps": 6,
        "tau": 0.01,
        "pairing": "all",
        "averaging": 0.0,
        "seed": 0,
    }
    return TrainingSettings(**{**values, **changes})


def data(n: int = 40, m: int = 90, features: int = FEATURES, filled: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(n + m, features)) * (rng.random((n + m, features)) < filled)).astype(np.float32)
    x[:n, 0] += 0.8
    return {POSITIVES: x[:n], NEGATIVES: x[n:]}


def make(kind: str = "mlp", arrays: dict[str, np.ndarray] | None = None, **changes: Any) -> Worker:
    arrays = data() if arrays is None else arrays
    spec = NetworkSpec(kind, arrays[POSITIVES].shape[1], (7, 6) if kind == "mlp" else ())
    return Worker(dense(arrays), spec, settings(**changes))


def select(worker: Worker, phi: float = 0.3, kept: float = 0.6) -> Selection:
    """Keep ``kept`` of each class, with one row of weight ``phi`` at either threshold."""
    scores = worker.scores()
    tau = np.quantile(scores[POSITIVES], 1 - kept, method="nearest")
    upsilon = np.quantile(scores[NEGATIVES], kept, method="nearest")
    return Selection(float(tau), phi, float(upsilon), phi, 1.0, 1.0, kept, kept, 1, True)


EVERYTHING = Selection(-1e30, 1.0, 1e30, 1.0, 1.0, 1.0, 1.0, 1.0, 0, True)


def record_draws(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """The (positives, negatives) of every step, filled while the worker trains."""
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    blocks: list[np.ndarray] = []
    draw = worker._draw

    def recorded(kept: np.ndarray, count: int) -> np.ndarray:
        blocks.append(draw(kept, count))
        if len(blocks) % 2 == 0:
            steps.extend(zip(*blocks[-2:], strict=True))
        return blocks[-1]

    monkeypatch.setattr(worker, "_draw", recorded)
    return steps


def weights_of(worker: Worker, selection: Selection) -> tuple[np.ndarray, np.ndarray]:
    scores = worker.scores()
    return selection.positive_weights(scores[POSITIVES]), selection.negative_weights(scores[NEGATIVES])


def parameters(network: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in network.parameters()]


def assert_same_network(network: ScoringNetwork, plain: nn.Sequential, tolerance: float = 1e-6) -> None:
    for found, wanted in zip(network.to_sequential().parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("pairing", ["matched", "all"])
def test_one_sgd_step_is_line_5_of_algorithm_2(pairing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``θ ← (1 − ητ)θ − η·∂``, with the gradient of a linear score written out by hand."""
    worker = make("linear", pairing=pairing, steps=1, tau=0.5)
    selection = select(worker)
    v, u = weights_of(worker, selection)
    w, b = (p.double().numpy() for p in parameters(worker.theta.network))
    steps = record_draws(worker, monkeypatch)
    loss = worker.descend(selection)

    (p, q), x = steps[0], {name: a.astype(float) for name, a in data().items()}
    xp, xq = x[POSITIVES][p], x[NEGATIVES][q]
    pairs = [(j, j) for j in range(8)] if pairing == "matched" else [(i, j) for i in range(8) for j in range(8)]
    gradient, total = np.zeros(FEATURES), 0.0
    for i, j in pairs:
        xi = 1 - (xp[i] @ w[:, 0]) + (xq[j] @ w[:, 0])
        if xi > 0:
            gradient += v[p[i]] * u[q[j]] * (xq[j] - xp[i]) / len(pairs)
            total += v[p[i]] * u[q[j]] * xi / len(pairs)
    new_w, new_b = (t.double().numpy() for t in parameters(worker.theta.network))
    np.testing.assert_allclose(new_w[:, 0], (1 - 0.1 * 0.5) * w[:, 0] - 0.1 * gradient, atol=1e-6)
    np.testing.assert_allclose(new_b, (1 - 0.1 * 0.5) * b, atol=1e-6)
    assert loss == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_several_steps_equal_a_bare_torch_loop(optimizer: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # AdamW turns rounding noise into steps of biases that have no true gradient: its one bias is left out below.
    kind = "linear" if optimizer == "adamw" else "mlp"
    worker = make(kind, optimizer=optimizer, steps=70, learning_rate=0.01, tau=0.1)
    selection = select(worker)
    v, u = (torch.from_numpy(w) for w in weights_of(worker, selection))
    plain = worker.theta.network.to_sequential().double()
    steps = record_draws(worker, monkeypatch)
    mean_loss = worker.descend(selection, rate)

    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    bare = kinds[optimizer](plain.parameters(), lr=0.01 * rate, weight_decay=0.1)
    x = {name: torch.from_numpy(a).double() for name, a in data().items()}
    losses = []
    assert len(steps) == 70
    for p, q in steps:
        xi = torch.relu(1 - plain(x[POSITIVES][p])[:, None] + plain(x[NEGATIVES][q])[None, :])
        loss = (v[p][:, None] * u[q][None, :] * xi).mean()
        bare.zero_grad()
        loss.backward()
        bare.step()
        losses.append(loss.item())
    if optimizer != "adamw":
        assert_same_network(worker.theta.network, plain.float(), 1e-4)
    with torch.no_grad():
        wanted = plain.float()(torch.from_numpy(np.concatenate(list(data().values())))).numpy()
    found = np.concatenate(list(worker.scores().values()))
    np.testing.assert_allclose(found - found.mean(), wanted - wanted.mean(), atol=2e-4)
    assert mean_loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_rare_features_of_wide_rows_are_not_learned_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One feature tells the truth, of which three labels in ten do not; every other feature names a row."""
    rng = np.random.default_rng(0)
    truth = rng.random(2000) < 0.5
    label = truth ^ (rng.random(2000) < 0.3)
    x = np.column_stack([np.where(truth, 0.3, -0.3), np.eye(2000)]).astype(np.float32)
    arrays = {POSITIVES: x[label], NEGATIVES: x[~label]}

    def clean_auc() -> float:
        worker = make("mlp", arrays, optimizer="adamw", learning_rate=3e-3, batch_size=64, steps=100)
        worker.descend(EVERYTHING)
        scores = worker.scores()
        both = np.concatenate([scores[POSITIVES], scores[NEGATIVES]])
        return float(roc_auc_score(np.concatenate([truth[label], truth[~label]]), both))

    ours = clean_auc()
    for module in ("optimizers", "theta"):
        monkeypatch.setattr(f"bspauc_spark.theta.{module}.adam_epsilon", lambda spec: 1e-8)
    assert ours > 0.99
    assert clean_auc() < 0.97


def test_the_average_is_an_ema_with_a_short_memory_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make(averaging=0.6, steps=20, learning_rate=0.5)
    first, seen = parameters(worker.theta.network), []
    step = worker.theta.optimizer.step
    monkeypatch.setattr(worker.theta.optimizer, "step", lambda: (step(), seen.append(parameters(worker.theta.network))))
    worker.descend(EVERYTHING)
    worker.descend(EVERYTHING)
    average = [p.double() for p in first]
    for t, theta in enumerate(seen, start=1):
        decay = min(0.6, (1 + t) / (10 + t))
        average = [decay * a + (1 - decay) * p.double() for a, p in zip(average, theta, strict=True)]
    assert len(seen) == 40
    for found, wanted in zip(worker.theta.average.parameters(), average, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    assert not torch.equal(worker.theta.average.first.weight, worker.theta.network.first.weight)


def test_scores_are_those_of_the_average() -> None:
    worker = make(averaging=0.9, learning_rate=0.5)
    worker.descend(EVERYTHING)
    plain = worker.theta.average.to_sequential()
    with torch.no_grad():
        wanted = plain(torch.from_numpy(data()[POSITIVES])).numpy()
    np.testing.assert_allclose(worker.scores()[POSITIVES], wanted, atol=1e-5)


def test_draws_come_only_from_kept_rows_and_are_uniform_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make(steps=500, batch_size=16, learning_rate=1e-6)
    selection = select(worker, kept=0.5)
    v, u = weights_of(worker, selection)
    steps = record_draws(worker, monkeypatch)
    worker.descend(selection)
    for drawn, weights in zip(zip(*steps, strict=True), (v, u), strict=True):
        counts = np.bincount(np.concatenate(drawn), minlength=len(weights))
        kept = weights > 0
        assert not counts[~kept].any()
        expected = 8000 / kept.sum()
        # Also the row of weight 0.3 is drawn as often as the others: its weight is in the loss.
        chi2 = ((counts[kept] - expected) ** 2 / expected).sum()
        assert chi2 < kept.sum() + 5 * np.sqrt(2 * kept.sum())


def test_the_fractional_weight_scales_the_loss_of_its_row() -> None:
    """With one kept row a class, both of weight φ, the loss of every step is φ²·ξ."""
    worker = make(learning_rate=1e-9, steps=3)
    s, r = (worker.scores()[name] for name in (POSITIVES, NEGATIVES))
    selection = Selection(float(s.max()), 0.5, float(r.min()), 0.25, 1.0, 1.0, 0.5 / 40, 0.25 / 90, 1, True)
    xi = max(0.0, 1 - float(s.max()) + float(r.min()))
    assert worker.descend(selection) == pytest.approx(0.5 * 0.25 * xi, rel=1e-5)


def test_kept_gives_the_new_scores_by_the_weight_that_rows_had() -> None:
    worker = make(learning_rate=0.5)
    selection = select(worker)
    v, u = weights_of(worker, selection)
    worker.descend(selection)
    for name, weights in ((POSITIVES, v), (NEGATIVES, u)):
        kept, scores = worker.kept()[name], worker.scores()[name]
        assert np.array_equal(kept.full, scores[weights == 1])
        assert np.array_equal(kept.partial, scores[weights == 0.3])
        assert len(kept.partial) == 1


def snapshot(worker: Worker) -> dict[str, Any]:
    return {
        "network": parameters(worker.theta.network),
        "average": parameters(worker.theta.average),
        "optimizer": copy.deepcopy(worker.theta.optimizer.state_dict()["state"]),
        "scores": {name: s.copy() for name, s in worker.scores().items()},
        "steps": worker.theta.steps_done,
    }


def assert_same_bits(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(found, dict):
        assert found.keys() == wanted.keys()
        for key in found:
            assert_same_bits(found[key], wanted[key])
    elif isinstance(found, list):
        for a, b in zip(found, wanted, strict=True):
            assert_same_bits(a, b)
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(found, np.ndarray):
        assert np.array_equal(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_undo_restores_theta_optimizer_average_and_scores_bit_for_bit(optimizer: str, averaging: float) -> None:
    worker = make(optimizer=optimizer, averaging=averaging, learning_rate=0.05)
    worker.descend(EVERYTHING)
    before = snapshot(worker)
    worker.descend(select(worker))
    after = snapshot(worker)
    worker.undo()
    assert_same_bits(snapshot(worker), before)
    assert not torch.equal(after["network"][0], before["network"][0])


def test_a_block_repeated_after_undo_sees_other_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make()
    steps = record_draws(worker, monkeypatch)
    worker.descend(EVERYTHING)
    worker.undo()
    worker.descend(EVERYTHING)
    first, second = (np.concatenate([p for p, _ in part]) for part in (steps[:6], steps[6:]))
    assert not np.array_equal(first, second)


def test_a_loaded_state_goes_on_as_if_nothing_had_happened() -> None:
    changes = {"optimizer": "adam", "averaging": 0.9, "learning_rate": 0.02}
    one, other = make(**changes), make(**changes, seed=99)
    one.descend(EVERYTHING)
    stored = one.state()
    one.descend(select(one))
    wanted = snapshot(one)
    for worker in (other, one):
        worker.load(stored)
        worker.descend(select(worker))
        assert_same_bits(snapshot(worker), wanted)


def test_the_seed_decides_theta_and_draws() -> None:
    def trained(seed: int) -> Worker:
        worker = make(seed=seed, optimizer="adam")
        worker.pretrain()
        worker.descend(EVERYTHING)
        return worker

    first, again, other = (trained(seed) for seed in (3, 3, 4))
    assert_same_bits(snapshot(first), snapshot(again))
    assert not torch.equal(parameters(first.theta.network)[0], parameters(other.theta.network)[0])


def test_training_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    worker = make(pretrain_steps=2, pretrain_fraction=0.5)
    worker.pretrain()
    worker.descend(EVERYTHING)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_penalty_that_makes_theta_grow_is_named() -> None:
    worker = make(steps=60, tau=1e5)
    with pytest.raises(DivergedError, match=r"Lower learningRate or regParam: in each step θ loses their product, \d+"):
        worker.descend(EVERYTHING)


def test_a_learning_rate_that_diverges_is_an_error_with_advice() -> None:
    worker = make(learning_rate=1e12, steps=60, tau=0.0)
    with pytest.raises(
        DivergedError, match=r"diverged.*learningRate 1e\+12. Lower learningRate, or scale the features"
    ):
        worker.descend(EVERYTHING)


@pytest.mark.parametrize(
    ("features", "hidden"),
    [
        (6, (16, 16)),
        (123, (64,) * 7),
        (30, (33,)),
        (8, ()),
        (5, (7, 6)),
        (123, (10, 5, 3, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_the_score_of_a_row_is_the_same_bits_wherever_it_stands(
    features: int, hidden: tuple[int, ...], form: str
) -> None:
    arrays = data(CHUNK_ROWS + 300, 1, features, filled=0.5)
    spec = NetworkSpec("mlp" if hidden else "linear", features, hidden)
    network = LayeredNetwork(spec, torch.Generator().manual_seed(1))
    x = arrays[POSITIVES]

    def scores(matrix: np.ndarray) -> np.ndarray:
        return score_rows(network, (dense if form == "dense" else compressed)({"rows": matrix})["rows"])

    with one_thread():
        whole = scores(x)
        order = np.random.default_rng(0).permutation(len(x))
        assert np.array_equal(scores(x[order]), whole[order])
        for start, stop in ((0, 1), (7, 30), (1000, 1323), (300, 300 + CHUNK_ROWS)):
            assert np.array_equal(scores(x[start:stop]), whole[start:stop])


@pytest.mark.parametrize("form", [dense, compressed], ids=["dense", "sparse"])
def test_threads_change_no_score(form: Any) -> None:
    arrays = {"rows": np.random.default_rng(0).normal(size=(70_001, FEATURES)).astype(np.float32)}
    network = NetworkSpec("mlp", FEATURES, (7, 6)).build(torch.Generator().manual_seed(0), torch.arange(4))
    rows = form(arrays)["rows"]
    with one_thread():
        assert np.array_equal(score_rows(network, rows, threads=3), score_rows(network, rows))


def test_every_thread_that_scores_computes_alone(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dense({"rows": np.zeros((70_001, FEATURES), np.float32)})["rows"]
    network = NetworkSpec("linear", FEATURES).build(torch.Generator().manual_seed(0))
    used: dict[int, int] = {}
    forward = network.forward

    def watched(batch: Batch) -> torch.Tensor:
        used[threading.get_ident()] = torch.get_num_threads()
        return forward(batch)

    monkeypatch.setattr(network, "forward", watched)
    fit, other = one_thread(), one_thread()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for thread in (first, second):
            assert thread.submit(torch.get_num_threads).result() == 2
        first.submit(other.__enter__).result()
        second.submit(fit.__enter__).result()
        # A fit that ends beside this one takes nothing from it.
        first.submit(other.__exit__, None, None, None).result()
        second.submit(score_rows, network, rows, 3).result()
        second.submit(fit.__exit__, None, None, None).result()
    assert len(used) > 1
    assert set(used.values()) == {1}


def test_sparse_and_dense_rows_have_the_same_scores() -> None:
    arrays = data(200, 300, 50, filled=0.1)
    spec = NetworkSpec("mlp", 50, (16, 8))
    one, other = (Worker(form(arrays), spec, settings()) for form in (dense, compressed))
    for name in (POSITIVES, NEGATIVES):
        np.testing.assert_allclose(one.scores()[name], other.scores()[name], atol=1e-5)


def test_training_on_sparse_rows_follows_the_dense_path() -> None:
    arrays = data(200, 300, 50, filled=0.1)
    spec = NetworkSpec("mlp", 50, (16, 8))
    changes = {"optimizer": "sgd", "learning_rate": 0.1, "tau": 0.3, "steps": 40, "averaging": 0.9}
    one, other = (Worker(form(arrays), spec, settings(**changes)) for form in (dense, compressed))
    losses = [worker.descend(EVERYTHING) for worker in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for a, b in zip(parameters(one.theta.average), parameters(other.theta.average), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_state_of_sparse_rows_goes_on_bit_for_bit_and_a_block_can_be_undone() -> None:
    arrays = data(200, 300, 50, filled=0.1)
    spec = NetworkSpec("mlp", 50, (16, 8))
    changes: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.01, "averaging": 0.9}
    one, other = (Worker(compressed(arrays), spec, settings(**changes)) for _ in range(2))
    one.descend(EVERYTHING)
    other.load(one.state())
    before = one.scores()[POSITIVES].copy()
    for worker in (one, other):
        worker.descend(EVERYTHING)
    assert np.array_equal(one.scores()[POSITIVES], other.scores()[POSITIVES])
    assert not np.array_equal(one.scores()[POSITIVES], before)
    one.undo()
    assert np.array_equal(one.scores()[POSITIVES], before)
    again = Worker(compressed(arrays), spec, settings(**changes))
    again.load(one.state())
    assert np.array_equal(again.scores()[POSITIVES], before)
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, again.state()[name], err_msg=name)


def test_sparse_rows_without_any_value_score_the_bias() -> None:
    arrays = {POSITIVES: np.zeros((3, 4), np.float32), NEGATIVES: np.zeros((2, 4), np.float32)}
    worker = Worker(compressed(arrays), NetworkSpec("linear", 4), settings(steps=2))
    assert np.array_equal(worker.scores()[POSITIVES], np.full(3, worker.theta.network.first.bias.item(), np.float32))
    assert worker.descend(EVERYTHING) == pytest.approx(1.0)


def test_training_lowers_the_loss_on_all_pairs() -> None:
    worker = make(optimizer="adam", learning_rate=0.02, steps=100, batch_size=32)

    def loss() -> float:
        s, r = (worker.scores()[name] for name in (POSITIVES, NEGATIVES))
        return float(np.maximum(0, 1 - s[:, None] + r[None, :]).mean())

    before = loss()
    worker.descend(EVERYTHING)
    assert loss() < 0.7 * before


@pytest.mark.parametrize("form", [dense, compressed], ids=["dense", "sparse"])
def test_mixed_precision_steps_are_near_the_exact_ones_and_leave_float32(form: Any) -> None:
    """On a CPU here; a GPU goes the same way."""
    arrays = data(200, 300)
    spec = NetworkSpec("mlp", FEATURES, (16, 16))
    changes: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.01, "steps": 60, "batch_size": 64}
    exact, mixed = (Worker(form(arrays), spec, settings(mixed_precision=m, **changes)) for m in (False, True))
    # oneDNN finds AMX on some CPUs of which a virtual machine may not use it, and fails.
    with torch.backends.mkldnn.flags(enabled=False):
        losses = [worker.descend(EVERYTHING) for worker in (exact, mixed)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert {p.dtype for p in mixed.theta.network.parameters()} == {torch.float32}
    assert not np.array_equal(exact.scores()[POSITIVES], mixed.scores()[POSITIVES])
    labels = np.repeat([1, 0], [200, 300])
    aucs = [
        roc_auc_score(labels, np.concatenate([w.scores()[POSITIVES], w.scores()[NEGATIVES]])) for w in (exact, mixed)
    ]
    assert aucs[0] == pytest.approx(aucs[1], abs=0.02)


def test_the_penalty_is_half_the_squared_norm_of_the_average() -> None:
    worker = make(averaging=0.9, learning_rate=0.5)
    worker.descend(EVERYTHING)
    theta = np.concatenate([p.double().numpy().ravel() for p in parameters(worker.theta.average)])
    assert worker.penalty() == pytest.approx(0.5 * theta @ theta, rel=1e-12)


@pytest.mark.parametrize(("share", "positives", "negatives"), [(0.25, 10, 22), (0.1, 8, 9), (1.0, 40, 90)], ids=str)
def test_pretraining_uses_only_the_chosen_share_and_a_batch_at_least(
    share: float, positives: int, negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make(pretrain_steps=300, pretrain_fraction=share, learning_rate=1e-4)
    steps = record_draws(worker, monkeypatch)
    worker.pretrain()
    used = [set(np.concatenate(drawn).tolist()) for drawn in zip(*steps, strict=True)]
    assert [len(rows) for rows in used] == [positives, negatives]
    assert len(steps) == 300


def test_a_class_smaller_than_a_batch_is_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make(arrays=data(3, 50), pretrain_steps=40, pretrain_fraction=0.1)
    steps = record_draws(worker, monkeypatch)
    worker.pretrain()
    assert set(np.concatenate([p for p, _ in steps]).tolist()) == {0, 1, 2}


class OneOfMany(Alone):
    """A rank that holds a small part of very many rows; all others give scores of 0."""

    def counts(self, own: int) -> np.ndarray:
        return np.array([own, 10**9 if own else 0])

    def join(self, own: torch.Tensor, places: torch.Tensor, length: int) -> torch.Tensor:
        return own.new_zeros(length, *own.shape[1:]).index_copy(0, places, own)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_what_pretraining_takes_in_memory_grows_with_a_workers_own_rows_only(share: float) -> None:
    # Not in bins, whose number is the same for all sizes of a class.
    worker = make(pretrain_steps=1, pretrain_fraction=share, exact_rows=10**10)
    worker.group = OneOfMany()
    tracemalloc.start()
    worker.pretrain()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6
