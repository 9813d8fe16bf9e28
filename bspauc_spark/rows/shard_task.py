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
import pyarrow as pa

from bspauc_spark.errors import StagingError, reason
from bspauc_spark.rows.arrow import checked_features
from bspauc_spark.rows.kinds import KINDS, ShardFile
from bspauc_spark.rows.storage import folder

# A task writes a shard when so many bytes of a kind wait for it; it holds no more than this in memory for each kind.
SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class ShardTask:
    """Checks the rows of one partition and writes them. It stands at module level so that executors can unpickle it."""

    directory: str
    positive_label: float
    num_features: int
    sparse: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        context = pyspark.TaskContext.get()
        partition = context.partitionId() if context else 0
        # A task that is tried again, or twice at once, writes files of its own. Only files that a task reports count.
        prefix = f"{partition:05d}-{uuid.uuid4().hex}"
        writers = {kind: ShardWriter(self, kind, prefix) for kind in KINDS}
        problems = dict.fromkeys(("label", "null", "size", "value", "index", "validation"), 0)
        sizes: set[int] = set()
        labels: set[float] = set()
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            block = checked_features(batch.column("features"), self.num_features, self.sparse)
            label = batch.column("label").to_numpy(zero_copy_only=False)
            validation = batch.column("validation").fill_null(False).to_numpy(zero_copy_only=False)
            bad_label = ~np.isfinite(label)
            problems["label"] += int(bad_label.sum())
            problems["validation"] += batch.column("validation").null_count
            problems["null"] += int(block.is_null.sum())
            problems["size"] += int(block.wrong_size.sum())
            problems["value"] += int(block.bad_value.sum())
            problems["index"] += int(block.bad_index.sum())
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
                writers[kind].add(block.arrow(index), int(hashes[index].sum(dtype=np.uint64)))
        report: dict[str, Any] = {
            "rows": rows,
            "sizes": sorted(sizes)[:10],
            "labels": sorted(labels)[:100],
            "problems": problems,
            "files": {kind: writer.close() for kind, writer in writers.items()},
            "hashes": {kind: writer.hashes for kind, writer in writers.items()},
        }
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})


class ShardWriter:
    """Collects rows of one kind and writes them as uncompressed Arrow files with one record batch each."""

    def __init__(self, task: ShardTask, kind: str, prefix: str) -> None:
        self._folder = folder(task.directory)
        self._prefix = f"{kind}-{prefix}"
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._files: list[ShardFile] = []
        self.hashes = 0
        """The sum of all rows' hashes."""

    def add(self, rows: pa.RecordBatch, hashes: int) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._bytes += rows.nbytes
            self.hashes += hashes
        if self._bytes >= SHARD_BYTES:
            self._write()

    def close(self) -> list[ShardFile]:
        """Write the rows that still wait; return all files."""
        if self._waiting:
            self._write()
        return self._files

    def _write(self) -> None:
        batch = pa.concat_batches(self._waiting)
        name = f"{self._prefix}-{len(self._files):05d}.arrow"
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
        self._waiting, self._bytes = [], 0
