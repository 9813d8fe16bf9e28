"""How the workers of a launch act as one: what they add up, what they send to rank 0, and what rank 0 sends them."""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from bspauc_spark.arrays import IntArray
from bspauc_spark.rows.rows import SparseBatch
from bspauc_spark.theta import cuda
from bspauc_spark.theta.first_layer import sums

AnyArray: TypeAlias = npt.NDArray[Any]

# A collective waits at most as long as another rank needs for its share of the same work, or until rank 0 says
# "nothing yet" again.
_TIMEOUT = datetime.timedelta(minutes=10)


class PeerLostError(RuntimeError):
    """Another worker was lost in the middle of common work."""


class Group(Protocol):
    """The workers of a launch, as one of them sees the others."""

    rank: int
    size: int

    def counts(self, own: int) -> IntArray:
        """The number ``own`` of every rank."""

    def join(self, own: Tensor, places: Tensor, length: int) -> Tensor:
        """Values or rows from all ranks: each rank puts ``own`` at its ``places``, which no other rank fills."""

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over the ranks. A rank without a gradient adds nothing."""

    def sum_rows(self, named: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the rows of a table over the ranks: the numbers of the rows, ascending, and the sum for each."""

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Replace the values by those of rank 0."""

    def gather(self, own: Sequence[AnyArray]) -> list[AnyArray]:
        """On rank 0 each 1-d array with the values of all ranks, in rank order. Other ranks get empty arrays."""

    def share(self, data: bytes) -> bytes:
        """Give the bytes of rank 0 to every rank."""


class Alone:
    """A worker that is alone, and has nothing to exchange."""

    rank, size = 0, 1

    def counts(self, own: int) -> IntArray:
        """``own`` alone."""
        return np.array([own], dtype=np.int64)

    def join(self, own: Tensor, places: Tensor, length: int) -> Tensor:
        """``own``, which fills every place."""
        return own

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def sum_rows(self, named: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing to add."""
        return named, rows

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to take over."""

    def gather(self, own: Sequence[AnyArray]) -> list[AnyArray]:
        """``own`` alone."""
        return list(own)

    def share(self, data: bytes) -> bytes:
        """``data`` itself."""
        return data


class TorchGroup:
    """The ranks of a torch process group: gloo between CPUs, nccl between GPUs."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @classmethod
    @contextlib.contextmanager
    def connected(cls, use_gpu: bool, **where: Any) -> Iterator[TorchGroup]:
        """Connect to the other ranks, by default where torchrun's environment says; disconnect if all went well.

        After a failure the process ends with its connections open: no other rank must see a lost peer before the
        reason is told.
        """
        # Optimizers import this module when they are made. If it is imported while there is a group, it keeps the group
        # for ever, and with it gloo's threads, which may abort the process as Python ends.
        importlib.import_module("torch._dynamo")
        backend = cuda.BACKEND if use_gpu else "gloo"
        with _peers():
            dist.init_process_group(backend, timeout=_TIMEOUT, **where)
        yield cls()
        dist.destroy_process_group()

    def counts(self, own: int) -> IntArray:
        """The number ``own`` of every rank."""
        return self._counts([own])[:, 0]

    def _counts(self, own: Sequence[int]) -> IntArray:
        """One row of numbers from every rank."""
        counts = torch.zeros(self.size, len(own), dtype=torch.int64)
        counts[self.rank] = torch.tensor(own)
        with _peers():
            dist.all_reduce(counts)
        return counts.numpy()

    def join(self, own: Tensor, places: Tensor, length: int) -> Tensor:
        """Values or rows from all ranks. At each place all ranks but one add a zero, so the sum is exact."""
        joined = own.new_zeros(length, *own.shape[1:])
        joined[places] = own
        with _peers():
            dist.all_reduce(joined)
        return joined

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum all gradients over the ranks, by one exchange."""
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in own])
        with _peers():
            dist.all_reduce(flat)
        for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def sum_rows(self, named: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """One exchange of numbers and rows, padded to the longest. All ranks add in rank order: the same bits."""
        counts = self.counts(len(named)).tolist()
        own = rows.new_zeros(max(counts), 1 + rows.shape[1])
        own[: len(named), 0] = named.int().view(torch.float32)
        own[: len(named), 1:] = rows
        every = [torch.empty_like(own) for _ in range(self.size)]
        with _peers():
            dist.all_gather(every, own)
        joined = torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])
        numbers, order = torch.sort(joined[:, 0].contiguous().view(torch.int32), stable=True)
        union, times = torch.unique_consecutive(numbers, return_counts=True)
        own_rows = SparseBatch(order, rows.new_ones(len(order)), times.cumsum(0) - times)
        return union, sums(own_rows, joined[:, 1:].contiguous())

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Replace the values by those of rank 0: different types of CPU round differently."""
        with _peers():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def gather(self, own: Sequence[AnyArray]) -> list[AnyArray]:
        """All values on rank 0, by one message of each rank, padded because gloo gathers equal lengths only."""
        counts = self._counts([array.nbytes for array in own])
        longest = int(counts.sum(axis=1).max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: sum(array.nbytes for array in own)] = torch.from_numpy(
            np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in own])
        )
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)] if self.rank == 0 else None
        with _peers():
            dist.gather(padded, parts, dst=0)
        if parts is None:
            return [np.empty(0, dtype=array.dtype) for array in own]
        cut = [np.split(part.numpy(), row) for part, row in zip(parts, counts.cumsum(axis=1), strict=True)]
        return [np.concatenate([pieces[k] for pieces in cut]).view(array.dtype) for k, array in enumerate(own)]

    def share(self, data: bytes) -> bytes:
        """Give the bytes of rank 0 to every rank."""
        length = int(self.counts(len(data) if self.rank == 0 else 0)[0])
        if not length:
            return b""
        buffer = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with _peers():
            dist.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """Turn what a collective raises into a ``PeerLostError``: another rank is gone, hangs, or was never there."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error)) from error
