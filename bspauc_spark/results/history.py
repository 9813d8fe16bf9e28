"""The history of a fit: a row a round, and the θ block that a round made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from bspauc_spark.schema import maybe, real, record, whole
from bspauc_spark.selection import Selection
from bspauc_spark.statistics.binned import auc
from bspauc_spark.theta.block import BlockReport
from bspauc_spark.theta.scores import Scores


@dataclass(frozen=True)
class Block:
    """A θ block: the pair sum ``Σ v_i u_j ξ_ij`` and the penalty ``Ω(θ)``, before and after.

    It minimises the mean pair loss over the ``pairs`` that are selected, plus ``τΩ(θ)``.
    """

    before: BlockReport
    after: BlockReport
    pairs: float
    tau: float
    rate: float = 0.0
    """What the learning rate was multiplied by; 0 where the old θ stayed."""
    started: float = 0.0
    seconds: float = 0.0

    @property
    def mean_before(self) -> float:
        """What the block minimises, at the old θ."""
        return self._mean(self.before, self.after.learned and self.after.learned[0])

    @property
    def mean_after(self) -> float:
        """What the block minimises, at the new θ."""
        return self._mean(self.after, self.after.learned and self.after.learned[1])

    def _mean(self, at: BlockReport, learned: float | None) -> float:
        return (at.pair_sum / self.pairs if learned is None else learned) + self.tau * at.penalty

    def as_before(self) -> BlockReport:
        """What is so where the old θ stays."""
        if self.after.learned is None:
            return self.before
        return replace(self.before, learned=(self.after.learned[0],) * 2)

    def timed(self, started: float) -> Block:
        """The block, which ends now."""
        return replace(self, started=started, seconds=time.perf_counter() - started)


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

    @classmethod
    def of(cls, t: int, selection: Selection, block: Block, scores: Scores, solve_seconds: float) -> Round:
        """The row of round ``t``; ``scores`` are those of the new θ."""
        assert selection.scores is not None
        all_pairs = len(selection.scores[0]) * len(selection.scores[1])
        V, U = selection.positive_fraction, selection.negative_fraction
        constant = -selection.lam * (V + U) + selection.mu * (V - U - selection.lead) ** 2
        before, after = (
            at.pair_sum / all_pairs + block.tau * at.penalty + constant for at in (block.before, block.after)
        )
        return cls(
            round=t,
            lam=selection.lam,
            mu=selection.mu,
            lead=selection.lead,
            positive_fraction=V,
            negative_fraction=U,
            apd=selection.apd,
            objective_before=before,
            objective_after=after,
            block_before=block.mean_before,
            block_after=block.mean_after,
            train_auc=auc(scores.positive, scores.negative),
            validation_auc=auc(*scores.validation) if scores.validation else float("nan"),
            learning_rate_factor=block.rate,
            updates=selection.iterations,
            score_seconds=scores.seconds,
            solve_seconds=solve_seconds,
            train_seconds=block.seconds - scores.seconds,
        )

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
