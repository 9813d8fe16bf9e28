"""A summary of a fit that never was, to be shown on a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.history import Round
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.selection import solve
from bspauc_spark.selection.label_noise import estimate_label_noise
from bspauc_spark.statistics import ClassScores
from bspauc_spark.theta.scores import Scores


def round_of(number: int, validation_auc: float) -> Round:
    zeros = dict.fromkeys(Round.__dataclass_fields__, 0.0)
    return Round(
        **{**zeros, "round": number, "updates": 2, "train_auc": 0.8, "validation_auc": validation_auc, "lam": 0.5}
    )


def sample_summary(validation_auc: float = 0.91, **judged: Any) -> TrainingSummary:
    rng = np.random.default_rng(0)
    pos, neg = (ClassScores.from_array(rng.normal(middle, 1, 500)) for middle in (1, -1))
    found = Diagnostics.of(Scores(pos, neg, None), solve(pos, neg, 0.5, 0.5), estimate_label_noise(pos, neg), **judged)
    about = {
        "started": "2026-01-01 10:00+00:00",
        "seconds": 12.3,
        "workers": 2,
        "params": {"network": "mlp", "rounds": 2, "labelCol": "<script>alert(1)</script>"},
        "data": {"features": 7, "fingerprint": "abc"},
        "versions": {"torch": "2.13"},
    }
    counts = {"positives": 500, "negatives": 12_500}
    return TrainingSummary((round_of(1, 0.9), round_of(2, validation_auc)), 2, counts, found, about)
