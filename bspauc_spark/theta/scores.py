"""The scores of all rows, as the driver sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bspauc_spark.arrays import Float32Array
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES, VALIDATION_NEGATIVES, VALIDATION_POSITIVES
from bspauc_spark.statistics import OrderedScores
from bspauc_spark.statistics.binned import BinnedScores, Bins, Contents, Histogram, ordered


@dataclass(frozen=True)
class Scores:
    """The ordered scores of all training rows of each class, and of the validation rows if there are any."""

    positive: OrderedScores
    negative: OrderedScores
    validation: tuple[OrderedScores, OrderedScores] | None = None
    seconds: float = 0.0
    """What the pass took that made them."""

    @classmethod
    def of(
        cls,
        statistics: Mapping[str, Float32Array | Histogram],
        fetch: Callable[[str, Bins], Contents],
        seconds: float = 0.0,
        copy: bool = True,
    ) -> Scores:
        """From all scores of each kind, or from histograms; then ``fetch`` gets the contents of bins from workers."""
        scores = {name: ordered(values, partial(fetch, name), copy) for name, values in statistics.items()}
        validation = None
        if VALIDATION_POSITIVES in scores:
            validation = (scores[VALIDATION_POSITIVES], scores[VALIDATION_NEGATIVES])
        return cls(scores[POSITIVES], scores[NEGATIVES], validation, seconds)

    @property
    def binned(self) -> bool:
        """Whether any of the scores are held in bins."""
        every = (self.positive, self.negative, *(self.validation or ()))
        return any(isinstance(scores, BinnedScores) for scores in every)
