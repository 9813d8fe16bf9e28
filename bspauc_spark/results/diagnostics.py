"""What the final scores tell: histograms, ROC and precision–recall curves, the rows with the most suspicious labels.

These numbers are few, however many rows there are. So they are saved with the model, and drawn when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.errors import MalformedError
from bspauc_spark.results.headline import OUT_OF_FOLD, ROWS, TRAINING, VALIDATION
from bspauc_spark.schema import many, maybe, real, record, text, whole
from bspauc_spark.selection import Selection
from bspauc_spark.selection.label_noise import LabelNoise
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.theta.networks import MOST_FOLDS
from bspauc_spark.theta.scores import Scores

BINS = 60
CURVE_POINTS = 200
MOST_SUSPICIOUS = 20
# The outermost bins count the scores beyond these quantiles too.
_TAILS = (0.001, 0.999)


@dataclass(frozen=True)
class Diagnostics:
    """The numbers behind the plots of the scores, and behind the table of suspicious labels."""

    edges: tuple[float, ...]
    """The edges of the bins of the histograms."""
    kept: Mapping[str, tuple[int, ...]]
    """How many rows of each bin the final selection keeps, for ``positives`` and for ``negatives``."""
    excluded: Mapping[str, tuple[int, ...]]
    """How many rows of each bin it leaves out."""
    rows: str
    """The rows of the curves: ``validation``; if no rows were held back the training rows, ``out-of-fold`` or not."""
    thresholds: tuple[float, ...]
    """Scores in falling order. At a threshold, the rows that score at least as much count as positive."""
    true_positive_rate: tuple[float, ...]
    false_positive_rate: tuple[float, ...]
    precision: tuple[float, ...]
    suspicious: tuple[Mapping[str, Any], ...]
    """The training rows with the most suspicious labels: label, score and suspicion."""
    members: int = 0
    """How many members judged the training rows out of fold; 0: the network that learned from them did."""
    wrong_shares: tuple[float, ...] | None = None
    """Estimated shares of wrong labels among positives and negatives; None without scores of rows not learned from."""

    @classmethod
    def of(
        cls,
        scores: Scores,
        selection: Selection,
        noise: LabelNoise,
        members: int = 0,
        wrong_shares: tuple[float, float] | None = None,
    ) -> Diagnostics:
        """The diagnostics of the scores with which a fit ended."""
        pos, neg = scores.positive, scores.negative
        edges = _edges(pos, neg)
        kept, excluded = {}, {}
        # A row whose score is exactly on the threshold counts as kept if its weight is above 0.
        tau, partly = selection.tau_positive, selection.phi_positive > 0
        first = pos.count_below(tau) if partly else pos.count_at_most(tau)
        kept["positives"], excluded["positives"] = _counts(pos, first, len(pos), edges), _counts(pos, 0, first, edges)
        tau, partly = selection.tau_negative, selection.phi_negative > 0
        last = neg.count_at_most(tau) if partly else neg.count_below(tau)
        kept["negatives"], excluded["negatives"] = _counts(neg, 0, last, edges), _counts(neg, last, len(neg), edges)
        rows, judged = OUT_OF_FOLD if members else TRAINING, (pos, neg)
        if scores.validation:
            rows, judged = VALIDATION, scores.validation
        thresholds, above_pos, above_neg = _ranks(*judged)
        return cls(
            edges=_plain(edges),
            kept=kept,
            excluded=excluded,
            rows=rows,
            thresholds=_plain(thresholds),
            true_positive_rate=_plain(above_pos / len(judged[0])),
            false_positive_rate=_plain(above_neg / len(judged[1])),
            # Where scores are held in bins these counts are rough: there may be no row above the highest threshold.
            precision=_plain(above_pos / np.maximum(above_pos + above_neg, 1)),
            suspicious=_suspicious(pos, neg, noise),
            members=members,
            wrong_shares=wrong_shares,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "diagnostics") -> Diagnostics:
        """The inverse of ``to_dict``. ``MalformedError`` names the place of a wrong value, beginning with ``where``."""
        found = cls(**_STORED(values, where))
        counts = (*found.kept.values(), *found.excluded.values())
        curves = (found.thresholds, found.true_positive_rate, found.false_positive_rate, found.precision)
        if {*map(len, counts)} != {len(found.edges) - 1} or len({*map(len, curves)}) > 1:
            raise MalformedError(f"{where} has histograms or curves of differing lengths")
        return found


_COUNTS = record(dict.fromkeys(("positives", "negatives"), many(whole())))
_STORED = record(
    {
        "edges": many(real(), least=2),
        "kept": _COUNTS,
        "excluded": _COUNTS,
        "rows": text(*ROWS),
        "thresholds": many(real(), least=1),
        **dict.fromkeys(("true_positive_rate", "false_positive_rate", "precision"), many(real(0.0, 1.0), least=1)),
        "suspicious": many(
            record({"label": text("positive", "negative"), "score": real(), "suspicion": real(0.0, 1.0)})
        ),
    },
    # The first files did not have it.
    optional={"members": whole(0, MOST_FOLDS), "wrong_shares": maybe(many(real(0.0, 1.0), 2, 2))},
)


def _edges(pos: OrderedScores, neg: OrderedScores) -> npt.NDArray[np.float64]:
    ends = [one.at(int(share * (len(one) - 1))) for one in (pos, neg) for share in _TAILS]
    low, high = min(ends), max(ends)
    return np.linspace(low, high if high > low else low + 1.0, BINS + 1)


def _counts(scores: OrderedScores, first: int, last: int, edges: npt.NDArray[np.float64]) -> tuple[int, ...]:
    """How many rows at ranks ``first`` to ``last - 1`` are in each bin. The outer bins also count what lies beyond."""
    inner = np.clip(scores.rough_below(edges[1:-1]), first, last)
    return tuple(np.diff([first, *inner.tolist(), last]).tolist())


def _ranks(pos: OrderedScores, neg: OrderedScores) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Thresholds in falling order, each the score of a row, and how many rows of each class score at least as much."""
    picks = (one.many(np.linspace(0, len(one) - 1, CURVE_POINTS // 2).astype(np.int64)) for one in (pos, neg))
    thresholds = np.unique(np.concatenate(list(picks)))[::-1]
    return thresholds, len(pos) - pos.rough_below(thresholds), len(neg) - neg.rough_below(thresholds)


def _suspicious(pos: OrderedScores, neg: OrderedScores, noise: LabelNoise) -> tuple[Mapping[str, Any], ...]:
    """The most suspicious rows: suspicion falls with the score of positives and rises with that of negatives."""
    low = pos.many(np.arange(min(MOST_SUSPICIOUS, len(pos))))
    high = neg.many(np.arange(max(0, len(neg) - MOST_SUSPICIOUS), len(neg)))
    scores = np.concatenate([low, high])
    positive = np.arange(len(scores)) < len(low)
    suspicion = noise.suspicion(scores, positive)
    worst = np.argsort(-suspicion, kind="stable")[:MOST_SUSPICIOUS]
    return tuple(
        {
            "label": "positive" if positive[row] else "negative",
            "score": float(scores[row]),
            "suspicion": float(suspicion[row]),
        }
        for row in worst
    )


def _plain(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
