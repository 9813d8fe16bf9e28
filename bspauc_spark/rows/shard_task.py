"""A staging task, which runs on executors: it checks the rows of one partition and writes them as shards."""

from __future__ import annotations

import json
import socket
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bspauc_spark.arrays import IntArray
from bspauc_spark.errors import StagingError, reason
from bspauc_spark.rows.arrow import checked_features
from bspauc_spark.rows.folds import added, rows_in_folds
from bspauc_spark.rows.kinds import KINDS, NEGATIVES, POSITIVES, ShardFile
from bspauc_spark.rows.storage import folder

# A task writes a shard when so many bytes of a kind wait for it; it holds no more than this in memory for each kind.
SHARD_BYTES = 64 << 20
_TRAINING = (POSITIVES, NEGATIVES)
# So many copies of a row are written one by one, as if they were rows; more of them wait for others of the same row.
FEW_COPIES = 16


@dataclass(frozen=True)
class ShardTask:
    """Checks the rows of one partition and writes them. It stands at module level so that executors can unpickle it."""

    directory: str
    positive_label: float
    num_features: int
    sparse: bool
    folds: int = 0
    fold_seed: int = 0
    gaps: bool = False
    """Whether a feature may be NaN."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        context = pyspark.TaskContext.get()
        partition = context.partitionId() if context else 0
        # A task that is tried again, or twice at once, writes files of its own. Only files that a task reports count.
        prefix = f"{partition:05d}-{uuid.uuid4().hex}"
        writers = {kind: ShardWriter(self, kind, prefix) for kind in KINDS}
        problems = dict.fromkeys(("label", "null", "size", "value", "index", "validation"), 0)
        in_folds = {kind: [[0] * folds for folds in range(2, self.folds + 1)] for kind in _TRAINING}
        sizes: set[int] = set()
        labels: set[float] = set()
        rows = 0
        for batch in batches:
            copies = _copies(batch)
            rows += int(copies.sum())
            block = checked_features(batch.column("features"), self.num_features, self.sparse, self.gaps)
            label = batch.column("label").to_numpy(zero_copy_only=False)
            validation = batch.column("validation").fill_null(False).to_numpy(zero_copy_only=False)
            bad_label = ~np.isfinite(label)
            for problem, found in (
                ("label", bad_label),
                ("null", block.is_null),
                ("size", block.wrong_size),
                ("value", block.bad_value),
                ("index", block.bad_index),
                ("validation", batch.column("validation").is_null().to_numpy(zero_copy_only=False)),
            ):
                problems[problem] += int(copies[found].sum())
            sizes.update(np.unique(block.sizes[~block.is_null]).tolist())
            if len(labels) < 100:
                labels.update(np.unique(label[~bad_label]).tolist()[:100])
            positive = label == self.positive_label
            good = block.good & ~bad_label
            hashes = batch.column("hash").to_numpy().view(np.uint64)
            for kind, chosen in zip(
                KINDS,
                (
                    positive & ~validation,
                    ~positive & ~validation,
                    positive & validation,
                    ~positive & validation,
                ),
                strict=True,
            ):
                index = np.flatnonzero(good & chosen)
                chosen_rows = block.arrow(index)
                writers[kind].add(chosen_rows, copies[index], hashes[index])
                if self.folds and kind in in_folds:
                    shape = self.num_features, self.sparse
                    found = rows_in_folds(chosen_rows, *shape, self.folds, self.fold_seed, copies[index])
                    in_folds[kind] = added(in_folds[kind], found)
        report: dict[str, Any] = {
            "rows": rows,
            "sizes": sorted(sizes)[:10],
            "labels": sorted(labels)[:100],
            "problems": problems,
            "files": {kind: writer.close() for kind, writer in writers.items()},
            "hashes": {kind: writer.hashes for kind, writer in writers.items()},
            "folds": in_folds,
        }
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


def _copies(batch: pa.RecordBatch) -> IntArray:
    """How many rows each of a batch stands for."""
    if "copies" not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.int64)
    copies: IntArray = batch.column("copies").to_numpy()
    return copies


class ShardWriter:
    """Collects rows of one kind and writes them as uncompressed Arrow files with one record batch each.

    Copies that would fill several files are written once: that file stands in the list as often as it takes.
    """

    def __init__(self, task: ShardTask, kind: str, prefix: str) -> None:
        self._folder = folder(task.directory)
        self._prefix = f"{kind}-{prefix}"
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._files: list[ShardFile] = []
        self._written = 0
        self._run: tuple[pa.RecordBatch, int] | None = None
        self.hashes = 0
        """The sum of all rows' hashes."""

    def add(self, rows: pa.RecordBatch, copies: IntArray, hashes: npt.NDArray[np.uint64]) -> None:
        """Take each of ``rows`` as many times as ``copies`` says."""
        self.hashes += int((hashes * copies.astype(np.uint64)).sum(dtype=np.uint64))
        start = 0
        for place in np.flatnonzero(copies > FEW_COPIES).tolist():
            self._add_all(rows.slice(start, place - start), copies[start:place])
            self._add_to_run(rows.slice(place, 1), int(copies[place]))
            start = place + 1
        self._add_all(rows.slice(start), copies[start:])

    def _add_all(self, rows: pa.RecordBatch, copies: IntArray) -> None:
        if rows.num_rows:
            self._end_run()
            self._append(rows if copies.max() == 1 else rows.take(pa.array(np.repeat(np.arange(len(copies)), copies))))

    def _add_to_run(self, row: pa.RecordBatch, times: int) -> None:
        if self._run is not None and row.equals(self._run[0]):
            times += self._run[1]
        else:
            self._end_run()
        self._run = (row, times)

    def _end_run(self) -> None:
        """Write the row of which copies came last, so many times."""
        if self._run is None:
            return
        (row, times), self._run = self._run, None
        fill_a_file = max(1, SHARD_BYTES // row.nbytes)
        files, rest = divmod(times, fill_a_file)
        if files:
            if self._waiting:
                self._write()
            self._waiting = [_times(row, fill_a_file)]
            self._write()
            self._files += self._files[-1:] * (files - 1)
        self._append(_times(row, rest))

    def _append(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= SHARD_BYTES:
            self._write()

    def close(self) -> list[ShardFile]:
        """Write the rows that still wait; return all files."""
        self._end_run()
        if self._waiting:
            self._write()
        return self._files

    def _write(self) -> None:
        batch = pa.concat_batches(self._waiting)
        name = f"{self._prefix}-{self._written:05d}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        try:
            self._folder.write(name, data)
        except OSError as error:
            raise StagingError(
                f"rows cannot be written to stagingDir {self._folder} on host {socket.gethostname()}: {reason(error)}. "
                "Make room or give the right to write there, or set stagingDir to other storage."
            ) from error
        self._files.append(ShardFile(name, batch.num_rows, zlib.crc32(data)))
        self._written += 1
        self._waiting, self._bytes = [], 0


def _times(row: pa.RecordBatch, times: int) -> pa.RecordBatch:
    return row.take(pa.array(np.zeros(times, dtype=np.int64)))
