"""Turn the Arrow batches that Spark gives to Python into checked float32 rows, without a loop over rows.

Staging tasks import this module. It must not import torch, which takes seconds to load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bspauc_spark.arrays import Float32Array, IntArray

MALFORMED = "with malformed indices (one for each value, ascending, from 0 to size - 1)"

BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CheckedFeatures(ABC):
    """The rows of one batch, and what is wrong with each of them."""

    is_null: BoolArray
    wrong_size: BoolArray
    bad_value: BoolArray
    bad_index: BoolArray
    sizes: IntArray
    gaps: bool
    """Whether a value may be NaN."""

    @property
    def good(self) -> BoolArray:
        """Rows with nothing wrong."""
        return ~(self.is_null | self.wrong_size | self.bad_value | self.bad_index)

    @property
    def problem(self) -> str | None:
        """What is wrong, and with how many rows; None if all are good."""
        for wrong, text in (
            (self.is_null, "null"),
            (self.wrong_size, f"of another size ({', '.join(map(str, np.unique(self.sizes[self.wrong_size])[:5]))})"),
            (self.bad_value, "infinite or too large" if self.gaps else "NaN, infinite or too large"),
            (self.bad_index, f"sparse vectors {MALFORMED}"),
        ):
            if wrong.any():
                return f"{int(wrong.sum()):,} of {len(wrong):,} rows of a batch are {text}"
        return None

    @abstractmethod
    def arrow(self, index: IntArray) -> pa.RecordBatch:
        """The rows at ``index``, in the form in which a shard holds them."""


@dataclass(frozen=True)
class DenseFeatures(CheckedFeatures):
    """Dense rows, as a matrix. Rows that are null or have another size are not in it."""

    matrix: Float32Array

    @classmethod
    def of(cls, features: pa.Array, num_features: int, gaps: bool = False) -> DenseFeatures:
        """Check a ``list<float>`` column and lay it out as rows of ``num_features`` values."""
        is_null = features.is_null().to_numpy(zero_copy_only=False)
        sizes = features.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        wrong_size = (sizes != num_features) & ~is_null
        # x + 0 turns −0 into 0, so that equal rows are equal bit by bit.
        values = _floats(features.flatten()) + np.float32(0)
        right = ~(is_null | wrong_size)
        matrix = (values if right.all() else values[np.repeat(right, sizes)]).reshape(-1, num_features)
        bad_value = np.zeros(len(features), dtype=bool)
        bad_value[right] = _are_bad(matrix, gaps).any(axis=1)
        return cls(is_null, wrong_size, bad_value, np.zeros(len(features), dtype=bool), sizes, gaps, matrix)

    def arrow(self, index: IntArray) -> pa.RecordBatch:
        places = np.cumsum(~(self.is_null | self.wrong_size)) - 1
        chosen = self.matrix if len(index) == len(self.matrix) else self.matrix[places[index]]
        column = pa.FixedSizeListArray.from_arrays(pa.array(chosen.reshape(-1)), self.matrix.shape[1])
        return pa.RecordBatch.from_arrays([column], names=["features"])


@dataclass(frozen=True)
class SparseFeatures(CheckedFeatures):
    """Sparse rows in compressed form: row ``i`` has the entries from ``pointers[i]`` up to ``pointers[i + 1]``."""

    pointers: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    values: Float32Array

    @classmethod
    def of(cls, features: pa.Array, num_features: int, gaps: bool = False) -> SparseFeatures:
        """Check the struct column of vectors (or a ``list<float>`` column), and drop the values that are zero."""
        is_null = features.is_null().to_numpy(zero_copy_only=False)
        is_struct = pa.types.is_struct(features.type)
        lists = features.field("values") if is_struct else features
        lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = _floats(lists.flatten()) + np.float32(0)
        sizes, bad_index = lengths, np.zeros(len(lengths), dtype=bool)
        if is_struct:
            given = features.field("size")
            sparse = given.is_valid().to_numpy(zero_copy_only=False)
            sizes = np.where(sparse, given.fill_null(0).to_numpy(zero_copy_only=False), lengths)
            # These indices are unchecked: Spark passes the fields of a vector on as it finds them in a file.
            indices, counted = _indices(features.field("indices"))
            bad_index = (lists.is_null().to_numpy(zero_copy_only=False) | (counted != sparse * lengths)) & ~is_null
            fits = sparse & ~bad_index
            columns = indices if fits.all() else _places(lengths)
            if columns is not indices:
                columns[np.repeat(fits, lengths)] = indices[np.repeat(fits, counted)]
        else:
            columns = _places(lengths)
        wrong_size = (sizes != num_features) & ~is_null
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        bad_value = np.zeros(len(lengths), dtype=bool)
        bad_value[row_of[_are_bad(values, gaps)]] = True
        misplaced = np.zeros(len(values), dtype=bool)
        np.less_equal(columns[1:], columns[:-1], out=misplaced[1:])
        misplaced[(np.cumsum(lengths) - lengths)[lengths > 0]] = False
        # Read as an unsigned number, a negative index is larger than any size.
        misplaced |= columns.view(np.uint32) >= num_features
        bad_index[row_of[misplaced]] = True
        bad_index &= ~wrong_size
        keep = (values != 0) & ~wrong_size[row_of]
        counts = np.bincount(row_of[keep], minlength=len(lengths))
        pointers = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return cls(is_null, wrong_size, bad_value, bad_index, sizes, gaps, pointers, columns[keep], values[keep])

    def arrow(self, index: IntArray) -> pa.RecordBatch:
        pointers = pa.array(self.pointers)
        lists = [pa.ListArray.from_arrays(pointers, pa.array(part)) for part in (self.columns, self.values)]
        batch = pa.RecordBatch.from_arrays(lists, names=["indices", "values"])
        return batch if len(index) == batch.num_rows else batch.take(pa.array(index))


def checked_features(features: pa.Array, num_features: int, sparse: bool, gaps: bool = False) -> CheckedFeatures:
    """Check a column of features, and lay it out as dense or as sparse rows. With ``gaps`` a value may be NaN."""
    return (SparseFeatures if sparse else DenseFeatures).of(features, num_features, gaps)


def _are_bad(values: Float32Array, gaps: bool) -> BoolArray:
    return np.isinf(values) if gaps else ~np.isfinite(values)


def _places(lengths: IntArray) -> npt.NDArray[np.int32]:
    """The columns of the values of dense vectors: 0, 1, 2, … in each row."""
    return (np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)).astype(np.int32)


def _indices(lists: pa.Array) -> tuple[npt.NDArray[np.int32], IntArray]:
    """The indices of all rows, and how many each row has. A null index becomes negative, which the checks find."""
    counted = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lists.flatten().fill_null(-1).to_numpy(zero_copy_only=False), counted


def _floats(values: pa.Array) -> Float32Array:
    """Float32 values. A null becomes NaN, a value beyond float32 becomes infinite, and the checks find both."""
    if values.null_count:
        values = values.fill_null(float("nan"))
    with np.errstate(over="ignore"):
        floats: Float32Array = values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return floats


def dense_part(batch: pa.RecordBatch, num_features: int) -> Float32Array:
    """The rows of a shard's batch as a matrix, without copying them."""
    flat: Float32Array = batch.column("features").flatten().to_numpy(zero_copy_only=True)
    return flat.reshape(-1, num_features)


def sparse_part(batch: pa.RecordBatch) -> tuple[IntArray, npt.NDArray[np.int32], Float32Array]:
    """The rows of a shard's batch as row pointers, columns and values, without copying the latter two."""
    indices, values = batch.column("indices"), batch.column("values")
    pointers = indices.offsets.to_numpy().astype(np.int64)
    return pointers, indices.values.to_numpy(zero_copy_only=True), values.values.to_numpy(zero_copy_only=True)
