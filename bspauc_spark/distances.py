"""Distances between rows of arrays or of scipy CSR matrices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]


def squared_distances(x: Any, y: Any) -> FloatArray:
    """``‖x_i − y_j‖²``, by one matrix product; rounding may leave a distance just below 0."""
    products = x @ y.T
    products = products.toarray() if hasattr(products, "toarray") else products
    squares: FloatArray = norms(x)[:, None] + norms(y)[None, :] - 2 * products
    return squares


def norms(x: Any) -> FloatArray:
    """``‖x_i‖²``."""
    squares: FloatArray = np.asarray((x.multiply(x) if hasattr(x, "multiply") else np.square(x)).sum(axis=1)).ravel()
    return squares.astype(np.float64)
