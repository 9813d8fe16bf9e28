"""The self-paced loop of ``SelfPacedClassifier`` around learners of sklearn and XGBoost, and around ours, on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sklearn.ensemble import RandomForestClassifier

from benchmarks.experiment import Split
from bspauc_spark import BSPAUCClassifier
from bspauc_spark.around.arrays import ArraySide, Learner
from bspauc_spark.around.rounds import self_paced
from bspauc_spark.reproduction.methods import fit_arrays
from bspauc_spark.selection.pace import AutomaticPace

Seeded: TypeAlias = Callable[[int], Learner]


def scores(data: Split, seed: int, learners: tuple[Seeded, ...], folds: int = 3) -> Any:
    """Scores of the test rows, by the learners that the loop fits, selects for and blends."""
    side = ArraySide(data.x, data.label, [learner(seed) for learner in learners], folds, seed)
    with self_paced(side, AutomaticPace(None, 1, nu=1.0)) as found:
        return side.scores(found, data.x_test)


def _unequal(weights: Any) -> Any:
    """Weights, if they say anything: sklearn's forests draw other rows with weights of 1 than without any."""
    return weights if (weights != 1).any() else None


def forest(seed: int) -> Learner:
    def fit(x: Any, y: Any, weights: Any) -> Any:
        trees = RandomForestClassifier(300, min_samples_leaf=5, random_state=seed, n_jobs=1).fit(
            x, y, _unequal(weights)
        )
        return lambda rows: trees.predict_proba(rows)[:, 1]

    return fit


def xgboost(**settings: Any) -> Seeded:
    def seeded(seed: int) -> Learner:
        def fit(x: Any, y: Any, weights: Any) -> Any:
            from xgboost import XGBClassifier

            trees = XGBClassifier(random_state=seed, n_jobs=1, tree_method="hist", **settings)
            trees.fit(x, y, sample_weight=_unequal(weights))
            return lambda rows: trees.predict(rows, output_margin=True)

        return fit

    return seeded


def ours(**params: Any) -> Seeded:
    def seeded(seed: int) -> Learner:
        def fit(x: Any, y: Any, weights: Any) -> Any:
            return fit_arrays(BSPAUCClassifier(**{"seed": seed, **params}), x, y).score

        return fit

    return seeded
