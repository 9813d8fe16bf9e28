"""The weights of the first layer for sparse rows: a table of which a step reads and moves only some rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bspauc_spark.rows.rows import SparseBatch
from bspauc_spark.theta.first_layer import FirstLayer, sums

_BETAS = (0.9, 0.999)
# Logarithms. Products must stay well above the smallest float64, and the terms of a sum within its precision.
_LEAST_LOG, _LEAST_RATIO = -200.0, -12.0
# A pass over the whole table works on this many of its rows at a time.
_CHUNK = 1 << 16


class LazyLayer:
    """A table of weights with a row for each feature, with their moving average and the moments of the optimizer.

    A batch *names* the features that occur in it, which are few of many. A step moves only the rows of these features.
    Decay and averaging change every weight in every step. Each row catches up with them when a batch next names it, and
    at the end of a θ block. With ``"sgd"`` the result is that of steps on the whole table. For Adam each row has a
    clock of its own, which counts the steps that named the row; ``"adam"`` adds the gradient of τΩ in these steps only.
    """

    def __init__(
        self,
        layer: FirstLayer,
        average: FirstLayer,
        *,
        optimizer: str,
        tau: float,
        averaging: float,
        epsilon: float,
    ) -> None:
        self._layer = layer
        self._optimizer, self._tau, self._averaging, self._epsilon = optimizer, tau, averaging, epsilon
        self._weight = weight = layer.weight.detach()
        self._average = average.weight.detach() if average is not layer else None
        self.moments: dict[str, Tensor] = {}
        """What the optimizer remembers, by name."""
        if optimizer != "sgd":
            self.moments = {
                "first": torch.zeros_like(weight),
                "second": torch.zeros_like(weight),
                "times": torch.zeros(len(weight), 1, device=weight.device),
            }
        # The step of this era up to which a row has been decayed. Its average still lacks this step.
        self._last = torch.zeros(len(self._weight), dtype=torch.int64, device=weight.device)

    def begin(self, rate: float, steps: int, steps_done: int) -> None:
        """Prepare ``steps`` steps at this learning rate, which follow ``steps_done`` earlier ones."""
        self._rate, self._steps, self._steps_done = rate, steps, steps_done
        shrink = 1 - rate * self._tau if self._optimizer != "adam" else 1.0
        # Its powers are used as divisors.
        self._shrink = shrink or 1e-30
        self._now = 0
        self._last.zero_()
        # Step i averages by d_i: after it, average = d_i · average + (1 − d_i) · weight.
        decays = [
            1.0 if self._average is None else average_decay(self._averaging, steps_done + i + 1) for i in range(steps)
        ]
        self._era = _steps_within_range(decays, abs(self._shrink))
        d = torch.tensor(decays[: self._era], dtype=torch.float64).clamp_min(1e-300)
        kept, powers = d.cumprod(0), self._shrink ** torch.arange(self._era + 1, dtype=torch.float64)
        gained = ((1 - d) * powers[1:] / kept).cumsum(0)
        start, device = torch.zeros(2, dtype=torch.float64), self._weight.device
        # Entry s: the value before step s, which a row needs whose ``last`` is s; entries 0 and 1 are the beginning.
        self._kept, self._gained = torch.cat([start + 1, kept]).to(device), torch.cat([start, gained]).to(device)
        self._powers = powers.to(device)

    @torch.no_grad()
    def multiply(self, batch: SparseBatch) -> SparseBatch:
        """The batch, with its product with the weights after the decay that they still lack."""
        batch = self._layer.named(batch)
        shrink = self._powers.index_select(0, self._now - self._last.index_select(0, batch.indices)).float()
        product = sums(replace(batch, values=batch.values * shrink), self._weight).requires_grad_()
        return replace(batch, product=product)

    @staticmethod
    @torch.no_grad()
    def gradient(batch: SparseBatch, learned: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The rows of the table that a batch named, in ascending order, and their gradient.

        For a batch ``X`` the gradient is ``Xᵀ`` times the gradient of the product: sums over the rows of ``Xᵀ``. Rows
        of the batch that are not ``learned`` from name nothing.
        """
        assert batch.product is not None
        due = batch.product.grad
        indices, values, owners = batch.indices, batch.values, batch.owners()
        if learned is not None:
            some = learned.index_select(0, owners)
            indices, values, owners = indices[some], values[some], owners[some]
        if due is None or not len(indices):
            return indices[:0], torch.zeros(0, batch.product.shape[1], device=indices.device)
        names, order = torch.sort(indices, stable=True)
        named, counts = torch.unique_consecutive(names, return_counts=True)
        starts = counts.cumsum(0) - counts
        transposed = SparseBatch(owners.index_select(0, order), values.index_select(0, order), starts)
        return named, sums(transposed, due)

    @torch.no_grad()
    def step(self, named: Tensor, gradient: Tensor) -> None:
        """Move the rows ``named``, which are all different, by their gradient."""
        if self._now == self._era:
            self.settle()
            self.begin(self._rate, self._steps - self._now, self._steps_done + self._now)
        self._now += 1
        weight = self._catch_up(named, self._now, self._now)
        if self._optimizer == "sgd":
            weight.sub_(gradient, alpha=self._rate)
        else:
            if self._optimizer == "adam":
                gradient = gradient.add(weight, alpha=self._tau)
            weight.addcdiv_(*self._adam(named, gradient), value=-self._rate)
        _put(self._weight, named, weight)

    @torch.no_grad()
    def settle(self) -> None:
        """Let every row catch up with decay and averaging."""
        for start in range(0, len(self._weight), _CHUNK):
            rows = slice(start, start + _CHUNK)
            _put(self._weight, rows, self._catch_up(rows, self._now, self._now + 1))

    def _catch_up(self, rows: Tensor | slice, step: int, before: int) -> Tensor:
        """Decay the weights up to ``step``, and give their average what it lacks of the steps before ``before``."""
        last, weight = _rows(self._last, rows), _rows(self._weight, rows)
        if self._average is not None:
            ratio = (self._kept[before] / self._kept[last])[:, None]
            gain = self._kept[before] * (self._gained[before] - self._gained[last])
            gain /= self._powers[last]
            average = _rows(self._average, rows).mul_(ratio.float()).addcmul_(weight, gain.float()[:, None])
            _put(self._average, rows, average)
        shrink = self._powers.index_select(0, step - last).float()
        _put(self._last, rows, torch.full_like(last, step))
        return weight.mul_(shrink[:, None])

    def _adam(self, named: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Adam's step as numerator and denominator, with the clock of each row."""
        times, first, second = (_rows(self.moments[name], named) for name in ("times", "first", "second"))
        times.add_(1)
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        for name, value in (("times", times), ("first", first), ("second", second)):
            _put(self.moments[name], named, value)
        scale = (1 - _BETAS[1] ** times).sqrt_().reciprocal_()
        return first.div_(1 - _BETAS[0] ** times), second.sqrt_().mul_(scale).add_(self._epsilon)


def _steps_within_range(decays: list[float], shrink: float) -> int:
    """How many steps an era may have, so that its products can be divisors and its sums be subtracted."""
    d, q = np.cumsum(np.log(np.maximum(decays, 1e-300))), np.log(shrink) * np.arange(1, len(decays) + 1)
    # The terms of the sums have the size of q − d, which rises and then falls: large terms swallow the small ones.
    fall = q - d - np.maximum(np.maximum.accumulate(q - d), 0.0)
    return max(1, int(((d > _LEAST_LOG) & (q > _LEAST_LOG) & (fall > _LEAST_RATIO)).sum()))


def _rows(table: Tensor, rows: Tensor | slice) -> Tensor:
    """These rows: a copy, or a view if they are a slice."""
    return table[rows] if isinstance(rows, slice) else table.index_select(0, rows)


def _put(table: Tensor, rows: Tensor | slice, values: Tensor) -> None:
    """Write ``values`` back to these rows. If ``_rows`` gave a view, they are there already."""
    if not isinstance(rows, slice):
        table.index_copy_(0, rows.long(), values)
    elif values.data_ptr() != table[rows].data_ptr():
        table[rows] = values


def average_decay(averaging: float, steps: int) -> float:
    """The decay of θ's moving average in a step. It is smaller in the first steps, so that the initial θ fades soon."""
    return min(averaging, (1 + steps) / (10 + steps))
