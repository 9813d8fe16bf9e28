"""Small functions on numpy arrays and scipy CSR matrices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


def is_sparse(x: Any) -> bool:
    """Whether ``x`` is a scipy matrix."""
    return hasattr(x, "tocsr")


def stacked(first: Any, *others: Any) -> Any:
    """Rows of arrays or of CSR matrices one below the other, in the number type of the first."""
    if not is_sparse(first):
        return np.concatenate([first, *others]).astype(first.dtype, copy=False)
    from scipy import sparse

    return sparse.vstack([first, *others]).tocsr().astype(first.dtype)


def squared_distances(x: Any, y: Any) -> FloatArray:
    """``‖x_i − y_j‖²``, by one matrix product; rounding may leave a distance just below 0."""
    products = x @ y.T
    products = products.toarray() if is_sparse(products) else products
    squares: FloatArray = norms(x)[:, None] + norms(y)[None, :] - 2 * products
    return squares


def norms(x: Any) -> FloatArray:
    """``‖x_i‖²``."""
    squares: FloatArray = np.asarray((x.multiply(x) if is_sparse(x) else np.square(x)).sum(axis=1)).ravel()
    return squares.astype(np.float64)


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """``[s₀, s₀ + 1, …, s₀ + l₀ − 1, s₁, …]``."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    steps: IntArray = np.arange(total, dtype=np.int64)
    shifts: IntArray = np.repeat(starts - (ends - lengths), lengths)
    return steps + shifts
