"""Histograms, curves and suspicious rows against brute force and scikit-learn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bspauc_spark.results.diagnostics import BINS, MOST_SUSPICIOUS, Diagnostics
from bspauc_spark.selection import Selection, solve
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.scores import Scores


def _scores(rows: int = 4000, validation: bool = False, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)

    def pair(count: int) -> tuple[ClassScores, ClassScores]:
        pos = np.where(rng.random(count // 4) < 0.2, rng.normal(-2, 1, count // 4), rng.normal(2, 1, count // 4))
        return ClassScores.from_array(pos), ClassScores.from_array(rng.normal(-2, 1, count))

    pos, neg = pair(rows)
    return Scores(pos, neg, pair(rows // 2) if validation else None)


def _diagnostics(scores: Scores, selection: Selection | None = None, **judged: Any) -> Diagnostics:
    selection = selection or solve(scores.positive, scores.negative, lam=1.0, mu=0.1)
    return Diagnostics.of(scores, selection, estimate_label_noise(scores.positive, scores.negative), **judged)


def test_histograms_count_every_row_once_and_tell_kept_from_excluded() -> None:
    scores = _scores()
    selection = solve(scores.positive, scores.negative, lam=1.0, mu=0.1)
    found = _diagnostics(scores, selection)
    for kind, one, weights in (
        ("positives", scores.positive, selection.positive_weights(scores.positive.sorted)),
        ("negatives", scores.negative, selection.negative_weights(scores.negative.sorted)),
    ):
        assert len(found.kept[kind]) == len(found.excluded[kind]) == BINS
        assert sum(found.kept[kind]) == np.count_nonzero(weights)
        assert sum(found.kept[kind]) + sum(found.excluded[kind]) == len(one)
    assert sum(found.excluded["positives"]) > 0
    # Positives are left out from the low end on.
    assert np.flatnonzero(found.excluded["positives"]).max() <= np.flatnonzero(found.kept["positives"]).min()


def test_equal_scores_have_histograms_too() -> None:
    one = ClassScores.from_array(np.zeros(5))
    found = _diagnostics(Scores(one, one, None), Selection.everything(one, one))
    assert sum(found.kept["positives"]) == 5


@pytest.mark.parametrize(
    ("validation", "members", "rows"),
    [(False, 0, "training"), (False, 3, "out-of-fold"), (True, 0, "validation"), (True, 3, "validation")],
)
def test_curves_are_those_of_the_rows_they_name(validation: bool, members: int, rows: str) -> None:
    scores = _scores(validation=validation)
    found = _diagnostics(scores, members=members)
    pos, neg = scores.validation if scores.validation else (scores.positive, scores.negative)
    assert found.rows == rows
    for k in (0, 50, -1):
        threshold = np.float32(found.thresholds[k])
        above = [(one.sorted >= threshold).sum() for one in (pos, neg)]
        assert found.true_positive_rate[k] == above[0] / len(pos)
        assert found.false_positive_rate[k] == above[1] / len(neg)
        assert found.precision[k] == above[0] / sum(above)
    area = np.trapezoid([0, *found.true_positive_rate, 1], [0, *found.false_positive_rate, 1])
    labels = np.repeat([1, 0], [len(pos), len(neg)])
    assert area == pytest.approx(roc_auc_score(labels, np.concatenate([pos.sorted, neg.sorted])), abs=2e-3)


def test_the_most_suspicious_rows_are_those_of_all_rows() -> None:
    scores = _scores()
    calibration = estimate_label_noise(scores.positive, scores.negative)
    found = _diagnostics(scores)
    everything = np.concatenate([scores.positive.sorted, scores.negative.sorted])
    positive = np.arange(len(everything)) < len(scores.positive)
    by_hand = np.sort(calibration.suspicion(everything, positive))[::-1][:MOST_SUSPICIOUS]
    assert [row["suspicion"] for row in found.suspicious] == pytest.approx(by_hand.tolist())


def test_it_comes_back_from_json_as_it_was() -> None:
    found = _diagnostics(_scores(), members=3, wrong_shares=(0.25, 0.0))
    again = Diagnostics.from_dict(json.loads(json.dumps(found.to_dict())))
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
