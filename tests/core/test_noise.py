"""Noise for experiments: which labels are flipped, and rows that poison an SVM, against SVMs fitted anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from bspauc_spark.errors import InvalidFeaturesError, InvalidLabelError, InvalidParamError
from bspauc_spark.noise import Attacked, flip_dataframe, flip_labels, linear_margin, poison


def two_clouds(rows: int = 800, features: int = 4, shift: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.3
    x = rng.normal(size=(rows, features)) * np.linspace(0.5, 2, features)
    x[y, :2] += shift
    return x, y


@pytest.mark.parametrize("proportion", [0.0, 0.1, 0.3, 1.0])
def test_the_share_of_all_rows_asked_for_is_flipped(proportion: float) -> None:
    x, y = two_clouds()
    mask = flip_labels(x, y, proportion)
    assert mask.dtype == bool
    assert mask.shape == y.shape
    assert mask.sum() == round(proportion * len(y))


@pytest.mark.parametrize("far_quantile", [0.25, 0.5, 0.6])
def test_only_rows_far_from_the_hyperplane_are_flipped(far_quantile: float) -> None:
    x, y = two_clouds()
    mask = flip_labels(x, y, 0.3, far_quantile)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x, y)
    distance = np.abs(model.decision_function(x))
    assert mask.sum() == 240
    # The two solvers differ in the sixth digit, so rows at the very edge may be on either side of it.
    assert distance[mask].min() >= np.quantile(distance, far_quantile) - 1e-3


def test_without_a_quantile_rows_near_the_hyperplane_are_flipped_as_often_as_others() -> None:
    x, y = two_clouds(rows=4000)
    distance = np.abs(linear_margin(x, y))
    near = distance < np.median(distance)
    mask = flip_labels(x, y, 0.3)
    assert mask[near].mean() == pytest.approx(0.3, abs=0.03)
    assert mask[~near].mean() == pytest.approx(0.3, abs=0.03)


def test_the_seed_decides_which_rows() -> None:
    x, y = two_clouds()
    first, again, other = (flip_labels(x, y, 0.2, 0.25, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_lists_and_number_labels_are_taken_too() -> None:
    x, y = two_clouds(60)
    assert np.array_equal(flip_labels(x.tolist(), y.astype(int).tolist(), 0.2, 0.25), flip_labels(x, y, 0.2, 0.25))


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1.0, 1.0), (1.0, 100.0), (1.0, 0.01), (20.0, 1.0)], ids=str)
def test_the_margin_is_that_of_logistic_regression(shift: float, scale: float) -> None:
    x, y = two_clouds(shift=shift)
    x = x * scale
    wanted = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x, y).decision_function(x)
    assert np.corrcoef(linear_margin(x, y), wanted)[0, 1] > 0.999


def test_more_flips_than_far_rows_are_an_error_that_says_what_to_lower() -> None:
    x, y = two_clouds()
    with pytest.raises(
        InvalidParamError, match=r"proportion 0.3 of 800 rows is more than the 80 rows beyond far_quantile 0.9"
    ):
        flip_labels(x, y, 0.3, 0.9)


def blobs(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.4
    return np.clip(0.35 * rng.normal(size=(rows, 3)) + np.where(y, 0.35, -0.35)[:, None], -1, 1), y


def hinge_loss(attacked: Attacked, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.maximum(0, 1 - np.where(y, 1.0, -1.0) * attacked.decision(x)).sum())


def test_the_attacks_slope_is_that_of_refitted_svms() -> None:
    """The SVM holds the attack row, at its bound; the slope is compared with the losses of SVMs fitted anew."""
    x, y = blobs(60, seed=3)
    held, y_held = blobs(200, seed=4)
    row, claimed = np.array([0.3, 0.2, 0.4]), False
    gamma = 1.0

    def svm(at: np.ndarray) -> Attacked:
        return Attacked.fit(np.vstack([x, at]), np.append(y, claimed), cost=1.0, gamma=gamma)

    attacked = svm(row)
    assert attacked.dual[-1] == pytest.approx(1.0, abs=1e-6), "choose a row whose multiplier is at its bound"
    found = attacked.pull(held, y_held)(row[None])[0]
    wanted = np.array(
        [
            (hinge_loss(svm(row + step), held, y_held) - hinge_loss(svm(row - step), held, y_held)) / 2e-4
            for step in np.eye(3) * 1e-4
        ]
    )
    np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.05 * np.abs(wanted).max())


def test_poison_harms_more_than_flipped_rows_do() -> None:
    x, y = blobs(800)
    held, y_held = blobs(2000, seed=9)
    rows, claimed = poison(x, y, 0.2, seed=1, steps=20, step_size=1.0)
    assert rows.shape == (160, 3)
    assert np.abs(rows).max() <= 1
    start = np.random.default_rng(1).choice(800, 160, replace=False)
    assert np.array_equal(claimed, ~y[start])

    def loss_with(more: np.ndarray) -> float:
        svm = Attacked.fit(np.vstack([x, more]), np.append(y, claimed))
        return hinge_loss(svm, held, y_held)

    clean = hinge_loss(Attacked.fit(x, y), held, y_held)
    assert clean < loss_with(x[start]) < loss_with(rows)


def test_poison_is_the_same_for_the_same_seed_and_empty_for_proportion_0() -> None:
    x, y = blobs(120)
    one, again, other = (poison(x, y, 0.1, seed=seed, steps=3)[0] for seed in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert poison(x, y, 0.0)[0].shape == (0, 3)


def test_attack_rows_of_a_sparse_matrix_move_as_dense_ones_do_where_they_have_values() -> None:
    x, y = blobs(400)
    dense, claimed = poison(x, y, 0.3, seed=2)
    of_sparse, also_claimed = poison(sparse.csr_matrix(x), y, 0.3, seed=2)
    np.testing.assert_allclose(of_sparse.toarray(), dense, atol=1e-9)
    assert np.array_equal(claimed, also_claimed)

    x[np.random.default_rng(0).random(x.shape) < 0.5] = 0
    table = sparse.csr_matrix(x)
    rows, _ = poison(table, y, 0.3, seed=2)
    start = np.random.default_rng(2).choice(400, 120, replace=False)
    assert np.array_equal(rows.toarray() != 0, x[start] != 0)
    assert np.abs(rows.toarray() - x[start]).max() > 0.05


def test_sparse_slopes_are_the_dense_ones_at_the_stored_values() -> None:
    x, y = blobs(80, seed=3)
    x[np.random.default_rng(1).random(x.shape) < 0.4] = 0
    held, y_held = blobs(50, seed=4)
    attacked = Attacked.fit(x, y, gamma=1.0)
    of_sparse = Attacked.fit(sparse.csr_matrix(x), y, gamma=1.0)
    dense = attacked.pull(held, y_held)(x[:20])
    found = of_sparse.pull(sparse.csr_matrix(held), y_held)(sparse.csr_matrix(x[:20]))
    np.testing.assert_allclose(found, dense[x[:20] != 0], atol=1e-6 * np.abs(dense).max())


def test_flips_of_a_sparse_matrix_are_far_from_the_same_hyperplane() -> None:
    x, y = two_clouds()
    x[np.abs(x) < 0.5] = 0
    mask = flip_labels(sparse.csr_matrix(x), y, 0.3, 0.5)
    distance = np.abs(linear_margin(x, y))
    assert mask.sum() == 240
    assert distance[mask].min() >= np.quantile(distance, 0.5) - 0.01


Noise = Callable[..., Any]


@pytest.mark.parametrize("noise", [flip_labels, poison])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(noise: Noise, form: Any, bad: float) -> None:
    x, y = two_clouds(60)
    x[3, 2] = bad
    with pytest.raises(InvalidFeaturesError, match="features hold 1 NaN or infinite values"):
        noise(form(x), y, 0.1)


@pytest.mark.parametrize("noise", [flip_labels, poison])
@pytest.mark.parametrize("labels", [[True, False], [True, False] * 60, [[True]] * 60])
def test_another_number_of_labels_than_of_rows_is_refused(noise: Noise, labels: list[Any]) -> None:
    x, _ = two_clouds(60)
    with pytest.raises(InvalidLabelError, match=r"there are 60 rows\. Give one label a row"):
        noise(x, labels, 0.1)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_one_class_alone_has_no_discriminant_and_no_svm(form: Any) -> None:
    x, _ = two_clouds(60)
    with pytest.raises(InvalidLabelError, match="a linear discriminant needs rows of both classes"):
        flip_labels(form(x), np.ones(60), 0.1, 0.25)
    with pytest.raises(InvalidLabelError, match="an SVM needs rows of both classes"):
        poison(form(x), np.zeros(60), 0.1)


def test_one_class_alone_is_flipped_where_no_discriminant_is_asked_for() -> None:
    x, _ = two_clouds(60)
    assert flip_labels(x, np.ones(60), 0.1).sum() == 6


def test_a_subsample_of_one_class_is_refused() -> None:
    x, _ = two_clouds(60)
    with pytest.raises(InvalidLabelError, match="an SVM on a subsample needs rows of both classes"):
        poison(x, np.arange(60) % 2, 0.1, subsample=1)


@pytest.mark.parametrize("proportion", [-0.1, 1.1, np.nan])
@pytest.mark.parametrize("flip", [lambda share: flip_labels(*two_clouds(60), share), lambda s: flip_dataframe(None, s)])
def test_a_share_outside_0_to_1_cannot_be_flipped(flip: Noise, proportion: float) -> None:
    with pytest.raises(InvalidParamError, match="proportion must be 0 to 1"):
        flip(proportion)


@pytest.mark.parametrize("far_quantile", [-0.1, 1.0, np.nan])
def test_a_quantile_that_spares_all_rows_is_refused(far_quantile: float) -> None:
    x, y = two_clouds(60)
    with pytest.raises(InvalidParamError, match="far_quantile must be at least 0 and below 1"):
        flip_labels(x, y, 0.1, far_quantile)
    with pytest.raises(InvalidParamError, match="far_quantile must be at least 0 and below 1"):
        flip_dataframe(None, 0.1, far_quantile)


def test_more_flips_than_far_rows_of_a_dataframe_are_refused() -> None:
    with pytest.raises(InvalidParamError, match=r"proportion 0.6 is more than the 50% of rows beyond far_quantile 0.5"):
        flip_dataframe(None, 0.6, 0.5)


@pytest.mark.parametrize("proportion", [-1, np.nan, np.inf])
def test_poison_has_a_finite_share(proportion: float) -> None:
    with pytest.raises(InvalidParamError, match="proportion must be at least 0 and finite"):
        poison(*two_clouds(60), proportion)
