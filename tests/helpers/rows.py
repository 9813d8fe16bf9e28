"""Rows of features in memory, and staged by a task that runs in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import sparse

from bspauc_spark.rows.rows import Batch, DenseRows, Rows, SparseBatch, SparseRows
from bspauc_spark.rows.shard_task import ShardTask

WIDTH = 11


def random_matrix(rows: int, seed: int = 0) -> np.ndarray:
    """A third of the values are filled; some rows are empty."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, WIDTH)) * (rng.random((rows, WIDTH)) < 0.3)).astype(np.float32)


def to_numpy(batch: Batch) -> np.ndarray:
    if not isinstance(batch, SparseBatch):
        return batch.numpy()
    pointers = np.append(batch.offsets.numpy(), len(batch.indices))
    return sparse.csr_matrix((batch.values.numpy(), batch.indices.numpy(), pointers), (len(batch), WIDTH)).toarray()


def write(
    folder: Path,
    matrix: np.ndarray,
    kind: str,
    rows_per_batch: int = 1000,
    label: object = None,
    copies: np.ndarray | None = None,
    **settings: int,
) -> dict:
    """Run a staging task in this process over ``matrix``; returns its report."""
    label = np.arange(len(matrix)) % 3 == 0 if label is None else np.asarray(label)
    table = pa.table(
        {
            "features": pa.array(list(matrix), type=pa.list_(pa.float32())),
            "label": pa.array(label.astype(float)),
            "validation": pa.array(np.arange(len(matrix)) % 5 == 0),
            "hash": pa.array(np.arange(len(matrix))),
        }
    )
    if copies is not None:
        table = table.append_column("copies", pa.array(copies))
    task = ShardTask(str(folder), 1.0, WIDTH, sparse=kind == "sparse", **settings)
    (report,) = task(iter(table.to_batches(max_chunksize=rows_per_batch)))
    return json.loads(report.column("report")[0].as_py())


def dense(arrays: dict[str, np.ndarray]) -> dict[str, Rows]:
    return {name: DenseRows([x], x.shape[1]) for name, x in arrays.items()}


def compressed(arrays: dict[str, np.ndarray]) -> dict[str, Rows]:
    parts = {name: sparse.csr_matrix(x) for name, x in arrays.items()}
    return {
        name: SparseRows([(c.indptr.astype(np.int64), c.indices.astype(np.int32), c.data)], c.shape[1])
        for name, c in parts.items()
    }


def as_rows(matrix: np.ndarray, sparse: bool) -> Rows:
    if not sparse:
        return DenseRows([matrix], matrix.shape[1])
    pointers = np.concatenate(([0], np.cumsum((matrix != 0).sum(axis=1)))).astype(np.int64)
    columns = np.nonzero(matrix)[1].astype(np.int32)
    return SparseRows([(pointers, columns, matrix[matrix != 0])], matrix.shape[1])
