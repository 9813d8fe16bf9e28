"""The staged rows of a fit: Arrow files of each kind, which the workers map into memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from bspauc_spark import liveness
from bspauc_spark.arrays import IntArray
from bspauc_spark.errors import StagingError, reason
from bspauc_spark.rows.arrow import dense_part, sparse_part
from bspauc_spark.rows.kinds import ShardFile
from bspauc_spark.rows.rows import Batch, DenseRows, Rows, SparseRows, concat
from bspauc_spark.rows.storage import folder


@dataclass(frozen=True)
class Shards:
    """The Arrow files of a fit: their folder, the files of each kind in reading order, and the shape of a row.

    Of a row that is there very often, one file stands in the list many times.
    """

    directory: str
    files: Mapping[str, tuple[ShardFile, ...]]
    num_features: int
    sparse: bool

    def open(self, rank: int = 0, size: int = 1) -> dict[str, Rows]:
        """The equal share of one rank in every kind of rows, mapped. Kinds without any rows are left out."""
        shares = {}
        for kind, files in self.files.items():
            if files:
                total = sum(file.rows for file in files)
                shares[kind] = self._rows(files, rank * total // size, (rank + 1) * total // size)
        return shares

    def counts(self) -> dict[str, int]:
        """How many rows there are of every kind. Kinds without any rows are left out."""
        return {kind: sum(file.rows for file in files) for kind, files in self.files.items() if files}

    def take(self, kind: str, index: IntArray) -> Batch:
        """The rows of a kind at ``index``, which is ascending and not empty.

        This is for few rows of many: it opens only the files that hold any of them, one at a time, and closes each
        before the next.
        """
        files = self.files[kind]
        starts = np.concatenate(([0], np.cumsum([file.rows for file in files], dtype=np.int64)))
        places = pairwise(np.searchsorted(index, starts))
        return concat(
            *(
                self._rows([file], 0, file.rows).take(index[first:last] - start)
                for file, start, (first, last) in zip(files, starts[:-1], places, strict=True)
                if last > first
            )
        )

    def _rows(self, files: Sequence[ShardFile], start: int, stop: int) -> Rows:
        """The rows ``start … stop − 1`` of these files. Only files that hold any of them are read.

        Files of an object store are copied to the disk of this machine, and deleted as soon as they are mapped. A file
        that stands in the list more than once is mapped once.
        """
        ends = np.cumsum([file.rows for file in files])
        first, last = np.searchsorted(ends, [start, stop], side="right")
        needed = files[first : last + 1] if stop > start else ()
        before = int(ends[first - 1]) if first else 0
        source = folder(self.directory)
        try:
            unique = dict.fromkeys(needed)
            with source.nearby([file.name for file in unique]) as near:
                mapped = {file: _mapped_batches(near, file) for file in unique}
        except OSError as error:
            raise StagingError(f"staged rows in {source} cannot be read: {reason(error)}. Fit again.") from error
        batches = [batch for file in needed for batch in mapped[file]]
        if self.sparse:
            rows: Rows = SparseRows([sparse_part(batch) for batch in batches], self.num_features)
        else:
            rows = DenseRows([dense_part(batch, self.num_features) for batch in batches], self.num_features)
        return rows.window(start - before, stop - before) if needed else rows


def _mapped_batches(directory: Path, file: ShardFile) -> list[pa.RecordBatch]:
    """The rows of a shard, mapped. An error if its bytes are not those that were written."""
    liveness.beat()
    with pa.memory_map(str(directory / file.name)) as source:
        if zlib.crc32(source.read_buffer()) != file.checksum:
            raise StagingError(
                f"the staged rows in {file.name} are damaged: their checksum is not that of what was written. Fit "
                "again, and look to the storage behind stagingDir."
            )
        source.seek(0)
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(i) for i in range(reader.num_record_batches)]
