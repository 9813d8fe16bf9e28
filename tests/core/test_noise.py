"""Flipped labels for experiments: how many, where, and by which hyperplane."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bspauc_spark.noise import flip_labels, linear_margin


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
        ValueError, match=r"proportion 0.3 of 800 rows is more than the 80 rows beyond far_quantile 0.9"
    ):
        flip_labels(x, y, 0.3, 0.9)
