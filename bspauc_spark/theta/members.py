"""The members of a cross-fitted θ: networks of one kind, of which each learns from the rows outside its own fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.theta.networks import QUANTILES, KernelNetwork, LayeredNetwork, NetworkSpec, ScoringNetwork


def build(spec: NetworkSpec, generator: torch.Generator | None = None, columns: Tensor | None = None) -> ScoringNetwork:
    """The network or the members, initial weights from ``generator``; with ``columns``, for these features only."""
    return Members(spec, generator, columns) if spec.members else spec.build(generator, columns)


class Members(ScoringNetwork):
    """Networks that score as one: a row's score is the mean of theirs.

    A pairwise loss leaves the offset of each member free, and says little of its scale. So each one is standardised on
    the rows of its own fold, which it did not learn from, before members are mixed or compared: quantiles of its
    scores, the ``knots``, become the mean of all members' quantiles, the ``levels``, with straight lines between them.
    Mean and deviation alone would not do: where tails differ, the highest scores would be those of one member.

    Members differ, so their mean spreads less than one of them. Its quantiles, the ``mixed`` ones, become the levels
    too, so that a threshold or a probability that was found among honest scores, which are of one member each, holds
    for new rows.
    """

    knots: Tensor
    levels: Tensor
    mixed: Tensor

    def __init__(
        self, spec: NetworkSpec, generator: torch.Generator | None = None, columns: Tensor | None = None
    ) -> None:
        super().__init__(spec)
        self.members = nn.ModuleList(spec.member().build(generator, columns) for _ in range(spec.members))
        # Until something is learned, scores stay as they are.
        line = torch.linspace(-1.0, 1.0, len(QUANTILES))
        self.register_buffer("knots", line.repeat(spec.members, 1))
        self.register_buffer("levels", line.clone())
        self.register_buffer("mixed", line.clone())

    def networks(self) -> list[ScoringNetwork]:
        """The members."""
        return [member for member in self.members if isinstance(member, ScoringNetwork)]

    def member(self, number: int) -> ScoringNetwork:
        """A member, whose scores are not standardised."""
        return self.networks()[number]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the standardised members, on the scale of one of them."""
        every = [member(rows) for member in self.networks()]
        scores = [self.standardised(number, scores) for number, scores in enumerate(every)]
        return bent(torch.stack(scores).mean(dim=0), self.mixed, self.levels)

    def standardised(self, number: int, scores: Tensor) -> Tensor:
        """Scores that a member gave, on the scale of all."""
        return bent(scores, self.knots[number], self.levels)

    def standardise(self, quantiles: FloatArray, deviations: FloatArray) -> None:
        """Put members with these quantiles and deviations, each on the rows of its own fold, on a common scale."""
        if not deviations.any():
            # Nothing is learned yet: no scale fits.
            return
        if not deviations.all():
            number = int(np.flatnonzero(deviations == 0)[0])
            raise DivergedError(
                f"member {number} of {len(deviations)} gives the same score to all rows that it did not learn from. "
                "Lower regParam or learningRate, or set folds=0."
            )
        # Scores that are equal for many rows have equal quantiles; as float32 too, knots rise.
        gaps = 1e-4 * deviations + 1e-6 * np.abs(quantiles).max(axis=1)
        least = gaps[:, None] * np.arange(quantiles.shape[1])
        knots = np.maximum.accumulate(quantiles - least, axis=1) + least
        self.knots.copy_(torch.from_numpy(knots))
        self.levels.copy_(torch.from_numpy(knots.mean(axis=0)))
        self.mixed.copy_(self.levels)

    def mix(self, quantiles: FloatArray) -> None:
        """Bring the mean of standardised members, which has these quantiles, to the scale of one member."""
        self.mixed.copy_(torch.from_numpy(quantiles))

    def each(self, rows: Batch | Sequence[Batch]) -> Tensor:
        """The scores by all members, a column each, in one pass. Sparse rows come with the products of each member."""
        networks = self.networks()
        if isinstance(networks[0], KernelNetwork):
            assert isinstance(rows, Tensor | SparseBatch)
            alphas: list[Tensor] = [network.alpha for network in networks if isinstance(network, KernelNetwork)]
            return networks[0].features(rows) @ torch.cat(alphas, dim=1)
        layered = [network for network in networks if isinstance(network, LayeredNetwork)]
        hidden = self._first(layered, rows)
        for layers in zip(*(network.linears() for network in layered), strict=True):
            weight, bias = torch.stack([one.weight.T for one in layers]), torch.stack([one.bias for one in layers])
            hidden = torch.baddbmm(bias[:, None], hidden.relu_(), weight)
        return hidden[:, :, 0].T

    @staticmethod
    def _first(networks: Sequence[LayeredNetwork], rows: Batch | Sequence[Batch]) -> Tensor:
        """The first layer's output, members × rows × units."""
        if isinstance(rows, Tensor) and networks[0].first.columns is None:
            weight = torch.stack([network.first.weight for network in networks])
            bias = torch.stack([network.first.bias for network in networks])
            return torch.baddbmm(bias[:, None], rows.expand(len(networks), *rows.shape), weight)
        every = [rows] * len(networks) if isinstance(rows, Tensor | SparseBatch) else rows
        return torch.stack([network.first(one) for network, one in zip(networks, every, strict=True)])

    def penalty(self) -> Tensor:
        """The mean of the members' ``Ω(θ)``."""
        return torch.stack([member.penalty() for member in self.networks()]).mean()

    def restrict_gradients(self, step: int, features_per_step: int) -> None:
        """Restrict those of each member."""
        for member in self.networks():
            member.restrict_gradients(step, features_per_step)

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch modules, for dense input, with copied weights."""
        constants = dict(self.named_buffers(recurse=False))
        return nn.Sequential(Mixture([member.to_sequential() for member in self.networks()], constants))


class Mixture(nn.Module):
    """The mean of some networks as ``Members`` have it, on dense rows."""

    knots: Tensor
    levels: Tensor
    mixed: Tensor

    def __init__(self, networks: Sequence[nn.Module], constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        for name, values in constants.items():
            self.register_buffer(name, values.detach().cpu().clone())

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of dense rows."""
        every = [
            bent(network(rows), knots, self.levels) for network, knots in zip(self.networks, self.knots, strict=True)
        ]
        return bent(torch.stack(every).mean(dim=0), self.mixed, self.levels)


def bent(scores: Tensor, knots: Tensor, levels: Tensor) -> Tensor:
    """Scores on the lines through the points (``knots``, ``levels``); beyond them, with their overall slope."""
    inside = torch.clamp(scores, knots[0], knots[-1])
    place = torch.searchsorted(knots, inside.detach().contiguous()).clamp(1, len(knots) - 1)
    low, base = knots[place - 1], levels[place - 1]
    slope = (levels[place] - base) / (knots[place] - low)
    overall = (levels[-1] - levels[0]) / (knots[-1] - knots[0])
    return base + (inside - low) * slope + (scores - inside) * overall
