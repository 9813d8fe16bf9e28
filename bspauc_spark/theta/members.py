"""The members of a cross-fitted θ: networks of one kind, of which each learns from the rows outside its own fold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.theta.inputs import Inputs
from bspauc_spark.theta.networks import KernelNetwork, LayeredNetwork, LookedUp, NetworkSpec, ScoringNetwork
from bspauc_spark.theta.table import embedded


def build(
    spec: NetworkSpec,
    generator: torch.Generator | None = None,
    columns: Tensor | None = None,
    inputs: Inputs | None = None,
) -> ScoringNetwork:
    """The network or the members, initial weights from ``generator``; with ``columns``, for these features only."""
    make = Members if spec.members else NetworkSpec.build
    network = make(spec, generator, columns, inputs)
    if inputs is not None:
        # Here and not in members, which share it.
        network.add_module("inputs", inputs)
    return network


class Members(ScoringNetwork):
    """Networks that score as one: a row's score is the mean of theirs.

    A pairwise loss leaves the offset of each member free, and says little of its scale. So each one is standardised on
    the rows of its own fold, which it did not learn from, before members are mixed or compared: ``f_k`` becomes
    ``scale_k · f_k + shift_k``, with the mean and the deviation that members have on average.

    Members differ, so their mean spreads less than one of them. It becomes ``stretch · mean + offset``, so that a
    threshold or a probability that was found among honest scores, which are of one member each, holds for it too.
    """

    scale: Tensor
    shift: Tensor
    stretch: Tensor
    offset: Tensor

    def __init__(
        self,
        spec: NetworkSpec,
        generator: torch.Generator | None = None,
        columns: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__(spec, inputs)
        self.members = nn.ModuleList(spec.member().build(generator, columns, inputs) for _ in range(spec.members))
        self.register_buffer("scale", torch.ones(spec.members))
        self.register_buffer("shift", torch.zeros(spec.members))
        self.register_buffer("stretch", torch.ones(1))
        self.register_buffer("offset", torch.zeros(1))

    def networks(self) -> list[ScoringNetwork]:
        """The members."""
        return [member for member in self.members if isinstance(member, ScoringNetwork)]

    def member(self, number: int) -> ScoringNetwork:
        """A member, whose scores are not standardised."""
        return self.networks()[number]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the standardised members, on the scale of one of them."""
        return self._mixed([member(rows) for member in self.networks()])

    def _mixed(self, every: Sequence[Tensor]) -> Tensor:
        scores = [self.standardised(number, scores) for number, scores in enumerate(every)]
        return torch.stack(scores).mean(dim=0) * self.stretch + self.offset

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """With embeddings that are looked up, those of all members at once."""
        embedding = [one for one in self._layered() if one.embedding is not None]
        return LookedUp(embedding, self._mixed) if embedding else self

    def _layered(self) -> list[LayeredNetwork]:
        return [network for network in self.networks() if isinstance(network, LayeredNetwork)]

    def standardised(self, number: int, scores: Tensor) -> Tensor:
        """Scores that a member gave, on the scale of all."""
        return scores * self.scale[number] + self.shift[number]

    def standardise(self, means: FloatArray, deviations: FloatArray) -> None:
        """Put members with these means and deviations, each on the rows of its own fold, on a common scale."""
        if not deviations.any():
            # Nothing is learned yet: no scale fits.
            return
        if not deviations.all():
            number = int(np.flatnonzero(deviations == 0)[0])
            raise DivergedError(
                f"member {number} of {len(deviations)} gives the same score to all rows that it did not learn from. "
                "Lower regParam or learningRate, or set folds=0."
            )
        scale = deviations.mean() / deviations
        self.scale.copy_(torch.from_numpy(scale))
        self.shift.copy_(torch.from_numpy(means.mean() - scale * means))

    def widen(self, mean: float, variance: float, disagreement: float) -> None:
        """Give the mean of members the spread of one member, whose scores have this mean and variance.

        Of a row's scores by all members, ``disagreement`` is the expected variance. Their mean has all of one member's
        variance but ``(1 − 1/K)`` of this. Members that agree on nothing leave ``1/K``: an estimate below is noise.
        """
        count = len(self.scale)
        left = max(1.0 - (1.0 - 1.0 / count) * disagreement / variance, 1.0 / count)
        self.stretch.fill_(left**-0.5)
        self.offset.fill_(mean * (1.0 - left**-0.5))

    def each(self, rows: Batch | Sequence[Batch], kept: Tensor | None = None) -> Tensor:
        """The scores by all members, a column each, in one pass. Sparse rows come with the products of each member.

        ``kept`` has factors of hidden units: rows × members × units.
        """
        networks = self.networks()
        if isinstance(networks[0], KernelNetwork):
            assert isinstance(rows, Tensor | SparseBatch)
            alphas: list[Tensor] = [network.alpha for network in networks if isinstance(network, KernelNetwork)]
            return networks[0].features(rows) @ torch.cat(alphas, dim=1)
        layered = self._layered()
        hidden = self._first(layered, self.prepare(rows) if isinstance(rows, Tensor | SparseBatch) else rows)
        factors = layered[0].by_layer(None if kept is None else kept.transpose(0, 1))
        for own, *layers in zip(factors, *(network.linears() for network in layered), strict=True):
            weight, bias = torch.stack([one.weight.T for one in layers]), torch.stack([one.bias for one in layers])
            hidden = hidden.relu_() if own is None else hidden.relu_() * own
            hidden = torch.baddbmm(bias[:, None], hidden, weight)
        return hidden[:, :, 0].T

    @staticmethod
    def _first(networks: Sequence[LayeredNetwork], rows: Batch | Sequence[Batch]) -> Tensor:
        """The first layer's output, members × rows × units."""
        if isinstance(rows, Tensor) and networks[0].first.columns is None:
            weight = torch.stack([network.first.weight for network in networks])
            bias = torch.stack([network.first.bias for network in networks])
            inputs = rows.expand(len(networks), *rows.shape)
            embeddings = [network.embedding for network in networks if network.embedding is not None]
            if embeddings:
                inputs = torch.cat([inputs, embedded(networks[0].scaled_numbers(rows), embeddings)], dim=2)
            return torch.baddbmm(bias[:, None], inputs, weight)
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
    """``stretch · mean_k(scale_k · f_k(x) + shift_k) + offset`` for some networks ``f_k``."""

    scale: Tensor
    shift: Tensor
    stretch: Tensor
    offset: Tensor

    def __init__(self, networks: Sequence[nn.Module], constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        for name, values in constants.items():
            self.register_buffer(name, values.detach().cpu().clone())

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of dense rows."""
        every = torch.stack([network(rows) for network in self.networks], dim=1)
        return (every * self.scale + self.shift).mean(dim=1) * self.stretch + self.offset
