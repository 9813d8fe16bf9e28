"""OPAUC (Gao, Jin, Zhu, Zhou, ICML 2013): one pass over first- and second-order statistics of the square pair loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import FloatArray, finite
from bspauc_spark.baselines.rows import Matrix, dense_rows, dot, training
from bspauc_spark.errors import InvalidLabelError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of outer products of one class."""

    count: int
    total: FloatArray
    products: FloatArray

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.products + other.products)

    @classmethod
    def of(cls, x: FloatArray) -> Moments:
        """Of the rows of ``x``."""
        return cls(len(x), x.sum(axis=0), x.T @ x)

    @property
    def mean(self) -> FloatArray:
        """The class's centre c."""
        return self.total / self.count

    @property
    def covariance(self) -> FloatArray:
        """The class's Γ."""
        centred: FloatArray = self.products / self.count - np.outer(self.mean, self.mean)
        return centred


def opauc_limit(positive: Moments, negative: Moments, reg: float) -> FloatArray:
    """Where OPAUC goes with many passes and small steps: ``w = (λI + Γ⁺ + Γ⁻ + δδᵀ)⁻¹ δ``, ``δ = c⁺ − c⁻``."""
    delta = positive.mean - negative.mean
    table = positive.covariance + negative.covariance + np.outer(delta, delta)
    return np.linalg.solve(table + reg * np.eye(len(delta)), delta).astype(np.float64)


def class_moments(
    dataset: DataFrame, features: str = "features", label: str = "label", positive_label: float = 1.0
) -> tuple[Moments, Moments]:
    """Moments of both classes by one Spark aggregate: a pair of d × d tables a partition."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as sf

    column = sf.col(features)
    if isinstance(dataset.schema[features].dataType, VectorUDT):
        column = vector_to_array(column)
    rows = dataset.select(column.alias("x"), (sf.col(label) == positive_label).alias("positive"))
    schema = "positive boolean, count long, total array<double>, products array<double>"
    found = rows.mapInArrow(_partition_moments, schema).collect()
    sums: dict[bool, Moments] = {}
    for is_positive, count, total, products in found:
        part = Moments(count, np.array(total), np.array(products).reshape(len(total), -1))
        sums[is_positive] = sums[is_positive] + part if is_positive in sums else part
    if len(sums) < 2:
        raise InvalidLabelError(f"column {label!r} has rows of one class only; AUC needs both.")
    return sums[True], sums[False]


def _partition_moments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    sums: dict[bool, Moments] = {}
    for batch in batches:
        values = batch.column("x").flatten().to_numpy(zero_copy_only=False)
        table = values.reshape(batch.num_rows, -1).astype(np.float64)
        positive = batch.column("positive").to_numpy(zero_copy_only=False).astype(bool)
        for kind in (True, False):
            if (positive == kind).any():
                part = Moments.of(table[positive == kind])
                sums[kind] = sums[kind] + part if kind in sums else part
    for kind, moments in sums.items():
        columns = {
            "positive": [kind],
            "count": [moments.count],
            "total": [moments.total.tolist()],
            "products": [moments.products.ravel().tolist()],
        }
        yield pa.RecordBatch.from_pydict(columns)
