"""What most people would use: the same network, trained by cross entropy on single rows instead of pairs."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bspauc_spark.arrays import FloatArray
from bspauc_spark.baselines.rows import Matrix, as_rows, training
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.optimizers import adam_epsilon, move_average
from bspauc_spark.theta.scoring import score_rows


class CrossEntropy:
    """A network of fully connected layers under binary cross entropy, with AdamW and a moving average of θ.

    Parameters
    ----------
    hidden_layers
        Widths of the hidden layers.
    learning_rate, decay
        Learning rate and weight decay of AdamW.
    steps, batch_size
        The number of steps, and of rows in a step, which are drawn uniformly from all rows.
    averaging
        Decay of the moving average of θ. The averaged θ is what scores.
    seed
        Seed of θ and of the draws.
    """

    def __init__(
        self,
        hidden_layers: tuple[int, ...] = (64,) * 7,
        learning_rate: float = 3e-3,
        decay: float = 0.3,
        steps: int = 660,
        batch_size: int = 512,
        averaging: float = 0.99,
        seed: int = 0,
    ) -> None:
        self.hidden_layers, self.learning_rate, self.decay = hidden_layers, learning_rate, decay
        self.steps, self.batch_size, self.averaging, self.seed = steps, batch_size, averaging, seed
        self._average: ScoringNetwork | None = None

    def fit(self, x: Matrix, y: npt.ArrayLike) -> CrossEntropy:
        """Train on random batches of rows."""
        x, positive = training(x, y)
        rows, target = as_rows(x), torch.from_numpy(positive.astype(np.float32))
        spec = NetworkSpec("mlp" if self.hidden_layers else "linear", x.shape[1], self.hidden_layers)
        network = spec.build(torch.Generator().manual_seed(self.seed))
        average = copy.deepcopy(network)
        rate, decay = self.learning_rate, self.decay
        epsilon = adam_epsilon(spec)
        optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay, eps=epsilon, fused=True)
        draws = np.random.default_rng(self.seed)
        for step in range(1, self.steps + 1):
            index = draws.integers(0, len(target), self.batch_size)
            loss = nn.functional.binary_cross_entropy_with_logits(network(rows.take(index)), target[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            move_average(list(average.parameters()), list(network.parameters()), self.averaging, step)
        self._average = average
        return self

    def score(self, x: Matrix) -> FloatArray:
        """The logit of each row."""
        assert self._average is not None, "call fit first"
        return score_rows(self._average, as_rows(x)).astype(np.float64)
