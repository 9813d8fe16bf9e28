"""The sample of rows that pre-training uses, drawn by each rank for itself."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare, ks_1samp, uniform

from bspauc_spark.theta.sample import in_sample


@pytest.mark.parametrize("total", [1, 2, 3, 10, 64, 65, 1000, 4096])
def test_it_has_exactly_as_many_rows_as_wanted(total: int) -> None:
    for wanted in {1, total // 3, total // 2, total - 1, total, total + 5} - {0}:
        assert in_sample(0, total, total, wanted, seed=7).sum() == min(wanted, total)


def test_it_is_the_same_whatever_rank_holds_which_rows() -> None:
    whole = in_sample(0, 600_001, 600_001, 1234, seed=3)
    for cuts in ([0, 600_001], [0, 5, 5, 300_000, 600_001], [0, 600_000, 600_001]):
        parts = [in_sample(a, b - a, 600_001, 1234, seed=3) for a, b in pairwise(cuts)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_another_seed_is_another_sample() -> None:
    one, other = (np.flatnonzero(in_sample(0, 10_000, 10_000, 100, seed)) for seed in (0, 1))
    assert len(set(one) & set(other)) < 10


def test_rows_are_drawn_alike_wherever_they_stand() -> None:
    times = sum(in_sample(0, 50, 50, 10, seed).astype(int) for seed in range(4000))
    assert chisquare(times).pvalue > 0.001
    places = np.flatnonzero(in_sample(0, 1_000_000, 1_000_000, 2000, seed=5)) / 1e6
    assert ks_1samp(places, uniform.cdf).pvalue > 0.001


def test_pairs_of_neighbours_are_no_more_often_together_than_others() -> None:
    together = sum(bool(in_sample(7, 2, 50, 10, seed).all()) for seed in range(4000))
    assert together / 4000 == pytest.approx(10 / 50 * 9 / 49, abs=0.012)


def test_a_rank_needs_memory_for_its_own_rows_alone() -> None:
    in_sample(0, 10, 100, 5, seed=0)
    tracemalloc.start()
    chosen = in_sample(10**9, 1_000_000, 10**10, 10**8, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6
    assert chosen.mean() == pytest.approx(0.01, abs=0.001)
