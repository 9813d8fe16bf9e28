"""OPAUC (Gao, Jin, Zhu, Zhou, ICML 2013): one pass over first- and second-order statistics of the square pair loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import FloatArray, finite
from bspauc_spark.baselines.rows import Matrix, dense_rows, dot, training

# Wider rows have no room for covariances: their low-rank sketch is used, as in the paper.
_WIDE = 1000


@dataclass
class _Class:
    """Count, mean c and covariance Γ of one class, updated row by row."""

    mean: FloatArray
    covariance: FloatArray
    count: int = 0

    def add(self, x: FloatArray) -> None:
        self.count += 1
        before = self.mean
        self.mean = before + (x - before) / self.count
        change = np.outer(x, x) - self.covariance - np.outer(before, before)
        self.covariance += change / self.count + np.outer(before, before) - np.outer(self.mean, self.mean)

    def spread(self, w: FloatArray) -> FloatArray:
        """``Γ w``."""
        return self.covariance @ w


@dataclass
class _Sketch:
    """The same with ``Σ x xᵀ`` replaced by ``Z Zᵀ``, ``Z = Σ x aᵀ`` with random a of few entries."""

    mean: FloatArray
    z: npt.NDArray[np.float32]
    generator: np.random.Generator
    average: FloatArray
    count: int = 0

    def add(self, x: FloatArray) -> None:
        self.count += 1
        a = self.generator.standard_normal(self.z.shape[1]) / np.sqrt(self.z.shape[1])
        filled = np.flatnonzero(x)
        self.z[filled] += np.outer(x[filled], a)
        self.average += (a - self.average) / self.count
        self.mean += (x - self.mean) / self.count

    def spread(self, w: FloatArray) -> FloatArray:
        """``Γ̂ w = Z(Zᵀw)/T − c(ĥ·ĥ)(c·w)``."""
        spread: FloatArray = (self.z @ (w.astype(np.float32) @ self.z)).astype(np.float64) / self.count
        return spread - self.mean * float(self.average @ self.average) * float(self.mean @ w)


class OPAUC:
    """A linear score, learned in one pass.

    Parameters
    ----------
    learning_rate, reg
        Constant step η and weight λ of ``½‖w‖²``.
    rank
        Columns of the low-rank sketch; none: covariances up to 1,000 features, a sketch of rank 50 above.
    seed
        Seed of the order of the rows and of the sketch.
    """

    def __init__(
        self, learning_rate: float = 2**-8, reg: float = 2**-6, rank: int | None = None, seed: int = 0
    ) -> None:
        self.learning_rate, self.reg, self.rank, self.seed = learning_rate, reg, rank, seed
        self.w: FloatArray = np.empty(0)

    def fit(self, x: Matrix, y: npt.ArrayLike) -> OPAUC:
        """One pass over the rows in random order; each row meets the statistics of the other class so far."""
        x, positive = training(x, y)
        width = x.shape[1]
        generator = np.random.default_rng(self.seed)
        rank = self.rank or (50 if width > _WIDE else 0)

        def statistics() -> _Class | _Sketch:
            if not rank:
                return _Class(np.zeros(width), np.zeros((width, width)))
            return _Sketch(np.zeros(width), np.zeros((width, rank), dtype=np.float32), generator, np.zeros(rank))

        classes = {True: statistics(), False: statistics()}
        w = np.zeros(width)
        for i in generator.permutation(x.shape[0]):
            row, label = dense_rows(x, slice(i, i + 1))[0], bool(positive[i])
            classes[label].add(row)
            other = classes[not label]
            if other.count:
                away = row - other.mean
                pull = -away if label else away
                w = w - self.learning_rate * (self.reg * w + pull + away * (away @ w) + other.spread(w))
        self.w = w
        return self

    def score(self, x: Matrix) -> FloatArray:
        """``x w``."""
        return dot(finite(x), self.w)
