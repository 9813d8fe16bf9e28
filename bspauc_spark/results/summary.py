"""What a fit did: its rounds as a table and as a figure, and the data that it saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bspauc_spark.errors import MalformedError
from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.headline import OUT_OF_FOLD, TRAINING, VALIDATION, Headline, true_auc
from bspauc_spark.results.history import Round
from bspauc_spark.rows.storage import on_disk
from bspauc_spark.schema import many, mapping, maybe, plain, real, record, text, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainingSummary:
    """The rounds of a fit, the round that gave the model, and the number of rows of each kind."""

    rounds: tuple[Round, ...]
    best_round: int
    counts: Mapping[str, int]
    diagnostics: Diagnostics | None = None
    """What the final scores look like."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Params, data and versions of the fit."""

    @property
    def history(self) -> pd.DataFrame:
        """The history as a table: one row for each round. With ``folds`` its ``train_auc`` is out of fold."""
        return pd.DataFrame([asdict(row) for row in self.rounds], columns=[f.name for f in fields(Round)])

    @property
    def headline(self) -> Headline:
        """The AUC of the kept round that says most about new rows: of validation rows, else out of fold, else training.

        Beside it stands an estimate of the AUC on true labels, unless the network learned from these rows.
        """
        best, found = self.rounds[self.best_round - 1], self.diagnostics
        if best.validation_auc == best.validation_auc:
            auc, rows = best.validation_auc, VALIDATION
        else:
            auc, rows = best.train_auc, self.training_rows
        shares = found.wrong_shares if found is not None else None
        return Headline(auc, rows, true_auc(auc, *shares) if shares else None)

    @property
    def training_rows(self) -> str:
        """How training rows were judged: ``out-of-fold``, or as rows of ``training``."""
        return OUT_OF_FOLD if self.diagnostics is not None and self.diagnostics.members else TRAINING

    def plot(self) -> Figure:
        """A figure of AUC, kept fractions, λ and μ, and the objective over the rounds."""
        from bspauc_spark.results.plots import plot_history

        return plot_history(self.history, self.best_round, self.training_rows)

    def report(self, path: str | Path, audited: pd.DataFrame | None = None) -> Path:
        """Write one page of HTML about the fit, which needs no other file; returns its path.

        ``audited`` are the first rows of ``model.audit(df).orderBy("suspicion", ascending=False)`` as pandas. The page
        shows them with all their columns. Without them it lists labels, scores and suspicions only.
        """
        from bspauc_spark.results.report import write_report

        return write_report(self, on_disk(path), audited)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; NaN, which JSON does not have, becomes None."""
        return {
            "rounds": [row.to_dict() for row in self.rounds],
            "best_round": self.best_round,
            "counts": dict(self.counts),
            "diagnostics": self.diagnostics.to_dict() if self.diagnostics else None,
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "summary") -> TrainingSummary:
        """The inverse of ``to_dict``. ``MalformedError`` names the place of a wrong value, beginning with ``where``."""
        summary = cls(**_STORED(values, where))
        if summary.best_round > len(summary.rounds):
            raise MalformedError(f"{where}.best_round is {summary.best_round} of {len(summary.rounds)} rounds")
        return summary


def _about(value: Any, where: str) -> dict[str, Any]:
    # Models of the first version do not have it.
    described: dict[str, Any] = _ABOUT(value, where) if value else {}
    return described


_ABOUT = record(
    {
        "started": text(),
        "seconds": real(0.0),
        "workers": whole(),
        "params": mapping(plain),
        "data": mapping(plain),
        "versions": mapping(text()),
    },
    optional={"verdict": text()},
)
_STORED = record(
    {"rounds": many(Round.from_dict, least=1), "best_round": whole(1), "counts": mapping(whole())},
    optional={"diagnostics": maybe(Diagnostics.from_dict), "about": _about},
)
