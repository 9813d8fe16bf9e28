"""Whether copies make a staging task too long, and rows of a batch that are counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bspauc_spark.rows import copies
from bspauc_spark.rows.copies import counted, is_skewed

RNG = np.random.default_rng(0)
HASHES = RNG.integers(-(2**63), 2**63, 10_000)
TEN = np.linspace(-(2**63), 2**63 - 2**40, 10).astype(np.int64)


@pytest.mark.parametrize("bits", [1, 3, 9])
def test_distinct_rows_make_no_task_too_long(bits: int) -> None:
    assert not is_skewed(HASHES, bits)


@pytest.mark.parametrize(
    ("bits", "share", "skewed"),
    [(3, 0.02, False), (3, 0.08, True), (3, 0.2, True), (9, 0.0004, False), (9, 0.01, True)],
)
def test_a_row_whose_copies_add_half_of_a_tasks_rows_makes_it_too_long(bits: int, share: float, skewed: bool) -> None:
    hashes = HASHES.copy()
    hashes[: int(share * len(hashes))] = 5
    assert is_skewed(hashes, bits) == skewed


@pytest.mark.parametrize("bits", [3, 9])
def test_ten_rows_cannot_be_spread_evenly_and_many_can(bits: int) -> None:
    assert is_skewed(np.resize(TEN, 10_000), bits)
    assert not is_skewed(np.repeat(HASHES[:5_000], 2), 3)


def test_a_task_is_too_long_by_the_copies_of_all_rows_in_it() -> None:
    assert is_skewed(np.concatenate([np.repeat(np.arange(100), 20), HASHES[:8_000]]), 3)


def test_a_null_is_no_zero_and_no_empty_list() -> None:
    lists = [None, [], [0.0], [None], [1.0, None], [1.0, 0.0], [0.0, 1.0], [None, 1.0]]
    vectors = [None, {"size": None, "values": None}, {"size": 0, "values": []}, {"size": 0, "values": None}]
    kind = pa.struct([("size", pa.int32()), ("values", pa.list_(pa.float64()))])
    for values in (pa.array(lists * 2, pa.list_(pa.float32())), pa.array(vectors * 2, kind)):
        (found,) = counted(iter([pa.RecordBatch.from_pydict({"features": values})]))
        assert found["features"].equals(values[: len(values) // 2])
        assert found["copies"].to_pylist() == [2] * (len(values) // 2)


def test_wide_rows_are_counted_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_GROUPED_BYTES", 1000)
    batch = pa.RecordBatch.from_pydict({"features": pa.array([[1.0] * 50] * 100, pa.list_(pa.float32()))})
    parts = list(counted(iter([batch])))
    assert sum(sum(part["copies"].to_pylist()) for part in parts) == 100
    assert {part.num_rows for part in parts} == {1}
    assert 10 < len(parts) <= 50


def test_lists_that_are_all_empty_are_equal() -> None:
    batch = pa.RecordBatch.from_pydict({"features": pa.array([[], []], pa.list_(pa.float64()))})
    (found,) = counted(as_sent(batch))
    assert found["copies"].to_pylist() == [2]


def as_sent(batch: pa.RecordBatch) -> pa.RecordBatchStreamReader:
    """The batch as it comes from Spark: what is empty has no buffer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue())


def test_a_batch_without_rows_gives_none() -> None:
    parts = counted(iter([pa.RecordBatch.from_pydict({"label": pa.array([], pa.float64())})]))
    assert sum(part.num_rows for part in parts) == 0
