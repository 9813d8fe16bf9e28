"""Rows of an array or of a scipy CSR matrix, in the forms that the baselines take."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import FloatArray, IntArray, finite, is_sparse, labelled, need_both
from bspauc_spark.errors import InvalidFeaturesError
from bspauc_spark.rows.rows import DenseRows, Rows, SparseRows

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Matrix: TypeAlias = Any
"""A 2-d array or a scipy CSR matrix."""


def training(x: Matrix, y: npt.ArrayLike) -> tuple[Matrix, BoolArray]:
    """The rows, which must be finite, and their labels as booleans, among which both classes must be."""
    rows, positive = labelled(x, y)
    need_both(positive, "AUC")
    return rows, positive


def dense_rows(x: Matrix, index: IntArray | slice) -> FloatArray:
    """Some rows as an array."""
    rows = x[index]
    table: FloatArray = np.asarray(rows.toarray() if is_sparse(x) else rows, dtype=np.float64)
    return table


def one_row(x: Matrix, i: int) -> tuple[IntArray | slice, FloatArray]:
    """Row ``i`` as columns and their values. All other columns are 0."""
    if not is_sparse(x):
        return slice(None), np.asarray(x[i], dtype=np.float64)
    own = slice(x.indptr[i], x.indptr[i + 1])
    return x.indices[own], x.data[own].astype(np.float64)


def as_rows(x: Matrix) -> Rows:
    """The rows in the form that a network takes."""
    x = finite(x)
    with np.errstate(over="ignore"):
        values = np.asarray(x.data if is_sparse(x) else x, dtype=np.float32)
    if not np.isfinite(values).all():
        raise InvalidFeaturesError("features hold values that are too large for float32. Scale or drop them.")
    if is_sparse(x):
        return SparseRows([(x.indptr.astype(np.int64), x.indices.astype(np.int32), values)], x.shape[1])
    return DenseRows([values], x.shape[1])


def dot(x: Matrix, w: npt.NDArray[Any]) -> FloatArray:
    """``x w`` as an array."""
    product: FloatArray = np.asarray(x @ w, dtype=np.float64)
    return product
