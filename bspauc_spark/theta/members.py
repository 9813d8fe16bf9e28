"""The members of a cross-fitted θ: networks of one kind, of which each learns from the rows outside its own fold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import FloatArray
from bspauc_spark.errors import DivergedError
from bspauc_spark.rows.rows import Batch, SparseBatch
from bspauc_spark.theta.inputs import Inputs
from bspauc_spark.theta.networks import (
    QUANTILES,
    KernelNetwork,
    LayeredNetwork,
    LookedUp,
    NetworkSpec,
    ScoringNetwork,
)
from bspauc_spark.theta.table import embedded

Weights: TypeAlias = npt.NDArray[Any]


def build(
    spec: NetworkSpec,
    generator: torch.Generator | None = None,
    columns: Tensor | None = None,
    inputs: Inputs | None = None,
) -> ScoringNetwork:
    """The network or the members, initial weights from ``generator``; with ``columns``, for these features only."""
    make = partial(Members, spec) if spec.members else spec.build
    network = make(generator, columns, inputs)
    if inputs is not None:
        # Here and not in members, which share it.
        network.add_module("inputs", inputs)
    return network


class Members(ScoringNetwork):
    """Networks that score as one: a row's score is the mean of the members'.

    A member may be made of several networks, its ``variants``; its score is their weighted mean, with the same
    ``share`` of a variant in all members. Network ``v · members + k`` is variant ``v`` of member ``k``. The first
    ``twins`` variants learn from all rows, the others from those that the pace keeps: only one of the two kinds has
    shares, as honest scores decide.

    A pairwise loss leaves the offset of each network free, and says little of its scale. So each one is standardised on
    the rows of its member's fold, which it did not learn from, before networks are mixed or compared: quantiles of its
    scores, the ``knots``, become the mean of all networks' quantiles, the ``levels``, with straight lines between them.
    Mean and deviation alone would not do: where tails differ, the highest scores would be those of one network.

    Members differ, so their mean spreads less than one of them. Its quantiles, the ``mixed`` ones, become those of
    members' scores, the ``judged`` ones, so that a threshold or a probability that was found among honest scores, which
    are of one member each, holds for new rows.
    """

    knots: Tensor
    levels: Tensor
    share: Tensor
    judged: Tensor
    mixed: Tensor
    verdict: Tensor

    def __init__(
        self,
        spec: NetworkSpec,
        generator: torch.Generator | None = None,
        columns: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__(spec, inputs)
        self.members = nn.ModuleList(spec.member().build(generator, columns, inputs) for _ in range(spec.networks))
        # Until something is learned, scores stay as they are.
        line = torch.linspace(-1.0, 1.0, len(QUANTILES))
        self.register_buffer("knots", line.repeat(spec.networks, 1))
        for name in ("levels", "judged", "mixed"):
            self.register_buffer(name, line.clone())
        first = spec.twins or spec.variants
        self.register_buffer("share", torch.cat([torch.full((first,), 1 / first), torch.zeros(spec.variants - first)]))
        self.register_buffer("verdict", torch.zeros(4))

    def networks(self) -> list[ScoringNetwork]:
        """The networks of all members."""
        return [member for member in self.members if isinstance(member, ScoringNetwork)]

    def member(self, number: int) -> ScoringNetwork:
        """A network, whose scores are not standardised."""
        return self.networks()[number]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the members, on the scale of one of them."""
        return self._mixed([network(rows) for network in self.networks()])

    def _mixed(self, every: Sequence[Tensor]) -> Tensor:
        return _mean(every, self.knots, self.levels, self.share, self.judged, self.mixed)

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """With embeddings that are looked up, those of all members at once."""
        embedding = [one for one in self._layered() if one.embedding is not None]
        return LookedUp(embedding, self._mixed) if embedding else self

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
            number = int(np.flatnonzero(deviations == 0)[0]) % self.spec.members
            raise DivergedError(
                f"member {number} of {self.spec.members} gives the same score to all rows that it did not learn from. "
                "Lower regParam or learningRate, or set folds=0."
            )
        knots = rising(quantiles, deviations)
        self.knots.copy_(torch.from_numpy(knots))
        # Not of networks that may turn out to be of no use.
        first = knots[: self.spec.members * (self.spec.twins or self.spec.variants)]
        self.levels.copy_(torch.from_numpy(first.mean(axis=0)))
        self.judge(self.levels.double().cpu().numpy())

    def weigh(self, shares: FloatArray, verdict: FloatArray) -> None:
        """Give each variant its share in a member's score; ``verdict`` is what these come from."""
        self.share.copy_(torch.from_numpy(shares))
        self.verdict.copy_(torch.from_numpy(verdict))

    def judge(self, quantiles: FloatArray) -> None:
        """Members' scores, of rows that they did not learn from, have these quantiles."""
        self.judged.copy_(torch.from_numpy(quantiles))
        self.mixed.copy_(self.judged)

    def mix(self, quantiles: FloatArray) -> None:
        """Bring the mean of standardised members, which has these quantiles, to the scale of one member."""
        self.mixed.copy_(torch.from_numpy(quantiles))

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
    """The mean of some networks as ``Members`` have it, on dense rows."""

    knots: Tensor
    levels: Tensor
    share: Tensor
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
        return _mean(every, self.knots, self.levels, self.share, self.judged, self.mixed)


def _mean(
    every: Sequence[Tensor], knots: Tensor, levels: Tensor, share: Tensor, judged: Tensor, mixed: Tensor
) -> Tensor:
    """The score of each row, given those by all networks."""
    standardised = torch.stack([bent(scores, own, levels) for scores, own in zip(every, knots, strict=True)], dim=1)
    members = len(knots) // len(share)
    return bent((standardised * (share.repeat_interleave(members) / members)).sum(dim=1), mixed, judged)


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


def pruned(spec: NetworkSpec, weights: Mapping[str, Weights]) -> tuple[NetworkSpec, dict[str, Weights]]:
    """Members without the variants that have no share in them: they score the same rows alike, in less time."""
    if spec.variants == 1:
        return spec, dict(weights)
    kept = np.flatnonzero(weights["share"])
    names = {
        f"members.{variant * spec.members + k}": f"members.{place * spec.members + k}"
        for place, variant in enumerate(kept.tolist())
        for k in range(spec.members)
    }
    found = dict[str, Weights]()
    for name, array in weights.items():
        start = ".".join(name.split(".")[:2])
        if not name.startswith("members."):
            found[name] = array
        elif start in names:
            found[names[start] + name.removeprefix(start)] = array
    by_variant = weights["knots"].reshape(spec.variants, spec.members, -1)
    found["knots"], found["share"] = by_variant[kept].reshape(len(kept) * spec.members, -1), weights["share"][kept]
    return replace(spec, variants=len(kept), twins=0), found
