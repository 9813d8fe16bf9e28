"""The AUC with which a report begins: of which rows it is, and what it says about true labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bspauc_spark.results.headline import true_auc
from bspauc_spark.results.summary import TrainingSummary
from tests.helpers.summaries import sample_summary


@pytest.mark.parametrize(("e0", "e1"), [(0.1, 0.0), (0.0, 0.3), (0.02, 0.2), (0.2, 0.2)])
def test_the_auc_on_true_labels_follows_from_the_given_ones_and_the_wrong_shares(e0: float, e1: float) -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(100_000) < 0.2
    score = rng.normal(1.5 * truth, 1)
    given = truth ^ (rng.random(len(truth)) < np.where(truth, e1, e0))
    shares = (~truth[given]).mean(), truth[~given].mean()
    found = true_auc(float(roc_auc_score(given, score)), *map(float, shares))
    assert found == pytest.approx(roc_auc_score(truth, score), abs=0.01)


def test_an_estimate_of_it_is_at_most_1_and_there_is_none_without_wrong_labels() -> None:
    assert true_auc(0.9, 0.3, 0.1) == 1.0
    assert true_auc(0.1, 0.3, 0.1) == 0.0
    assert true_auc(0.9, 0.0, 0.0) is None
    # Labels that say nothing, or the opposite, say nothing about the truth.
    assert true_auc(0.5, 0.6, 0.4) is None
    assert true_auc(0.5, 0.8, 0.4) is None


@pytest.mark.parametrize(
    ("validation_auc", "members", "rows", "auc"),
    [
        (0.7, 0, "validation", 0.7),
        (0.7, 3, "validation", 0.7),
        (np.nan, 3, "out-of-fold", 0.8),
        (np.nan, 0, "training", 0.8),
    ],
)
def test_it_is_of_validation_rows_else_out_of_fold_else_of_training_rows(
    validation_auc: float, members: int, rows: str, auc: float
) -> None:
    shares = None if rows == "training" else (0.2, 0.05)
    summary = sample_summary(validation_auc, members=members, wrong_shares=shares)
    found = TrainingSummary.from_dict(summary.to_dict()).headline
    assert (found.rows, found.auc) == (rows, auc)
    assert found.name.startswith(f"{rows} AUC")
    wanted = None if shares is None else pytest.approx(0.5 + (auc - 0.5) / 0.75)
    assert found.true_auc == wanted


def test_a_model_of_before_has_one_too() -> None:
    summary = dataclasses.replace(sample_summary(float("nan")), diagnostics=None)
    assert (summary.headline.rows, summary.headline.true_auc) == ("training", None)
