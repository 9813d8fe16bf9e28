"""KOIL_FIFO++ (Hu, Yang, King, Lyu, So, AAAI 2015): online kernel learning with a buffer of support rows per class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import FloatArray, IntArray, finite, norms
from bspauc_spark.baselines.rows import Matrix, dot, one_row, training


class Buffers:
    """At most ``size`` rows of each class, with their coefficients α and the kernel between all of them.

    The places of the negatives come first, then those of the positives. Each class uses its places in turn.
    """

    def __init__(self, size: int, width: int, kernel_width: float) -> None:
        self.size, self.kernel_width = size, kernel_width
        self.rows: FloatArray = np.zeros((2 * size, width))
        self.squares: FloatArray = np.zeros(2 * size)
        self.alpha: FloatArray = np.zeros(2 * size)
        self.kernel: FloatArray = np.zeros((2 * size, 2 * size))
        self.inserted = {True: 0, False: 0}

    def places(self, label: bool) -> IntArray:
        """The places of a class that are in use, beginning with the oldest row."""
        inserted = self.inserted[label]
        return label * self.size + np.arange(max(0, inserted - self.size), inserted) % self.size

    def near(self, columns: IntArray | slice, values: FloatArray) -> FloatArray:
        """The kernel between all places and a row, which has ``values`` in ``columns`` and 0 elsewhere."""
        products = self.rows[:, columns] @ values
        return self._gaussian(self.squares + float(values @ values) - 2 * products)

    def values(self, x: Matrix) -> FloatArray:
        """``f(x)`` of some rows."""
        distances = norms(x)[:, None] + self.squares - 2 * dot(x, self.rows.T)
        return self._gaussian(distances) @ self.alpha

    def insert(
        self, columns: IntArray | slice, values: FloatArray, near: FloatArray, label: bool, alpha: float
    ) -> None:
        """Take a row in. A full class drops its oldest row, and adds that row's α to the row most similar to it."""
        inserted = self.inserted[label]
        place = label * self.size + inserted % self.size
        dropped = float(self.alpha[place])
        likeness = self.kernel[place].copy()
        likeness[place] = near[place]
        self.rows[place] = 0.0
        self.rows[place, columns] = values
        self.squares[place] = values @ values
        self.alpha[place] = alpha
        self.kernel[place], self.kernel[:, place] = near, near
        self.kernel[place, place] = 1.0
        self.inserted[label] += 1
        if inserted >= self.size:
            kept = self.places(label)
            self.alpha[kept[np.argmax(likeness[kept])]] += dropped

    def _gaussian(self, squared_distances: FloatArray) -> FloatArray:
        kernel: FloatArray = np.exp(-np.maximum(squared_distances, 0.0) / (2 * self.kernel_width**2))
        return kernel


class KOIL:
    """``f(x) = Σ α_i k(x_i, x)`` over the rows of both buffers, learned in one pass.

    It computes kernels between a row and the buffers only, never a matrix over all rows.

    Parameters
    ----------
    learning_rate, cost
        Step η, which is also the decay of α, and cost C.
    kernel_width
        σ of ``exp(−‖x − y‖²/2σ²)``.
    neighbours
        How many rows of the other class, the most similar ones, take part in an update at most.
    buffer_size
        How many rows of each class are kept.
    seed
        Seed for the order of the rows.
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
        self.buffers = Buffers(buffer_size, 0, kernel_width)

    def fit(self, x: Matrix, y: npt.ArrayLike) -> KOIL:
        """One pass over the rows in random order."""
        x, positive = training(x, y)
        self.buffers = Buffers(self.buffer_size, x.shape[1], self.kernel_width)
        for i in np.random.default_rng(self.seed).permutation(x.shape[0]):
            self.learn(*one_row(x, i), bool(positive[i]))
        return self

    def learn(self, columns: IntArray | slice, values: FloatArray, label: bool) -> None:
        """One update of that paper's Algorithm 2: the localised instantaneous pair loss of this row."""
        buffers = self.buffers
        sign, step = (1.0 if label else -1.0), self.learning_rate * self.cost
        others = buffers.places(not label)
        near = buffers.near(columns, values)
        gap = near @ buffers.alpha - buffers.kernel[others] @ buffers.alpha
        violated = others[1 - sign * gap > 0]
        buffers.alpha *= 1 - self.learning_rate
        if not len(others) or (not buffers.inserted[label] and not len(violated)):
            alpha = step * sign
        else:
            if len(violated) > self.neighbours:
                violated = violated[np.argsort(-near[violated], kind="stable")[: self.neighbours]]
            alpha = step * sign * len(violated)
            buffers.alpha[violated] -= sign * step
        if alpha != 0:
            buffers.insert(columns, values, near, label, alpha)

    def score(self, x: Matrix) -> FloatArray:
        """``f(x)``, computed for some rows at a time."""
        x = finite(x)
        parts = [self.buffers.values(x[start : start + 1024]) for start in range(0, x.shape[0], 1024)]
        return np.concatenate(parts) if parts else np.empty(0)
