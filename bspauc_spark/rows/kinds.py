"""The four kinds of staged rows, a file that holds rows of one kind, and how many rows are scored at a time."""

from __future__ import annotations

from typing import NamedTuple

POSITIVES, NEGATIVES = "positives", "negatives"
VALIDATION_POSITIVES, VALIDATION_NEGATIVES = "validation_positives", "validation_negatives"
KINDS = (POSITIVES, NEGATIVES, VALIDATION_POSITIVES, VALIDATION_NEGATIVES)
# The last bits of a score depend on the size of the block it was computed in, and ties with them. One size for
# training, scoring and transform makes a row's score the same wherever the row stands. 1,024 rows of 64 units fit
# a core's cache and leave little padding in Spark's batches of 10,000 rows.
CHUNK_ROWS = 1024


class ShardFile(NamedTuple):
    """A written shard: its name, its rows, and a checksum of its bytes."""

    name: str
    rows: int
    checksum: int
