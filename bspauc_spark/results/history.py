"""The history of a fit: a row a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from bspauc_spark.schema import maybe, real, record, whole


@dataclass(frozen=True)
class Round:
    """One row of the history; the AUCs are those of the θ that the round ended with."""

    round: int
    lam: float
    mu: float
    lead: float
    positive_fraction: float
    negative_fraction: float
    apd: float
    objective_before: float
    objective_after: float
    block_before: float
    block_after: float
    train_auc: float
    validation_auc: float
    learning_rate_factor: float
    updates: int
    score_seconds: float
    solve_seconds: float
    train_seconds: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for JSON, which has no NaN: None instead."""
        return {name: None if value != value else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], where: str = "round") -> Round:
        """The inverse of ``to_dict``; ``MalformedError`` names the place ``where`` something is wrong."""
        values: dict[str, Any] = _ROUND(stored, where)
        known: dict[str, Any] = {name: float("nan") if value is None else value for name, value in values.items()}
        return cls(**known)


_COLUMNS = {**{one.name: maybe(real()) for one in fields(Round)}, "round": whole(1), "updates": whole()}
# A column that a later version adds has a default, for models that were saved without it.
_NEWER = {one.name for one in fields(Round) if one.default is not MISSING}
_ROUND = record(
    {name: check for name, check in _COLUMNS.items() if name not in _NEWER},
    optional={name: _COLUMNS[name] for name in _NEWER},
)
