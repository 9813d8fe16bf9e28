"""What a fit finds in its rows before θ is made: scales and columns, the same however many workers share the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch
from torch import Tensor

from bspauc_spark.arrays import Float32Array
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import Rows, SparseBatch, SparseRows
from bspauc_spark.theta.group import AnyArray, Group
from bspauc_spark.theta.inputs import (
    LARGEST_KNOT,
    MOST_DENSE_COLUMNS,
    MOST_KNOTS,
    REACH,
    DenseInputs,
    Inputs,
    SparseInputs,
    as_dense,
)
from bspauc_spark.theta.sample import in_sample

# What is looked at: rows of both classes in their natural proportions, fewer of wide ones, and knots of all columns.
_SAMPLE_ROWS, _FEWEST_ROWS, _SAMPLE_VALUES = 20_000, 500, 20_000_000
_ALL_KNOTS, _FEWEST_KNOTS = 1 << 20, 16
# Sparse columns whose largest value is between these stay as they are: flags, small counts, weights of words.
_SMALL, _LARGE = 0.01, 10.0
_MOST_EXPONENT = 120


def find_inputs(rows: Mapping[str, Rows], group: Group, seed: int) -> Inputs:
    """The scales of all ranks' training rows, on every rank."""
    training = [rows[POSITIVES], rows[NEGATIVES]]
    num_features = training[0].num_features
    sparse = [one for one in training if isinstance(one, SparseRows)]
    wide = len(sparse) == len(training) and num_features > MOST_DENSE_COLUMNS
    found = _divisors(sparse, group) if wide else _of_sample(training, group, seed)
    shared = group.share(safetensors.numpy.save(found) if group.rank == 0 else b"")
    arrays = safetensors.numpy.load(shared)
    return (SparseInputs if wide else DenseInputs)(arrays, num_features)


def used_columns(rows: Mapping[str, Rows], group: Group) -> Tensor | None:
    """The features that occur in any rank's training rows, where these are sparse."""
    own = [rows[name].columns() for name in (POSITIVES, NEGATIVES)]
    if any(columns is None for columns in own):
        return None
    (every,) = group.gather([np.unique(np.concatenate([c for c in own if c is not None]))])
    shared = np.frombuffer(group.share(np.unique(every).tobytes()), dtype=np.int32)
    # One at least: what is not in the layer is looked up somewhere too, with a value of 0.
    return torch.from_numpy(shared.copy() if len(shared) else np.zeros(1, dtype=np.int32))


def _of_sample(training: Sequence[Rows], group: Group, seed: int) -> dict[str, AnyArray]:
    num_features = training[0].num_features
    most = min(_SAMPLE_ROWS, max(_FEWEST_ROWS, _SAMPLE_VALUES // num_features))
    counts = [group.counts(len(one)) for one in training]
    every = sum(int(count.sum()) for count in counts)
    parts = []
    for number, (one, count) in enumerate(zip(training, counts, strict=True)):
        total = int(count.sum())
        wanted = max(1, round(most * total / every)) if every > most else total
        chosen = in_sample(int(count[: group.rank].sum()), len(one), total, wanted, seed + number)
        batch = one.take(np.flatnonzero(chosen))
        matrix = as_dense(batch, num_features) if isinstance(batch, SparseBatch) else batch
        parts.append(matrix.numpy().ravel())
    gathered = np.concatenate(group.gather(parts))
    return of_columns(gathered.reshape(-1, num_features)) if group.rank == 0 else {}


def of_columns(matrix: Float32Array) -> dict[str, AnyArray]:
    """The arrays of ``DenseInputs``, from rows of which NaN are gaps. Every row counts alike."""
    most = MOST_KNOTS
    while most > _FEWEST_KNOTS and most * matrix.shape[1] > _ALL_KNOTS:
        most //= 2
    numbers, pairs, gaps = list[int](), list[int](), list[int]()
    scales, tables, ends = list[tuple[float, float]](), list[tuple[Float32Array, Float32Array]](), list[Float32Array]()
    for column, every in enumerate(np.ascontiguousarray(matrix.T)):
        there = every[~np.isnan(every)]
        if len(there) < len(every):
            gaps.append(column)
        values, counts = np.unique(there.clip(-LARGEST_KNOT, LARGEST_KNOT), return_counts=True)
        if len(values) == 2:
            pairs.append(column)
            ends.append(values)
        elif len(values) > 2:
            numbers.append(column)
            scales.append(_scale(values, counts))
            tables.append(_knots(values, counts, most))
    if not (numbers or pairs or gaps):
        # No column tells rows apart. A network without any input would be a special case everywhere.
        pairs, ends = [0], [np.array([matrix[0, 0], matrix[0, 0] + 1], dtype=np.float32)]
    size = 2
    while size < max((len(knots) for knots, _ in tables), default=0):
        size *= 2
    knots, ranks = (
        np.array([np.pad(table[part], (0, size - len(table[part])), "edge") for table in tables], dtype=np.float32)
        for part in (0, 1)
    )
    center, spread = np.array(scales, dtype=np.float32).reshape(-1, 2).T
    low, high = np.array(ends, dtype=np.float32).reshape(-1, 2).T
    return {
        "numbers": np.array(numbers, dtype=np.int32),
        "center": np.ascontiguousarray(center),
        "spread": np.maximum(spread, np.finfo(np.float32).tiny),
        "knots": knots.reshape(-1, size),
        "ranks": ranks.reshape(-1, size),
        "pairs": np.array(pairs, dtype=np.int32),
        "low": np.ascontiguousarray(low),
        # As a batch computes it, so that the higher value becomes 1 exactly.
        "width": high - low,
        "gaps": np.array(gaps, dtype=np.int32),
    }


def _scale(values: Float32Array, counts: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Median and interquartile range, or half the whole range where that is 0."""
    every = np.repeat(values.astype(np.float64), counts)
    low, median, high = np.quantile(every, [0.25, 0.5, 0.75])
    return float(median), float(high - low) or float(every[-1] - every[0]) / 2


def _knots(values: Float32Array, counts: npt.NDArray[np.int64], most: int) -> tuple[Float32Array, Float32Array]:
    """At most so many of the values, and the normal quantiles of their ranks; equal values share their mean rank."""
    ends = np.cumsum(counts)
    chosen = np.arange(len(values))
    if len(values) > most:
        ranks = np.linspace(0, ends[-1] - 1, most).round().astype(np.int64)
        chosen = np.unique(np.searchsorted(ends, ranks, side="right"))
    shares = torch.from_numpy((ends - counts / 2)[chosen] / ends[-1])
    quantiles = torch.special.ndtri(shares).clamp(-REACH, REACH).numpy()
    return values[chosen], quantiles.astype(np.float32)


def _divisors(training: Sequence[SparseRows], group: Group) -> dict[str, AnyArray]:
    """A power of two near the mean magnitude, of columns that need it. Sums of exponents are exact in any order."""
    parts = [(columns[p[0] : p[-1]], values[p[0] : p[-1]]) for one in training for p, columns, values in one.parts]
    nothing = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))
    own = [_magnitudes(*part) for part in (nothing, *parts)]
    together = _merged([np.concatenate(part) for part in zip(*own, strict=True)])
    columns, largest, exponents, counts = _merged(group.gather(together))
    needed = (largest > _LARGE) | (largest < _SMALL)
    mean = np.rint(exponents[needed] / counts[needed]).clip(-_MOST_EXPONENT, _MOST_EXPONENT)
    return {"scaled": columns[needed], "divisors": np.exp2(mean).astype(np.float32)}


def _magnitudes(columns: npt.NDArray[np.int32], values: Float32Array) -> list[AnyArray]:
    there = np.isfinite(values) & (values != 0)
    magnitudes = np.abs(values[there])
    exponents = np.frexp(magnitudes)[1].astype(np.int64)
    return _merged([columns[there], magnitudes, exponents, np.ones(len(magnitudes), dtype=np.int64)])


def _merged(parts: Sequence[AnyArray]) -> list[AnyArray]:
    """For each column once: its largest value, and the sums of exponents and of counts."""
    columns, largest, exponents, counts = parts
    order = np.argsort(columns, kind="stable")
    found, starts = np.unique(columns[order], return_index=True)
    if not len(found):
        return list(parts)
    return [
        found,
        np.maximum.reduceat(largest[order], starts),
        np.add.reduceat(exponents[order], starts),
        np.add.reduceat(counts[order], starts),
    ]
