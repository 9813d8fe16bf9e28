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
    """Networks that score as one: a row's score is the mean of the members'.

    A member may be made of several networks that differ in their decay: ``variants``. Its score is their weighted mean,
    with the same ``share`` of a variant in all members. Network ``v · members + k`` is variant ``v`` of member ``k``.

    A pairwise loss leaves the offset of each network free, and says little of its scale. So each one is standardised on
    the rows of its own fold, which it did not learn from, before networks are mixed or compared: ``f_i`` becomes
    ``scale_i · f_i + shift_i``, with the mean and the deviation that networks have on average.

    Members differ, so their mean spreads less than one of them. It becomes ``stretch · mean + offset``, so that a
    threshold or a probability that was found among honest scores, which are of one member each, holds for it too.
    """

    scale: Tensor
    shift: Tensor
    share: Tensor
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
        self.members = nn.ModuleList(spec.member().build(generator, columns, inputs) for _ in range(spec.networks))
        self.register_buffer("scale", torch.ones(spec.networks))
        self.register_buffer("shift", torch.zeros(spec.networks))
        self.register_buffer("share", torch.full((spec.variants,), 1 / spec.variants))
        self.register_buffer("stretch", torch.ones(1))
        self.register_buffer("offset", torch.zeros(1))

    def networks(self) -> list[ScoringNetwork]:
        """The networks of all members."""
        return [member for member in self.members if isinstance(member, ScoringNetwork)]

    def member(self, number: int) -> ScoringNetwork:
        """A network, whose scores are not standardised."""
        return self.networks()[number]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the standardised members, on the scale of one of them."""
        return self._mixed([member(rows) for member in self.networks()])

    def _mixed(self, every: Sequence[Tensor]) -> Tensor:
        return _mean(torch.stack(list(every), dim=1), *self._constants())

    def _constants(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.scale, self.shift, self.share, self.stretch, self.offset

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """With embeddings that are looked up, those of all members at once."""
        embedding = [one for one in self._layered() if one.embedding is not None]
        return LookedUp(embedding, self._mixed) if embedding else self

    def _layered(self) -> list[LayeredNetwork]:
        return [network for network in self.networks() if isinstance(network, LayeredNetwork)]

    def standardise(self, means: FloatArray, deviations: FloatArray) -> None:
        """Put networks with these means and deviations, each on the rows of its own fold, on a common scale."""
        if not deviations.any():
            # Nothing is learned yet: no scale fits.
            return
        if not deviations.all():
            number = int(np.flatnonzero(deviations == 0)[0])
            raise DivergedError(
                f"member {number % self.spec.members} of {self.spec.members} gives the same score to all rows that it "
                "did not learn from. Lower regParam or learningRate, or set folds=0."
            )
        scale = deviations.mean() / deviations
        self.scale.copy_(torch.from_numpy(scale))
        self.shift.copy_(torch.from_numpy(means.mean() - scale * means))

    def weigh(self, shares: FloatArray) -> None:
        """Give each variant its share in a member's score; shares sum up to 1."""
        self.share.copy_(torch.from_numpy(shares))

    def widen(self, mean: float, variance: float, disagreement: float) -> None:
        """Give the mean of members the spread of one member, whose scores have this mean and variance.

        Of a row's scores by all members, ``disagreement`` is the expected variance. Their mean has all of one member's
        variance but ``(1 − 1/K)`` of this. Members that agree on nothing leave ``1/K``: an estimate below is noise.
        """
        count = self.spec.members
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


def _mean(every: Tensor, scale: Tensor, shift: Tensor, share: Tensor, stretch: Tensor, offset: Tensor) -> Tensor:
    """The score of each row, given those by all networks: rows × networks."""
    members = len(scale) // len(share)
    weights = share.repeat_interleave(members) / members
    return ((every * scale + shift) * weights).sum(dim=1) * stretch + offset


class Mixture(nn.Module):
    """``stretch · Σ_i w_i (scale_i · f_i(x) + shift_i) + offset`` for networks ``f_i``, with ``w`` from the shares."""

    scale: Tensor
    shift: Tensor
    share: Tensor
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
        return _mean(every, self.scale, self.shift, self.share, self.stretch, self.offset)
