"""The decay that stands for an unset regParam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bspauc_spark import BSPAUCClassifier
from bspauc_spark.reproduction.methods import fit_arrays
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.spark import plan


@pytest.mark.parametrize(("rare", "decay"), [(10**6, 0.3), (10_000, 0.3), (2_000, 1.5), (600, 5.0), (5, 5.0)])
@pytest.mark.parametrize("others", [1, 50])
@pytest.mark.parametrize("kinds", [(POSITIVES, NEGATIVES), (NEGATIVES, POSITIVES)])
def test_it_grows_as_the_smaller_class_shrinks_up_to_a_limit(
    rare: int, others: int, kinds: tuple[str, str], decay: float
) -> None:
    counts = dict(zip(kinds, (rare, others * rare), strict=True))

    def found(sparse: bool = False, width: int = 10, **params: Any) -> float:
        return plan.decay(BSPAUCClassifier(**params), counts, sparse, width)

    assert found(network="mlp") == pytest.approx(decay)
    assert found(network="mlp", regParam=0.01) == 0.01
    assert found(network="linear") == 0.3
    assert found(network="mlp", optimizer="sgd") == 0.3
    # Wide sparse rows get the mlp.
    assert found(sparse=True, width=5000) == pytest.approx(decay)


def test_a_table_leaves_it_to_honest_scores() -> None:
    counts = {POSITIVES: 600, NEGATIVES: 5000}
    assert plan.decay(BSPAUCClassifier(), counts, False, 10) < 0
    assert plan.decay(BSPAUCClassifier(regParam=0.01), counts, False, 10) == 0.01


def test_a_few_hundred_rows_with_wrong_labels_are_not_learned_by_heart() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 10)).astype(np.float32)
    truth = x[:, 0] + x[:, 1] > 0.8
    label = truth[:500] ^ (rng.random(500) < 0.2)

    def auc(estimator: BSPAUCClassifier) -> float:
        return float(roc_auc_score(truth[500:], fit_arrays(estimator, x[:500], label).score(x[500:])))

    found = {
        "unset": auc(BSPAUCClassifier(network="mlp")),
        "fixed": auc(BSPAUCClassifier(network="mlp", regParam=0.3)),
        "table": auc(BSPAUCClassifier()),
    }
    assert found["unset"] > found["fixed"] + 0.02
    assert found["unset"] > 0.85
    assert found["table"] > found["unset"]
