"""Columns on the scales that a fit finds, against sklearn and scipy, in every form and order of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse, stats
from sklearn.preprocessing import QuantileTransformer, RobustScaler

from bspauc_spark.rows.kinds import NEGATIVES, POSITIVES
from bspauc_spark.rows.rows import DenseRows, Rows, SparseBatch, SparseRows
from bspauc_spark.theta.find_inputs import find_inputs, of_columns
from bspauc_spark.theta.group import Alone
from bspauc_spark.theta.inputs import DenseInputs, Inputs, SparseInputs
from tests.helpers.rows import as_rows, compressed, dense

WIDE = 1500


def prepared(matrix: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """The inputs of ``rows``, by the scales of the rows of ``matrix``."""
    given = (matrix if rows is None else rows).astype(np.float32)
    inputs = DenseInputs(of_columns(matrix.astype(np.float32)), matrix.shape[1])
    return inputs(torch.from_numpy(given)).numpy()


def numbers(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [rng.normal(size=rows), 10 + np.exp(3 * rng.normal(size=rows)), rng.uniform(-1e-3, 0, rows)], 1
    ).astype(np.float32)


def clipped(z: np.ndarray) -> np.ndarray:
    return z / np.sqrt(1 + (z / 3) ** 2)


def test_ranks_of_few_rows_are_the_normal_quantiles_of_their_ranks() -> None:
    x = np.round(numbers(700), 2)  # With ties, which share their mean rank.
    x = x[:, :2].astype(np.float32)
    wanted = stats.norm.ppf((stats.rankdata(x, method="average", axis=0) - 0.5) / len(x)).clip(-3, 3)
    np.testing.assert_allclose(prepared(x)[:, :2], wanted, atol=1e-5)


def test_ranks_of_many_rows_are_those_of_sklearn_also_for_new_rows() -> None:
    x, new = numbers(20_000), numbers(3000, seed=1)
    theirs = QuantileTransformer(n_quantiles=1000, output_distribution="normal", subsample=None).fit(x)
    wanted = theirs.transform(new).clip(-3, 3)
    found, inner = prepared(x, new)[:, :3], np.abs(wanted) < 2
    np.testing.assert_allclose(found[inner], wanted[inner], atol=6e-3)
    # Farther out a few rows of the sample decide, and two ways of counting them differ.
    np.testing.assert_allclose(found, wanted, atol=0.05)


def test_a_value_that_is_repeated_often_has_the_rank_in_the_middle_of_its_rows() -> None:
    x = numbers(5000)[:, :1].clip(0, None)  # Half of them are 0.
    zeros = (x == 0).mean()
    found = prepared(x)[:, 0]
    assert found[x[:, 0] == 0] == pytest.approx(stats.norm.ppf(zeros / 2), abs=1e-4)
    assert (found[x[:, 0] > 0.01] > stats.norm.ppf(zeros)).all()
    order = np.argsort(x[:, 0], kind="stable")
    assert (np.diff(found[order]) >= -1e-6).all()


def test_the_other_copy_is_that_of_sklearn_with_a_smooth_limit() -> None:
    x = numbers(3000)
    wanted = clipped(RobustScaler().fit(x).transform(x))
    np.testing.assert_allclose(prepared(x)[:, 3:], wanted, rtol=1e-3, atol=1e-4)


def test_where_most_rows_agree_half_the_range_is_the_scale() -> None:
    x = np.zeros((1000, 1))
    x[:40, 0], x[40:50, 0] = 5.0, -3.0
    assert prepared(x)[[0, 45, 999], 1] == pytest.approx(clipped(np.array([5 / 4, -3 / 4, 0.0])), abs=1e-6)


def test_two_values_are_minus_1_and_1_however_rare_and_others_approach_a_limit() -> None:
    x = np.array([[0.1], [0.7]]).repeat([3, 997], axis=0)
    assert np.array_equal(np.unique(prepared(x)), [-1.0, 1.0])
    between, beyond, far, below = prepared(x, np.array([[0.4], [0.8], [1e30], [-1e30]]))[:, 0]
    assert between == pytest.approx(0.0, abs=1e-6)
    assert 1.3 < beyond < 1 + 2 * 0.1 / 0.6
    assert (far, below) == (pytest.approx(3.0), pytest.approx(-3.0))


def test_constant_columns_are_left_out_and_one_input_stays() -> None:
    x = numbers(50)
    x[:, 1] = 7.0
    assert prepared(x).shape == (50, 4)
    assert np.array_equal(np.unique(prepared(np.full((9, 3), 2.0))), [-1.0])


@pytest.mark.parametrize("value", [1e-45, 3e38, -3e38, 1e20])
def test_values_of_any_size_give_finite_inputs(value: float) -> None:
    x = np.zeros((300, 3), dtype=np.float32)
    x[:, 0] = np.linspace(-1, 1, 300)
    x[::7, 0], x[::3, 1], x[5, 2], x[6, 2] = value, value, value, value / 2
    every = np.concatenate([x, np.full((1, 3), 3e38, dtype=np.float32), np.full((1, 3), -3e38, dtype=np.float32)])
    found = prepared(x, every)
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 3.0


def with_gaps(rows: int = 600) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = np.concatenate([numbers(rows), (rng.random((rows, 2)) < 0.2) * 3.0], axis=1).astype(np.float32)
    x[rng.random(rows) < 0.3, 0] = np.nan
    x[rng.random(rows) < 0.1, 3] = np.nan
    return x


def test_a_gap_is_0_with_a_flag_and_the_scales_are_those_of_the_values_there() -> None:
    x = with_gaps()
    found, gaps = prepared(x), np.isnan(x)
    assert found.shape[1] == 2 * 3 + 2 + 2
    assert (found[gaps[:, 0]][:, [0, 3]] == 0).all()
    assert (found[gaps[:, 3], 6] == 0).all()
    assert np.array_equal(found[:, 8:], np.where(gaps[:, [0, 3]], 1, -1))
    there = x[~gaps[:, 0], :1]
    np.testing.assert_allclose(found[~gaps[:, 0]][:, [0, 3]], prepared(there), atol=1e-6)


def test_a_gap_where_none_was_in_training_counts_as_the_median() -> None:
    x = numbers(300)
    new = x[:1].copy()
    new[0, 1] = np.nan
    found = prepared(x, new)
    assert found.shape[1] == 6
    assert found[0, [1, 4]].tolist() == [0, 0]


def training(x: np.ndarray, positives: int = 90) -> dict[str, np.ndarray]:
    return {POSITIVES: x[:positives], NEGATIVES: x[positives:]}


def find(rows: dict[str, Rows]) -> Inputs:
    return find_inputs(rows, Alone(), 5)


def in_parts(arrays: dict[str, np.ndarray]) -> dict[str, Rows]:
    return {kind: DenseRows([x[:7], x[7:8], x[8:]], x.shape[1]) for kind, x in arrays.items()}


def equal(one: Inputs, other: Inputs) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return type(one) is type(other) and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_dense_and_sparse_rows_in_any_parts_have_the_same_scales_and_inputs() -> None:
    arrays = training(with_gaps())
    wanted = find(dense(arrays))
    assert isinstance(wanted, DenseInputs)
    assert equal(find(in_parts(arrays)), wanted)
    assert equal(find(compressed(arrays)), wanted)
    rows = [as_rows(arrays[POSITIVES], one).take(np.arange(90)) for one in (False, True)]
    assert isinstance(rows[1], SparseBatch)
    assert torch.equal(wanted(rows[0]), wanted(rows[1]))


def test_a_sample_has_both_classes_in_their_proportions(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = training(with_gaps(4000), 400)
    monkeypatch.setattr("bspauc_spark.theta.find_inputs._SAMPLE_ROWS", 1000)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        "bspauc_spark.theta.find_inputs.of_columns", lambda matrix: seen.append(matrix) or of_columns(matrix)
    )
    found = find(dense(arrays))
    (sample,) = seen
    assert len(sample) == 1000
    known = {row.tobytes() for row in arrays[POSITIVES]}
    assert sum(row.tobytes() in known for row in sample) == 100
    everything = find(in_parts(arrays))
    assert equal(everything, found)


def wide_rows(rows: int = 400) -> Any:
    rng = np.random.default_rng(2)
    x = sparse.random(rows, WIDE, 0.01, "csr", np.float32, rng, rng.standard_normal).tolil()
    x[:, 3] = (rng.random((rows, 1)) < 0.5) * 4e5 * rng.random((rows, 1))
    x[:, 8] = (rng.random((rows, 1)) < 0.5) * 1e-5
    x[:, 9] = (rng.random((rows, 1)) < 0.5) * 3.0
    return x.tocsr().astype(np.float32)


def sparse_rows(x: Any) -> SparseRows:
    return SparseRows([(x.indptr.astype(np.int64), x.indices.astype(np.int32), x.data)], x.shape[1])


def test_wide_sparse_rows_stay_sparse_and_only_columns_of_odd_sizes_are_divided() -> None:
    x = wide_rows()
    found = find({POSITIVES: sparse_rows(x[:90]), NEGATIVES: sparse_rows(x[90:])})
    assert isinstance(found, SparseInputs)
    divisors = dict(zip(found.scaled.tolist(), found.divisors.tolist(), strict=True))
    small = {column for column in range(WIDE) if (values := x[:, [column]].data).size and abs(values).max() < 0.01}
    assert divisors.keys() == {3} | small
    assert 8 in small
    for column, divisor in divisors.items():
        magnitudes = np.abs(x[:, [column]].data)
        assert np.log2(divisor) == pytest.approx(np.log2(magnitudes).mean(), abs=2)
    batch = found(sparse_rows(x).take(np.arange(400)))
    assert isinstance(batch, SparseBatch)
    wanted = x.toarray()
    for column, divisor in divisors.items():
        wanted[:, column] = clipped(wanted[:, column] / divisor)
    np.testing.assert_allclose(found(torch.from_numpy(x.toarray())), wanted, rtol=1e-6)
    assert len(batch.values) == x.nnz
    pointers = np.append(batch.offsets.numpy(), x.nnz)
    found_sparse = sparse.csr_matrix((batch.values, batch.indices, pointers), x.shape).toarray()
    np.testing.assert_allclose(found_sparse, wanted, rtol=1e-6)


def test_wide_sparse_rows_have_the_same_scales_in_any_order_and_gaps_are_0() -> None:
    x = wide_rows()
    x.data[::9] = np.nan
    order = np.random.default_rng(0).permutation(310)
    one = find({POSITIVES: sparse_rows(x[:90]), NEGATIVES: sparse_rows(x[90:])})
    assert equal(find({POSITIVES: sparse_rows(x[:90]), NEGATIVES: sparse_rows(x[90:][order])}), one)
    batch = one(sparse_rows(x).take(np.arange(400)))
    assert isinstance(batch, SparseBatch)
    assert (batch.values.numpy()[::9] == 0).all()
    assert np.isfinite(batch.values.numpy()).all()
