"""What a self-paced fit did: its rounds, what it kept, what it believes about wrong labels, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from bspauc_spark.around.rounds import Round
from bspauc_spark.schema import flag, many, mapping, maybe, real, record, text, whole


@dataclass(frozen=True)
class SelfPacedSummary:
    """The rounds of a fit, and why its model is what it is.

    Attributes
    ----------
    rounds : tuple of Round
        The selections, in their order; the model uses the last one, if it ``uses_selection``.
    uses_selection : bool
        Whether rows were left out; False: the model is the classifier's own on all rows.
    verdict : str
        Why, in words.
    evidence : tuple of float or None
        What the selection changes on rows that judges did not learn from, against labels as given: the AUC and its
        standard error, Youden's J and its own. None where nothing was to be judged.
    shares : mapping
        The share of each classifier in the model's score.
    counts : mapping
        Rows of both classes.
    folds : int
        The folds that there were; 0: too few rows for folds.
    fits : int
        How many classifiers were fitted.
    seconds : float
        How long the fit took.
    """

    rounds: tuple[Round, ...]
    uses_selection: bool
    verdict: str
    evidence: tuple[float, ...] | None
    shares: Mapping[str, float]
    counts: Mapping[str, int]
    folds: int
    fits: int
    seconds: float

    @property
    def history(self) -> pd.DataFrame:
        """The rounds as a table, a row each."""
        return pd.DataFrame([asdict(one) for one in self.rounds], columns=[one.name for one in fields(Round)])

    @property
    def kept(self) -> tuple[float, float]:
        """The shares of the positives and of the negatives that the model was fitted on."""
        last = self.rounds[-1] if self.uses_selection else None
        return (last.positive_fraction, last.negative_fraction) if last else (1.0, 1.0)

    @property
    def wrong_shares(self) -> tuple[float, float] | None:
        """The estimated shares of wrong labels among positives and negatives; None without honest scores."""
        last = self.rounds[-1] if self.rounds else None
        return (last.wrong_positives, last.wrong_negatives) if last else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "summary") -> SelfPacedSummary:
        """The inverse of ``to_dict``. ``MalformedError`` names the place of a wrong value, beginning with ``where``."""
        return cls(**_STORED(values, where))


def _round(values: Any, where: str) -> Round:
    return Round(**_ROUND(values, where))


_ROUND = record({**{one.name: real() for one in fields(Round)}, "round": whole(1)})
_STORED = record(
    {
        "rounds": many(_round),
        "uses_selection": flag,
        "verdict": text(),
        "evidence": maybe(many(real(), 4, 4)),
        "shares": mapping(real(0.0, 1.0)),
        "counts": mapping(whole()),
        "folds": whole(),
        "fits": whole(),
        "seconds": real(0.0),
    }
)
