"""The four kinds of staged rows, the record of a shard, and the size of a chunk: how many rows are scored together."""

from __future__ import annotations

from typing import NamedTuple

POSITIVES, NEGATIVES = "positives", "negatives"
VALIDATION_POSITIVES, VALIDATION_NEGATIVES = "validation_positives", "validation_negatives"
KINDS = (POSITIVES, NEGATIVES, VALIDATION_POSITIVES, VALIDATION_NEGATIVES)
# The last bits of a score depend on how many rows are scored together, and these bits decide whether two scores tie.
# With one size for training, scoring and transform a row gets the same score everywhere. 1,024 rows of 64 units fit a
# core's cache, and need little padding in Spark's batches of 10,000 rows.
CHUNK_ROWS = 1024


class ShardFile(NamedTuple):
    """A shard that was written: its name, its number of rows, and a checksum of its bytes."""

    name: str
    rows: int
    checksum: int
