"""The self-paced loop around learners that are functions: scales, blends, selections, verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from bspauc_spark.around.arrays import ArraySide
from bspauc_spark.around.blend import blended
from bspauc_spark.around.rounds import Fit, Outcome, self_paced
from bspauc_spark.around.scale import Scale
from bspauc_spark.around.verdict import pays, told
from bspauc_spark.arrays import BoolArray, FloatArray
from bspauc_spark.selection.pace import AutomaticPace
from tests.helpers.flipped import far_flips

PACE = AutomaticPace(None, 1, nu=1.0)


def logistic(x: Any, y: BoolArray, w: FloatArray) -> Any:
    return LogisticRegression(max_iter=200).fit(x, y, w).decision_function


def random(x: Any, y: BoolArray, w: FloatArray) -> Any:
    return lambda rows: np.random.default_rng(int(y.sum())).normal(size=len(rows))


def run(x: Any, y: BoolArray, *learners: Any) -> tuple[ArraySide, Outcome]:
    side = ArraySide(x, y, learners, folds=3)
    with self_paced(side, PACE) as found:
        return side, found


def auc(side: ArraySide, fit: Fit, x: Any, y: BoolArray) -> float:
    return float(roc_auc_score(y, side.raw(fit, x)[-1]))


def test_wrong_labels_are_left_out_where_that_pays() -> None:
    x, given, true = far_flips()
    side, found = run(x, given, logistic)
    assert found.pays
    assert "is used" in found.why
    assert auc(side, found.final, x, true) > auc(side, Fit(frozenset()), x, true) + 0.01
    assert [one.round for one in found.rounds] == [1, 2]


def test_right_labels_are_all_kept() -> None:
    x, _, true = far_flips()
    _, found = run(x, true, logistic)
    assert not found.pays
    assert found.final == Fit(frozenset())
    assert len(found.rounds) == 1


def test_no_judge_learns_from_labels_that_its_own_rows_helped_to_choose() -> None:
    x, given, _ = far_flips()
    side = ArraySide(x, given, [logistic], folds=3)
    with self_paced(side, PACE) as found:
        judges = found.models
    for k, judge in judges.items():
        kept = judge.kept
        assert kept is not None
        # Whoever scored for the judge's selection learned from no row of the judge's fold.
        assert kept.scale.folds == tuple(j for j in range(3) if j != k)
        scores = kept.scored.sample().raw[kept.view]
        assert np.isnan(scores[:, side.fold == k]).all()
    changed = given.copy()
    changed[np.flatnonzero(side.fold == 0)[:20]] ^= True
    other, again = run(x, changed, logistic)
    rows = x[side.fold == 0]
    assert again.models[0].kept is not None
    assert np.array_equal(other.raw(again.models[0], rows), side.raw(judges[0], rows))


def test_models_of_all_folds_come_to_one_scale() -> None:
    fold = np.arange(3000) % 3
    scores = np.random.default_rng(0).normal(size=3000)
    raw = (scores * np.array([1.0, 5.0, 0.1])[fold] + np.array([0.0, 100.0, -3.0])[fold]).astype(np.float32)
    scale = Scale.of(raw[None], fold, range(3))
    found = scale.scores(raw[None], fold)
    assert np.abs(found - scores).max() < 0.5
    assert np.corrcoef(found, scores)[0, 1] > 0.995


def test_scores_of_the_final_model_have_the_scale_of_honest_ones() -> None:
    x, given, _ = far_flips(rows=4000)
    side, found = run(x[:2000], given[:2000], logistic)
    assert found.pays
    label = found.noise.probability(side.scores(found, x[2000:]))
    assert label.mean() == pytest.approx(given[2000:].mean(), abs=0.02)


def test_a_scale_orders_the_rows_of_a_fold_as_the_model_does_however_many_tie() -> None:
    raw = np.repeat(np.random.default_rng(0).integers(0, 4, 200), 5).astype(np.float32)
    fold = np.arange(1000) % 2
    found = Scale.of(raw[None], fold, range(2)).scores(raw[None], fold)
    for k in range(2):
        order = np.argsort(raw[fold == k], kind="stable")
        assert (np.diff(found[fold == k][order]) >= 0).all()
        assert len(np.unique(found[fold == k])) == 4


def test_a_scale_is_the_same_after_json() -> None:
    raw = np.random.default_rng(0).normal(size=(2, 600)).astype(np.float32)
    fold = np.arange(600) % 3
    scale = Scale.of(raw, fold, range(3)).with_shares(np.array([0.25, 0.75]))
    again = Scale.from_dict(scale.to_dict())
    assert np.array_equal(scale.scores(raw, fold), again.scores(raw, fold))
    assert np.array_equal(scale.of_new(raw), again.of_new(raw))


def test_a_learner_that_knows_nothing_has_no_share() -> None:
    x, _, true = far_flips()
    side, found = run(x, true, random, logistic)
    assert found.scale.shares.tolist() == [0.0, 1.0]
    assert roc_auc_score(true, side.scores(found, x)) > 0.999


def test_learners_that_know_different_things_are_better_together() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(4000) < 0.2
    scores = np.stack([y + rng.normal(size=4000), y + rng.normal(size=4000)])
    shares = blended(scores[:, y], scores[:, ~y])
    assert shares.min() > 0.3
    assert roc_auc_score(y, shares @ scores) > max(roc_auc_score(y, one) for one in scores) + 0.02


@pytest.mark.parametrize(
    ("auc", "youden", "paying"),
    [(2.0, 0.0, True), (0.0, 2.0, True), (1.0, 1.0, True), (0.7, 0.7, False), (4.0, -1.5, False), (-50, 3.5, True)],
)
def test_a_selection_pays_if_both_gains_together_are_more_than_chance_or_youdens_is_sure(
    auc: float, youden: float, paying: bool
) -> None:
    verdict = np.array([auc * 0.01, 0.01, youden * 0.02, 0.02])
    assert pays(verdict) is paying
    assert told(verdict).startswith("The selection of rows is used" if paying else "All rows are kept")


def test_folds_are_those_of_the_network() -> None:
    from bspauc_spark.rows.rows import DenseRows
    from bspauc_spark.theta.honest import folds_of

    x, given, _ = far_flips()
    side = ArraySide(x, given, [logistic], folds=3, seed=5)
    assert np.array_equal(side.fold, folds_of(DenseRows([x], x.shape[1]), 3, 5))
