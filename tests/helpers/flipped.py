"""Rows whose labels a linear boundary tells, some of them wrong far from it: where a linear learner is misled."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bspauc_spark.arrays import BoolArray, Float32Array


def far_flips(rows: int = 1200, flipped: float = 0.35, seed: int = 0) -> tuple[Float32Array, BoolArray, BoolArray]:
    """Features, labels as given, true labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    place = x[:, 0] + 0.5 * x[:, 1] - 1
    true = place > 0
    far = np.abs(place) > np.quantile(np.abs(place), 0.25)
    return x, true ^ (far & (rng.random(rows) < flipped)), true


def far_flips_table(rows: int = 1200, flipped: float = 0.35, seed: int = 0) -> pd.DataFrame:
    """The same as columns ``x0`` to ``x3``, ``label``, ``clean``, and the number of the row."""
    x, given, true = far_flips(rows, flipped, seed)
    columns = {f"x{i}": x[:, i].astype(float) for i in range(x.shape[1])}
    return pd.DataFrame({**columns, "label": given.astype(float), "clean": true.astype(float), "row": range(rows)})
