"""Rows one at a time, from an array or a scipy CSR matrix."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Matrix: TypeAlias = Any
"""A 2-d array or a scipy CSR matrix."""


def labels(y: npt.ArrayLike) -> BoolArray:
    """Labels as booleans, of which both kinds are needed."""
    positive = np.asarray(y, dtype=bool)
    if positive.all() or not positive.any():
        raise ValueError("AUC needs rows of both classes.")
    return positive


def is_sparse(x: Matrix) -> bool:
    """Whether ``x`` is a scipy matrix."""
    return hasattr(x, "tocsr")


def dense_rows(x: Matrix, index: IntArray | slice) -> FloatArray:
    """Some rows as an array."""
    rows = x[index]
    table: FloatArray = np.asarray(rows.toarray() if is_sparse(x) else rows, dtype=np.float64)
    return table


def dot(x: Matrix, w: npt.NDArray[Any]) -> FloatArray:
    """``x w`` as an array."""
    product: FloatArray = np.asarray(x @ w, dtype=np.float64)
    return product
