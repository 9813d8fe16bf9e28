"""Rows that are there very often: whether there are any, and their copies counted before rows are moved.

Equal rows share a hash, and with it a staging task: of few distinct rows among a billion, a few tasks would get all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bspauc_spark.arrays import IntArray

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Reading so many rows takes a moment.
_SAMPLE_ROWS = 10_000
# Of the average of all tasks. Rows that pass through Python once more take about half of their staging longer.
_TOO_LONG = 1.5
# Rows are grouped by so many bytes at a time: some versions of Arrow lose count of groups beyond 2 GB.
_GROUPED_BYTES = 64 << 20


def has_frequent_rows(hashed: DataFrame, bits: int) -> bool:
    """Whether, by the first rows, copies make one of ``2**bits`` staging tasks too long; of few rows, none are.

    A hint: what is staged does not depend on it.
    """
    sample = [hash_ for (hash_,) in hashed.select("hash").limit(_SAMPLE_ROWS).collect()]
    return len(sample) == _SAMPLE_ROWS and is_skewed(np.array(sample), bits)


def is_skewed(hashes: IntArray, bits: int) -> bool:
    """Whether copies make the longest of ``2**bits`` tasks too long, where distinct rows are spread evenly."""
    tasks = 1 << bits
    values, counts = np.unique(hashes, return_counts=True)
    copied = counts > 1
    # The first bits of a hash, from the lowest, which is negative, to the highest.
    task_of = (values[copied] >> (64 - bits)) + tasks // 2
    longest = np.bincount(task_of, counts[copied], tasks).max() + counts[~copied].sum() / tasks
    return bool(longest > _TOO_LONG * len(hashes) / tasks)


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of each batch, those that are equal in every column only once, with their number as ``copies``."""
    for batch in batches:
        at_once = max(1, _GROUPED_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, at_once):
            yield _counted(batch.slice(start, at_once))


def _counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [key for column in batch.columns for key in _keys(column)]
    names = [f"key {number}" for number in range(len(columns))]
    keys = pa.table([*columns, pa.array(np.arange(batch.num_rows))], names=[*names, "row"])
    groups = keys.group_by(names).aggregate([("row", "min"), ("row", "count")]).combine_chunks()
    first, copies = (groups[name].combine_chunks() for name in ("row_min", "row_count"))
    rows = batch.take(first)
    return pa.RecordBatch.from_arrays([*rows.columns, copies], names=[*batch.schema.names, "copies"])


def _keys(column: pa.Array) -> Iterator[pa.Array]:
    """Columns that Arrow can group by, and in which rows are equal that are equal in ``column`` bit by bit."""
    yield column.is_null()
    if pa.types.is_struct(column.type):
        for field in column.flatten():
            yield from _keys(field)
    elif pa.types.is_list(column.type):
        yield _bytes(column.offsets, column.values)
        if column.values.null_count:
            yield _bytes(column.offsets, column.values.is_null().cast(pa.uint8()))
    else:
        yield column


def _bytes(offsets: pa.Array, numbers: pa.Array) -> pa.Array:
    """The bytes of the numbers between each two ``offsets``, where they are."""
    width = numbers.type.bit_width // 8
    ends = (offsets.to_numpy().astype(np.int64) + numbers.offset) * width
    data = numbers.buffers()[1] or pa.py_buffer(b"")  # Of lists that are all empty there are no numbers.
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(ends), data])
