"""Folds of cross-fitting: a row's fold is a hash of its features, so equal rows are in the same one, however labelled.

It is the same for dense and sparse rows, in a fit, in a model that is served, and for rows that come later.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from bspauc_spark.arrays import IntArray
from bspauc_spark.rows.kinds import CHUNK_ROWS, NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Batch, Rows, SparseBatch

Keys = npt.NDArray[np.uint64]

FEWEST_ROWS = 5
"""Of each class in each fold."""

_NAN = np.uint32(0x7FC00000)
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keys_of(batch: Batch, seed: int) -> Keys:
    """A number for each row: a hash of which features are not 0, and of their values as float32."""
    if isinstance(batch, SparseBatch):
        ends = torch.cat([batch.offsets[1:], batch.offsets.new_tensor([len(batch.indices)])])
        entries = _entries(batch.indices.numpy(), batch.values.numpy(), seed)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])
        return _mixed(sums[ends.numpy()] - sums[batch.offsets.numpy()])
    matrix = batch.numpy()
    return _mixed(_entries(np.arange(matrix.shape[1]), matrix, seed).sum(axis=-1, dtype=np.uint64))


def folds_of(rows: Rows, folds: int, seed: int) -> npt.NDArray[np.uint8]:
    """The fold of each row."""
    found = np.empty(len(rows), dtype=np.uint8)
    for start in range(0, len(rows), CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, len(rows))
        found[start:stop] = keys_of(rows.between(start, stop), seed) % np.uint64(folds)
    return found


FoldCounts = list[list[int]]
"""How many rows there are in each fold, if there are 2 folds, 3, and so on."""


def rows_in_folds(rows: Rows, most: int, seed: int, copies: IntArray | None = None) -> FoldCounts:
    """For up to ``most`` folds; each row counts as often as ``copies`` says."""
    found = [np.zeros(folds) for folds in range(2, most + 1)]
    for start in range(0, len(rows), CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, len(rows))
        keys = keys_of(rows.between(start, stop), seed)
        times = np.ones(stop - start) if copies is None else copies[start:stop]
        for sums in found:
            sums += np.bincount((keys % np.uint64(len(sums))).astype(np.int64), times, len(sums))
    return [sums.astype(np.int64).tolist() for sums in found]


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
