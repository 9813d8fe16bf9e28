"""Rows that are there very often: found in a sample, and counted where they are read instead of moved one by one.

Equal rows share a hash, and with it a staging task. Of few distinct rows among a billion, a few tasks would get all.
"""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

# Reading so many rows takes a moment, and shows a content that makes up a thousandth of them.
_SAMPLE_ROWS = 10_000
# A content with a smaller share of an average task's rows does not make its task much longer than the others.
_SHARE_OF_A_TASK = 0.5


def frequent_hashes(hashed: DataFrame, tasks: int) -> list[int]:
    """Hashes that seem to be so frequent that they would make one of ``tasks`` tasks longer than the others.

    A hint: of the first rows alone, and of none if there are few. The staged rows are the same with any hashes.
    """
    sample = [hash_ for (hash_,) in hashed.select("hash").limit(_SAMPLE_ROWS).collect()]
    if len(sample) < _SAMPLE_ROWS:
        return []
    least = _SHARE_OF_A_TASK * _SAMPLE_ROWS / tasks
    return sorted(hash_ for hash_, count in Counter(sample).items() if count > least)


def with_copies(hashed: DataFrame, frequent: list[int]) -> DataFrame:
    """The rows with a column ``copies``: those of a frequent hash once for all that are equal, the others one by one.

    Copies are counted where they are read, before the shuffle, by all that is in a row: different rows of one hash stay
    apart. Distinct rows are not counted, which would take longer than to read all rows a second time. A DataFrame that
    gives other rows each time it is read, as ``limit`` may, has a few more or a few less of them here.
    """
    is_frequent = sf.col("hash").isin(frequent)
    counted = hashed.where(is_frequent).groupBy(*hashed.columns).agg(sf.count(sf.lit(1)).alias("copies"))
    return hashed.where(~is_frequent).withColumn("copies", sf.lit(1).cast("long")).unionByName(counted)
