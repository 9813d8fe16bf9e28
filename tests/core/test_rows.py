"""Rows of a class: reading them across parts, joining and padding batches, and mapping them from Arrow shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from bspauc_spark.errors import StagingError
from bspauc_spark.rows.kinds import KINDS, NEGATIVES, POSITIVES, VALIDATION_POSITIVES, ShardFile
from bspauc_spark.rows.rows import DenseRows, Rows, SparseBatch, SparseRows, concat, pad, to_device
from bspauc_spark.rows.shards import Shards
from tests.helpers.rows import WIDTH, random_matrix, to_numpy, write


def in_parts(matrix: np.ndarray, counts: list[int], kind: str) -> Rows:
    parts = np.split(matrix, np.cumsum(counts)[:-1])
    if kind == "dense":
        return DenseRows(parts, WIDTH)
    compressed = [sparse.csr_matrix(part) for part in parts]
    return SparseRows([(c.indptr.astype(np.int64), c.indices.astype(np.int32), c.data) for c in compressed], WIDTH)


@pytest.fixture(params=["dense", "sparse"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("counts", [[30], [10, 20], [1, 0, 12, 17], [0, 30, 0], [1] * 30], ids=str)
def test_take_across_parts_equals_indexing_the_joined_matrix(kind: str, counts: list[int]) -> None:
    matrix = random_matrix(30)
    rows = in_parts(matrix, counts, kind)
    rng = np.random.default_rng(1)
    assert len(rows) == 30
    for index in (rng.integers(0, 30, 100), rng.permutation(30), np.array([29]), np.array([], dtype=np.int64)):
        batch = rows.take(index)
        assert len(batch) == len(index)
        assert np.array_equal(to_numpy(batch), matrix[index])


def test_between_gives_a_range_that_ends_with_the_rows(kind: str) -> None:
    matrix = random_matrix(30)
    rows = in_parts(matrix, [13, 17], kind)
    assert np.array_equal(to_numpy(rows.between(5, 20)), matrix[5:20])
    assert np.array_equal(to_numpy(rows.between(25, 99)), matrix[25:])


def test_a_taken_batch_is_a_copy() -> None:
    matrix = random_matrix(5)
    DenseRows([matrix], WIDTH).take(np.array([0, 1])).fill_(7)
    assert np.array_equal(matrix, random_matrix(5))


def test_concat_appends_the_second_batch(kind: str) -> None:
    matrix = random_matrix(30)
    rows = in_parts(matrix, [30], kind)
    joined = concat(rows.between(3, 9), rows.between(20, 30))
    assert np.array_equal(to_numpy(joined), np.concatenate([matrix[3:9], matrix[20:30]]))


def test_pad_appends_empty_rows_and_never_cuts(kind: str) -> None:
    matrix = random_matrix(8)
    batch = in_parts(matrix, [8], kind).between(0, 8)
    assert np.array_equal(to_numpy(pad(batch, 12)), np.concatenate([matrix, np.zeros((4, WIDTH), np.float32)]))
    assert len(pad(batch, 8)) == len(pad(batch, 5)) == 8
    empty = in_parts(np.zeros((2, WIDTH), np.float32), [2], kind).between(0, 2)
    assert np.array_equal(to_numpy(pad(empty, 3)), np.zeros((3, WIDTH)))


def test_a_sparse_batch_moves_as_a_whole() -> None:
    batch = in_parts(random_matrix(8), [8], "sparse").between(0, 8)
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved, SparseBatch)
    assert np.array_equal(to_numpy(moved), to_numpy(batch))


def opened(folder: Path, files: list[Any], kind: str, rank: int = 0, size: int = 1) -> Rows:
    shards = tuple(sorted(ShardFile(*file) for file in files))
    return Shards(str(folder), {"rows": shards}, WIDTH, kind == "sparse").open(rank, size)["rows"]


@pytest.mark.parametrize("rows_per_batch", [1000, 7])
def test_mapped_shards_equal_the_arrays_they_were_written_from(tmp_path: Path, kind: str, rows_per_batch: int) -> None:
    matrix = random_matrix(60)
    report = write(tmp_path, matrix, kind, rows_per_batch)
    positive, validation = np.arange(60) % 3 == 0, np.arange(60) % 5 == 0
    masks = (positive & ~validation, ~positive & ~validation, positive & validation, ~positive & validation)
    for name, mask in zip(KINDS, masks, strict=True):
        files = report["files"][name]
        rows = opened(tmp_path, files, kind)
        assert len(rows) == sum(rows for _, rows, _ in files) == mask.sum()
        assert np.array_equal(to_numpy(rows.between(0, len(rows))), matrix[mask])


def test_many_shards_are_read_as_one_sequence(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 200)
    matrix = random_matrix(90)
    files = write(tmp_path, matrix, kind, rows_per_batch=6)["files"][NEGATIVES]
    rows = opened(tmp_path, files, kind)
    wanted = matrix[(np.arange(90) % 3 != 0) & (np.arange(90) % 5 != 0)]
    index = np.random.default_rng(2).permutation(len(rows))
    assert len(files) > 3
    assert np.array_equal(to_numpy(rows.take(index)), wanted[index])


def test_a_kind_without_rows_has_no_file(tmp_path: Path, kind: str) -> None:
    files = write(tmp_path, random_matrix(9), kind, label=np.zeros(9))["files"]
    assert files[POSITIVES] == files[VALIDATION_POSITIVES] == []
    assert len(list(tmp_path.iterdir())) == 2


def test_mapped_rows_outlive_their_files(tmp_path: Path, kind: str) -> None:
    matrix = random_matrix(60)
    files = write(tmp_path, matrix, kind, label=np.ones(60))["files"][POSITIVES]
    rows = opened(tmp_path, files, kind)
    for path in tmp_path.iterdir():
        path.unlink()
    assert np.array_equal(to_numpy(rows.between(0, 48)), matrix[np.arange(60) % 5 != 0])


def test_dense_shards_are_mapped_not_copied(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    files = write(tmp_path, np.ones((20_000, WIDTH), np.float32), "dense", 10**6, np.ones(20_000))["files"][POSITIVES]
    rows = opened(tmp_path, files, "dense")
    assert len(rows) == 16_000
    assert pa.total_allocated_bytes() - before < 16_000 * WIDTH * 4 / 2


def test_a_rank_opens_the_files_of_its_own_rows_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 200)
    matrix = random_matrix(90)
    files = write(tmp_path, matrix, kind, 6, np.zeros(90))["files"][NEGATIVES]
    wanted = matrix[np.arange(90) % 5 != 0]
    for size in (1, 2, 3, 7, 80):
        parts = [opened(tmp_path, files, kind, rank, size) for rank in range(size)]
        together = np.concatenate([to_numpy(part.between(0, len(part))).reshape(-1, WIDTH) for part in parts])
        assert np.array_equal(together, wanted)
        assert max(len(part) for part in parts) <= -(-len(wanted) // size)
    # Without the first half of the files the last rank has all of its rows still.
    for name, _, _ in sorted(files)[: len(files) // 2]:
        (tmp_path / name).unlink()
    assert len(opened(tmp_path, files, kind, 2, 3)) == 24
    with pytest.raises(StagingError, match=r"cannot be read: .*No such file"):
        opened(tmp_path, files, kind, 0, 3)


def test_rows_are_taken_from_the_files_that_hold_them_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 200)
    matrix = random_matrix(90)
    files = sorted(ShardFile(*file) for file in write(tmp_path, matrix, kind, 6, np.zeros(90))["files"][NEGATIVES])
    shards = Shards(str(tmp_path), {NEGATIVES: tuple(files)}, WIDTH, kind == "sparse")
    ends = np.cumsum([file.rows for file in files])
    wanted = np.array([0, 2, ends[1], ends[1] + 1, ends[-1] - 1])
    assert len(files) > 4
    for number, file in enumerate(files):
        if number not in (0, 2, len(files) - 1):
            (tmp_path / file.name).unlink()
    assert np.array_equal(to_numpy(shards.take(NEGATIVES, wanted)), matrix[np.arange(90) % 5 != 0][wanted])


def test_files_that_rows_were_taken_from_are_let_go_of_before_the_next(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 200)
    files = tuple(ShardFile(*file) for file in write(tmp_path, random_matrix(90), kind, 6)["files"][NEGATIVES])
    shards = Shards(str(tmp_path), {NEGATIVES: files}, WIDTH, kind == "sparse")
    mapped: list[int] = []
    real_map = pa.memory_map

    def watched(path: str) -> Any:
        mapped.append(Path("/proc/self/maps").read_text().count(str(tmp_path)))
        return real_map(path)

    monkeypatch.setattr(pa, "memory_map", watched)
    shards.take(NEGATIVES, np.arange(shards.counts()[NEGATIVES]))
    assert len(mapped) == len(files) > 4
    # A thread of Arrow's may hold the last one a moment longer.
    assert max(mapped) <= 2


@pytest.mark.parametrize("shard_bytes", [200, 1000, 64 << 20])
@pytest.mark.parametrize("rows_per_batch", [1000, 2])
def test_a_row_with_copies_is_as_many_rows(
    tmp_path: Path, kind: str, rows_per_batch: int, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", shard_bytes)
    # The same row comes several times, with few and many copies.
    matrix, copies = np.repeat(random_matrix(9), 8, axis=0), np.tile([1, 1, 300, 1, 2, 17, 1000, 1, 1], 8)
    report = write(tmp_path, matrix, kind, rows_per_batch, np.zeros(72), copies)
    training = np.arange(72) % 5 != 0
    wanted = np.repeat(matrix[training], copies[training], axis=0)
    assert report["rows"] == copies.sum()
    assert report["hashes"][NEGATIVES] == (np.arange(72) * copies)[training].sum()
    for size in (1, 3):
        parts = [opened(tmp_path, report["files"][NEGATIVES], kind, rank, size) for rank in range(size)]
        together = np.concatenate([to_numpy(part.between(0, len(part))) for part in parts])
        assert np.array_equal(together, wanted)
    files = tuple(ShardFile(*file) for file in report["files"][NEGATIVES])
    index = np.arange(0, len(wanted), 97)
    taken = Shards(str(tmp_path), {NEGATIVES: files}, WIDTH, kind == "sparse").take(NEGATIVES, index)
    assert np.array_equal(to_numpy(taken), wanted[index])


def test_copies_that_would_fill_many_files_are_written_and_mapped_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bspauc_spark.rows.shard_task.SHARD_BYTES", 1000)
    files = write(tmp_path, np.ones((50, WIDTH)), kind, 7, np.ones(50), np.full(50, 200))["files"][POSITIVES]
    assert sum(rows for _, rows, _ in files) == 40 * 200
    assert len(files) > 100
    # A file full of copies and what is left, of training rows and of validation rows.
    assert len(list(tmp_path.iterdir())) <= 4
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 3000
    read = Counter[str]()
    real_map = pa.memory_map

    def watched(path: str) -> Any:
        read[path] += 1
        return real_map(path)

    monkeypatch.setattr(pa, "memory_map", watched)
    assert len(opened(tmp_path, files, kind)) == 40 * 200
    assert set(read.values()) == {1}


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_rows_are_refused_and_their_file_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    ((name, rows, checksum),) = write(tmp_path, random_matrix(60), kind, label=np.ones(60))["files"][POSITIVES]
    data = bytearray((tmp_path / name).read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    else:
        data = data[:-8]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(StagingError, match=f"the staged rows in {name} are damaged"):
        opened(tmp_path, [(name, rows, checksum)], kind)
