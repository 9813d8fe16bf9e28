"""The device on which a worker computes, and the rows on that device."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bspauc_spark.arrays import IntArray
from bspauc_spark.errors import DeviceError
from bspauc_spark.rows.rows import Batch, DenseRows, Rows, SparseBatch, SparseRows
from bspauc_spark.theta import cuda

# θ, its optimizer, activations and a batch need room beside the rows.
_SHARE_FOR_ROWS = 0.5


@dataclass(frozen=True)
class Found:
    """What a process finds of CUDA."""

    count: int
    torch: str
    built: bool

    @classmethod
    def here(cls) -> Found:
        """What this process finds."""
        return cls(cuda.count(), torch.__version__, bool(torch.version.cuda or torch.version.hip))


def choose_device(use_gpu: bool, rank: int = 0, local_rank: int = 0) -> torch.device:
    """The CPU, or the GPU of this rank: the ``local_rank``-th one in CUDA_VISIBLE_DEVICES."""
    if not use_gpu:
        return torch.device("cpu")
    found = Found.here()
    if local_rank >= found.count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DeviceError(no_device(rank, socket.gethostname(), local_rank, visible, found))
    return cuda.device(local_rank)


def no_device(rank: int, host: str, index: int, visible: str | None, found: Found) -> str:
    """The message for a rank that ``found`` no CUDA device ``index``."""
    advice = "Check the driver of the GPU there (nvidia-smi)"
    if not found.built:
        advice = "That torch was built without CUDA: install one built with it for that Python (PYSPARK_PYTHON)"
    return (
        f"useGpu is True, but rank {rank} on host {host} needs CUDA device {index} and torch {found.torch} finds "
        f"{found.count} there (CUDA_VISIBLE_DEVICES={visible!r}). {advice}, or set useGpu=False."
    )


def device_name(index: int) -> str:
    """A name for the ``index``-th visible device: two ranks have the same name only if they share the device."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return f"{socket.gethostname()}/{visible[index] if index < len(visible) else index}"


def place_rows(rows: Mapping[str, Rows], device: torch.device) -> dict[str, Rows]:
    """The rows on the GPU if they fit there; otherwise in host memory, with batches that are pinned one by one."""
    # A sparse batch counts its values in 32 bits, eight bytes each.
    countable = all(one.nbytes < 1 << 34 for one in rows.values() if isinstance(one, SparseRows))
    if countable and sum(one.nbytes for one in rows.values()) <= _SHARE_FOR_ROWS * cuda.free_bytes(device):
        return {name: on_device(one, device) for name, one in rows.items()}
    return {name: PinnedRows(one) for name, one in rows.items()}


def on_device(rows: Rows, device: torch.device) -> Rows:
    """A copy of ``rows`` that lives on ``device``."""
    whole = rows.take(np.arange(len(rows)))
    if isinstance(rows, SparseRows):
        assert isinstance(whole, SparseBatch)
        moved = SparseBatch(*(part.to(device) for part in (whole.indices, whole.values, whole.offsets)))
        return DeviceSparseRows(moved, rows.num_features)
    assert isinstance(rows, DenseRows)
    assert isinstance(whole, Tensor)
    return DeviceDenseRows(whole.to(device))


class DeviceDenseRows(Rows):
    """Dense rows that live on a device. Batches of them are gathered there."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__([len(matrix)])
        self.matrix = matrix
        self.num_features = matrix.shape[1]

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    def take(self, index: IntArray) -> Tensor:
        return self.matrix[torch.from_numpy(index).to(self.matrix.device)]

    def window(self, start: int, stop: int) -> DeviceDenseRows:
        return DeviceDenseRows(self.matrix[start:stop])


class DeviceSparseRows(Rows):
    """Sparse rows that live on a device. Batches of them are gathered there."""

    def __init__(self, rows: SparseBatch, num_features: int) -> None:
        super().__init__([len(rows)])
        self._rows = rows
        ends = torch.cat([rows.offsets[1:].long(), rows.offsets.new_tensor([len(rows.indices)]).long()])
        self._starts_of, self._lengths = rows.offsets.long(), ends - rows.offsets.long()
        self.num_features = num_features

    @property
    def nbytes(self) -> int:
        return self._rows.indices.nbytes + self._rows.values.nbytes + self._rows.offsets.nbytes

    def take(self, index: IntArray) -> SparseBatch:
        chosen = torch.from_numpy(index).to(self._lengths.device)
        lengths = self._lengths[chosen]
        offsets = lengths.cumsum(0) - lengths
        source = torch.repeat_interleave(self._starts_of[chosen] - offsets, lengths)
        source += torch.arange(len(source), device=source.device)
        return SparseBatch(self._rows.indices[source], self._rows.values[source], offsets.int())

    def window(self, start: int, stop: int) -> DeviceSparseRows:
        return DeviceSparseRows(self.take(np.arange(start, stop)), self.num_features)


class PinnedRows(Rows):
    """Rows in host memory. Batches of them are pinned, so that they are copied to the GPU while it computes."""

    def __init__(self, rows: Rows) -> None:
        super().__init__([len(rows)])
        self._rows = rows
        self.num_features = rows.num_features

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def take(self, index: IntArray) -> Batch:
        batch = self._rows.take(index)
        if isinstance(batch, SparseBatch):
            return SparseBatch(*(cuda.pin(t) for t in (batch.indices, batch.values, batch.offsets)))
        return cuda.pin(batch)

    def window(self, start: int, stop: int) -> PinnedRows:
        return PinnedRows(self._rows.window(start, stop))
