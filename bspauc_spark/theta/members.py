"""The members of a cross-fitted θ: networks of one kind, of which each learns from the rows outside its own fold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.theta.inputs import Inputs
from bspauc_spark.theta.mixing import MixedNetwork, bent, rising
from bspauc_spark.theta.networks import QUANTILES, KernelNetwork, LayeredNetwork, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.table import TableNetwork


def build(
    spec: NetworkSpec,
    generator: torch.Generator | None = None,
    columns: Tensor | None = None,
    inputs: Inputs | None = None,
) -> ScoringNetwork:
    """The network or the members, initial weights from ``generator``; with ``columns``, for these features only."""
    if spec.kind == "table":
        assert inputs is not None
        network: ScoringNetwork = TableNetwork(spec, inputs)
    elif spec.members:
        network = Members(spec, generator, columns, inputs)
    else:
        network = spec.build(generator, columns, inputs)
    if inputs is not None:
        # Here and not in members, which share it.
        network.add_module("inputs", inputs)
    return network


class Members(MixedNetwork):
    """Networks that score as one: a row's score is the mean of the members'.

    A pairwise loss leaves the offset of each network free, and says little of its scale. So each one is standardised on
    the rows of its fold, which it did not learn from, before members are mixed or compared: quantiles of its scores,
    the ``knots``, become the mean of all members' quantiles, the ``levels``, with straight lines between them. Mean and
    deviation alone would not do: where tails differ, the highest scores would be those of one member.
    """

    knots: Tensor
    levels: Tensor

    def __init__(
        self,
        spec: NetworkSpec,
        generator: torch.Generator | None = None,
        columns: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__(spec, inputs)
        self.members = nn.ModuleList(spec.member().build(generator, columns, inputs) for _ in range(spec.members))
        # Until something is learned, scores stay as they are.
        line = torch.linspace(-1.0, 1.0, len(QUANTILES))
        self.register_buffer("knots", line.repeat(spec.members, 1))
        self.register_buffer("levels", line.clone())

    def networks(self) -> list[ScoringNetwork]:
        """The networks of all members."""
        return [member for member in self.members if isinstance(member, ScoringNetwork)]

    def member(self, number: int) -> ScoringNetwork:
        """A network, whose scores are not standardised."""
        return self.networks()[number]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the members, on the scale of one of them."""
        every = [network(rows) for network in self.networks()]
        return self.mixed_scores(_mean(every, self.knots, self.levels))

    def _layered(self) -> list[LayeredNetwork]:
        return [network for network in self.networks() if isinstance(network, LayeredNetwork)]

    def standardised(self, number: int, scores: Tensor) -> Tensor:
        """Scores that a network gave, on the scale of all."""
        return bent(scores, self.knots[number], self.levels)

    def standardise(self, quantiles: FloatArray, deviations: FloatArray) -> None:
        """Put networks with these quantiles and deviations, each on the rows of its own fold, on a common scale."""
        if not deviations.any():
            # Nothing is learned yet: no scale fits.
            return
        if not deviations.all():
            number = int(np.flatnonzero(deviations == 0)[0])
            raise DivergedError(
                f"member {number} of {self.spec.members} gives the same score to all rows that it did not learn from. "
                "Lower regParam or learningRate, or set folds=0."
            )
        knots = rising(quantiles, deviations)
        self.knots.copy_(torch.from_numpy(knots))
        self.levels.copy_(torch.from_numpy(knots.mean(axis=0)))
        self.judge(self.levels.double().cpu().numpy())

    def each(self, rows: Batch | Sequence[Batch]) -> Tensor:
        """The scores by all members, a column each, in one pass. Sparse rows come with the products of each member."""
        networks = self.networks()
        if isinstance(networks[0], KernelNetwork):
            assert isinstance(rows, Tensor | SparseBatch)
            alphas: list[Tensor] = [network.alpha for network in networks if isinstance(network, KernelNetwork)]
            return networks[0].features(rows) @ torch.cat(alphas, dim=1)
        layered = self._layered()
        hidden = self._first(layered, self.prepare(rows) if isinstance(rows, Tensor | SparseBatch) else rows)
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
        (inputs,) = self._inputs
        layered, constants = self._layered(), dict(self.named_buffers(recurse=False))
        if not layered or inputs is None:
            return nn.Sequential(Mixture([m.to_sequential() for m in self.networks()], constants))
        plain = [nn.Sequential(*network.plain_layers()) for network in layered]
        return nn.Sequential(copy.deepcopy(inputs).cpu(), Mixture(plain, constants))


class Mixture(nn.Module):
    """The mean of some networks as ``Members`` have it, on dense rows."""

    knots: Tensor
    levels: Tensor
    judged: Tensor
    mixed: Tensor

    def __init__(self, networks: Sequence[nn.Module], constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        for name, values in constants.items():
            self.register_buffer(name, values.detach().cpu().clone())

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of dense rows."""
        every = [network(rows) for network in self.networks]
        return bent(_mean(every, self.knots, self.levels), self.mixed, self.judged)


def _mean(every: Sequence[Tensor], knots: Tensor, levels: Tensor) -> Tensor:
    """The mean of the members' scores, each on the scale of all."""
    return torch.stack([bent(scores, own, levels) for scores, own in zip(every, knots, strict=True)]).mean(dim=0)
