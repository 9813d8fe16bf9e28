"""The median heuristic for a kernel's width: the median distance between rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bspauc_spark.arrays import squared_distances
from bspauc_spark.rows.rows import Batch, Rows, SparseBatch


def even_sample(counts: Mapping[str, int], sample: int = 1000) -> dict[str, npt.NDArray[np.int64]]:
    """The places of about ``sample`` rows, evenly spread over the rows of all kinds, whose numbers are given."""
    step = max(1, sum(counts.values()) // sample)
    return {name: np.arange(0, count, step) for name, count in counts.items()}


def median_width(rows: Mapping[str, Rows], sample: int = 1000) -> float:
    """The median heuristic: the median distance between the rows of an evenly spread sample."""
    places = even_sample({name: len(one) for name, one in rows.items()}, sample)
    return median_distance([rows[name].take(index) for name, index in places.items()])


def median_distance(batches: Sequence[Batch]) -> float:
    """The median distance between rows that differ; 1 if no rows differ."""
    parts = [_table(batch) for batch in batches]
    columns = np.unique(np.concatenate([names for names, _ in parts]))
    table = np.zeros((sum(len(values) for _, values in parts), len(columns)))
    start = 0
    for names, values in parts:
        table[start : start + len(values), np.searchsorted(columns, names)] = values
        start += len(values)
    between = squared_distances(table, table)[np.triu_indices(len(table), 1)]
    positive = between[between > 1e-9 * max(np.square(table).sum(axis=1).max(), 1e-300)]
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0


def _table(batch: Batch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The columns that occur in a batch, and the batch as a table with these columns."""
    if not isinstance(batch, SparseBatch):
        return np.arange(batch.shape[1]), batch.double().cpu().numpy()
    used, places = np.unique(batch.indices.cpu().numpy(), return_inverse=True)
    ends = np.append(batch.offsets.cpu().numpy()[1:], len(batch.indices))
    table = np.zeros((len(batch), len(used)))
    owner = np.repeat(np.arange(len(batch)), ends - batch.offsets.cpu().numpy())
    table[owner, places] = batch.values.cpu().numpy()
    return used.astype(np.int64), table
