"""Folds of cross-fitting: a row's fold is a hash of its features, so equal rows are in the same one, however labelled.

It is the same for dense and sparse rows, in a fit, in a model that is served, and for rows that come later.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bspauc_spark.arrays import Float32Array, IntArray
from bspauc_spark.rows.arrow import dense_part, sparse_part
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES

Keys = npt.NDArray[np.uint64]

FEWEST_ROWS = 5
"""Of each class in each fold."""

_NAN = np.uint32(0x7FC00000)
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def dense_keys(matrix: Float32Array, seed: int) -> Keys:
    """A number for each row: a hash of which features are not 0, and of their values."""
    return _mixed(_entries(np.arange(matrix.shape[1]), matrix, seed).sum(axis=1, dtype=np.uint64))


def sparse_keys(
    pointers: npt.NDArray[np.integer], columns: npt.NDArray[np.integer], values: Float32Array, seed: int
) -> Keys:
    """The same for row ``i`` with the ``values[pointers[i]:pointers[i + 1]]`` in these ``columns``."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_entries(columns, values, seed), dtype=np.uint64)])
    return _mixed(sums[pointers[1:]] - sums[pointers[:-1]])


def _shard_keys(batch: pa.RecordBatch, num_features: int, sparse: bool, seed: int) -> Keys:
    if not sparse:
        matrix = dense_part(batch, num_features)
        parts = [dense_keys(matrix[k : k + CHUNK_ROWS], seed) for k in range(0, len(matrix), CHUNK_ROWS)]
        return np.concatenate([np.empty(0, np.uint64), *parts])
    pointers, columns, values = sparse_part(batch)
    first, last = pointers[0], pointers[-1]
    return sparse_keys(pointers - first, columns[first:last], values[first:last], seed)


FoldCounts = list[list[int]]
"""How many rows there are in each fold, if there are 2 folds, 3, and so on."""


def rows_in_folds(
    rows: pa.RecordBatch, num_features: int, sparse: bool, most: int, seed: int, copies: IntArray
) -> FoldCounts:
    """Of a shard's rows, for up to ``most`` folds; each row counts as often as ``copies`` says."""
    return counted(_shard_keys(rows, num_features, sparse, seed), most, copies)


def counted(keys: Keys, most: int, copies: IntArray | None = None) -> FoldCounts:
    """Of rows with these keys."""
    places = ((keys % np.uint64(folds)).astype(np.int64) for folds in range(2, most + 1))
    return [np.bincount(place, copies, folds).astype(np.int64).tolist() for folds, place in enumerate(places, 2)]


def added(*counts: FoldCounts) -> FoldCounts:
    """The sum of such numbers."""
    return [[sum(fold) for fold in zip(*one, strict=True)] for one in zip(*counts, strict=True)]


def most_folds(wanted: int, counts: Mapping[str, FoldCounts]) -> int:
    """At most ``wanted`` folds, so many that each has some rows of both classes; 0 if not even two have."""
    for folds in range(wanted, 1, -1):
        if min(min(counts[kind][folds - 2]) for kind in (POSITIVES, NEGATIVES)) >= FEWEST_ROWS:
            return folds
    return 0


def _entries(columns: npt.NDArray[np.integer], values: npt.NDArray[np.float32], seed: int) -> Keys:
    """A hash of each value with its column; 0 for the value 0, so that it does not matter whether it is there."""
    bits = np.where(np.isnan(values), _NAN, np.ascontiguousarray(values).view(np.uint32)).astype(np.uint64)
    bits |= columns.astype(np.uint64) << np.uint64(32)
    mixed: Keys = _mixed(bits + _mixed(np.array([seed % 2**64], dtype=np.uint64)))
    mixed[values == 0] = 0
    return mixed


def _mixed(keys: Keys) -> Keys:
    """SplitMix64: every bit of the result depends on every bit that is given."""
    keys = keys + _STEP
    keys = (keys ^ (keys >> np.uint64(30))) * _FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * _SECOND
    found: Keys = keys ^ (keys >> np.uint64(31))
    return found
