"""``network="table"``: how near a row is to some training rows, by two measures, and what follows from that.

A member is linear in fixed features of a row. So the best one is found in closed form (``theta.ridge``), however many
ways there are to weigh the features, and no step of θ can learn a row by heart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bspauc_spark.arrays import Float32Array
from bspauc_spark.errors import MalformedError
from bspauc_spark.rows.rows import Batch
from bspauc_spark.theta.inputs import REACH, DenseInputs, Inputs
from bspauc_spark.theta.mixing import MixedNetwork
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork

LANDMARKS = 1000
"""At most so many training rows, half of them of either class, to which the distance of a row is a feature."""

_LEAST_WIDTH = 1e-6


class TableNetwork(MixedNetwork):
    """``f_k(x) = β_k · x̂ + Σ_j α_jk exp(−‖x̂ − z_j‖₁/σ₁) + Σ_j γ_jk exp(−‖x̂ − z_j‖₂/σ₂) + c_k`` for each member k.

    x̂ is the row as ``inputs`` prepare it, z_j a landmark. The first sum follows single columns, as trees do; the
    second one smooth functions of all of them; the line is for what is nearly linear, or has few rows. The sum of
    absolute differences is over ranks and flags alone, which are what it needs, and takes half the time.

    θ is the ``coefficients``, features × members. A row's score is the mean of the members.
    """

    landmarks: Tensor
    widths: Tensor
    verdict: Tensor
    coefficients: torch.nn.Parameter

    def __init__(self, spec: NetworkSpec, inputs: Inputs) -> None:
        assert isinstance(inputs, DenseInputs)
        super().__init__(spec, inputs)
        for name, shape in spec.shapes(layout=inputs.layout).items():
            if name == "coefficients":
                self.coefficients = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
            elif name not in ("judged", "mixed"):
                self.register_buffer(name, torch.zeros(shape) if name != "widths" else torch.ones(shape))

    def set_landmarks(self, landmarks: Tensor) -> None:
        """The landmarks, as ``inputs`` prepare them; the widths of both kernels are their median distances."""
        self.landmarks.copy_(landmarks)
        for number, (rows, p) in enumerate(((self._ranks(landmarks), 1.0), (landmarks, 2.0))):
            distances = torch.pdist(rows.double(), p)
            median = float(distances.median()) if len(distances) else 0.0
            # Of equal landmarks any width says the same.
            self.widths[number] = median if median > 2 * _LEAST_WIDTH else 1.0

    def features(self, prepared: Tensor, which: tuple[bool, bool, bool] = (True, True, True)) -> list[Tensor]:
        """The three kinds of features of rows that ``inputs`` have prepared: the row itself, and both nearnesses."""
        found = [prepared] if which[0] else []
        if which[1]:
            distances = torch.cdist(self._ranks(prepared), self._ranks(self.landmarks), p=1.0)
            found.append(distances.mul_(-1.0 / self.widths[0]).exp_())
        if which[2]:
            squares = self.landmarks.square().sum(dim=1)
            products = torch.addmm(squares, prepared, self.landmarks.T, alpha=-2.0)
            products += prepared.square().sum(dim=1, keepdim=True)
            found.append(products.clamp_min_(0.0).sqrt_().mul_(-1.0 / self.widths[1]).exp_())
        return found

    def _ranks(self, prepared: Tensor) -> Tensor:
        """Without the scaled copies of numbers, which say the same in another way."""
        (inputs,) = self._inputs
        assert isinstance(inputs, DenseInputs)
        numbers = inputs.layout.numbers
        return torch.cat([prepared[:, :numbers], prepared[:, 2 * numbers :]], dim=1)

    def each(self, rows: Batch) -> Tensor:
        """The scores by all members, a column each."""
        return self._each(self.parts())(rows)

    def parts(self) -> tuple[Tensor, list[Tensor]]:
        """The constant of each member, and its coefficients of the three kinds of features."""
        inputs, landmarks = len(self.coefficients) - 1 - 2 * len(self.landmarks), len(self.landmarks)
        constant, *kinds = torch.split(self.coefficients, [1, inputs, landmarks, landmarks])
        return constant, kinds

    def _each(self, parts: tuple[Tensor, list[Tensor]]) -> Callable[[Batch], Tensor]:
        constant, kinds = parts
        # What has no share in the score takes no time.
        used = [bool(kind.any()) for kind in kinds]

        def scores(rows: Batch) -> Tensor:
            prepared = self.prepare(rows)
            assert isinstance(prepared, Tensor)
            found = self.features(prepared, (used[0], used[1], used[2]))
            own = [kind for kind, there in zip(kinds, used, strict=True) if there]
            start = constant.expand(len(prepared), -1)
            for features, kind in zip(found, own, strict=True):
                start = torch.addmm(start, features, kind)
            return start

        return scores

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``: the mean of the members, on the scale of one of them."""
        return self.for_scoring()(rows)

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """The mean of the members is one member's work: it is linear in the features."""
        constant, kinds = self.parts()
        mean = self._each((constant.mean(dim=1, keepdim=True), [kind.mean(dim=1, keepdim=True) for kind in kinds]))
        return lambda rows: self.mixed_scores(mean(rows)[:, 0])

    def member(self, number: int) -> TableMember:
        """A member, for scoring."""
        return TableMember(self, number)

    def to_sequential(self) -> torch.nn.Sequential:
        """The same function as a torch module."""
        return torch.nn.Sequential(copy.deepcopy(self).cpu())


def check_landmarks(landmarks: Float32Array, widths: Float32Array) -> None:
    """Refuse arrays of a file with which nearness would not be a number from 0 to 1."""
    # Inputs may be rounded.
    if (np.abs(landmarks) > 1.01 * REACH).any():
        raise MalformedError(f"landmarks are farther from 0 than inputs can be, which is {REACH:g}")
    if (widths < _LEAST_WIDTH).any():
        raise MalformedError(f"widths are below {_LEAST_WIDTH:g}")


class TableMember(ScoringNetwork):
    """One of the members, which have the features in common."""

    def __init__(self, network: TableNetwork, number: int) -> None:
        super().__init__(network.spec)
        # In a tuple it is no part of this module.
        self._network, self._number = (network,), number

    @property
    def device(self) -> torch.device:
        return self._network[0].device

    def for_scoring(self) -> Callable[[Batch], Tensor]:
        """The scores of this member alone."""
        (network,) = self._network
        constant, kinds = network.parts()
        own = slice(self._number, self._number + 1)
        scores = network._each((constant[:, own], [kind[:, own] for kind in kinds]))
        return lambda rows: scores(rows)[:, 0]
