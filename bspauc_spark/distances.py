"""Distances between rows of arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]


def squared_distances(x: FloatArray, y: FloatArray) -> FloatArray:
    """``‖x_i − y_j‖²``, by one matrix product; rounding may leave a distance just below 0."""
    squares: FloatArray = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None, :] - 2 * x @ y.T
    return squares
