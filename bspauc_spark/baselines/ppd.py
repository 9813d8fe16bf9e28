"""PPD_SG (Liu, Yuan, Ying, Yang, ICLR 2020): proximal primal-dual descent in stages, on a min-max square loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bspauc_spark.arrays import FloatArray, IntArray
from bspauc_spark.baselines.rows import BoolArray, Matrix, as_rows, training
from bspauc_spark.rows.rows import Batch, Rows
from bspauc_spark.theta.networks import NetworkSpec, ScoringNetwork
from bspauc_spark.theta.scoring import score_rows

_STAGE_FACTOR = 3


def min_max_loss(
    h: Tensor, positive: Tensor, a: Tensor, b: Tensor, alpha: Tensor, p: float, released: bool = False
) -> Tensor:
    """The objective of a batch, which is minimised over θ, a, b and maximised over α.

    In the paper it is ``(1−p)(h−a)²1⁺ + p(h−b)²1⁻ + 2(1+α)(p·h·1⁻ − (1−p)h·1⁺) − p(1−p)α²``. With ``released`` both
    squares have the weight ``1 − p``, as in the authors' published code.
    """
    is_positive, is_negative = positive.float(), (~positive).float()
    squares = (1 - p) * (h - a) ** 2 * is_positive
    squares = squares + ((1 - p) * p if released else p) * (h - b) ** 2 * is_negative
    cross = 2 * (1 + alpha) * (p * h * is_negative - (1 - p) * h * is_positive)
    return (squares + cross).mean() - p * (1 - p) * alpha**2


class PPD:
    """A network with scores in [0, 1].

    Parameters
    ----------
    hidden_layers
        Widths of the hidden layers.
    learning_rate, first_stage
        η₀ and T₀: stage k takes ``3^(k−1) T₀`` steps at ``η₀/3^(k−1)``.
    gamma
        Weight of the proximal term ``‖z − z₀‖²/2γ``.
    steps, batch_size
        Steps of all stages together, and rows in a step.
    stratified
        Draw half of each batch from each class. Otherwise a batch may hold no positive and teach almost nothing: this
        is why the method fails where positives are very rare.
    released
        Use the objective of the authors' published code.
    seed
        Seed of θ and of the draws.
    """

    def __init__(
        self,
        hidden_layers: tuple[int, ...] = (64,) * 7,
        learning_rate: float = 0.1,
        first_stage: int = 200,
        gamma: float = 2000.0,
        steps: int = 2000,
        batch_size: int = 128,
        stratified: bool = False,
        released: bool = False,
        seed: int = 0,
    ) -> None:
        self.hidden_layers, self.learning_rate, self.first_stage = hidden_layers, learning_rate, first_stage
        self.gamma, self.steps, self.batch_size = gamma, steps, batch_size
        self.stratified, self.released, self.seed = stratified, released, seed
        self._network: ScoringNetwork | None = None

    def fit(self, x: Matrix, y: npt.ArrayLike) -> PPD:
        """Train in stages: descent in (θ, a, b), ascent in α. Each stage starts from the average of the one before."""
        x, positive = training(x, y)
        rows = as_rows(x)
        members = [np.flatnonzero(positive == kind) for kind in (True, False)]
        draws = np.random.default_rng(self.seed)
        spec = NetworkSpec("mlp" if self.hidden_layers else "linear", x.shape[1], self.hidden_layers)
        network = spec.build(torch.Generator().manual_seed(self.seed))
        a, b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        alpha = torch.zeros((), requires_grad=True)
        primal: list[Tensor] = [*network.parameters(), a, b]

        done, stage, seen, seen_positive = 0, 1, 0, 0
        while done < self.steps:
            factor = _STAGE_FACTOR ** (stage - 1)
            rate, length = self.learning_rate / factor, min(self.first_stage * factor, self.steps - done)
            anchor = [z.detach().clone() for z in primal]
            average = [torch.zeros_like(z) for z in primal]
            for _ in range(length):
                batch, of_class = self._batch(rows, positive, members, draws)
                seen, seen_positive = seen + len(of_class), seen_positive + int(of_class.sum())
                h = network(batch).sigmoid()
                loss = min_max_loss(h, of_class, a, b, alpha, seen_positive / seen, self.released)
                *slopes, rise = torch.autograd.grad(loss, [*primal, alpha])
                with torch.no_grad():
                    for z, slope, start, mean in zip(primal, slopes, anchor, average, strict=True):
                        z.lerp_(start, rate / self.gamma).sub_(slope, alpha=rate)
                        mean.add_(z, alpha=1 / length)
                    alpha += rate * rise
            with torch.no_grad():
                for z, mean in zip(primal, average, strict=True):
                    z.copy_(mean)
                batches = (self._batch(rows, positive, members, draws) for _ in range(_STAGE_FACTOR**stage))
                alpha.copy_(_best_alpha(network, batches))
            done, stage = done + length, stage + 1
        self._network = network
        return self

    def _batch(
        self, rows: Rows, positive: BoolArray, members: list[IntArray], draws: np.random.Generator
    ) -> tuple[Batch, Tensor]:
        if self.stratified:
            index = np.concatenate([draws.choice(kind, self.batch_size // 2) for kind in members])
        else:
            index = draws.integers(0, len(positive), self.batch_size)
        return rows.take(index), torch.from_numpy(positive[index])

    def score(self, x: Matrix) -> FloatArray:
        """The output of the network before the sigmoid, computed for some rows at a time."""
        assert self._network is not None, "call fit first"
        return score_rows(self._network, as_rows(x)).astype(np.float64)


def _best_alpha(network: ScoringNetwork, batches: Iterable[tuple[Batch, Tensor]]) -> Tensor:
    """The mean score of negatives minus that of positives; 0 if a class did not occur."""
    found: dict[bool, list[Tensor]] = {True: [], False: []}
    for rows, of_class in batches:
        h = network(rows).sigmoid()
        for kind, scores in found.items():
            scores.append(h[of_class == kind])
    joined = {kind: torch.cat(scores) for kind, scores in found.items()}
    if not len(joined[True]) or not len(joined[False]):
        return torch.zeros(())
    return joined[False].mean() - joined[True].mean()
