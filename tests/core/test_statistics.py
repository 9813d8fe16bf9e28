"""ClassScores against numpy, brute force and sklearn."""

import warnings
from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bspauc_spark.errors import BSPAUCError, InvalidScoresError
from bspauc_spark.statistics import (
    ClassScores,
    Ranking,
    auc,
    negative_loss,
    negative_losses,
    pair_sum,
    positive_loss,
    positive_losses,
    segment_sums,
)

plain = st.floats(-5, 5, width=32)
coarse = st.integers(-8, 8).map(lambda i: i / 4)
huge = st.floats(width=32, allow_nan=False, allow_infinity=False)
score_lists = st.one_of(*(st.lists(kind, min_size=1, max_size=40) for kind in (plain, coarse)))
huge_lists = st.lists(st.one_of(huge, plain), min_size=1, max_size=40)
shares = st.floats(0, 1)


def as_float32(scores) -> np.ndarray:
    return np.asarray(scores, dtype=np.float32).astype(np.float64)


def easiest(size: int, kept: float) -> np.ndarray:
    """Weights of a class whose easiest member comes first."""
    return np.clip(kept - np.arange(size), 0.0, 1.0)


def brute_positive_losses(s_pos, s_neg, kept) -> np.ndarray:
    negatives = np.sort(as_float32(s_neg))
    hinges = np.maximum(0.0, 1.0 - as_float32(s_pos)[:, None] + negatives)
    return hinges @ easiest(len(negatives), kept) / len(negatives)


def brute_negative_losses(s_neg, s_pos, kept) -> np.ndarray:
    positives = np.sort(as_float32(s_pos))[::-1]
    hinges = np.maximum(0.0, 1.0 - positives + as_float32(s_neg)[:, None])
    return hinges @ easiest(len(positives), kept) / len(positives)


def brute_pair_sum(s_pos, s_neg, kept_pos, kept_neg) -> float:
    losses = brute_positive_losses(np.sort(as_float32(s_pos))[::-1], s_neg, kept_neg)
    return float(easiest(len(s_pos), kept_pos) @ losses) * len(s_neg)


def test_scores_are_sorted_as_float32():
    scores = ClassScores.from_array(np.array([0.1, -3.0, 2.0]))
    assert scores.sorted.dtype == np.float32
    np.testing.assert_array_equal(scores.sorted, np.array([-3.0, 0.1, 2.0], np.float32))
    assert len(scores) == 3


def test_the_given_array_is_left_as_it_was():
    given_scores = np.array([3.0, 1.0, 2.0], np.float32)
    ClassScores.from_array(given_scores)
    np.testing.assert_array_equal(given_scores, [3.0, 1.0, 2.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_score_that_is_not_finite_in_float32_is_an_error_with_a_count(bad):
    with pytest.raises(InvalidScoresError, match="1 of 3 scores"):
        ClassScores.from_array([0.0, bad, 1.0])


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], 3.0])
def test_scores_that_are_empty_or_not_1d_are_an_error(bad):
    with pytest.raises(InvalidScoresError) as caught:
        ClassScores.from_array(bad)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, BSPAUCError)


@given(st.lists(st.lists(plain, max_size=10), min_size=1, max_size=5).filter(any))
def test_merging_sorted_parts_equals_sorting_everything(parts):
    merged = ClassScores.merge([np.sort(np.asarray(part, np.float32)) for part in parts])
    np.testing.assert_array_equal(merged.sorted, ClassScores.from_array(np.concatenate(parts)).sorted)


def test_merging_nothing_is_an_error():
    with pytest.raises(InvalidScoresError):
        ClassScores.merge([np.empty(0, np.float32), []])


@given(huge_lists, st.one_of(st.floats(allow_nan=False), plain, coarse))
def test_counts_are_exact_for_float64_keys(scores, x):
    of_class, exact = ClassScores.from_array(scores), as_float32(scores)
    assert of_class.count_below(x) == np.count_nonzero(exact < x)
    assert of_class.count_at_most(x) == np.count_nonzero(exact <= x)


@given(huge_lists, st.lists(st.one_of(st.floats(allow_nan=False), plain, coarse), max_size=20))
def test_counts_of_an_array_equal_counts_one_by_one(scores, keys):
    of_class, x = ClassScores.from_array(scores), np.array(keys, np.float64)
    assert of_class.counts_below(x).tolist() == [of_class.count_below(key) for key in keys]
    assert of_class.counts_at_most(x).tolist() == [of_class.count_at_most(key) for key in keys]


@pytest.mark.parametrize("size", [1, 1023, 1024, 2048, 5000, 1024 * 1024 * 17 + 77])
def test_range_sums_over_blocks_equal_plain_sums(size):
    rng = np.random.default_rng(size)
    of_class = ClassScores.from_array(rng.normal(size=size))
    for first, last in np.sort(rng.integers(0, size + 1, size=(20, 2)), axis=1):
        expected = of_class.sorted[first:last].sum(dtype=np.float64)
        assert of_class.range_sum(first, last) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(score_lists, score_lists, shares)
def test_positive_losses_equal_brute_force(s_pos, s_neg, share):
    kept = share * len(s_neg)
    expected = brute_positive_losses(s_pos, s_neg, kept)
    neg = ClassScores.from_array(s_neg)
    np.testing.assert_allclose(positive_losses(s_pos, neg, kept), expected, rtol=0, atol=1e-12)
    one_by_one = [positive_loss(s, neg, kept) for s in as_float32(s_pos)]
    np.testing.assert_allclose(one_by_one, expected, rtol=0, atol=1e-12)


@given(score_lists, score_lists, shares)
def test_negative_losses_equal_brute_force(s_pos, s_neg, share):
    kept = share * len(s_pos)
    expected = brute_negative_losses(s_neg, s_pos, kept)
    pos = ClassScores.from_array(s_pos)
    np.testing.assert_allclose(negative_losses(s_neg, pos, kept), expected, rtol=0, atol=1e-12)
    one_by_one = [negative_loss(s, pos, kept) for s in as_float32(s_neg)]
    np.testing.assert_allclose(one_by_one, expected, rtol=0, atol=1e-12)


@given(huge_lists, huge_lists)
def test_losses_of_huge_scores_stay_finite_and_relatively_exact(s_pos, s_neg):
    losses = positive_losses(s_pos, ClassScores.from_array(s_neg))
    scale = 1.0 + max(np.abs(as_float32(s_pos)).max(), np.abs(as_float32(s_neg)).max())
    np.testing.assert_allclose(losses, brute_positive_losses(s_pos, s_neg, len(s_neg)), atol=1e-12 * scale)


@pytest.mark.parametrize("size", [50, 5000])
def test_an_outlying_easy_score_does_not_spoil_the_other_losses(size):
    scores = np.random.default_rng(0).normal(size=size)
    scores[0] = -1e30
    losses = positive_losses([0.5, 2.0], ClassScores.from_array(scores))
    np.testing.assert_allclose(losses, brute_positive_losses([0.5, 2.0], scores, size), rtol=1e-12)


@given(score_lists, score_lists, shares, shares)
def test_the_pair_sum_of_kept_rows_equals_brute_force(s_pos, s_neg, share_pos, share_neg):
    kept = share_pos * len(s_pos), share_neg * len(s_neg)
    got = pair_sum(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg), *kept)
    assert got == pytest.approx(brute_pair_sum(s_pos, s_neg, *kept), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("sizes", [(3000, 7000), (7000, 3000)])
def test_the_pair_sum_over_many_blocks_equals_brute_force(sizes):
    rng = np.random.default_rng(1)
    s_pos, s_neg = rng.normal(1, 1, sizes[0]), rng.normal(0, 1, sizes[1])
    got = pair_sum(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg))
    assert got == pytest.approx(brute_pair_sum(s_pos, s_neg, *map(float, sizes)), rel=1e-12)


def test_the_pair_sum_in_chunks_equals_the_pair_sum_in_one(monkeypatch):
    rng = np.random.default_rng(2)
    pos, neg = (ClassScores.from_array(rng.normal(size=size)) for size in (900, 1100))
    whole = pair_sum(pos, neg, 700.25, 800.5), auc(pos, neg)
    monkeypatch.setattr("bspauc_spark.statistics._CHUNK", 64)
    assert (pair_sum(pos, neg, 700.25, 800.5), auc(pos, neg)) == pytest.approx(whole, rel=1e-13)


@given(score_lists, score_lists)
def test_the_auc_equals_sklearns(s_pos, s_neg):
    labels = np.repeat([1, 0], [len(s_pos), len(s_neg)])
    expected = roc_auc_score(labels, np.concatenate([as_float32(s_pos), as_float32(s_neg)]))
    assert auc(ClassScores.from_array(s_pos), ClassScores.from_array(s_neg)) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30)
@given(score_lists, st.randoms(use_true_random=False))
def test_the_order_of_the_scores_does_not_matter(scores, random):
    shuffled = list(scores)
    random.shuffle(shuffled)
    np.testing.assert_array_equal(ClassScores.from_array(scores).sorted, ClassScores.from_array(shuffled).sorted)


def test_sums_of_segments_in_parts_equal_plain_sums(monkeypatch):
    monkeypatch.setattr("bspauc_spark.statistics._CHUNK", 8)
    rng = np.random.default_rng(3)
    values = rng.normal(size=300).astype(np.float32)
    # Empty segments, short ones of which several make a part, and some that are longer than a part.
    edges = np.sort(np.concatenate([rng.integers(0, 301, 60), [0, 0, 40, 90, 300, 300]]))
    expected = [values[a:b].sum(dtype=np.float64) for a, b in pairwise(edges)]
    np.testing.assert_allclose(segment_sums(values, edges), expected, rtol=1e-12, atol=1e-12)
    assert segment_sums(values, edges[:1]).size == 0


def test_a_class_shows_its_size_and_its_ends():
    assert repr(ClassScores.from_array([3.0, -1.5, 2.0])) == "ClassScores(3 scores, -1.5 to 3)"


def test_counts_are_exact_at_the_ends_of_float32_and_beyond():
    largest = float(np.finfo(np.float32).max)
    scores = ClassScores.from_array([-largest, 0.0, largest])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [scores.count_below(x) for x in (-1e39, -largest, largest, 1e39)] == [0, 0, 2, 3]
        assert [scores.count_at_most(x) for x in (-1e39, -largest, largest, 1e39)] == [0, 1, 3, 3]


def test_no_parts_make_no_class():
    with pytest.raises(InvalidScoresError, match="there are no scores"):
        ClassScores.merge([])


def test_scores_stay_as_they_are_and_only_the_same_object_is_equal():
    scores, others = (ClassScores.from_array([0.0, 1.0]) for _ in range(2))
    with pytest.raises(ValueError, match="read-only"):
        scores.sorted[0] = 2.0
    with pytest.raises(FrozenInstanceError):
        scores.sorted = others.sorted
    with pytest.raises(FrozenInstanceError):
        Ranking(scores, positive=True).positive = False
    assert scores != others
