"""The benchmark of synthetic truths: its scores are log odds, and its labels are wrong as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from benchmarks import truths


@pytest.mark.parametrize("name", truths.TRUTHS)
def test_the_score_is_the_log_odds_of_the_truth(name: str) -> None:
    odds, truth = truths.TRUTHS[name].draw(0.1, 40_000, np.random.default_rng(0))
    assert truth.mean() == pytest.approx(0.1, abs=0.01)
    for rows in np.array_split(np.argsort(odds), 10):
        assert truth[rows].mean() == pytest.approx(expit(odds[rows]).mean(), abs=0.025)


def test_labels_are_wrong_by_the_shares_given() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(100_000) < 0.2
    label = truths.labels(truth, 0.4, 0.3, rng)
    assert (~label)[truth].mean() == pytest.approx(0.4, abs=0.01)
    assert (~truth)[label].mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_array_equal(truths.labels(truth, 0.0, 0.0, rng), truth)


def test_the_tables_have_the_worst_clean_cell_and_count_what_is_found() -> None:
    wanted = {"truth": "Gaussians, 4 apart", "rows": 5, "seed": 0}
    clean = {**wanted, "share": 0.5, "scale": "log odds", "actual": (0.0, 0.0)}
    lines = [
        {**clean, "estimated": (0.02, 0.0), "left_out": 0.01, "accused": 0.0},
        {**clean, "estimated": (0.0, 0.3), "left_out": 0.15, "accused": 0.125},
        {**clean, "scale": "probability", "estimated": (0.0, 0.0), "left_out": 0.0, "accused": 0.0},
        {**clean, "actual": (0.4, 0.0), "estimated": (0.35, 0.02)},
        {**clean, "actual": (0.4, 0.2), "estimated": (0.0, 0.19)},
    ]
    row = truths.table_of_clean(lines).splitlines()[-1]
    assert row == "| Gaussians, 4 apart | 0.300 | 12.5% | 15.0% | 0.000 | 0.0% | 0.0% |"
    row = truths.table_of_noise(lines, "log odds").splitlines()[-1]
    assert row == "| Gaussians, 4 apart (pure ends) | 5 | 0 of 0 | 0 of 0 | 2 of 3 | -0.40 | +0.02 |"
