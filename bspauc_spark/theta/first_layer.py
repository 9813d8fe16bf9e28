"""The first layer of a network, for dense and for sparse rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bspauc_spark.rows.rows import Batch, SparseBatch

_SAFE_COLUMNS = 16
# At most so many features get an entry in a lookup table: a file may claim any number of features.
_MOST_PLACES, _MOST_PLACES_PER_COLUMN = 1 << 24, 64


def affine(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x W + b``, with the same last bits wherever a row stands in its chunk.

    With 2 to 11 columns the order in which MKL sums depends on the place of the row. 16 columns, filled with zeros, are
    safe.
    """
    width = weight.shape[1]
    if not 1 < width < _SAFE_COLUMNS:
        return torch.addmm(bias, rows, weight)
    missing = (0, _SAFE_COLUMNS - width)
    return torch.addmm(nn.functional.pad(bias, missing), rows, nn.functional.pad(weight, missing))[:, :width]


def sums(rows: SparseBatch, table: Tensor) -> Tensor:
    """``x T`` for each row ``x``: the sum of the rows of ``table`` that ``x`` names, times its values."""
    return nn.functional.embedding_bag(rows.indices, table, rows.offsets, mode="sum", per_sample_weights=rows.values)


class FirstLayer(nn.Module):
    """``x W + b`` for dense and sparse ``x``. Sparse rows read only those rows of ``W`` whose features they have.

    With ``columns``, in ascending order, ``W`` has a row for each of these features, and other features are ignored:
    most of ten million hashed features occur in no row.
    """

    columns: Tensor | None

    def __init__(self, num_features: int, width: int, columns: Tensor | None = None) -> None:
        super().__init__()
        self.num_features = num_features
        self.weight = nn.Parameter(torch.empty(num_features if columns is None else len(columns), width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("columns", columns)
        self._positions: Tensor | None = None

    def forward(self, rows: Batch) -> Tensor:
        """``x W + b`` for each of ``rows``."""
        if isinstance(rows, SparseBatch):
            product = rows.product
            if product is None:
                product = sums(self.named(rows), self.weight)
            return product + self.bias
        if self.columns is not None:
            rows = rows[:, self.columns]
        return affine(rows, self.weight, self.bias)

    def whole(self) -> Tensor:
        """``W`` with a row for every feature."""
        if self.columns is None:
            return self.weight
        return self.weight.new_zeros(self.num_features, self.weight.shape[1]).index_copy(
            0, self.columns.long(), self.weight
        )

    def named(self, rows: SparseBatch) -> SparseBatch:
        """The same rows, with each feature's number replaced by the number of its row in ``W``."""
        if self.columns is None:
            return rows
        if self.num_features > max(_MOST_PLACES, _MOST_PLACES_PER_COLUMN * len(self.columns)):
            found = torch.searchsorted(self.columns, rows.indices, out_int32=True).clamp_max_(len(self.columns) - 1)
            known = self.columns.index_select(0, found) == rows.indices
            return SparseBatch(found, rows.values * known, rows.offsets)
        if self._positions is None or self._positions.device != self.columns.device:
            # A table of four bytes for each feature; to search in the columns would take ten times as long.
            table = torch.full((self.num_features,), -1, dtype=torch.int32, device=self.columns.device)
            table[self.columns] = torch.arange(len(self.columns), dtype=torch.int32, device=self.columns.device)
            self._positions = table
        positions = self._positions.index_select(0, rows.indices)
        known = positions >= 0
        return SparseBatch(positions.clamp_min_(0), rows.values * known, rows.offsets)
