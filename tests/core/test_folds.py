"""The fold of a row: a hash of its features alone, the same for every form in which the row may come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from bspauc_spark.rows.folds import FEWEST_ROWS, added, counted, most_folds
from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import SparseBatch
from bspauc_spark.theta.honest import folds_of, keys_of, keys_of_rows
from tests.helpers.rows import as_rows, random_matrix, write

MASK = 2**64 - 1


def splitmix(number: int) -> int:
    """As in Steele, Lea and Flood, by whole numbers of any size."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def key_by_hand(row: list[float], seed: int) -> int:
    total = 0
    for column, value in enumerate(row):
        if value != 0:
            bits = 0x7FC00000 if value != value else int(np.float32(value).view(np.uint32))
            total += splitmix((bits | column << 32) + splitmix(seed))
    return splitmix(total & MASK)


FLOATS = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(width=32, allow_infinity=False)
)


@given(matrix=FLOATS, seed=st.integers(0, MASK))
@settings(max_examples=200, deadline=None)
def test_a_key_is_that_of_the_definition(matrix: np.ndarray, seed: int) -> None:
    expected = [key_by_hand(row, seed) for row in matrix.tolist()]
    assert keys_of(torch.from_numpy(matrix), seed).tolist() == expected


@given(matrix=FLOATS, extra=st.integers(0, 3), seed=st.integers(0, MASK))
@settings(max_examples=200, deadline=None)
def test_sparse_rows_have_the_keys_of_dense_ones(matrix: np.ndarray, extra: int, seed: int) -> None:
    """With some zeros that are written down, in any order."""
    rng = np.random.default_rng(seed)
    columns, values, lengths = [], [], []
    for row in matrix:
        named = np.flatnonzero(row)
        zeros = np.flatnonzero(row == 0)[:extra]
        names = rng.permutation(np.concatenate([named, zeros]))
        columns.append(names)
        values.append(row[names])
        lengths.append(len(names))
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    batch = SparseBatch(
        torch.from_numpy(np.concatenate(columns).astype(np.int32)),
        torch.from_numpy(np.concatenate(values).astype(np.float32)),
        torch.from_numpy(offsets.astype(np.int32)),
    )
    assert np.array_equal(keys_of(batch, seed), keys_of(torch.from_numpy(matrix), seed))


def test_a_negative_zero_is_a_zero_and_every_nan_is_the_same() -> None:
    nans = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], dtype=np.uint32).view(np.float32)
    one = torch.from_numpy(np.stack([np.full(3, 2.0, np.float32), nans], axis=1))
    assert len(set(keys_of(one, 0).tolist())) == 1
    zeros = torch.tensor([[0.0, 1.0], [-0.0, 1.0]])
    assert len(set(keys_of(zeros, 0).tolist())) == 1
    assert keys_of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0).tolist()[0] != keys_of(zeros, 0).tolist()[0]


@pytest.mark.parametrize("sparse", [False, True])
def test_folds_are_of_equal_size_independent_of_labels_and_of_the_seed(sparse: bool) -> None:
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(30_000, 4)).astype(np.float32)
    rows, positive = as_rows(matrix, sparse), matrix[:, 0] > 1
    folds, other = folds_of(rows, 3, seed=1), folds_of(rows, 3, seed=2)
    assert stats.chisquare(np.bincount(folds)).pvalue > 1e-4
    assert stats.chi2_contingency(np.histogram2d(folds, positive, (3, 2))[0]).pvalue > 1e-4
    assert stats.chi2_contingency(np.histogram2d(folds, other, (3, 3))[0]).pvalue > 1e-4


@pytest.mark.parametrize("sparse", [False, True])
def test_a_staging_task_counts_the_rows_of_all_folds(sparse: bool, tmp_path: Path) -> None:
    matrix, label = random_matrix(400), np.arange(400) % 3 == 0
    copies = np.where(np.arange(400) % 50 == 0, 7, 1)
    kind = "sparse" if sparse else "dense"
    report = write(tmp_path, matrix, kind, rows_per_batch=90, label=label, copies=copies, folds=4, fold_seed=9)
    training = np.arange(400) % 5 != 0
    for name, chosen in ((POSITIVES, label & training), (NEGATIVES, ~label & training)):
        keys = [key_by_hand(row, 9) for row in matrix[chosen].tolist()]
        expected = [np.bincount([key % n for key in keys], copies[chosen], n).tolist() for n in (2, 3, 4)]
        assert report["folds"][name] == expected


def test_counts_are_added_fold_by_fold() -> None:
    first, second = (counted(keys_of_rows(as_rows(random_matrix(80, seed), True), 5), 3) for seed in (1, 2))
    both = counted(keys_of_rows(as_rows(np.concatenate([random_matrix(80, 1), random_matrix(80, 2)]), False), 5), 3)
    assert added(first, second) == both
    assert added(first) == first


def test_as_many_folds_as_have_rows_of_both_classes() -> None:
    enough, few = FEWEST_ROWS, FEWEST_ROWS - 1
    plenty = [[99] * 2, [99] * 3, [99] * 4]
    assert most_folds(4, {POSITIVES: plenty, NEGATIVES: plenty}) == 4
    assert most_folds(4, {POSITIVES: [[9, 9], [enough] * 3, [9, 9, 9, few]], NEGATIVES: plenty}) == 3
    assert most_folds(4, {POSITIVES: plenty, NEGATIVES: [[enough, 9], [9, few, 9], [9, few, 9, 9]]}) == 2
    assert most_folds(4, {POSITIVES: [[few, 9], [9] * 3, [9, few, 9, 9]], NEGATIVES: plenty}) == 3
    assert most_folds(2, {POSITIVES: [[few, 9]], NEGATIVES: plenty}) == 0
