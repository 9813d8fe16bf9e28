"""The paper's competitors against brute force over pairs, closed forms, and updates worked out by hand."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import roc_auc_score

from bspauc_spark.baselines import KOIL, OPAUC, PPD, CrossEntropy
from bspauc_spark.baselines.koil import Buffers
from bspauc_spark.baselines.ppd import min_max_loss
from bspauc_spark.errors import InvalidFeaturesError, InvalidLabelError
from bspauc_spark.theta.scoring import one_thread

Method: TypeAlias = OPAUC | KOIL | PPD | CrossEntropy
EVERY_METHOD = pytest.mark.parametrize(
    "method",
    [OPAUC(), KOIL(), PPD((4,), steps=5), CrossEntropy((4,), steps=5)],
    ids=["OPAUC", "KOIL", "PPD", "CrossEntropy"],
)


def data(rows: int = 400, width: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width))
    return x, x @ np.arange(1, width + 1) + rng.normal(size=rows) > 4


def ring(rows: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(rows, 2))
    return x, np.square(x).sum(axis=1) < 0.7


def test_opauc_takes_the_gradient_over_all_earlier_rows_of_the_other_class() -> None:
    x, y = data(60)
    eta, reg = 0.02, 0.1
    w, seen = np.zeros(5), {True: [], False: []}
    for i in np.random.default_rng(3).permutation(60):
        label = bool(y[i])
        seen[label].append(x[i])
        others = np.array(seen[not label])
        if len(others):
            # ½ mean (1 − w·(x⁺ − x⁻))² over the pairs of this row.
            difference = (x[i] - others) if label else (others - x[i])
            w = w - eta * (reg * w - (difference * (1 - difference @ w)[:, None]).mean(axis=0))
    found = OPAUC(eta, reg, seed=3).fit(x, y)
    np.testing.assert_allclose(found.w, w, atol=1e-12)
    np.testing.assert_allclose(found.score(x), x @ w, atol=1e-12)


def test_opauc_on_sparse_rows_is_opauc_on_dense_rows() -> None:
    x, y = data(80)
    x[np.abs(x) < 0.5] = 0
    for rank in (None, 20):
        one, other = (OPAUC(0.02, 0.1, rank, seed=1).fit(form, y) for form in (x, sparse.csr_matrix(x)))
        np.testing.assert_allclose(one.w, other.w, atol=1e-12)
        np.testing.assert_allclose(one.score(sparse.csr_matrix(x)), x @ one.w, atol=1e-12)


def test_the_sketch_of_high_rank_learns_what_the_covariances_do() -> None:
    x, y = data(300, seed=2)
    full, sketched = OPAUC(0.01, 0.1, seed=4).fit(x, y), OPAUC(0.01, 0.1, rank=3000, seed=4).fit(x, y)
    cosine = full.w @ sketched.w / np.linalg.norm(full.w) / np.linalg.norm(sketched.w)
    assert cosine > 0.99


def test_wide_rows_get_a_sketch_of_rank_50() -> None:
    x = sparse.random(40, 1500, 0.02, format="csr", random_state=0)
    y = np.arange(40) % 2 == 0
    assert np.isfinite(OPAUC(0.01, 0.1).fit(x, y).score(x)).all()


def test_opauc_comes_near_the_least_square_loss_over_all_pairs() -> None:
    x, y = data(1000)
    pairs = (x[y][:, None] - x[~y][None]).reshape(-1, 5)
    best = np.linalg.solve(pairs.T @ pairs / len(pairs) + 2**-6 * np.eye(5), pairs.mean(axis=0))
    found = OPAUC().fit(x, y).w
    assert found @ best / np.linalg.norm(found) / np.linalg.norm(best) > 0.97


def test_koil_follows_its_published_updates_on_a_hand_made_stream() -> None:
    """η = 0.5, C = 1, one neighbour, two rows a class, σ so small that different rows have nothing in common."""
    koil = KOIL(0.5, 1.0, kernel_width=0.01, neighbours=1, buffer_size=2)
    koil.buffers = Buffers(2, 1, 0.01)

    def learn(value: float, label: bool) -> None:
        koil.learn(slice(None), np.array([value]), label)

    def state() -> dict[str, list[float]]:
        return {sign: koil.buffers.alpha[koil.buffers.places(sign == "+")].tolist() for sign in "+-"}

    learn(0.0, True)  # no negatives yet: α = ηCy
    assert state() == {"+": [0.5], "-": []}
    learn(1.0, False)  # 1 + f(1) − f(0) = 0.5 > 0: decay, then one violated positive
    assert state() == {"+": [0.25 + 0.5], "-": [-0.5]}
    learn(2.0, True)  # f(2) = 0, f(1) = −0.5: 1 − 0.5 > 0
    assert state() == {"+": [0.375, 0.5], "-": [-0.25 - 0.5]}
    learn(2.0, True)  # f(2) = 0.5, f(1) = −0.75: 1 − 1.25 < 0, nothing to learn but the decay
    assert state() == {"+": [0.1875, 0.25], "-": [-0.375]}
    learn(3.0, True)  # full: 0 is dropped, its α goes to the row most like it, the first of equals
    dropped = 0.09375
    assert state() == {"+": [0.125 + dropped, 0.5], "-": [-0.1875 - 0.5]}
    assert koil.buffers.rows[koil.buffers.places(True)].ravel().tolist() == [2.0, 3.0]


def test_koil_updates_only_the_most_similar_violated_rows() -> None:
    koil = KOIL(0.1, 2.0, kernel_width=1.0, neighbours=2)
    koil.buffers = buffers = Buffers(100, 1, 1.0)
    for value in (0.0, 1.0, 5.0):
        row = np.array([value])
        buffers.insert(slice(None), row, buffers.near(slice(None), row), True, 0.0)
    koil.learn(slice(None), np.array([1.5]), False)
    np.testing.assert_allclose(buffers.alpha[buffers.places(True)], [0.2, 0.2, 0.0])
    np.testing.assert_allclose(buffers.alpha[buffers.places(False)], [-0.4])


def test_koil_scores_are_kernel_sums_and_learn_a_ring() -> None:
    x, y = ring()
    koil = KOIL(0.01, 1.0, kernel_width=0.7).fit(x, y)
    buffers = koil.buffers
    assert all(len(buffers.places(label)) == 100 for label in (True, False))
    wanted = sum(
        alpha * np.exp(-np.square(x[:50] - row).sum(axis=1) / (2 * 0.7**2))
        for row, alpha in zip(buffers.rows, buffers.alpha, strict=True)
    )
    np.testing.assert_allclose(koil.score(x)[:50], wanted, atol=1e-10)
    assert roc_auc_score(y, koil.score(x)) > 0.9
    np.testing.assert_allclose(koil.score(sparse.csr_matrix(x)), koil.score(x))
    of_sparse = KOIL(0.01, 1.0, kernel_width=0.7).fit(sparse.csr_matrix(x), y)
    np.testing.assert_allclose(of_sparse.score(x), koil.score(x), atol=1e-9)


def test_the_kernel_that_koil_keeps_is_the_kernel_of_its_rows() -> None:
    x, y = ring(600)
    buffers = KOIL(0.01, 1.0, kernel_width=0.7).fit(x, y).buffers
    squares = np.square(buffers.rows[:, None] - buffers.rows[None]).sum(axis=2)
    np.testing.assert_allclose(buffers.kernel, np.exp(-squares / (2 * 0.7**2)), atol=1e-12)


def test_the_min_max_objective_is_the_square_loss_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    h, positive = torch.from_numpy(rng.random(50)), torch.from_numpy(rng.random(50) < 0.3)
    p = float(positive.double().mean())
    a, b = h[positive].mean(), h[~positive].mean()
    alpha = (b - a).requires_grad_()
    value = min_max_loss(h, positive, a, b, alpha, p)
    pairs = ((1 - h[positive][:, None] + h[~positive][None, :]) ** 2).mean()
    assert float(value.detach()) / (p * (1 - p)) + 1 == pytest.approx(float(pairs), rel=1e-6)
    (slope,) = torch.autograd.grad(value, alpha)
    assert float(slope) == pytest.approx(0.0, abs=1e-7)


def test_the_released_objective_differs_in_the_weight_of_negatives() -> None:
    h, positive = torch.tensor([0.2, 0.7]), torch.tensor([False, True])
    zero = torch.zeros(())
    paper, released = (min_max_loss(h, positive, zero, zero, zero, 0.25, kind) for kind in (False, True))
    assert float(paper - released) == pytest.approx((0.25 - 0.25 * 0.75) * 0.2**2 / 2, rel=1e-5)


def test_one_ppd_step_is_proximal_descent_by_finite_differences() -> None:
    x, y = data(30)
    settings = {"hidden_layers": (), "learning_rate": 0.3, "first_stage": 1, "steps": 1, "batch_size": 16, "seed": 5}
    ppd = PPD(**settings).fit(x, y)
    start = PPD(**{**settings, "learning_rate": 0.0}).fit(x, y)
    index = np.random.default_rng(5).integers(0, 30, 16)
    batch, of_class = x[index].astype(np.float32).astype(float), torch.from_numpy(y[index])
    w0, b0 = (p.detach().double().numpy() for p in start._network.parameters())

    def loss(w: np.ndarray, bias: float) -> float:
        h = torch.from_numpy(1 / (1 + np.exp(-(batch @ w + bias))))
        zero = torch.zeros((), dtype=torch.float64)
        return float(min_max_loss(h, of_class, zero, zero, zero, float(y[index].mean())))

    w, bias = (p.detach().double().numpy() for p in ppd._network.parameters())
    for k in range(5):
        step = np.eye(5)[k] * 1e-5
        slope = (loss(w0[:, 0] + step, b0[0]) - loss(w0[:, 0] - step, b0[0])) / 2e-5
        assert w[k, 0] == pytest.approx(w0[k, 0] - 0.3 * slope, abs=1e-5)
    slope = (loss(w0[:, 0], b0[0] + 1e-5) - loss(w0[:, 0], b0[0] - 1e-5)) / 2e-5
    assert bias[0] == pytest.approx(b0[0] - 0.3 * slope, abs=1e-5)


@pytest.mark.parametrize("stratified", [False, True])
def test_ppd_learns(stratified: bool) -> None:
    x, y = data(1500)
    with one_thread():
        ppd = PPD((16,), 0.5, 100, steps=400, stratified=stratified).fit(x, y)
    assert roc_auc_score(y, ppd.score(x)) > 0.95
    np.testing.assert_allclose(ppd.score(sparse.csr_matrix(x)), ppd.score(x), atol=1e-6)


@EVERY_METHOD
def test_one_class_alone_is_refused(method: Method) -> None:
    with pytest.raises(InvalidLabelError, match="AUC needs rows of both classes, but there are 3 rows of one"):
        method.fit(np.ones((3, 2)), [True, True, True])
    with pytest.raises(InvalidLabelError, match="both classes, but there are no rows"):
        method.fit(np.ones((0, 2)), [])


@EVERY_METHOD
@pytest.mark.parametrize("labels", [[True, False], [[True], [False], [True]], True, [True, False] * 2])
def test_another_number_of_labels_than_of_rows_is_refused(method: Method, labels: object) -> None:
    with pytest.raises(InvalidLabelError, match=r"there are 3 rows\. Give one label a row"):
        method.fit(np.ones((3, 2)), labels)


@EVERY_METHOD
@pytest.mark.parametrize("labels", [[1.0, 0.0, np.nan], [True, False, None], ["yes", "no", "yes"]])
def test_labels_that_are_missing_or_text_are_refused(method: Method, labels: object) -> None:
    with pytest.raises(InvalidLabelError, match=r"NaN or missing|must be booleans"):
        method.fit(np.ones((3, 2)), labels)


@EVERY_METHOD
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(method: Method, form: Any, bad: float) -> None:
    x, y = data(20)
    method.fit(x, y)
    x[3, 2] = bad
    with pytest.raises(InvalidFeaturesError, match="1 NaN or infinite values"):
        method.fit(form(x), y)
    with pytest.raises(InvalidFeaturesError, match="1 NaN or infinite values"):
        method.score(form(x))


@EVERY_METHOD
@pytest.mark.parametrize("x", [[["a"], ["b"]], [[1], [1, 2]], [1, 2], [[1j], [1]]])
def test_what_is_no_table_of_numbers_is_refused(method: Method, x: object) -> None:
    with pytest.raises(InvalidFeaturesError, match="2-d array"):
        method.fit(x, [True, False])


@pytest.mark.parametrize("method", [PPD((4,), steps=5), CrossEntropy((4,), steps=5)], ids=["PPD", "CrossEntropy"])
def test_features_that_float32_cannot_hold_are_refused_by_networks(method: PPD | CrossEntropy) -> None:
    x, y = data(20)
    with pytest.raises(InvalidFeaturesError, match="too large for float32"):
        method.fit(1e300 * x, y)


@EVERY_METHOD
def test_a_sparse_matrix_by_columns_is_learned_as_one_by_rows(method: Method) -> None:
    x, y = data(20)
    scores = [method.fit(form(x), y).score(form(x)) for form in (sparse.csr_matrix, sparse.csc_matrix)]
    np.testing.assert_array_equal(*scores)


def test_the_twin_takes_the_steps_of_a_bare_torch_loop() -> None:
    x, y = data(200)
    rows, target = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    settings = {"learning_rate": 0.01, "decay": 0.1, "batch_size": 32, "averaging": 0.0, "seed": 7}
    bare = CrossEntropy((8,), steps=0, **settings).fit(x, y)._average.to_sequential()
    optimizer = torch.optim.AdamW(bare.parameters(), 0.01, weight_decay=0.1)
    draws = np.random.default_rng(7)
    for _ in range(20):
        index = draws.integers(0, 200, 32)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(bare(rows[index]), target[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = CrossEntropy((8,), steps=20, **settings).fit(x, y)
    np.testing.assert_allclose(found.score(x), bare(rows).detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found.score(sparse.csr_matrix(x)), found.score(x), atol=1e-5)


def test_the_twin_learns() -> None:
    x, y = data(1500)
    with one_thread():
        assert roc_auc_score(y, CrossEntropy((16,), 0.01, steps=200).fit(x, y).score(x)) > 0.95
