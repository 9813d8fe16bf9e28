"""Where a worker computes: the choice of the device, and rows that live on it. The CPU stands in for a GPU."""

from __future__ import annotations

import socket
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import sparse

from bspauc_spark.cluster.rank import _refuse_shared_device
from bspauc_spark.errors import DeviceError
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows, Rows, SparseBatch, SparseRows
from bspauc_spark.theta import cuda
from bspauc_spark.theta.device import (
    DeviceDenseRows,
    DeviceSparseRows,
    PinnedRows,
    choose_device,
    device_name,
    on_device,
    place_rows,
)
from bspauc_spark.theta.group import Alone
from bspauc_spark.theta.networks import NetworkSpec
from bspauc_spark.theta.optimizers import TrainingSettings
from bspauc_spark.theta.worker import Worker


def dense_rows() -> DenseRows:
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    return DenseRows([x[:20], x[20:]], 4)


def sparse_rows() -> SparseRows:
    x = sparse.random(50, 30, 0.1, format="csr", random_state=0, dtype=np.float32)
    parts = [x[:20], x[20:]]
    return SparseRows([(p.indptr.astype(np.int64), p.indices.astype(np.int32), p.data) for p in parts], 30)


def table(batch: torch.Tensor | SparseBatch, width: int) -> np.ndarray:
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    pointers = np.append(batch.offsets.numpy(), len(batch.indices))
    return sparse.csr_matrix((batch.values.numpy(), batch.indices.numpy(), pointers), (len(batch), width)).toarray()


INDEX = np.array([49, 0, 7, 7, 19, 20, 21])


@pytest.mark.parametrize("rows", [dense_rows(), sparse_rows()], ids=["dense", "sparse"])
def test_rows_on_a_device_give_the_same_batches(rows: Rows) -> None:
    moved = on_device(rows, torch.device("cpu"))
    assert len(moved) == len(rows)
    wanted = table(rows.take(INDEX), rows.num_features)
    assert np.array_equal(table(moved.take(INDEX), rows.num_features), wanted)
    assert np.array_equal(
        table(moved.window(5, 30).between(3, 9), rows.num_features), table(rows.between(8, 14), rows.num_features)
    )
    assert len(moved.take(np.empty(0, np.int64))) == 0


@pytest.mark.parametrize("rows", [dense_rows(), sparse_rows()], ids=["dense", "sparse"])
@pytest.mark.parametrize(("start", "stop"), [(0, 50), (0, 20), (5, 18), (15, 33), (20, 50), (25, 25)], ids=str)
def test_a_window_is_those_rows_and_no_others(rows: Rows, start: int, stop: int) -> None:
    window = rows.window(start, stop)
    assert len(window) == stop - start
    everything = table(rows.between(0, 50), rows.num_features)
    found = table(window.take(np.arange(len(window))), rows.num_features)
    assert np.array_equal(found.reshape(-1, rows.num_features), everything[start:stop])


def test_windows_of_all_ranks_are_all_rows_once() -> None:
    rows = sparse_rows()
    for size in (1, 2, 3, 7, 60):
        cuts = [(rank * 50 // size, (rank + 1) * 50 // size) for rank in range(size)]
        assert sum(len(rows.window(*cut)) for cut in cuts) == 50


def test_rows_go_to_the_gpu_if_they_fit_in_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[str, Rows] = {"positives": dense_rows(), "negatives": sparse_rows()}
    size = sum(one.nbytes for one in rows.values())
    monkeypatch.setattr(cuda, "free_bytes", lambda _: 2 * size)
    placed = place_rows(rows, torch.device("meta"))
    assert isinstance(placed["positives"], DeviceDenseRows)
    assert isinstance(placed["negatives"], DeviceSparseRows)
    assert placed["positives"].matrix.device == torch.device("meta")
    monkeypatch.setattr(cuda, "free_bytes", lambda _: 2 * size - 1)
    assert all(isinstance(one, PinnedRows) for one in place_rows(rows, torch.device("meta")).values())


@pytest.mark.parametrize("rows", [dense_rows(), sparse_rows()], ids=["dense", "sparse"])
def test_every_part_of_a_batch_is_pinned_and_none_of_the_other_rows(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(cuda, "pin", lambda tensor: pinned.append(tensor) or tensor.clone())
    wanted = rows.take(INDEX)
    found = PinnedRows(rows).window(0, 50).take(INDEX)
    assert np.array_equal(table(found, rows.num_features), table(wanted, rows.num_features))
    assert len(pinned) == (1 if isinstance(wanted, torch.Tensor) else 3)
    assert sum(tensor.nbytes for tensor in pinned) < rows.nbytes / 2


def test_the_worker_places_its_rows_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "free_bytes", lambda _: 1 << 30)
    rows: dict[str, Rows] = {POSITIVES: dense_rows(), NEGATIVES: dense_rows()}
    spec = NetworkSpec("mlp", 4, (3,))
    settings = TrainingSettings("sgd", 0.1, 4, 1, 0.0, "all", 0.0, 0)
    on_cpu = Worker(rows, spec, settings)
    on_gpu = Worker(rows, spec, replace(settings, on_gpu=True))
    assert on_cpu.rows == rows
    assert all(isinstance(one, DeviceDenseRows) for one in on_gpu.rows.values())
    for name in (POSITIVES, NEGATIVES):
        assert np.array_equal(on_cpu.scores()[name], on_gpu.scores()[name])


def test_without_use_gpu_the_device_is_the_cpu() -> None:
    assert choose_device(False, rank=3, local_rank=1) == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named_with_rank_host_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(DeviceError) as caught:
        choose_device(True, rank=5, local_rank=0)
    message = str(caught.value)
    assert f"rank 5 on host {socket.gethostname()} needs CUDA device 0" in message
    assert "CUDA_VISIBLE_DEVICES='3'" in message
    assert "set useGpu=False" in message


def test_the_gpu_is_an_index_within_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")
    assert choose_device(True, rank=9, local_rank=1) == torch.device("cuda:1")
    assert device_name(1).endswith("/3")
    with pytest.raises(DeviceError, match=r"needs CUDA device 2 and torch .* finds 2"):
        choose_device(True, rank=9, local_rank=2)


class Second(Alone):
    """Rank 1 of two, the other one with a device of the name ``other``."""

    rank, size = 1, 2

    def __init__(self, other: str) -> None:
        self.other = other

    def counts(self, own: int) -> np.ndarray:
        return np.array([zlib.crc32(self.other.encode()), own])


def test_two_ranks_on_one_device_are_refused_at_the_meeting_too() -> None:
    _refuse_shared_device(Second("alpha/0"), "alpha/1")
    with pytest.raises(DeviceError, match=r"rank 1 shares GPU alpha/0 .* set spark.task.resource.gpu.amount to 1"):
        _refuse_shared_device(Second("alpha/0"), "alpha/0")


def test_gradients_go_by_nccl_and_control_by_gloo() -> None:
    assert dist.BackendConfig(dist.Backend(cuda.BACKEND)).get_device_backend_map() == {"cpu": "gloo", "cuda": "nccl"}


def test_dense_rows_on_a_device_know_their_size() -> None:
    assert DeviceDenseRows(torch.zeros(3, 2)).nbytes == 24
