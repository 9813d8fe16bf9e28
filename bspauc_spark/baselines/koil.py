"""KOIL_FIFO++ (Hu, Yang, King, Lyu, So, AAAI 2015): online kernel learning with a buffer of support rows per class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bspauc_spark.baselines.rows import FloatArray, Matrix, dense_rows, labels
from bspauc_spark.distances import squared_distances


class _Buffer:
    """At most ``size`` rows of one class with their coefficients α, the oldest first."""

    def __init__(self, size: int, width: int) -> None:
        self.size = size
        self.rows: FloatArray = np.empty((0, width))
        self.alpha: FloatArray = np.empty(0)

    def __len__(self) -> int:
        return len(self.alpha)

    def insert(self, row: FloatArray, alpha: float, width: float) -> None:
        """Append a row; a full buffer drops its oldest one and gives its α to the row most like it."""
        full = len(self) >= self.size
        dropped, weight = (self.rows[0], float(self.alpha[0])) if full else (None, 0.0)
        start = 1 if full else 0
        self.rows = np.concatenate([self.rows[start:], row[None]])
        self.alpha = np.append(self.alpha[start:], alpha)
        if dropped is not None:
            self.alpha[np.argmax(gaussian(self.rows, dropped[None], width)[:, 0])] += weight


class KOIL:
    """``f(x) = Σ α_i k(x_i, x)`` over both buffers, learned in one pass.

    Only kernels between a row and the buffers are computed, never a matrix over all rows.

    Parameters
    ----------
    learning_rate, cost
        Step η, which is also the decay of α, and cost C.
    kernel_width
        σ of ``exp(−‖x − y‖²/2σ²)``.
    neighbours
        At most so many rows of the other class, the most similar ones, take part in a row's update.
    buffer_size
        Rows kept per class.
    seed
        Seed of the order of the rows.
    """

    def __init__(
        self,
        learning_rate: float = 0.01,
        cost: float = 1.0,
        kernel_width: float = 1.0,
        neighbours: int = 10,
        buffer_size: int = 100,
        seed: int = 0,
    ) -> None:
        self.learning_rate, self.cost, self.kernel_width = learning_rate, cost, kernel_width
        self.neighbours, self.buffer_size, self.seed = neighbours, buffer_size, seed
        self.buffers: dict[bool, _Buffer] = {}

    def fit(self, x: Matrix, y: npt.ArrayLike) -> KOIL:
        """One pass over the rows in random order."""
        positive = labels(y)
        self.buffers = {kind: _Buffer(self.buffer_size, x.shape[1]) for kind in (True, False)}
        for i in np.random.default_rng(self.seed).permutation(x.shape[0]):
            self.learn(dense_rows(x, slice(i, i + 1))[0], bool(positive[i]))
        return self

    def learn(self, row: FloatArray, label: bool) -> None:
        """One update of Algorithm 2 there: the localised instantaneous pair loss of this row."""
        same, other = self.buffers[label], self.buffers[not label]
        sign, step = (1.0 if label else -1.0), self.learning_rate * self.cost
        violated = np.empty(0, dtype=np.intp)
        if len(other):
            near = gaussian(other.rows, row[None], self.kernel_width)[:, 0]
            gap = self._value(row[None])[0] - self._value(other.rows)
            violated = np.flatnonzero(1 - sign * gap > 0)
        for buffer in (same, other):
            buffer.alpha *= 1 - self.learning_rate
        if not len(other) or (not len(same) and not len(violated)):
            alpha = step * sign
        else:
            if len(violated) > self.neighbours:
                violated = violated[np.argsort(-near[violated], kind="stable")[: self.neighbours]]
            alpha = step * sign * len(violated)
            other.alpha[violated] -= sign * step
        if alpha != 0:
            same.insert(row, alpha, self.kernel_width)

    def _value(self, rows: FloatArray) -> FloatArray:
        value: FloatArray = np.zeros(len(rows))
        for buffer in self.buffers.values():
            if len(buffer):
                value += gaussian(rows, buffer.rows, self.kernel_width) @ buffer.alpha
        return value

    def score(self, x: Matrix) -> FloatArray:
        """``f(x)``, some rows at a time."""
        parts = [self._value(dense_rows(x, slice(start, start + 1024))) for start in range(0, x.shape[0], 1024)]
        return np.concatenate(parts) if parts else np.empty(0)


def gaussian(x: FloatArray, y: FloatArray, width: float) -> FloatArray:
    """``exp(−‖x_i − y_j‖²/2σ²)``."""
    kernel: FloatArray = np.exp(-np.maximum(squared_distances(x, y), 0.0) / (2 * width**2))
    return kernel
