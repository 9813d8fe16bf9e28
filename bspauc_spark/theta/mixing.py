"""From the scores of several members to one: scales on which they can be mixed, and held against honest scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bspauc_spark.arrays import FloatArray
from bspauc_spark.theta.inputs import Inputs
from bspauc_spark.theta.networks import QUANTILES, NetworkSpec, ScoringNetwork


class MixedNetwork(ScoringNetwork):
    """A network whose score is the mean of members.

    Members differ, so their mean spreads less than one of them. Its quantiles, the ``mixed`` ones, become those of
    members' scores, the ``judged`` ones, so that a threshold or a probability that was found among honest scores, which
    are of one member each, holds for new rows.
    """

    judged: Tensor
    mixed: Tensor

    def __init__(self, spec: NetworkSpec, inputs: Inputs | None = None) -> None:
        super().__init__(spec, inputs)
        # Until something is learned, scores stay as they are.
        for name in ("judged", "mixed"):
            self.register_buffer(name, torch.linspace(-1.0, 1.0, len(QUANTILES)))

    def member(self, number: int) -> ScoringNetwork:
        """A member, whose scores are not standardised."""
        raise TypeError(f"{type(self).__name__} has no member {number}")

    def standardised(self, number: int, scores: Tensor) -> Tensor:
        """Scores that a member gave, on the scale of all."""
        return scores

    def judge(self, quantiles: FloatArray) -> None:
        """Members' scores, of rows that they did not learn from, have these quantiles."""
        self.judged.copy_(torch.from_numpy(quantiles))
        self.mixed.copy_(self.judged)

    def mix(self, quantiles: FloatArray) -> None:
        """Bring the mean of the members, which has these quantiles, to the scale of one member."""
        self.mixed.copy_(torch.from_numpy(quantiles))

    def mixed_scores(self, means: Tensor) -> Tensor:
        """The score of each row, given the mean of its members'."""
        return bent(means, self.mixed, self.judged)


def bent(scores: Tensor, knots: Tensor, levels: Tensor) -> Tensor:
    """Scores on the lines through the points (``knots``, ``levels``); beyond them, with their overall slope."""
    inside = torch.clamp(scores, knots[0], knots[-1])
    place = torch.searchsorted(knots, inside.detach().contiguous()).clamp(1, len(knots) - 1)
    low, base = knots[place - 1], levels[place - 1]
    slope = (levels[place] - base) / (knots[place] - low)
    overall = (levels[-1] - levels[0]) / (knots[-1] - knots[0])
    return base + (inside - low) * slope + (scores - inside) * overall


def rising(quantiles: FloatArray, deviations: FloatArray | float = 1.0) -> FloatArray:
    """Quantiles of each row that rise, as float32 too: scores that are equal for many rows have equal ones."""
    gaps = 1e-4 * deviations + 1e-6 * np.abs(quantiles).max(axis=1)
    least = gaps[:, None] * np.arange(quantiles.shape[1])
    found: FloatArray = np.maximum.accumulate(quantiles - least, axis=1) + least
    return found
