"""What the final scores say: histograms, ROC and precision–recall, the rows with the most suspicious labels.

All of it is small, whatever the number of rows, so it is saved with the model and drawn when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bspauc_spark.calibration import ScoreCalibration
from bspauc_spark.launch import Scores
from bspauc_spark.selection import Selection
from bspauc_spark.statistics import ClassScores

BINS = 60
CURVE_POINTS = 200
MOST_SUSPICIOUS = 20
# Scores beyond these quantiles are counted in the outermost bins.
_TAILS = (0.001, 0.999)


@dataclass(frozen=True)
class Diagnostics:
    """Pictures and a table in numbers."""

    edges: tuple[float, ...]
    """Ends of the histograms' bins."""
    kept: Mapping[str, tuple[int, ...]]
    """Rows per bin that the final selection keeps, of ``positives`` and of ``negatives``."""
    excluded: Mapping[str, tuple[int, ...]]
    """Rows per bin that it leaves out."""
    rows: str
    """Which rows the curves are of: ``validation``, or ``training`` where no row was held back."""
    thresholds: tuple[float, ...]
    """Falling scores; a row at or above one is called positive."""
    true_positive_rate: tuple[float, ...]
    false_positive_rate: tuple[float, ...]
    precision: tuple[float, ...]
    suspicious: tuple[Mapping[str, Any], ...]
    """Training rows whose labels are the least believed: label, score and suspicion."""

    @classmethod
    def of(cls, scores: Scores, selection: Selection, calibration: ScoreCalibration) -> Diagnostics:
        """From the scores that a fit ended with."""
        pos, neg = scores.positive, scores.negative
        edges = _edges(pos, neg)
        kept, excluded = {}, {}
        for name, one, weights in (
            ("positives", pos, selection.positive_weights(pos.sorted)),
            ("negatives", neg, selection.negative_weights(neg.sorted)),
        ):
            kept[name] = _counts(one.sorted[weights > 0], edges)
            excluded[name] = _counts(one.sorted[weights == 0], edges)
        rows, judged = ("validation", scores.validation) if scores.validation else ("training", (pos, neg))
        thresholds, above_pos, above_neg = _ranks(*judged)
        return cls(
            edges=_plain(edges),
            kept=kept,
            excluded=excluded,
            rows=rows,
            thresholds=_plain(thresholds),
            true_positive_rate=_plain(above_pos / len(judged[0])),
            false_positive_rate=_plain(above_neg / len(judged[1])),
            precision=_plain(above_pos / (above_pos + above_neg)),
            suspicious=_suspicious(pos, neg, calibration),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Diagnostics:
        """The inverse of ``to_dict``."""
        return cls(**values)


def _edges(pos: ClassScores, neg: ClassScores) -> npt.NDArray[np.float64]:
    ends = [float(one.sorted[int(share * (len(one) - 1))]) for one in (pos, neg) for share in _TAILS]
    low, high = min(ends), max(ends)
    return np.linspace(low, high if high > low else low + 1.0, BINS + 1)


def _counts(scores: npt.NDArray[np.float32], edges: npt.NDArray[np.float64]) -> tuple[int, ...]:
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
    return tuple(counts.tolist())


def _ranks(pos: ClassScores, neg: ClassScores) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Falling thresholds, each the score of some row, and how many rows of each class are at or above them."""
    picks = (one.sorted[np.linspace(0, len(one) - 1, CURVE_POINTS // 2).astype(np.int64)] for one in (pos, neg))
    thresholds = np.unique(np.concatenate(list(picks)))[::-1]
    return thresholds, len(pos) - pos.counts_below(thresholds), len(neg) - neg.counts_below(thresholds)


def _suspicious(pos: ClassScores, neg: ClassScores, calibration: ScoreCalibration) -> tuple[Mapping[str, Any], ...]:
    """Suspicion falls with the score of a positive and rises with that of a negative: the ends hold the worst."""
    low, high = pos.sorted[:MOST_SUSPICIOUS], neg.sorted[-MOST_SUSPICIOUS:]
    scores = np.concatenate([low, high])
    positive = np.arange(len(scores)) < len(low)
    suspicion = calibration.suspicion(scores, positive)
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
