"""Rows of features in the form that a network takes: dense or sparse, in memory or mapped from Arrow shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bspauc_spark.arrays import Float32Array, IntArray, ranges


@dataclass(frozen=True)
class SparseBatch:
    """Rows in compressed form: row ``i`` has ``values[offsets[i]:offsets[i + 1]]`` in the columns ``indices[…]``."""

    indices: Tensor
    values: Tensor
    offsets: Tensor
    product: Tensor | None = None
    """The rows times the first layer's weights, where that is known already."""

    def __len__(self) -> int:
        return len(self.offsets)

    def owners(self) -> Tensor:
        """The row of each value."""
        ends = torch.cat([self.offsets[1:], self.offsets.new_tensor([len(self.indices)])])
        return torch.repeat_interleave(torch.arange(len(self), device=ends.device), ends - self.offsets)


Batch: TypeAlias = Tensor | SparseBatch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on ``device``. From pinned memory it is copied while the device computes."""
    if isinstance(batch, SparseBatch):
        parts = (batch.indices, batch.values, batch.offsets)
        return SparseBatch(*(part.to(device, non_blocking=True) for part in parts))
    return batch.to(device, non_blocking=True)


def concat(*batches: Batch) -> Batch:
    """The rows of one or more batches, one batch after the other."""
    sparse = [batch for batch in batches if isinstance(batch, SparseBatch)]
    if not sparse:
        return torch.cat([batch for batch in batches if isinstance(batch, Tensor)])
    assert len(sparse) == len(batches)
    starts = accumulate((len(batch.indices) for batch in sparse), initial=0)
    return SparseBatch(
        torch.cat([batch.indices for batch in sparse]),
        torch.cat([batch.values for batch in sparse]),
        torch.cat([batch.offsets + start for batch, start in zip(sparse, starts, strict=False)]),
    )


def pad(batch: Batch, rows: int) -> Batch:
    """``batch`` with empty rows appended until it has ``rows`` rows."""
    missing = rows - len(batch)
    if missing <= 0:
        return batch
    if isinstance(batch, SparseBatch):
        end = batch.offsets.new_full((missing,), len(batch.indices))
        return SparseBatch(batch.indices, batch.values, torch.cat([batch.offsets, end]))
    return torch.cat([batch, batch.new_zeros(missing, batch.shape[1])])


class Rows(ABC):
    """The rows of one kind, in several parts that are read as if they were one."""

    num_features: int

    def __init__(self, counts: Sequence[int]) -> None:
        self._starts: IntArray = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes the rows take."""

    def columns(self) -> npt.NDArray[np.int32] | None:
        """The features that occur in any of the rows, in ascending order; None for dense rows, in which all occur."""
        return None

    @abstractmethod
    def take(self, index: IntArray) -> Batch:
        """The rows at ``index``, in that order."""

    @abstractmethod
    def window(self, start: int, stop: int) -> Rows:
        """The rows ``start … stop − 1`` as an object of their own, without copying them."""

    def between(self, start: int, stop: int) -> Batch:
        """The rows ``start … stop − 1``."""
        return self.take(np.arange(start, min(stop, len(self))))

    def _by_part(self, index: IntArray) -> list[tuple[int, IntArray, IntArray]]:
        """Split ``index`` by part: (number of the part, places in the result, rows within the part)."""
        if len(self._starts) == 2:
            return [(0, np.arange(len(index)), index)]
        part = np.searchsorted(self._starts, index, side="right") - 1
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(len(self._starts)))
        return [
            (number, order[a:b], index[order[a:b]] - self._starts[number])
            for number, (a, b) in enumerate(pairwise(ends))
            if b > a
        ]

    def _cut(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The parts that hold the rows ``start … stop − 1``: (part, first row, row after the last)."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        numbers = range(max(first, 0), min(last, len(self._starts) - 1))
        starts = self._starts
        cuts = ((n, max(start - int(starts[n]), 0), int(min(stop, starts[n + 1]) - starts[n])) for n in numbers)
        return [(number, begin, end) for number, begin, end in cuts if end > begin]


class DenseRows(Rows):
    """Dense float32 rows."""

    def __init__(self, parts: Sequence[Float32Array], num_features: int) -> None:
        super().__init__([len(part) for part in parts])
        self.parts = list(parts)
        self.num_features = num_features

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def window(self, start: int, stop: int) -> DenseRows:
        return DenseRows([self.parts[i][a:b] for i, a, b in self._cut(start, stop)], self.num_features)

    def between(self, start: int, stop: int) -> Tensor:
        cuts = self._cut(start, min(stop, len(self)))
        return torch.from_numpy(
            np.concatenate([np.empty((0, self.num_features), np.float32), *(self.parts[i][a:b] for i, a, b in cuts)])
        )

    def take(self, index: IntArray) -> Tensor:
        out: Float32Array = np.empty((len(index), self.num_features), dtype=np.float32)
        for number, places, rows in self._by_part(index):
            if len(places) == len(index):
                np.take(self.parts[number], rows, axis=0, out=out)
            else:
                out[places] = self.parts[number][rows]
        return torch.from_numpy(out)


class SparseRows(Rows):
    """Sparse float32 rows: parts of (row pointers, column indices, values)."""

    def __init__(
        self, parts: Sequence[tuple[IntArray, npt.NDArray[np.int32], Float32Array]], num_features: int
    ) -> None:
        super().__init__([len(pointers) - 1 for pointers, _, _ in parts])
        self.parts = list(parts)
        self.num_features = num_features

    @property
    def nbytes(self) -> int:
        stored = sum(int(pointers[-1] - pointers[0]) for pointers, _, _ in self.parts)
        return 8 * stored + 8 * len(self)

    def columns(self) -> npt.NDArray[np.int32]:
        found = [np.unique(columns[pointers[0] : pointers[-1]]) for pointers, columns, _ in self.parts]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int32), *found]))

    def window(self, start: int, stop: int) -> SparseRows:
        parts = ((self.parts[i], a, b) for i, a, b in self._cut(start, stop))
        return SparseRows([(p[a : b + 1], columns, values) for (p, columns, values), a, b in parts], self.num_features)

    def take(self, index: IntArray) -> SparseBatch:
        split = self._by_part(index)
        lengths = np.zeros(len(index), dtype=np.int64)
        for number, places, rows in split:
            pointers = self.parts[number][0]
            lengths[places] = pointers[rows + 1] - pointers[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        indices = np.empty(offsets[-1], dtype=np.int32)
        values: Float32Array = np.empty(offsets[-1], dtype=np.float32)
        for number, places, rows in split:
            pointers, part_indices, part_values = self.parts[number]
            source = ranges(pointers[rows], lengths[places])
            target = ranges(offsets[places], lengths[places])
            indices[target] = part_indices[source]
            values[target] = part_values[source]
        return SparseBatch(
            torch.from_numpy(indices),
            torch.from_numpy(values),
            torch.from_numpy(offsets[:-1].astype(np.int32)),
        )
