"""Networks that give a row of features one score, and scoring in blocks of one fixed size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bspauc_spark.workers.rows import Batch, Rows, SparseBatch, pad, to_device

# The last bits of a score depend on the size of the block it was computed in, and ties with them. One size for
# training, scoring and transform makes a row's score the same wherever the row stands. 1,024 rows of 64 units fit
# a core's cache and leave little padding in Spark's batches of 10,000 rows.
BLOCK_ROWS = 1024
_SAFE_COLUMNS = 16


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed to build a network: its kind, the width of its input and of its hidden layers."""

    kind: str
    num_features: int
    hidden_layers: tuple[int, ...] = ()

    def build(self, generator: torch.Generator | None = None) -> ScoringNetwork:
        """The network, its initial weights drawn from ``generator``."""
        return ScoringNetwork(self, generator)


def _affine(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x W + b``, with the same last bits wherever a row stands in its block.

    For products of 2 to 11 columns MKL sums by the row's place; 16 columns, the others zero, are safe.
    """
    width = weight.shape[1]
    if not 1 < width < _SAFE_COLUMNS:
        return torch.addmm(bias, rows, weight)
    missing = (0, _SAFE_COLUMNS - width)
    return torch.addmm(nn.functional.pad(bias, missing), rows, nn.functional.pad(weight, missing))[:, :width]


class FirstLayer(nn.Module):
    """``x W + b`` for dense and sparse ``x``; sparse rows touch only the rows of ``W`` that they name."""

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_features, width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Batch) -> Tensor:
        """Linear map of ``rows``."""
        if isinstance(rows, SparseBatch):
            summed = nn.functional.embedding_bag(
                rows.indices, self.weight, rows.offsets, mode="sum", per_sample_weights=rows.values
            )
            return summed + self.bias
        return _affine(rows, self.weight, self.bias)


class ScoringNetwork(nn.Module):
    """Fully connected layers with ReLU between them; ``"linear"`` has the first layer only."""

    def __init__(self, spec: NetworkSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        widths = (*spec.hidden_layers, 1) if spec.kind == "mlp" else (1,)
        self.spec = spec
        self.first = FirstLayer(spec.num_features, widths[0])
        # Not initialised by their constructor, which would draw from the process's generator.
        linear = functools.partial(nn.utils.skip_init, nn.Linear)
        self.rest = nn.ModuleList(linear(a, b) for a, b in pairwise(widths))
        self._initialise(generator)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator | None) -> None:
        """``U(−1/√fan_in, 1/√fan_in)``, torch's own, drawn from the fit's generator: fits may share a process.

        Small initial weights let simple functions be learned first, which is what keeps wrong labels out of the
        first selections; He's larger ones fit them early (docs/defaults.md).
        """
        for parameter, fan_in in (
            (self.first.weight, self.spec.num_features),
            (self.first.bias, self.spec.num_features),
            *((p, layer.in_features) for layer in self._linears() for p in (layer.weight, layer.bias)),
        ):
            bound = max(1, fan_in) ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def _linears(self) -> list[nn.Linear]:
        return [layer for layer in self.rest if isinstance(layer, nn.Linear)]

    def forward(self, rows: Batch) -> Tensor:
        """Scores of ``rows``, one number each."""
        hidden: Tensor = self.first(rows)
        for layer in self._linears():
            hidden = _affine(hidden.relu_(), layer.weight.T, layer.bias)
        return hidden[:, 0]

    def penalty(self) -> Tensor:
        """``Ω(θ) = ½‖θ‖²``, in float64."""
        return 0.5 * sum((p.double().square().sum() for p in self.parameters()), torch.zeros((), dtype=torch.float64))

    def to_sequential(self) -> nn.Sequential:
        """The same function as plain torch layers, for dense input, with copied weights."""
        layers: list[nn.Module] = [nn.Linear(*self.first.weight.shape)]
        weights = [self.first.weight.T, *(layer.weight for layer in self._linears())]
        biases = [self.first.bias, *(layer.bias for layer in self._linears())]
        for layer in self._linears():
            layers += [nn.ReLU(), nn.Linear(layer.in_features, layer.out_features)]
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for linear, weight, bias in zip(linears, weights, biases, strict=True):
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
        return nn.Sequential(*layers, nn.Flatten(0))


@torch.inference_mode()
def score_batch(network: ScoringNetwork, rows: Batch) -> Tensor:
    """Scores of at most ``BLOCK_ROWS`` rows, computed in a padded block."""
    device = network.first.weight.device
    scores: Tensor = network(to_device(pad(rows, BLOCK_ROWS), device))[: len(rows)]
    return scores.cpu()


def score_blocks(network: ScoringNetwork, count: int, between: Callable[[int, int], Batch]) -> npt.NDArray[np.float32]:
    """Scores of ``count`` rows, block by block; ``between(start, stop)`` gives the rows of a block."""
    scores = np.empty(count, dtype=np.float32)
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        scores[start:stop] = score_batch(network, between(start, stop)).numpy()
    return scores


def score_rows(network: ScoringNetwork, rows: Rows) -> npt.NDArray[np.float32]:
    """Scores of all ``rows``."""
    return score_blocks(network, len(rows), rows.between)
