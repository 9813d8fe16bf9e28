"""What a θ block gave."""

from __future__ import annotations

from dataclasses import dataclass

from bspauc_spark.arrays import Float32Array


@dataclass(frozen=True)
class KeptScores:
    """New scores of the rows a θ block was trained on, by the weight they had: 1, or the threshold's ``φ``."""

    full: Float32Array
    partial: Float32Array


@dataclass(frozen=True)
class BlockReport:
    """What a θ block gave: ``Σ v_i u_j ξ_ij`` and ``Ω(θ)`` at the new θ."""

    pair_sum: float
    penalty: float
    learned: tuple[float, float] | None = None
    """Of members: their mean pair loss on rows that they learn from, before and after; the sum is of honest scores."""
