"""What makes ``network="table"``: numbers are embedded, hidden units drop out, and the learning rate falls.

The sizes and rates of this network that are no Params stand here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import IntArray
from bspauc_spark.theta.inputs import REACH

HIDDEN_LAYERS = (64, 64)
MOST_EMBEDDED = 1000
"""With more numbers than this there is no embedding: its angles would take most of the memory and time of a step."""
WAVES, DEVIATION = 8, 0.15
"""How many frequencies a number is expanded in: quantiles of a half-normal distribution with this deviation."""
OUTPUTS = 3
"""What is made of these cosines."""
DECAYS = (0.25, 1.0, 4.0, 16.0)
"""Of the variants of each member: from one that may learn rows by heart to one that is nearly linear."""
_FREQUENCIES = [2 * math.pi * DEVIATION * NormalDist().inv_cdf((1 + (wave + 0.5) / WAVES) / 2) for wave in range(WAVES)]
_DROPPED, _OF = 26, 256
"""The share of the hidden units that drop out, a tenth, as a share of the values of a byte."""
_FLAT = 0.5
"""The share of all steps at the full learning rate."""

# Points at which the embedding is looked up in a scoring pass: with lines between them a score is off by some 1e-5 of
# its spread.
_POINTS, _FEWER_POINTS, _FEW_NUMBERS = 4096, 1024, 256


def embeds(kind: str, numbers: int) -> bool:
    """Whether a network of this kind embeds so many numbers."""
    return kind == "table" and 0 < numbers <= MOST_EMBEDDED


def embedding_shapes(numbers: int) -> dict[str, tuple[int, ...]]:
    """Of the parameters of an embedding."""
    return {"weight": (numbers, 2 * WAVES, OUTPUTS), "bias": (numbers, OUTPUTS)}


class Embedding(nn.Module):
    """``W [cos 2πωx, sin 2πωx] + b`` for each number x, with W and b of its own, which are learned.

    A network of few layers bends only where its units do. Waves of low frequencies let every number bend by itself.
    The frequencies ω are the same for all numbers and networks: waves are computed once for all members of a batch.
    """

    def __init__(self, numbers: int, generator: torch.Generator | None) -> None:
        super().__init__()
        for name, shape in embedding_shapes(numbers).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        with torch.no_grad():
            for parameter in (self.weight, self.bias):
                nn.init.uniform_(parameter, -((2 * WAVES) ** -0.5), (2 * WAVES) ** -0.5, generator=generator)

    weight: nn.Parameter
    bias: nn.Parameter

    def forward(self, numbers: Tensor) -> Tensor:
        """The outputs of each row, one number after the other."""
        return embedded(numbers, [self])[0]


class Embedded(nn.Module):
    """Inputs with their embedding beside them, in a plain network: ranks come first, then the numbers."""

    def __init__(self, embedding: Embedding, numbers: int) -> None:
        super().__init__()
        self.embedding, self.numbers = embedding, numbers

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs and outputs of each row."""
        return torch.cat([inputs, self.embedding(inputs[:, self.numbers : 2 * self.numbers])], dim=1)


def embedded(numbers: Tensor, members: Sequence[Embedding]) -> Tensor:
    """The outputs for each member: members × rows × outputs."""
    weight = torch.stack([member.weight for member in members], dim=2)
    bias = torch.stack([member.bias for member in members], dim=1)
    # Angles need all digits of float32.
    with torch.autocast(numbers.device.type, enabled=False):
        angles = numbers.T[:, :, None] * torch.tensor(_FREQUENCIES, dtype=numbers.dtype, device=numbers.device)
        waves = torch.cat([angles.cos(), angles.sin()], dim=2)
        # A matrix product for each number: rows × waves by waves × (members × outputs).
        outputs = torch.baddbmm(bias.flatten(1)[:, None], waves, weight.flatten(2))
    parted = outputs.view(*outputs.shape[:2], len(members), OUTPUTS).permute(2, 1, 0, 3)
    return parted.reshape(len(members), len(numbers), -1)


class Lookup:
    """The same by a table of what each member gives at many points, for scoring: one number has one place in it."""

    def __init__(self, members: Sequence[Embedding]) -> None:
        count = members[0].bias.shape[0]
        self._points = _POINTS if count <= _FEW_NUMBERS else _FEWER_POINTS
        device = members[0].bias.device
        points = torch.linspace(-REACH, REACH, self._points, device=device)
        with torch.no_grad():
            # members × points × (numbers × outputs) to (numbers × points) × (members × outputs).
            outputs = embedded(points[:, None].expand(-1, count), members)
        parted = outputs.view(len(members), self._points, count, OUTPUTS).permute(2, 1, 0, 3)
        self._table = parted.reshape(count * self._points, len(members) * OUTPUTS).contiguous()
        self._first = torch.arange(count, device=device, dtype=torch.int32) * self._points
        self._members = len(members)

    def __call__(self, numbers: Tensor) -> Tensor:
        """The outputs for each member: members × rows × outputs."""
        rows, count = numbers.shape
        place = (numbers + REACH) * ((self._points - 1) / (2 * REACH))
        lower = place.int().clamp_(0, self._points - 2)
        share = place - lower
        index = torch.stack([self._first + lower, self._first + lower + 1], dim=-1)
        shares = torch.stack([1 - share, share], dim=-1)
        found = nn.functional.embedding_bag(
            index.view(-1, 2), self._table, mode="sum", per_sample_weights=shares.view(-1, 2)
        )
        parted = found.view(rows, count, self._members, OUTPUTS).permute(2, 0, 1, 3)
        return parted.reshape(self._members, rows, count * OUTPUTS)


@dataclass(frozen=True)
class Dropout:
    """Which hidden units take part in a step: a function of the seed, the step, and the place of a row in the batch.

    So a row's units do not depend on which rank holds it.
    """

    seed: int
    members: int
    units: int
    """Of all hidden layers of a member."""

    def kept(self, step: int, batch: int, places: IntArray) -> Tensor:
        """Factors for the rows at these places of a batch of so many: places × members × units, 0 for what drops."""
        count = batch * self.members * self.units
        # Raw numbers of this generator never change, and a byte of them is enough for a unit.
        words = np.random.Philox(key=np.array([self.seed, step], dtype=np.uint64)).random_raw(-(-count // 8))
        # Whether networks follow changes nothing for the first ones.
        drawn = words.view(np.uint8)[:count].reshape(self.members, batch, self.units)[:, places].swapaxes(0, 1)
        return torch.from_numpy((drawn >= _DROPPED).astype(np.float32) * np.float32(_OF / (_OF - _DROPPED)))


def rate_at(step: int, steps: int) -> float:
    """The factor of the learning rate after so many of all ``steps``: 1, then half a cosine down to 0."""
    share = min(1.0, step / steps)
    return 1.0 if share <= _FLAT else (1 + math.cos(math.pi * (share - _FLAT) / (1 - _FLAT))) / 2
